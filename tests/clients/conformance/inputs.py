"""The fixtures that need more input of their client: each asks, and goes on when the client comes back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types

Asks = Mapping[str, types.CreateMessageRequest | types.ListRootsRequest | types.ElicitRequest]


def _form(message: str, **properties: str) -> types.ElicitRequest:
    """Return a request for a form with fields of these types."""
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(text: str) -> types.CreateMessageRequest:
    """Return a request for a reply of the client's model."""
    said = types.SamplingMessage(role="user", content=types.TextContent(text=text))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[said], max_tokens=100)
    )


_ROOTS = types.ListRootsRequest()
_NAME = _form("What is your name?", name="string")


@dataclass(frozen=True)
class Rounds:
    """What a fixture asks for in each of its rounds; `keeps_state` sends the round along, sealed."""

    asks: tuple[Asks, ...]
    keeps_state: bool = False


ROUNDS: dict[str, Rounds] = {
    "test_input_required_result_elicitation": Rounds(({"user_name": _NAME},)),
    "test_streaming_elicitation": Rounds(({"user_name": _NAME},)),
    "test_input_required_result_sampling": Rounds(
        ({"capital_question": _sample("What is the capital of France?")},)
    ),
    "test_input_required_result_list_roots": Rounds(({"client_roots": _ROOTS},)),
    "test_input_required_result_request_state": Rounds(
        ({"confirm": _form("Please confirm", ok="boolean")},), keeps_state=True
    ),
    "test_input_required_result_tampered_state": Rounds(
        ({"confirm": _form("Please confirm", ok="boolean")},), keeps_state=True
    ),
    "test_input_required_result_multiple_inputs": Rounds(
        ({"user_name": _NAME, "greeting": _sample("Generate a greeting"), "client_roots": _ROOTS},),
        keeps_state=True,
    ),
    "test_input_required_result_multi_round": Rounds(
        (
            {"step1": _form("Step 1: What is your name?", name="string")},
            {"step2": _form("Step 2: What is your favorite color?", color="string")},
        ),
        keeps_state=True,
    ),
    "test_input_required_result_capabilities": Rounds(
        ({"user_name": _NAME, "greeting": _sample("Generate a greeting")},)
    ),
    "test_input_required_result_prompt": Rounds(
        ({"user_context": _form("What context should the prompt use?", context="string")},)
    ),
}


def next_round(
    params: types.CallToolRequestParams | types.GetPromptRequestParams,
    capabilities: types.ClientCapabilities | None,
) -> types.InputRequiredResult | None:
    """Return what is asked for now, or None when all rounds have been answered."""
    rounds = ROUNDS[params.name]
    number = int(params.request_state or 0) if rounds.keeps_state else 0
    if rounds.asks[number].keys() <= (params.input_responses or {}).keys():
        number += 1
    if number == len(rounds.asks):
        return None
    asked = {key: each for key, each in rounds.asks[number].items() if _is_borne(each, capabilities)}
    state = str(number) if rounds.keeps_state else None
    return types.InputRequiredResult(input_requests=asked, request_state=state)


def _is_borne(asked: Any, capabilities: types.ClientCapabilities | None) -> bool:
    """Whether a client that declares its capabilities at all can answer this."""
    declared = capabilities.model_dump(exclude_none=True) if capabilities is not None else {}
    name = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling"}.get(asked.method)
    return not declared or name is None or name in declared
