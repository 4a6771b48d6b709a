"""Web searches of a script are raw blocks, which come as the API sends them and have to come back so."""

from typing import Any

import pytest

from subagent_server.extensions.simulator import Simulator
from tests.extensions.simulator.clients import ask, post
from tests.helpers.turns import cites, search, used

Json = dict[str, Any]

SEARCH: Json = {"type": "web_search_20250305", "name": "web_search"}
GO: Json = {"role": "user", "content": "go"}
CATS = "https://cats.org"
FOUND: Json = {
    "content": [{"text": "I look."}, *search("cats", (CATS, "Cats")), cites("Cats.", CATS)],
    "usage": used(web_search=1),
}


def test_a_search_comes_with_its_input_its_results_its_citations_and_its_count() -> None:
    with Simulator({"turns": [FOUND]}) as simulator:
        streamed = ask(simulator, "go", tools=[SEARCH]).to_dict()
        plain = post(simulator, messages=[GO], tools=[SEARCH]).json()
    blocks: Any = streamed["content"]
    assert [block["type"] for block in blocks] == [block["type"] for block in plain["content"]]
    assert blocks[1]["input"] == {"query": "cats"} and blocks[1]["id"] == blocks[2]["tool_use_id"]
    (result,) = blocks[2]["content"]
    assert (result["url"], result["title"]) == (CATS, "Cats") and result["encrypted_content"]
    assert (blocks[3]["text"], blocks[3]["citations"][0]["url"]) == ("Cats.", CATS)
    counted = {"web_search_requests": 1, "web_fetch_requests": 0}
    assert streamed["usage"]["server_tool_use"] == plain["usage"]["server_tool_use"] == counted  # type: ignore[index]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda blocks: blocks[1].update(input={}), "input.query: Field required"),
        (lambda blocks: blocks[2]["content"][0].update(encrypted_content="A"), "`encrypted_content`"),
        (lambda blocks: blocks[3]["citations"][0].update(encrypted_index="A"), "`encrypted_index`"),
        (lambda blocks: blocks.pop(2), "without their result"),
        (lambda blocks: blocks.pop(1), "unexpected `tool_use_id`"),
    ],
)
def test_blocks_of_a_search_that_come_back_changed_are_refused(spoil: Any, words: str) -> None:
    again = {"role": "user", "content": "and?"}
    with Simulator({"turns": [FOUND], "after": "repeat_last"}) as simulator:
        content = post(simulator, messages=[GO], tools=[SEARCH]).json()["content"]
        said = {"role": "assistant", "content": content}
        assert post(simulator, messages=[GO, said, again], tools=[SEARCH]).status_code == 200
        spoil(said["content"])
        response = post(simulator, messages=[GO, said, again], tools=[SEARCH])
    assert response.status_code == 400 and words in response.json()["error"]["message"]
