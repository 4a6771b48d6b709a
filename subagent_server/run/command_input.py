"""The input of a command that the user has set for questions or ends: its environment and its stdin.

The facts are data there, and never a part of the command line.
"""

import json
from collections.abc import Mapping
from typing import Any

from subagent_server.run.errors import visible
from subagent_server.run.states import cut

MAX_TEXT_CHARACTERS = 1_000
"""Of a question or a summary in a variable of the environment; stdin has all of it."""
_OF_A_RUN = ("SUBAGENT_RUN_ID", "SUBAGENT_RUN_TOKEN", "SUBAGENT_LOGGING_ADDRESS")


def command_environment(
    environment: Mapping[str, str], event: str, facts: Mapping[str, Any]
) -> dict[str, str]:
    """Return the environment of a command: the user's, with `SUBAGENT_EVENT` and its facts.

    A token of a run is not passed on. Texts are on one line, without control characters.
    """
    told = {
        "SUBAGENT_EVENT": event,
        "SUBAGENT_EVENT_RUN": facts.get("runId"),
        "SUBAGENT_EVENT_AGENT": facts.get("agent"),
        "SUBAGENT_EVENT_STATUS": facts.get("status"),
        "SUBAGENT_EVENT_TEXT": facts.get("question") or facts.get("summary") or facts.get("error"),
    }
    kept = {name: value for name, value in environment.items() if name not in _OF_A_RUN}
    return kept | {name: _plain(str(value)) for name, value in told.items() if value is not None}


def command_stdin(event: str, facts: Mapping[str, Any]) -> bytes:
    """Return the facts as the line of JSON that the command reads on its stdin."""
    return json.dumps({"event": event, **facts}).encode() + b"\n"


def _plain(text: str) -> str:
    one_line = visible(" ".join(text.split()))
    return cut(one_line, MAX_TEXT_CHARACTERS).encode("utf-8", "replace").decode()
