"""Searches and fetches that the API makes itself, in the built-in loop."""

from decimal import Decimal
from typing import Any

import pytest

from subagent_server.loop.model import UsageMeter, find_prices
from subagent_server.loop.web import WebTools
from tests.helpers.turns import Turn, cites, fetch, says, search, used
from tests.loop.scripted_run import Played, ScriptedTool, echo

Json = dict[str, Any]

SEARCH: Json = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
FETCH: Json = {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 3}
ECHO = ScriptedTool("echo", echo)
CATS = search("cats", ("https://cats.org", "Cats"))
ONCE = used(web_search=1)
CALL: Json = {"type": "tool_use", "name": "echo", "input": {}}


def web(**limits: int) -> WebTools:
    """Return both tools; each may be used three times unless another limit is given."""
    return WebTools((SEARCH, FETCH), {"web_search": 3, "web_fetch": 3, **limits})


def turn(*blocks: Json, **more: Any) -> Turn:
    return {"content": list(blocks), **more}


def searched(*turns: Turn, **more: Any) -> Played:
    """Return a conversation with web tools and one tool of ours, carried to its end."""
    return Played(*turns, tools=[ECHO], **{"web": web(), **more})


def texts(message: Json) -> list[str]:
    return [block["text"] for block in message["content"] if block["type"] == "text"]


def test_a_search_stays_in_the_conversation_as_it_came_and_is_noted_with_its_sources() -> None:
    cited = cites("Cats purr.", "https://purr.org", "Purring")
    played = searched(turn({"text": "I look. "}, *CATS, {"text": "It says: "}, cited, CALL), says("Done."))
    assert played.outcome.text == "Done."
    sent = played.bodies[1]["messages"][1]["content"]
    assert sent[1]["input"] == {"query": "cats"} and sent[2]["content"][0]["encrypted_content"]
    assert sent[4]["citations"][0]["encrypted_index"]
    (call, *_), (result, *_) = played.run.recorded("tool_call"), played.run.recorded("tool_result")
    assert (call["toolName"], call["arguments"], call["server"]) == ("web_search", {"query": "cats"}, True)
    assert (result["text"], result["isError"], result["server"]) == ("Cats https://cats.org", False, True)
    assert "encrypted" not in str(played.run.journal)
    assert [source.url for source in played.outcome.sources] == ["https://purr.org", "https://cats.org"]
    assert played.run.recorded("text")[0]["text"] == "I look. \n\nIt says: Cats purr.", (
        "one sentence in two pieces"
    )


def test_searches_count_in_usage_and_cost_those_that_fail_do_not() -> None:
    failed = search("x", error="unavailable")
    again, fetched = search("cats"), fetch("https://cats.org")
    free = {
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
    }
    script = (
        turn(*CATS, *failed, *again, CALL, usage=free | used(web_search=2)),
        turn(*fetched, {"text": "Done."}, usage=free | used(web_fetch=1)),
    )
    played = searched(*script, meter=UsageMeter(find_prices("claude-sonnet-4-5")))
    usage = played.loop.usage
    assert (usage.web_searches, usage.web_fetches, usage.cost_usd) == (2, 1, Decimal("0.02"))
    errors = [result for result in played.run.recorded("tool_result") if result["isError"]]
    assert [error["text"] for error in errors] == ["error: unavailable"]


def test_a_paused_reply_is_carried_on_and_its_text_is_joined_to_the_result() -> None:
    paused = turn({"text": "First half."}, *CATS, stop_reason="pause_turn")
    again = turn(*search("cats"), {"text": "Second."}, stop_reason="pause_turn")
    played = searched(paused, again, says("Third."))
    assert played.outcome.text == "First half.\n\nSecond.\n\nThird."
    assert [m["role"] for m in played.bodies[2]["messages"]] == ["user", "assistant", "assistant"]
    assert played.bodies[0]["tools"] == played.bodies[1]["tools"] == played.bodies[2]["tools"]
    later = searched(paused, turn(CALL), says("Done."))
    assert later.outcome.text == "Done.", "the text before a call of ours is no result"


def test_a_search_beside_a_call_of_ours_is_answered_in_the_next_reply() -> None:
    played = searched(turn(CATS[0], CALL), turn(CATS[1], {"text": "Done."}))
    assert played.outcome.text == "Done." and len(played.bodies) == 2
    (call, _), (ours, late) = played.run.recorded("tool_call"), played.run.recorded("tool_result")
    assert ours["toolName"] == "echo"
    assert late["toolCallId"] == call["toolCallId"] and late["toolName"] == "web_search"


def test_uses_are_counted_over_the_run_and_the_model_hears_of_the_limit_once() -> None:
    played = searched(
        turn(*CATS, CALL, usage=ONCE),
        turn(*search("cats"), CALL, usage=ONCE),
        turn(CALL),
        says("Done."),
        web=web(web_search=2),
    )
    offered = [[tool["name"] for tool in body["tools"]] for body in played.bodies]
    assert offered == [["echo", "web_search", "web_fetch"]] * 2 + [["echo", "web_fetch"]] * 2
    assert texts(played.bodies[1]["messages"][-1]) == []
    (notice,) = texts(played.bodies[2]["messages"][-1])
    assert "2 web searches" in notice and "all are used" in notice
    assert texts(played.bodies[3]["messages"][-1]) == []


def test_a_tool_whose_uses_are_gone_is_still_offered_for_a_search_that_waits() -> None:
    waiting, late = turn(CATS[0], CALL), turn(CATS[1], CALL, usage=ONCE)
    played = searched(waiting, late, says("Done."), web=web(web_search=1))
    offered = ["web_search" in [tool["name"] for tool in body["tools"]] for body in played.bodies]
    assert offered == [True, True, False]


def test_a_reply_that_is_paused_again_and_again_with_its_uses_gone_ends_with_budget() -> None:
    paused = turn(*CATS, {"text": "Still."}, stop_reason="pause_turn", usage=ONCE)
    played = searched(paused, script={"after": "repeat_last"}, web=web(web_search=2))
    assert played.failure.code == "budget" and "web searches" in played.failure.message
    assert len(played.bodies) == 3 and played.outcome.text == "Still.\n\nStill.\n\nStill."


def test_pings_keep_a_search_alive_and_nothing_else() -> None:
    slow = turn(*search("cats", seconds=1.2), {"text": "Done."})
    played = searched(slow, settings={"idle_seconds": 0.4})
    assert played.outcome.text == "Done." and len(played.bodies) == 1 and not played.run.pauses


@pytest.mark.parametrize(
    "message",
    [
        "tools.1: Input tag 'web_search_20250305' found using 'type' does not match any of the expected tags",
        "Web search is not enabled for this organization.",
        "tools.2.custom.input_schema: Field required",
    ],
)
def test_an_api_that_refuses_the_web_tools_ends_the_run_with_config_and_its_words(message: str) -> None:
    played = searched({"text": "x", "fault": {"status": 400, "message": message}})
    assert played.failure.code == "config" and message in played.failure.message
    assert "WebSearch" in (played.failure.hint or "")


@pytest.mark.parametrize(
    "message",
    [
        "messages.1.content.2: Invalid `encrypted_content` in `web_search_result`",
        "tools.0.name: wrong",
        "Bad.",
    ],
)
def test_any_other_refusal_stays_one_of_the_model(message: str) -> None:
    played = searched({"text": "x", "fault": {"status": 400, "message": message}})
    assert played.failure.code == "model_error" and message in played.failure.message


def raw(**block: Any) -> Json:
    """Return a block that is sent as it stands."""
    return {"type": "raw", "raw": block}


def answer(kind: str, content: Any) -> Json:
    """Return the answer of a tool of the API to a call that there may not have been."""
    return raw(type=f"{kind}_tool_result", tool_use_id="s", content=content)


ODD = {
    "an empty input": raw(type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
    "wrong types": raw(type="server_tool_use", id=None, name=7, input="text"),
    "nothing": raw(type="server_tool_use"),
    "a result of nothing": raw(type="web_search_tool_result"),
    "a wrong id": raw(type="web_search_tool_result", tool_use_id=["x"], content=[]),
    "wrong results": answer("web_search", [None, 3, {"url": 4, "title": {}}]),
    "a wrong error": answer("web_search", {"error_code": ["x"]}),
    "a page as text": answer("web_fetch", "page"),
    "a wrong page": answer("web_fetch", {"url": ["x"], "content": 3}),
    "a huge address": answer("web_search", [{"url": "u" * 9_000_000, "title": "t"}]),
    "very many results": answer("web_search", [{"url": f"u{n}"} for n in range(20_000)]),
    "another tool": answer("bash_code_execution", {"stdout": "x"}),
    "a new kind": raw(type="nobody_knows_this", content=[1, {"deep": None}]),
    "wrong citations": raw(type="text", text="x", citations=[None, "x", {"url": 3}]),
}


@pytest.mark.parametrize("block", ODD.values(), ids=ODD)
def test_whatever_the_api_sends_of_its_tools_the_run_comes_to_its_result(block: Json) -> None:
    played = searched(turn(block, {"text": " Done."}))
    assert played.outcome.failure is None and played.outcome.text.endswith("Done.")
    assert len(str(played.run.journal)) < 200_000
    assert len(played.outcome.sources) <= 100 and all(len(s.url) <= 2_000 for s in played.outcome.sources)
