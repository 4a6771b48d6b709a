"""The life of a run as a Mermaid diagram, drawn from `TRANSITIONS`.

It stands in docs/pictures.md, where `make docs` (`generated.py`) writes it.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations_with_replacement
from typing import NamedTuple

from subagent_server.run.states import (
    ALWAYS,
    TRANSITIONS,
    Event,
    MessageStatus,
    Status,
    Target,
    derived_status,
)


class Edge(NamedTuple):
    """One arrow: `event` takes a run from `source` to `target`."""

    source: Status
    event: Event
    target: Status


_MOVES: Mapping[Event, tuple[MessageStatus | None, MessageStatus | None]] = {
    Event.QUESTION_ASKED: (None, MessageStatus.PENDING),
    Event.REPLY_GIVEN: (MessageStatus.PENDING, MessageStatus.REPLIED),
    Event.REPLY_ACKNOWLEDGED: (MessageStatus.REPLIED, None),
    Event.QUESTION_EXPIRED: (MessageStatus.PENDING, None),
}
"""What an event does to one open question: which it takes, and what that becomes while it is open."""

_OPEN = (MessageStatus.PENDING, MessageStatus.REPLIED)
_SCENES = [scene for size in range(3) for scene in combinations_with_replacement(_OPEN, size)]
"""The open questions of a run, as far as a derived status can tell them apart: two are enough."""


def edges() -> list[Edge]:
    """Return every step that some run can take, in the order of the tables, without those of `ALWAYS`."""
    return [
        Edge(source, event, target)
        for source, row in TRANSITIONS.items()
        for event, rule in row.items()
        for target in _targets(source, event, rule)
    ]


def state_diagram() -> str:
    """Return a Mermaid `stateDiagram-v2`; the statuses between which questions move a run stand together.

    What every one of those can do the same way is drawn once, from their common frame.
    """
    working = _working()
    drawn = _merged(_framed(edges(), working))
    inside = {status.value for status in working}
    inner = [line for (source, target), line in drawn.items() if {source, target} <= inside]
    outer = [line for (source, target), line in drawn.items() if not {source, target} <= inside]
    return "\n".join(
        [
            "stateDiagram-v2",
            f"    [*] --> {Status.READY}",
            *(f"    {line}" for line in outer),
            *(f"    {status} --> [*]" for status, row in TRANSITIONS.items() if not row),
            "",
            f"    state {_FRAME} {{",
            f"        [*] --> {Status.RUNNING}",
            *(f"        {line}" for line in inner),
            "    }",
            "",
            f"    note right of {_FRAME}",
            f"        legal in every status, ended ones too: {', '.join(sorted(ALWAYS))}",
            "    end note",
            "",
        ]
    )


def diagram_section() -> str:
    """Return the text between the markers of docs/pictures.md."""
    return f"```mermaid\n{state_diagram()}```\n"


_FRAME = "working"


def _working() -> list[Status]:
    """Return the statuses that follow from questions, in the order of the table."""
    derived = {derived_status(scene) for scene in _SCENES}
    return [status for status in TRANSITIONS if status in derived]


def _targets(source: Status, event: Event, rule: Status | Target) -> list[Status]:
    if rule is Target.SAME:
        return [source]
    if rule is Target.DERIVED:
        found = {derived_status(after) for after in _after(source, event)}
        return [status for status in TRANSITIONS if status in found]
    return [Status(rule)]


def _after(source: Status, event: Event) -> Iterator[list[MessageStatus]]:
    """Yield the open questions as `event` can leave them in a run that is `source`."""
    taken, left = _MOVES[event]
    for scene in _SCENES:
        if derived_status(scene) is not source or (taken is not None and taken not in scene):
            continue
        after = list(scene)
        if taken is not None:
            after.remove(taken)
        yield [*after, left] if left is not None else after


def _framed(found: Iterable[Edge], working: list[Status]) -> Iterator[tuple[str, Event, str]]:
    """Yield the arrows, with those that all working statuses share, or that lead in, at the frame."""
    found = list(found)
    for source, event, target in found:
        leaves = source in working and target not in working
        if leaves and all(Edge(status, event, target) in found for status in working):
            yield _FRAME, event, target
        elif source not in working and target is Status.RUNNING:
            yield source, event, _FRAME
        else:
            yield source, event, target


def _merged(arrows: Iterable[tuple[str, Event, str]]) -> dict[tuple[str, str], str]:
    """Return one line for each pair of states, with all events that lead from the first to the second."""
    labels: dict[tuple[str, str], list[str]] = {}
    for source, event, target in arrows:
        words = labels.setdefault((str(source), str(target)), [])
        if event.value not in words:
            words.append(event.value)
    return {ends: f"{ends[0]} --> {ends[1]} : {', '.join(words)}" for ends, words in labels.items()}
