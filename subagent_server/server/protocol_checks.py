"""Requests that the protocol refuses: the error says which parameter to mend, or which order to keep."""

from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from subagent_server.domain.errors import shorten
from subagent_server.domain.visible import visible
from subagent_server.server.notices import is_modern

Context = ServerRequestContext[Any, Any]
MAX_FAULTS = 5
MAX_NAME_CHARACTERS = 80
_ENVELOPE = ("params", "_meta")
"""Checked before the parameters are; the model of a newer request asks for it once more."""
_NOT_YET_INITIALIZED = ""
"""The data of the error that the SDK has for a request before the handshake."""


async def explain_bad_parameters(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Pass a message on, and name the parameter to mend if the protocol refuses it.

    Raises:
        MCPError.
    """
    try:
        return await call_next(ctx)
    except ValidationError as error:
        raise _explained(ctx.method, error) from error
    except MCPError as error:
        if error.code == types.INVALID_PARAMS and error.data == _NOT_YET_INITIALIZED:
            raise MCPError(
                error.code, "The connection is not initialized yet: send initialize first.", "initialize"
            ) from error
        raise


async def refuse_second_initialize(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Pass a message on, unless it would begin a connection of the older era that has begun.

    Raises:
        MCPError.
    """
    if ctx.method == "initialize" and not is_modern(ctx) and ctx.session.client_params is not None:
        raise MCPError(types.INVALID_REQUEST, "The connection is initialized already: go on with it.")
    return await call_next(ctx)


def refuse_cursor(method: str, params: types.PaginatedRequestParams | None) -> None:
    """Refuse a cursor for a list that has one page.

    Raises:
        MCPError.
    """
    if params is not None and params.cursor is not None:
        raise MCPError(
            types.INVALID_PARAMS,
            f"{method}: {shorten(params.cursor)} is not a cursor of this list, which has one page: "
            "leave cursor out.",
            {"parameter": "cursor"},
        )


def _explained(method: str, error: ValidationError) -> MCPError:
    """Return the error of the protocol. It repeats no value: a value may be long, or a secret."""
    every = error.errors(include_url=False, include_input=False, include_context=False)
    faults = [
        {"parameter": _name(each["loc"]), "fault": each["msg"]} for each in every if each["loc"] != _ENVELOPE
    ][:MAX_FAULTS]
    said = "; ".join(f"{each['parameter']}: {each['fault']}" for each in faults)
    return MCPError(types.INVALID_PARAMS, f"{method}: {said}: mend this, and send it again.", faults)


def _name(place: tuple[int | str, ...]) -> str:
    return visible(".".join(map(str, place)))[:MAX_NAME_CHARACTERS]
