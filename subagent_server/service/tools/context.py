"""The common context of a caller's tool calls: the service, the runs shown so far, and the way of waiting."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from subagent_server.domain.errors import BadArgument
from subagent_server.domain.records import RunMeta
from subagent_server.domain.states import MessageStatus
from subagent_server.service.access import Caller
from subagent_server.service.changes import Changes, Wait, wait_until
from subagent_server.service.check_status import view_for
from subagent_server.service.context import Service
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import Observed, observe
from subagent_server.service.shown_runs import ShownRuns
from subagent_server.service.tools.call import Call
from subagent_server.service.tools.offer import Offer
from subagent_server.service.views import RunView
from subagent_server.service.wait_for_runs import has_ended_or_asks
from subagent_server.store import unseen

T = TypeVar("T")


@dataclass
class ToolContext:
    """The calls of a caller. `waiting` counts the calls now waiting for runs."""

    service: Service
    changes: Changes
    caller: Caller
    offer: Offer
    shown: ShownRuns = field(default_factory=ShownRuns)
    asked: set[tuple[str, str]] = field(default_factory=set)
    """The questions asked here, by run and message: a program without a token is an asker by them alone."""
    waiting: int = 0

    def own_run_id(self, call: Call) -> str:
        """Return the run that a child speaks for: the named run, else its own.

        Raises:
            BadArgument.
        """
        run_id = call.get("runId") or self.caller.run_id
        if run_id is None:
            raise BadArgument(
                "runId is missing: give the id of your own run, as your first message names it."
            )
        return str(run_id)

    async def waited(self, check: Callable[[], T | None], wait: Wait) -> T | None:
        """Wait, and count as waiting: a server that leaves does not let waits finish."""
        self.waiting += 1
        try:
            return await wait_until(self.changes, check, wait)
        finally:
            self.waiting -= 1

    async def view_after_start(self, run_id: str, call: Call) -> RunView:
        """Return the view of a just started run once the run has ended or asks, or the wait is over."""
        await self.note_start(run_id)
        observed = await asyncio.to_thread(open_run, self.service, run_id, self.caller)
        return await self.view_after_wait(observed, call)

    def is_asker(self, run_id: str, message_id: str) -> bool:
        """Whether the caller has asked this question: as the run itself, or through these tools."""
        return self.caller.run_id == run_id or (run_id, message_id) in self.asked

    async def view_after_wait(self, observed: Observed, call: Call, message_id: str | None = None) -> RunView:
        """Return the view of a run, with the named question, when it has ended, asks, or the wait is over."""
        run_id, seconds = observed.meta.run_id, call.wait_seconds()
        if seconds > 0:
            async with call.waiting_for([run_id]):
                wait = Wait(seconds, progress=call.progress)
                observed = await self._when(observed, lambda run: has_ended_or_asks(run.meta), wait)
        calls = call.next_calls
        view = await asyncio.to_thread(view_for, self.service, observed, calls, message_id, self.caller)
        await self.note(view)
        return view if has_ended_or_asks(observed.meta) else with_note(view, call.wait_note())

    async def note_start(self, run_id: str) -> None:
        """Note that the caller has started a run: its end is news until the caller is shown it."""
        self.shown.note(run_id)
        if not self.caller.is_child:
            await asyncio.to_thread(unseen.mark, self.service.store.paths.run(run_id))

    async def note(self, view: RunView | RunMeta) -> None:
        """Note that the caller was shown a run."""
        self.shown.note(view.run_id, view.revision, ended=view.status.is_terminal)
        if view.status.is_terminal and not self.caller.is_child:
            await asyncio.to_thread(unseen.unmark, self.service.store.paths.run(view.run_id))

    async def view_after_answer(
        self, observed: Observed, message_id: str, call: Call, default: float
    ) -> RunView:
        """Return a child's view of its question: answered, expired, or still open."""

        def is_closed(run: Observed) -> bool:
            message = run.meta.message(message_id)
            pending = message is not None and message.message_status is MessageStatus.PENDING
            return not pending or run.meta.status.is_terminal

        wait = Wait(call.wait_seconds(default), progress=call.progress)
        observed = await self._when(observed, is_closed, wait)
        calls, caller = call.next_calls, self.caller
        view = await asyncio.to_thread(
            view_for, self.service, observed, calls, message_id, caller, is_asker=True
        )
        return view if is_closed(observed) else with_note(view, call.wait_note(default))

    async def _when(self, observed: Observed, is_enough: Callable[[Observed], bool], wait: Wait) -> Observed:
        """Return a run as soon as the wanted condition holds, or as it is when the time is over."""
        if wait.seconds <= 0 or is_enough(observed):
            return observed
        run_id, latest = observed.meta.run_id, observed

        def look() -> Observed | None:
            nonlocal latest
            latest = observe(self.service.store, run_id)
            return latest if is_enough(latest) else None

        await self.waited(look, replace(wait, run_ids=frozenset({run_id})))
        return latest


def with_note(view: RunView, note: str | None) -> RunView:
    """Return a view with a note if its wait was cut."""
    return view if note is None else view.model_copy(update={"wait_note": note})
