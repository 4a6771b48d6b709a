"""The model of a parent agent, scripted: whatever its client calls it with, it says what a plan says next."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """The model calls a tool of the server, or one of its client's `own`."""

    tool: str
    arguments: dict[str, Any]
    own: bool = False


@dataclass(frozen=True)
class Say:
    """The model says its last words."""

    text: str


@dataclass(frozen=True)
class Heard:
    """The parts of a request that the model decides by: its tools, and the answers of all calls so far.

    `conversation` is everything that was said, as JSON.
    """

    tools: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    conversation: str = ""

    @property
    def calls(self) -> int:
        """How many calls have been answered."""
        return len(self.answers)

    def answer(self, number: int = -1) -> Any:
        """Return an answer, by default the last one, as the JSON that it has to be."""
        text = self.answers[number]
        try:
            return json.loads(text)
        except ValueError:
            raise AssertionError(f"a tool answered {text!r}") from None


Plan = Callable[[Heard], Call | Say]
"""What the model does next. The request alone decides, so a client may ask again."""


class ParentModel:
    """Follows a plan and keeps what it heard first and last."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.first: Heard | None = None
        self.heard = Heard()
        self.failure: Exception | None = None

    def next(self, heard: Heard) -> Call | Say:
        """Return what the model does after it has heard this. A plan that fails ends the conversation."""
        self.first = self.first or heard
        self.heard = heard
        try:
            return self._plan(heard)
        except Exception as error:  # noqa: BLE001 - kept for the test, which raises it
            self.failure = error
            return Say(f"The plan failed: {error}")


def call(tool: str, **arguments: Any) -> Call:
    """Return a call."""
    return Call(tool, arguments)


def steps(*taken: Call | Say) -> Plan:
    """Return a plan of one step for each number of answered calls; the last one is repeated."""
    return lambda heard: taken[min(heard.calls, len(taken) - 1)]
