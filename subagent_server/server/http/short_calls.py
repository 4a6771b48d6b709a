"""Which requests are answered at once: they get plain JSON, which costs a fraction of a stream."""

from typing import Any

from pydantic_core import from_json

WAITING_TOOLS = frozenset({"wait_for_runs", "ask_parent"})
"""The tools that wait unless the call says `waitSeconds: 0`."""
MAX_BYTES = 64 << 10
"""How large a request may be that is looked at: the answer to a larger one takes longer than a stream."""


def is_short(body: bytes) -> bool:
    """Whether the answer to a request will not wait for a run, so that nothing comes before the answer."""
    if len(body) > MAX_BYTES:
        return False
    try:
        request = from_json(body)
    except ValueError:
        return True  # it is refused at once
    params = request.get("params") if isinstance(request, dict) else None
    if not isinstance(params, dict) or request.get("method") != "tools/call":
        return True
    return not _waits(params.get("name"), params.get("arguments"))


def _waits(tool: Any, arguments: Any) -> bool:
    asked = arguments.get("waitSeconds") if isinstance(arguments, dict) else None
    return tool in WAITING_TOOLS if asked in (None, "") else asked not in (0, "0")
