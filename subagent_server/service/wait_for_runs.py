"""The verb `wait_for_runs`: which runs ask or have ended, and which of that the parent has seen already.

Tested in `tests/server/test_wait_for_runs.py` and `tests/server/test_parents.py`.
"""

from contextlib import suppress
from typing import Any, Literal

from pydantic import Field

from subagent_server.domain.errors import SubagentError, UnknownRun
from subagent_server.domain.records import Record, RunMeta, StartedBy
from subagent_server.host.clock import now
from subagent_server.service.access import Caller, check_open
from subagent_server.service.answer_size import MAX_IDS, those_that_fit
from subagent_server.service.context import Service
from subagent_server.service.next_calls import NextCalls
from subagent_server.service.parents import OtherParents, others_sentence
from subagent_server.service.reconcile import Observed, observe
from subagent_server.service.shown_runs import ENDED, ShownRuns, read_cursor
from subagent_server.service.views import RunView, run_view
from subagent_server.store import unseen

WaitFor = Literal["any", "all"]


class WaitResult(Record):
    """The answer of `wait_for_runs`."""

    runs: list[RunView]
    working: list[str]
    later: list[str] | None = Field(default=None, description="More that ask or have ended: the next call")
    cursor: str = Field(description="For another connection; this one remembers what it has shown")
    other_parents: str | None = None
    unreadable: list[str] | None = None
    instructions: str = ""
    wait_note: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object of the answer, without missing facts."""
        wire = self.model_dump(mode="json", exclude_none=True, exclude={"runs"})
        bounded = {key: value[:MAX_IDS] if isinstance(value, list) else value for key, value in wire.items()}
        return {"runs": [view.to_wire() for view in self.runs], **bounded}


def needs_parent(meta: RunMeta, shown: int) -> bool:
    """Whether a question is open that its parent has not been shown (SPEC section 5, "Waits")."""
    return any(message.asked_revision > shown for message in meta.pending)


def has_ended_or_asks(meta: RunMeta) -> bool:
    """Whether a wait for this run is over for its parent."""
    return meta.status.is_terminal or meta.pending_questions > 0


class Watchlist:
    """The runs of one `wait_for_runs`: those named, else those that the parent hears and that live, or whose
    end nobody was shown.

    `remembered` is what its connection was shown; a cursor takes the place of that.
    """

    def __init__(
        self,
        service: Service,
        run_ids: list[str] | None,
        cursor: str | None,
        caller: Caller,
        remembered: ShownRuns,
        next_calls: NextCalls,
    ) -> None:
        self._service = service
        self._caller = caller
        self._remembered = remembered
        self._next_calls = next_calls
        self._origins: dict[str, tuple[str | None, StartedBy | None]] = {}
        self._others: list[str] = []
        self._shown = remembered
        self._named = self._checked(run_ids) if run_ids else None
        if cursor:
            known = [*(self._named or []), *service.store.live_ids(), *remembered.unfinished]
            self._shown = read_cursor(cursor, service.store, known)
        self.run_ids = self._which()

    def look(self, wait_for: WaitFor) -> WaitResult | None:
        """Return the result of the wait now, or None while there is nothing to report."""
        self.run_ids = self._which()
        found = self._observe_all()
        runs = [item for item in found if isinstance(item, Observed)]
        news = [r for r in runs if self._is_news(r.meta)]
        asking = any(needs_parent(r.meta, self._shown.revision(r.meta.run_id)) for r in news)
        working = [r for r in runs if not r.meta.status.is_terminal]
        if working and not asking and not (news and wait_for == "any"):
            return None
        return self._result(found)

    def now(self) -> WaitResult:
        """Return the result of the wait when the time is over."""
        return self._result(self._observe_all())

    def _observe_all(self) -> list[Observed | SubagentError]:
        return [self._observed(run_id) for run_id in self.run_ids]

    def _result(self, found: list[Observed | SubagentError]) -> WaitResult:
        runs = [item for item in found if isinstance(item, Observed)]
        news = [r for r in runs if self._is_news(r.meta)]
        is_again = False
        if not news and self._named is not None and self._shown is self._remembered:
            is_again = all(r.meta.status.is_terminal for r in runs)  # there is no more to wait for
        news = runs if is_again else sorted(news, key=lambda r: not r.meta.pending)
        made = (run_view(self._service.store, each, self._next_calls, self._caller) for each in news)
        views = those_that_fit(made, RunView.to_wire)
        later = [] if is_again else [each.meta.run_id for each in news[len(views) :]]
        shown = self._shown.of(
            r.meta.run_id for r in runs if self._may_come_again(r) or r.meta.run_id in later
        )
        for view in views:
            if view.run_id in shown:
                shown.note(view.run_id, view.revision, ended=view.status.is_terminal)
        return WaitResult(
            runs=views,
            working=[r.meta.run_id for r in runs if not r.meta.status.is_terminal],
            later=later or None,
            cursor=shown.cursor(),
            other_parents=self._others_sentence(),
            unreadable=[each.sentence for each in found if isinstance(each, SubagentError)] or None,
            instructions=self._instructions(runs, news[: len(views)], len(news) - len(views), is_again),
        )

    def _may_come_again(self, run: Observed) -> bool:
        """Whether a later wait may look at this run again."""
        return not run.meta.status.is_terminal or run.live is not False or self._named is not None

    def _is_news(self, meta: RunMeta) -> bool:
        shown = self._shown.revision(meta.run_id)
        return shown < ENDED if meta.status.is_terminal else needs_parent(meta, shown)

    def _instructions(self, runs: list[Observed], news: list[Observed], omitted: int, is_again: bool) -> str:
        again = f"Next: {self._next_calls.wait_for_several()}."
        if omitted and is_again:
            return f"Nothing is left to wait for. {omitted} more did not fit: check_status shows each."
        if omitted:
            again = f"{omitted} more did not fit into this answer. {again}"
        if any(r.meta.pending for r in news):
            return f"Answer the open questions with reply_subagent. {again}"
        if omitted:
            return again
        working = sum(not r.meta.status.is_terminal for r in runs)
        if not working:
            return "Nothing is left to wait for."
        asking = [r.meta for r in runs if r.meta.pending]
        if not asking:
            return f"Still working: {working}. {again}"
        answer = self._next_calls.answer(asking[0].run_id, asking[0].pending[0].message_id)
        count = "1 asks" if len(asking) == 1 else f"{len(asking)} ask"
        return f"Still working: {working}, of which {count} what you were shown: {answer}. {again}"

    # -- which runs

    def _checked(self, run_ids: list[str]) -> list[str]:
        for run_id in run_ids:
            check_open(self._caller, self._service.store.read(run_id))
        return list(dict.fromkeys(run_ids))

    def _which(self) -> list[str]:
        """Return the runs to look at; those of a parent that goes during the wait join them."""
        if self._named is not None:
            return self._named
        store, others = self._service.store, OtherParents(self._caller)
        noted = dict.fromkeys([*self._shown.unfinished, *self._remembered.unfinished, *store.live_ids()])
        unseen_ends = [] if self._caller.is_child else unseen.newest(store.paths, now())
        heard, self._others = [], []
        for run_id in dict.fromkeys([*noted, *unseen_ends]):
            try:
                parent_run_id, starter = self._origin(run_id)
            except UnknownRun:
                continue
            except SubagentError:
                heard += [run_id] if run_id in noted else []  # shown as unreadable rather than left out
                continue
            if parent_run_id == self._caller.run_id:
                (self._others if others.own(starter) else heard).append(run_id)
        return heard

    def _origin(self, run_id: str) -> tuple[str | None, StartedBy | None]:
        """Return the parent run and the starter of a run, which never change.

        Raises:
            UnknownRun: there is no such run, or not yet.
            SubagentError: its state cannot be read.
        """
        if run_id not in self._origins:
            meta = self._service.store.read(run_id)
            self._origins[run_id] = (meta.parent_run_id, meta.started_by)
        return self._origins[run_id]

    def _others_sentence(self) -> str | None:
        """Return the count of other parents' runs, as far as they can be read."""
        working = []
        for run_id in self._others:
            with suppress(SubagentError):
                meta = self._service.store.read(run_id)
                working += [] if meta.status.is_terminal else [meta]
        return others_sentence(len(working), sum(each.pending_questions > 0 for each in working))

    def _observed(self, run_id: str) -> Observed | SubagentError:
        try:
            return observe(self._service.store, run_id)
        except SubagentError as error:
            return error
