"""W3C Trace Context on its way: `traceparent` and `tracestate` in headers and in `_meta` of MCP requests, and
in capitals in an environment.

It is data from outside: what is not well-formed is left out, as https://www.w3.org/TR/trace-context/ has it.
"""

import re
from collections.abc import Mapping
from typing import Any

PARENT = "traceparent"
STATE = "tracestate"
_VARIABLES = {PARENT: PARENT.upper(), STATE: STATE.upper()}
_PARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?P<more>-[!-~]{0,200})?",
    re.ASCII,
)
_STATE = re.compile(r"[ -~]{1,512}", re.ASCII)


def checked(carrier: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the trace context among the entries of `carrier`; empty if there is no valid trace context."""
    parent, state = (carrier or {}).get(PARENT), (carrier or {}).get(STATE)
    if not isinstance(parent, str) or not _is_parent(parent):
        return {}
    if isinstance(state, str) and _STATE.fullmatch(state):
        return {PARENT: parent, STATE: state}
    return {PARENT: parent}


def of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the trace context of an environment; empty if there is no valid trace context."""
    return checked({name: environment.get(variable) for name, variable in _VARIABLES.items()})


def carried(environment: Mapping[str, str], context: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with `context` instead of its own; unchanged if `context` is empty."""
    if not context:
        return dict(environment)
    kept = {name: value for name, value in environment.items() if name not in _VARIABLES.values()}
    return kept | {_VARIABLES[name]: value for name, value in context.items()}


def _is_parent(text: str) -> bool:
    match = _PARENT.fullmatch(text)
    return match is not None and not (match["version"] == "00" and match["more"])
