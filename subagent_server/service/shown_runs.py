"""The questions and ends that a parent has been shown, so that each is reported once.

A connection remembers it. A cursor says the same in a short text, for a parent that comes to another server:
`r654xt` is a run at work, `r654xt.7` one whose questions up to revision 7 were shown, `r654xt.e` one whose
end was shown. The last part of an id stands for the id, as in lists for people.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from subagent_server.domain.errors import BadArgument
from subagent_server.domain.ids import MAX_LENGTH
from subagent_server.store.runs import RunStore

UNSEEN = -1
ENDED = 1 << 31
MAX_SHOWN = 1_000
"""How many runs a connection remembers, and a cursor names."""
_ENTRY = re.compile(rf"([a-z0-9-]{{1,{MAX_LENGTH}}})(?:\.(e|[0-9]{{1,9}}))?")


class ShownRuns:
    """The latest revision of each run that its parent has been shown; `ENDED` if that was its end."""

    def __init__(self, revisions: Mapping[str, int] | None = None) -> None:
        self._revisions = dict(revisions or {})

    @property
    def unfinished(self) -> list[str]:
        """The runs whose end was not shown, in the order in which they were noted."""
        return [run_id for run_id, revision in list(self._revisions.items()) if revision < ENDED]

    def revision(self, run_id: str) -> int:
        """Return how much of a run was shown; `UNSEEN` if nothing was."""
        return self._revisions.get(run_id, UNSEEN)

    def note(self, run_id: str, revision: int = UNSEEN, *, ended: bool = False) -> None:
        """Note that a run was shown. What was shown before stays shown; the oldest runs are forgotten."""
        latest = max(self._revisions.pop(run_id, UNSEEN), ENDED if ended else revision)
        self._revisions[run_id] = latest
        while len(self._revisions) > MAX_SHOWN:
            del self._revisions[next(iter(self._revisions))]

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._revisions

    def of(self, run_ids: Iterable[str]) -> "ShownRuns":
        """Return a copy with these runs only."""
        return ShownRuns({run_id: self.revision(run_id) for run_id in run_ids})

    def cursor(self) -> str:
        """Return the text that stands for this."""
        uses = Counter(map(_tail, self._revisions))
        return ",".join(
            (_tail(run_id) if uses[_tail(run_id)] == 1 else run_id) + _suffix(revision)
            for run_id, revision in self._revisions.items()
        )


def read_cursor(cursor: str, store: RunStore, known: Iterable[str]) -> ShownRuns:
    """Return what a cursor stands for. The `known` runs are looked at first; a run that is gone is left out.

    Raises:
        BadArgument: no answer of `wait_for_runs` had this cursor.
    """
    entries = [_ENTRY.fullmatch(text) for text in cursor.split(",")]
    if len(entries) > MAX_SHOWN or None in entries:
        raise BadArgument(f"{cursor[:40]!r} is no cursor: use the last answer's, or none.")
    revisions = {entry[1]: _revision(entry[2]) for entry in entries if entry is not None}
    found = _named(revisions, known)
    missing = revisions.keys() - found.keys()
    found |= _named(missing, store.newest_first()) if missing else {}
    shown = ShownRuns()
    for name, run_ids in found.items():
        for run_id in run_ids:  # a name that fits several runs says nothing: rather twice than never
            shown.note(run_id, revisions[name] if len(run_ids) == 1 else UNSEEN)
    return shown


def _named(names: Iterable[str], run_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return the runs that each name, an id or the last part of one, stands for, if there are any."""
    wanted = set(names)
    found: dict[str, list[str]] = {}
    for run_id in dict.fromkeys(run_ids):
        for name in _names(run_id):
            if name in wanted:
                found.setdefault(name, []).append(run_id)
    return found


def _names(run_id: str) -> Iterator[str]:
    yield run_id
    if _tail(run_id) != run_id:
        yield _tail(run_id)


def _tail(run_id: str) -> str:
    return run_id.rsplit("-", 1)[-1] or run_id


def _suffix(revision: int) -> str:
    if revision == UNSEEN:
        return ""
    return ".e" if revision == ENDED else f".{revision}"


def _revision(suffix: str | None) -> int:
    if suffix is None:
        return UNSEEN
    return ENDED if suffix == "e" else int(suffix)
