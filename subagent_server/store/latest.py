"""The latest step of an agent, from the tail of its journal. Standard library only, for `ls`.

A journal is data: a damaged journal gives no step, and the run is listed all the same.
"""

from collections.abc import Iterator
from typing import Any

from subagent_server.host import journal
from subagent_server.store.log_format import render
from subagent_server.store.paths import RunPaths

_WORDS = frozenset({"text", "tool_call", "warning", "subagent_event"})
"""The events that show what an agent does."""
_WITHIN = 60


def latest_words(run: RunPaths) -> str | None:
    """Return the last text or call of the agent, for a preview; None if the journal has neither."""
    for event in _newest_first(run):
        if event.get("type") in _WORDS:
            return render(event)[9:].rstrip("\n")
    return None


def latest_step(run: RunPaths) -> tuple[int | None, str | None]:
    """Return the number of the agent's turn and its last text or call, on one line; None: not in the tail."""
    turn: int | None = None
    words: str | None = None
    for event in _newest_first(run):
        kind, number = event.get("type"), event.get("turn")
        if words is None and kind in _WORDS:
            words = render(event).split("\n", 1)[0].partition(" ")[2].removeprefix("→ ")
        if turn is None and kind == "turn" and type(number) is int:
            turn = number
    return turn, words


def latest_doing(run: RunPaths) -> str | None:
    """Return the last question, text or call of the agent, else its task; None if the journal has none."""
    for event in _newest_first(run):
        match event.get("type"):
            case "question":
                return str(event.get("question") or "") or None
            case "run_started":
                return str(event.get("prompt") or "") or None
            case kind if kind in _WORDS:
                return render(event)[9:].rstrip("\n")
    return None


def _newest_first(run: RunPaths) -> Iterator[dict[str, Any]]:
    try:
        lines = journal.tail(run.events, _WITHIN).lines
    except OSError:
        return
    yield from filter(None, map(journal.parse, reversed(lines)))
