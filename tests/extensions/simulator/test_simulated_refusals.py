"""What the simulator refuses, as the Messages API does."""

import json
from typing import Any

import httpx2
import pytest

from subagent_server.extensions.simulator import Simulator
from tests.extensions.simulator.clients import LOCAL, post

SCRIPT = {"turns": [{"text": "ok", "repeat": 9}]}
GO = {"role": "user", "content": "go"}
SAID = {"role": "assistant", "content": "I think"}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "bash", "input": {}}]}
THOUGHT = {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "y"}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "x"}]}
MARKED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
NESTED: Any = {"type": "text", "text": "x"}
for _ in range(300):
    NESTED = {"type": "x", "content": [NESTED]}
WRONG: list[tuple[dict[str, Any], str]] = [
    *(({key: None}, f"{key}: Field required") for key in ("model", "max_tokens", "messages")),
    ({"messages": "go"}, "messages: must be a list"),
    ({"messages": ["go"]}, "messages.0: must be an object"),
    ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
    ({"messages": [{"role": "user", "content": ["go"]}]}, "must be a string or a list of blocks"),
    ({"system": 3}, "cannot be played"),
    ({"messages": [{"role": "user", "content": [NESTED]}]}, "cannot be played (RecursionError"),
    # what only the simulator of the tests refuses: mistakes that our client could make
    ({"messages": [GO, SAID]}, "the conversation must end with a user message"),
    ({"messages": [GO, CALL, GO]}, "messages.1: `tool_use` ids were found without `tool_result`"),
    ({"messages": [RESULT]}, "messages.0.content.0: unexpected `tool_use_id` found in `tool_result`"),
    ({"messages": [GO, THOUGHT, GO]}, "Invalid `signature` in `thinking`"),
    ({"messages": [{"role": "user", "content": [MARKED] * 5}]}, "At most 4 blocks may carry cache_control"),
    ({"tools": [{"name": "a", "input_schema": {"type": "object", "anyOf": []}}]}, "at the top level"),
    ({"tools": [{"type": "web_search_20250305", "name": "search"}]}, "must be 'web_search'"),
]


def test_what_the_api_would_refuse_is_an_invalid_request() -> None:
    with Simulator(SCRIPT) as simulator:
        for given, message in WRONG:
            response = post(simulator, stream=True, **given)
            error = response.json()["error"]
            assert (response.status_code, error["type"]) == (400, "invalid_request_error")
            assert message in error["message"]


def test_a_prefilled_answer_is_taken_where_the_script_allows_it() -> None:
    with Simulator(SCRIPT | {"allow_prefill": True}) as simulator:
        assert post(simulator, messages=[GO, SAID]).status_code == 200


def test_a_key_may_be_a_bearer_token() -> None:
    with Simulator(SCRIPT) as simulator:
        assert post(simulator, headers={"authorization": "Bearer x"}).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"x-api-key": ""}])
def test_a_request_without_a_key_is_an_authentication_error(headers: dict[str, str]) -> None:
    with Simulator(SCRIPT) as simulator:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            response = post(simulator, path=path, headers=headers)
            error = response.json()["error"]
            assert (response.status_code, error["type"]) == (401, "authentication_error")


def test_a_simulator_with_a_key_answers_nothing_without_it() -> None:
    with Simulator(SCRIPT, key="right") as simulator:
        assert post(simulator, headers={"x-api-key": "wrong"}).status_code == 401
        assert simulator.requests == []
        assert post(simulator, headers={"x-api-key": "right"}).status_code == 200


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
