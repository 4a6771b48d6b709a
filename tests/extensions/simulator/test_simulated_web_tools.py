"""The simulator's web search and fetch, as the Messages API runs them."""

from typing import Any

import pytest

from subagent_server.extensions.simulator import Simulator
from tests.extensions.simulator.clients import ask, post

Json = dict[str, Any]

SEARCH: Json = {"type": "web_search_20250305", "name": "web_search"}
FETCH: Json = {"type": "web_fetch_20250910", "name": "web_fetch"}
NOW: Json = {"name": "now", "input_schema": {"type": "object"}}
GO: Json = {"role": "user", "content": "go"}
QUERY: Json = {
    "type": "web_search",
    "query": "cats",
    "results": [{"url": "https://cats.org", "title": "Cats"}],
}
FOUND: Json = {
    "content": [{"text": "I look."}, QUERY, {"text": "Cats.", "citations": [{"url": "https://cats.org"}]}]
}


def answered(simulator: Simulator, *messages: Json, tools: Any = (SEARCH, FETCH)) -> Json:
    """Return the whole answer to these messages."""
    response = post(simulator, messages=[GO, *messages], tools=list(tools))
    assert response.status_code == 200, response.text
    message: Json = response.json()
    return message


def said(message: Json) -> Json:
    """Return an answer as the client sends it back."""
    return {"role": "assistant", "content": message["content"]}


def test_a_search_comes_whole_with_its_input_its_results_its_citations_and_its_count() -> None:
    with Simulator({"turns": [FOUND]}) as simulator:
        streamed = ask(simulator, "go", tools=[SEARCH]).to_dict()
        plain = answered(simulator)
    blocks: Any = streamed["content"]
    assert [block["type"] for block in blocks] == [
        "text",
        "server_tool_use",
        "web_search_tool_result",
        "text",
    ]
    assert blocks[1]["input"] == {"query": "cats"} and blocks[1]["id"] == blocks[2]["tool_use_id"]
    (result,) = blocks[2]["content"]
    assert (result["url"], result["title"]) == ("https://cats.org", "Cats") and result["encrypted_content"]
    assert blocks[3]["citations"][0]["type"] == "web_search_result_location"
    assert streamed["stop_reason"] == "end_turn"
    counted = {"web_search_requests": 1, "web_fetch_requests": 0}
    assert plain["usage"]["server_tool_use"] == counted
    assert streamed["usage"]["server_tool_use"] == counted  # type: ignore[index]


def test_a_paused_answer_goes_on_without_a_user_message_and_a_finished_one_does_not() -> None:
    turns = [{"content": [QUERY], "stop_reason": "pause_turn"}, {"text": "Done."}]
    with Simulator({"turns": turns}) as simulator:
        paused = answered(simulator)
        assert paused["stop_reason"] == "pause_turn"
        assert answered(simulator, said(paused))["content"] == [{"type": "text", "text": "Done."}]
        refused = post(simulator, messages=[GO, {"role": "assistant", "content": "x"}], tools=[SEARCH])
    assert refused.status_code == 400 and "must end with a user message" in refused.text


def test_a_search_beside_a_call_of_the_client_is_made_at_the_next_request() -> None:
    pending = {"content": [{**QUERY, "pending": True}, {"name": "now", "id": "toolu_1"}]}
    with Simulator({"turns": [pending, {"text": "Done."}]}) as simulator:
        first = answered(simulator, tools=[SEARCH, NOW])
        assert first["stop_reason"] == "tool_use"
        assert [block["type"] for block in first["content"]] == ["server_tool_use", "tool_use"]
        given = {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}],
        }
        second = answered(simulator, said(first), given, tools=[SEARCH, NOW])
    assert [block["type"] for block in second["content"]] == ["web_search_tool_result", "text"]
    assert second["content"][0]["tool_use_id"] == first["content"][0]["id"]
    assert second["usage"]["server_tool_use"]["web_search_requests"] == 1


def test_uses_above_the_limit_of_a_request_and_errors_of_a_script_are_reported_and_not_counted() -> None:
    failing = {"type": "web_search", "query": "d", "error": "too_many_requests"}
    with Simulator({"turns": [{"content": [failing, QUERY, QUERY]}]}) as simulator:
        message = answered(simulator, tools=[SEARCH | {"max_uses": 2}])
    codes = [b["content"] for b in message["content"] if b["type"] == "web_search_tool_result"]
    assert codes[0] == {"type": "web_search_tool_result_error", "error_code": "too_many_requests"}
    assert codes[2]["error_code"] == "max_uses_exceeded" and isinstance(codes[1], list)
    assert message["usage"]["server_tool_use"]["web_search_requests"] == 1


@pytest.mark.parametrize(
    ("url", "tool", "code"),
    [
        ("https://elsewhere.org/", {}, "url_not_in_prior_context"),
        ("https://sub.example.com/a", {"allowed_domains": ["other.org"]}, "url_not_allowed"),
        ("https://sub.example.com/a", {"blocked_domains": ["example.com"]}, "url_not_allowed"),
        ("https://sub.example.com/a", {"allowed_domains": ["example.com/a"]}, None),
    ],
)
def test_a_page_is_fetched_if_its_address_was_named_and_is_allowed(
    url: str, tool: Json, code: str | None
) -> None:
    script = {"turns": [{"content": [{"type": "web_fetch", "url": url, "page": "Hello."}]}]}
    prompt = {"role": "user", "content": "Read https://sub.example.com/a please."}
    with Simulator(script) as simulator:
        response = post(simulator, messages=[prompt], tools=[FETCH | tool])
    result = response.json()["content"][1]["content"]
    assert result.get("error_code") == code
    if code is None:
        assert result["content"]["source"]["data"] == "Hello."


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (SEARCH | {"name": "search"}, "must be 'web_search'"),
        (SEARCH | {"type": "web_search_20200101"}, "not a known tool type"),
        (SEARCH | {"allowed_domains": ["a.org"], "blocked_domains": ["b.org"]}, "only one of"),
        (SEARCH | {"allowed_domains": ["https://a.org"]}, "without a scheme"),
        (SEARCH | {"allowed_domains": []}, "at least one domain"),
        (SEARCH | {"max_uses": 0}, "at least 1"),
        (FETCH | {"user_location": {}}, "Extra inputs"),
    ],
)
def test_a_web_tool_that_the_api_would_not_take_is_refused(tool: Json, words: str) -> None:
    with Simulator({"turns": [FOUND]}) as simulator:
        response = post(simulator, tools=[tool])
    assert response.status_code == 400 and words in response.json()["error"]["message"]


def test_an_api_without_these_tools_refuses_them() -> None:
    with Simulator({"turns": [FOUND], "web_tools": False}) as simulator:
        response = post(simulator, tools=[SEARCH])
    assert response.status_code == 400 and "not supported" in response.text


def _without_input(blocks: list[Json]) -> None:
    blocks[1]["input"] = {}


def _changed_result(blocks: list[Json]) -> None:
    blocks[2]["content"][0]["encrypted_content"] = "AAAA"


def _changed_citation(blocks: list[Json]) -> None:
    blocks[3]["citations"][0]["encrypted_index"] = "AAAA"


def _without_result(blocks: list[Json]) -> None:
    del blocks[2]


def _without_call(blocks: list[Json]) -> None:
    del blocks[1]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_without_input, "input.query: Field required"),
        (_changed_result, "Invalid `encrypted_content`"),
        (_changed_citation, "Invalid `encrypted_index`"),
        (_without_result, "without their result"),
        (_without_call, "unexpected `tool_use_id`"),
    ],
)
def test_blocks_of_a_search_that_come_back_changed_are_refused(spoil: Any, words: str) -> None:
    with Simulator({"turns": [FOUND], "after": "repeat_last"}) as simulator:
        first = answered(simulator)
        again = {"role": "user", "content": "and?"}
        assert answered(simulator, said(first), again)["stop_reason"] == "end_turn"
        spoil(first["content"])
        response = post(simulator, messages=[GO, said(first), again], tools=[SEARCH])
    assert response.status_code == 400 and words in response.json()["error"]["message"]


def test_a_text_with_citations_cannot_come_from_a_user() -> None:
    with Simulator({"turns": [FOUND]}) as simulator:
        cited = answered(simulator)["content"][3]
        response = post(simulator, messages=[{"role": "user", "content": [cited]}], tools=[SEARCH])
    assert response.status_code == 400 and "citations are not permitted" in response.text
