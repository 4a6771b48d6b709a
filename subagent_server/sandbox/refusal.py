"""The errors of the sandbox: a box that cannot be built, and a place in which no run works."""

from collections.abc import Callable
from typing import TypeVar

from subagent_server.domain.errors import RunRefused

T = TypeVar("T")


class BoxRefused(Exception):
    """There can be no box, or a started one is not as asked; `reason` is a part of a sentence.

    If it `passes`, the same start may work a moment later: a path went while the box was built, bubblewrap
    was killed, or the machine had no room. So it is tried once more, and says nothing about the agent.
    """

    def __init__(self, reason: str, *, passes: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.passes = passes


class PlaceRefused(Exception):
    """A run must not work at a place, with a box or without one; `hint` says what to do instead."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def tried_twice(start: Callable[[], T]) -> T:
    """Return what `start` returns; it is called once more if it was refused for a reason that passes.

    Raises:
        BoxRefused.
    """
    try:
        return start()
    except BoxRefused as refusal:
        if not refusal.passes:
            raise
    return start()


def end_of_run(what: str, refusal: BoxRefused) -> RunRefused:
    """Return the end of a run that needs a box: `what` could not be started in it.

    A reason that passes says nothing about the agent, so it is `storage` and not `config`.
    """
    return RunRefused(
        "storage" if refusal.passes else "config",
        f"{what} could not be started in its sandbox: {refusal.reason}.",
        "Start the run again; `subagent doctor` tries the sandbox.",
    )
