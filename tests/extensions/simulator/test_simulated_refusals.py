"""What the simulator refuses, as the Messages API does."""

import base64
import json
from typing import Any

import httpx2
import pytest

from subagent_server.extensions.simulator import Simulator
from tests.extensions.simulator.clients import LOCAL, post

Block = dict[str, Any]

SCRIPT = {"turns": [{"text": "ok", "repeat": 9}]}
PNG = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"png").decode("ascii")}


def user(*content: Any) -> dict[str, Any]:
    return {
        "role": "user",
        "content": list(content) if content and isinstance(content[0], dict) else content[0],
    }


def assistant(*content: Any) -> dict[str, Any]:
    return user(*content) | {"role": "assistant"}


def text(said: str = "x", **more: Any) -> Block:
    return {"type": "text", "text": said, **more}


def call(call_id: str = "t1", **more: Any) -> Block:
    return {"type": "tool_use", "id": call_id, "name": "bash", "input": {}, **more}


def result(call_id: str = "t1", **more: Any) -> Block:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "x", **more}


def tool(**more: Any) -> Block:
    return {"name": "now", "input_schema": {"type": "object"}, **more}


GO = user("go")
MARK = {"type": "ephemeral"}
IMAGE = {"type": "image", "source": PNG}
SEARCH: Block = {"type": "web_search_20250305", "name": "web_search"}

WRONG_MESSAGES: list[tuple[Any, str]] = [
    ([{"role": "tool", "content": "x"}], "messages.0.role"),
    ([assistant("x"), GO], 'the first message must use the "user" role'),
    ([user("")], "messages.0: all messages"),
    ([GO, assistant(""), GO], "messages.1: all messages"),
    ([user(text(""))], "text content blocks must be non-empty"),
    ([user(" \n")], "text content blocks must contain non-whitespace text"),
    ([user({"text": "x"})], "messages.0.content.0.type: Field required"),
    ([GO, assistant("I think")], "the conversation must end with a user message"),
    ([user(call())], "`tool_use` blocks can only be in `assistant` messages"),
    ([GO, assistant(result()), GO], "`tool_result` blocks can only be in `user`"),
    ([user(result())], "messages.0.content.0: unexpected `tool_use_id` found in `tool_result`"),
    ([GO, assistant(call()), user(result()), assistant("x"), user(result())], "unexpected `tool_use_id`"),
    ([GO, assistant(call()), GO], "messages.1: `tool_use` ids were found without `tool_result`"),
    ([GO, assistant(call(), call("t2")), user(result())], "immediately after: t2"),
    ([GO, assistant(call()), user(text(), result())], "immediately after: t1"),
    ([GO, assistant(call())], "immediately after: t1"),
    ([GO, assistant(call()), user(result(), result())], "there are several `tool_result`: t1"),
    ([GO, assistant(call()), user(result()), assistant(call()), user(result())], "ids must be unique"),
    ([GO, assistant(call("t 1")), user(result("t 1"))], "tool_use.id: must match"),
    ([GO, assistant(call(input="{}")), user(result())], "tool_use.input: must be an object"),
    ([GO, assistant(call()), user(result(is_error=True, content=""))], "content cannot be empty if"),
    ([GO, assistant(call()), user(result(is_error=True, content=[IMAGE]))], "must be of type 'text' if"),
    ([GO, assistant(call()), user(result(content=[text("")]))], "must be non-empty"),
    ([user(IMAGE | {"source": PNG | {"media_type": "image/bmp"}})], "media_type"),
    ([user(IMAGE | {"source": PNG | {"data": "&"}})], "is not valid base64"),
    ([user(IMAGE | {"type": "document"})], "must be one of application/pdf"),
    ([GO, assistant({"type": "thinking", "thinking": "x", "signature": "y"}), GO], "Invalid `signature` in"),
    ([user(*[text(cache_control=MARK)] * 5)], "At most 4 blocks may carry cache_control"),
    ([user(text(cache_control={"type": "ephemeral", "ttl": "2h"}))], "must be '5m' or '1h'"),
]
WRONG_TOOLS: list[tuple[list[Block], str]] = [
    ([tool(), tool()], "tools: tool names must be unique, and 'now' appears twice"),
    ([tool(name="a b")], "tools.0.custom.name: must match"),
    ([tool(name="x" * 129)], "tools.0.custom.name: must match"),
    ([tool(input_schema={})], "tools.0.custom.input_schema.type: must be 'object'"),
    ([tool(input_schema={"type": "object", "anyOf": []})], "at the top level"),
    ([tool(input_schema={"type": "object", "properties": {"a b": {}}})], "the key 'a b'"),
    ([tool(input_schema={"type": "object", "required": "a"})], "draft 2020-12"),
    ([{"type": "bash_20250124", "name": "sh"}], "tools.0.bash_20250124.name: must be 'bash'"),
    ([SEARCH | {"name": "search"}], "must be 'web_search'"),
    ([SEARCH | {"type": "web_search_20200101"}], "not a known tool type"),
    ([SEARCH | {"allowed_domains": ["a.org"], "blocked_domains": ["b.org"]}], "only one of"),
    ([SEARCH | {"allowed_domains": ["https://a.org"]}], "without a scheme"),
    ([SEARCH | {"max_uses": 0}], "at least 1"),
    ([SEARCH | {"type": "web_fetch_20250910", "name": "web_fetch", "user_location": {}}], "Extra inputs"),
]
WRONG = [
    *({"messages": messages, "message": message} for messages, message in WRONG_MESSAGES),
    *({"tools": tools, "message": message} for tools, message in WRONG_TOOLS),
    {"system": [text("")], "message": "text content blocks must be non-empty"},
    *({key: None, "message": f"{key}: Field required"} for key in ("model", "max_tokens", "messages")),
]


@pytest.mark.parametrize("given", WRONG)
def test_what_the_api_would_refuse_is_an_invalid_request(given: dict[str, Any]) -> None:
    body = dict(given)
    message = body.pop("message")
    with Simulator(SCRIPT) as simulator:
        response = post(simulator, stream=True, **body)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert message in error["message"]


def test_what_the_api_takes_is_taken() -> None:
    rich = [text(), IMAGE, {"type": "image", "source": {"type": "url", "url": "u"}}]
    messages = [
        user("one"),
        user("two messages of one role are one turn"),
        assistant(
            call(),
            call("t2"),
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        ),
        user(result("t2", content=rich), result(is_error=True, content=[text()])),
        {"role": "system", "content": "Be brief."},
        user(text("and more", cache_control=MARK)),
        assistant(call("t3"), call("t4"), call("t5")),
        user(result("t3", content="")),
        user(result("t4", content=[]), {"type": "tool_result", "tool_use_id": "t5"}, text()),
    ]
    tools = [
        tool(input_schema={"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}]}}}),
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        SEARCH | {"cache_control": MARK},
        {"type": "browser_toolset_20260801"},
    ]
    given: dict[str, Any] = {
        "messages": messages,
        "tools": tools,
        "tool_choice": {"type": "tool", "name": "now"},
        "system": [text(cache_control=MARK)],
        "cache_control": MARK,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "max_tokens": 1025,
        "metadata": {"user_id": "x"},
        "output_config": {"effort": "high"},
        "temperature": 1,
    }
    headers = {"authorization": "Bearer x", "anthropic-version": "2099-01-01", "anthropic-beta": "a,b"}
    with Simulator(SCRIPT) as simulator:
        response = post(simulator, headers=headers, **given)
    assert response.status_code == 200, response.text


def test_a_prefilled_answer_is_taken_where_the_script_allows_it() -> None:
    with Simulator(SCRIPT | {"allow_prefill": True}) as simulator:
        assert post(simulator, messages=[GO, assistant("I think")]).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"x-api-key": ""}])
def test_a_request_without_a_key_is_an_authentication_error(headers: dict[str, str]) -> None:
    with Simulator(SCRIPT) as simulator:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            response = post(simulator, path=path, headers=headers)
            error = response.json()["error"]
            assert (response.status_code, error["type"]) == (401, "authentication_error")


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[]", b"null", b'"x"'])
def test_a_body_that_is_no_json_object_is_an_invalid_request(raw: bytes) -> None:
    with Simulator(SCRIPT) as simulator:
        response = post(simulator, raw=raw)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


def test_a_body_over_32_mb_is_too_large() -> None:
    with Simulator(SCRIPT) as simulator:
        response = post(simulator, raw=json.dumps({"x": "y" * 33_600_000}).encode("ascii"))
    assert (response.status_code, response.json()["error"]["type"]) == (413, "request_too_large")


def test_another_path_or_method_is_an_error_of_the_same_shape() -> None:
    with Simulator(SCRIPT) as simulator:
        missing = post(simulator, path="/v1/complete")
        wrong = httpx2.get(simulator.base_url + "/v1/messages", **LOCAL)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert (wrong.status_code, wrong.json()["type"]) == (405, "error")
