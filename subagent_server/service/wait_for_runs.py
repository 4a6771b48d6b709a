"""The verb `wait_for_runs`: which runs ask or have ended, and which of that the parent has seen already.

Tested in `tests/server/test_wait_for_runs.py`.
"""

import base64
import binascii
import json
from typing import Any, Literal

from subagent_server.domain.errors import BadArgument, SubagentError, UnknownRun
from subagent_server.domain.records import Record, RunMeta
from subagent_server.service.access import Caller, check_open
from subagent_server.service.context import Service
from subagent_server.service.reconcile import Observed, observe
from subagent_server.service.views import RunView, run_view

WaitFor = Literal["any", "all"]
UNSEEN = -1
ENDED = 1 << 31
MAX_UNFINISHED = 1_000
Shown = dict[str, int]
"""Run id to the revision that its parent has been shown."""


class WaitResult(Record):
    """The answer of `wait_for_runs`."""

    runs: list[RunView]
    working: list[str]
    cursor: str
    unreadable: list[str] | None = None
    instructions: str = ""
    wait_note: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object of the answer, without missing facts."""
        wire = self.model_dump(mode="json", exclude_none=True, exclude={"runs"})
        return {"runs": [view.to_wire() for view in self.runs], **wire}


def read_cursor(cursor: str | None) -> Shown:
    """Return the revisions that a cursor stands for.

    Raises:
        BadArgument: no answer of `wait_for_runs` had this cursor.
    """
    if not cursor:
        return {}
    try:
        data = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        return {str(run_id): int(revision) for run_id, revision in data.items()}
    except (ValueError, AttributeError, TypeError, binascii.Error) as error:
        raise BadArgument(f"{cursor[:40]!r} is no cursor: use the last answer's, or none.") from error


def write_cursor(shown: Shown) -> str:
    """Return the opaque text of a cursor."""
    return base64.urlsafe_b64encode(json.dumps(shown, separators=(",", ":")).encode()).decode()


def needs_parent(meta: RunMeta, shown: int) -> bool:
    """Whether a question is open that its parent has not been shown (SPEC section 5, "Waits")."""
    return any(message.asked_revision > shown for message in meta.pending)


def has_ended_or_asks(meta: RunMeta) -> bool:
    """Whether a wait for this run is over for its parent."""
    return meta.status.is_terminal or meta.pending_questions > 0


class UnfinishedRuns:
    """The runs shown to a caller at work but not at their end, for as long as its connection lasts.

    The list only spares a parent from missing an end between two waits. A run lost with the connection can
    still be looked at by `list_runs`.
    """

    def __init__(self) -> None:
        self._run_ids: dict[str, None] = {}

    @property
    def run_ids(self) -> list[str]:
        """Their ids, in the order in which they were shown."""
        return list(self._run_ids)

    def shown(self, run_id: str, *, ended: bool) -> None:
        """Note that a run was shown."""
        self._run_ids.pop(run_id, None)
        if not ended:
            self._run_ids[run_id] = None
        while len(self._run_ids) > MAX_UNFINISHED:
            del self._run_ids[next(iter(self._run_ids))]


class Watchlist:
    """The runs of one `wait_for_runs`: those named, else those that the caller started and that live, or
    whose end it was not shown."""

    def __init__(
        self,
        service: Service,
        run_ids: list[str] | None,
        cursor: str | None,
        caller: Caller,
        unfinished: list[str],
    ) -> None:
        self._service = service
        self._unfinished = unfinished
        self._shown = read_cursor(cursor)
        self._caller = caller
        self.run_ids = self._named(run_ids) if run_ids else self._own()

    def look(self, wait_for: WaitFor) -> WaitResult | None:
        """Return the result of the wait now, or None while there is nothing to report."""
        found = [self._observed(run_id) for run_id in self.run_ids]
        runs = [item for item in found if isinstance(item, Observed)]
        news = [r for r in runs if self._is_news(r.meta)]
        asking = any(needs_parent(r.meta, self._shown.get(r.meta.run_id, UNSEEN)) for r in news)
        working = [r for r in runs if not r.meta.status.is_terminal]
        if working and not asking and not (news and wait_for == "any"):
            return None
        return self._result(runs, news, [e for e in found if isinstance(e, SubagentError)])

    def now(self) -> WaitResult:
        """Return the result of the wait when the time is over."""
        found = [self._observed(run_id) for run_id in self.run_ids]
        runs = [item for item in found if isinstance(item, Observed)]
        news = [r for r in runs if self._is_news(r.meta)]
        return self._result(runs, news, [e for e in found if isinstance(e, SubagentError)])

    def _result(
        self, runs: list[Observed], news: list[Observed], unreadable: list[SubagentError]
    ) -> WaitResult:
        views = [run_view(self._service.store, observed) for observed in news]
        working = [r.meta.run_id for r in runs if not r.meta.status.is_terminal]
        shown = dict.fromkeys(working, UNSEEN) | self._shown | {view.run_id: _seen(view) for view in views}
        relevant = {run_id: shown[run_id] for run_id in self.run_ids if run_id in shown}
        return WaitResult(
            runs=views,
            working=working,
            cursor=write_cursor(relevant),
            unreadable=[error.sentence for error in unreadable] or None,
            instructions=_instructions(views, working, write_cursor(relevant)),
        )

    def _is_news(self, meta: RunMeta) -> bool:
        shown = self._shown.get(meta.run_id, UNSEEN)
        if meta.status.is_terminal:
            return shown < ENDED
        return needs_parent(meta, shown)

    def _named(self, run_ids: list[str]) -> list[str]:
        for run_id in run_ids:
            check_open(self._caller, self._service.store.read(run_id))
        return list(dict.fromkeys(run_ids))

    def _own(self) -> list[str]:
        """The live runs that the caller started, and those of the cursor and those that it was shown at work,
        which may have ended since."""
        live = self._service.store.live_ids()
        kept = [run_id for run_id, shown in self._shown.items() if shown < ENDED or run_id in live]
        return [run_id for run_id in dict.fromkeys([*kept, *self._unfinished, *live]) if self._is_own(run_id)]

    def _is_own(self, run_id: str) -> bool:
        try:
            meta = self._service.store.read(run_id)
        except UnknownRun:
            return False
        except SubagentError:
            return True  # shown as unreadable rather than left out
        return meta.parent_run_id == self._caller.run_id

    def _observed(self, run_id: str) -> Observed | SubagentError:
        try:
            return observe(self._service.store, run_id)
        except SubagentError as error:
            return error


def _seen(view: RunView) -> int:
    """Return the revision that a cursor keeps of a view: nothing of an ended run is news any more."""
    return ENDED if view.status.is_terminal else view.revision


def _instructions(views: list[RunView], working: list[str], cursor: str) -> str:
    if any(view.messages for view in views):
        return (
            "Answer the open questions with reply_subagent, then call wait_for_runs again with this cursor."
        )
    if working:
        return f'Still working: {len(working)}. Next: wait_for_runs(waitSeconds=45, cursor="{cursor}").'
    return "Nothing is left to wait for."
