"""Web searches of a script are raw blocks, which come as the API sends them and have to come back so."""

from typing import Any

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
