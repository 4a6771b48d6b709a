"""The conversation of a run that is killed and carried on: ten steps, each of which leaves a countable mark.

The model does what a careful one does. A step that was done is done. One that it is told was never begun is
made again. One of which nobody knows is looked at first, and made again only where its mark is missing.
"""

import re
from pathlib import Path
from typing import Any

from subagent_server.loop.resume import NOT_BEGUN, UNKNOWN
from tests.helpers.turns import Turn, says, shell

STEPS = 10
_PROMPT = "carried: "
_STEP = re.compile(r"# (step|look) (\d+)$")


def prompt(place: Path) -> str:
    """Return the task of a run whose marks go to `place`."""
    return _PROMPT + str(place)


def result(place: Path) -> str:
    """Return what a run comes to that nobody killed, and every other too."""
    return f"all {STEPS} steps are done in {place.name}"


def marks(place: Path) -> list[str]:
    """Return the marks that were left, in their order."""
    return place.read_text(encoding="utf-8").split() if place.exists() else []


class Careful:
    """The model. `unknown` counts what it was told that nobody knows, `not_begun` what was never begun."""

    def __init__(self) -> None:
        self.unknown: set[str] = set()
        self.not_begun: set[str] = set()

    def __call__(self, body: dict[str, Any]) -> Turn:
        """Answer one request of the Messages API."""
        messages = body["messages"]
        place = Path(messages[0]["content"][-1]["text"].removeprefix(_PROMPT))
        results = _results(messages)
        done, doubtful = set(), set()
        for call in _calls(messages):
            kind, number = _STEP.findall(call["input"]["command"])[0]
            text = results[call["id"]]
            self._note(call["id"], text)
            if f"{kind} {number}: done" in text:
                done.add(int(number))
            elif f"{kind} {number}: missing" in text or (kind == "step" and text == NOT_BEGUN):
                doubtful.discard(int(number))
            elif kind == "step":
                doubtful.add(int(number))
        left = sorted(set(range(STEPS)) - done)
        if not left:
            return says(result(place))
        return _look(place, left[0]) if left[0] in doubtful else _step(place, left[0])

    def _note(self, call_id: str, text: str) -> None:
        if text.startswith(UNKNOWN):
            self.unknown.add(call_id)
        elif text == NOT_BEGUN:
            self.not_begun.add(call_id)


def _step(place: Path, number: int) -> Turn:
    """Leave a mark; and hold a lock that nobody else may hold, as long as anything of this worker lives."""
    alone = f"exec 9>{place}.lock; flock -n 9 || echo overlap >> {place}.overlaps"
    work = f"echo {number} >> {place}; sleep 0.05; echo step {number}: done"
    turn = shell(f"{alone}; {work} # step {number}")
    return {**turn, "thinking": f"Now step {number}."}


def _look(place: Path, number: int) -> Turn:
    found = f"echo look {number}: done || echo look {number}: missing"
    return shell(f"grep -qx {number} {place} && {found} # look {number}")


def _calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks = (block for message in messages if message["role"] == "assistant" for block in message["content"])
    return [block for block in blocks if block["type"] == "tool_use"]


def _results(messages: list[dict[str, Any]]) -> dict[str, str]:
    blocks = (block for message in messages if message["role"] == "user" for block in message["content"])
    found = (block for block in blocks if block["type"] == "tool_result")
    return {b["tool_use_id"]: "".join(part.get("text", "") for part in b["content"]) for b in found}
