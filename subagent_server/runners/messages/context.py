"""Long conversations: the API itself hides old tool results from the model, if it can.

The conversation here stays whole; each request asks anew (`clear_tool_uses_20250919`, a beta of the Messages
API). A model without this feature gets plain requests, and its run fails with a clear error when the window
is full.
"""

import re
from collections.abc import Callable
from typing import Any

BETA = "context-management-2025-06-27"
DEFAULT_WINDOW = 200_000
"""In tokens, for a model that the price list does not know."""
FULL = 0.6
"""At which part of the window old results go: below the rest, a reply and the results of a turn find room."""
WORTH_IT = 0.1
"""The part of the window that has to become free: each clearing costs the prompt cache all behind it."""
KEPT_USES = 5
NEVER_CLEARED = ("ask_parent", "final_answer", "agent_complete")

_NAME = re.compile(r"claude-[a-z]+-(\d+)(?:-(\d{1,2})(?!\d))?")
_FIRST = (4, 5)


def can_edit(model: str) -> bool:
    """Whether the API clears tool uses for this model: those from Claude 4.5 on."""
    name = _NAME.match(model)
    return name is not None and (int(name[1]), int(name[2] or 0)) >= _FIRST


class ContextEdits:
    """Asks for the edits with each request, and records each further clearing."""

    def __init__(self, model: str, window: int | None = None) -> None:
        self._window = window or DEFAULT_WINDOW
        self._wanted = can_edit(model)
        self._cleared = 0

    def options(self) -> dict[str, Any]:
        """Return the further parts of a request, as options of the SDK; empty if it needs none."""
        if not self._wanted:
            return {}
        edit = {
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "input_tokens", "value": int(self._window * FULL)},
            "keep": {"type": "tool_uses", "value": KEPT_USES},
            "clear_at_least": {"type": "input_tokens", "value": int(self._window * WORTH_IT)},
            "exclude_tools": list(NEVER_CLEARED),
        }
        return {
            "extra_headers": {"anthropic-beta": BETA},
            "extra_body": {"context_management": {"edits": [edit]}},
        }

    def give_up(self, said: str) -> bool:
        """Whether the API refused a request because of the edits. Then no later request has any."""
        words = ("context_management", "context-management", "clear_tool_uses", "anthropic-beta")
        refused = self._wanted and any(word in said for word in words)
        self._wanted = self._wanted and not refused
        return refused

    def record_edits(self, applied: list[dict[str, Any]], record: Callable[..., None]) -> None:
        """Append to the journal how much the API has cleared, whenever it is more than before."""
        uses = sum(edit.get("cleared_tool_uses") or 0 for edit in applied)
        tokens = sum(edit.get("cleared_input_tokens") or 0 for edit in applied)
        if uses > self._cleared:
            record("context_edited", clearedToolUses=uses, clearedTokens=tokens)
        self._cleared = uses
