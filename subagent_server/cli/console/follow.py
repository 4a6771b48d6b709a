"""Watch runs for their changes and the end of their processes, and report how they ended.

All wake by changes in the directories of runs, and by a slow poll. Ctrl-C ends the watching, never a run.
"""

import asyncio
import math
import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, TypeVar

from subagent_server.cli.console.app import Session, report
from subagent_server.cli.console.terminal import (
    EarlyExit,
    ExitCode,
    OutputClosed,
    err,
    for_people,
    is_terminal,
    look_of,
    one_line,
    out,
    out_json,
    reader_is_gone,
)
from subagent_server.run.errors import SubagentError
from subagent_server.run.records import RunMeta
from subagent_server.run.states import Status
from subagent_server.run.wake import SLOW_POLL_SECONDS
from subagent_server.verbs.reconcile import Observed
from subagent_server.verbs.service import Service
from subagent_server.verbs.views import RunView
from subagent_server.verbs.wait_for_runs import Changes, Wait, wait_until

# -- Ctrl-C ends the watching, never the run.


@contextmanager
def watching(session: Session, *run_ids: str) -> Iterator[None]:
    """Turn Ctrl-C into an early exit that names the commands to watch and to stop the runs.

    Raises:
        EarlyExit: Ctrl-C was pressed.
    """

    def asks(run_id: str) -> bool:
        try:
            return session.open_run(run_id).meta.pending_questions > 0
        except SubagentError:  # the verb that comes next reports what is wrong with the run
            return False

    try:
        yield
    except KeyboardInterrupt:
        first, asking = run_ids[0], next(filter(asks, run_ids), None)
        they = f"run {first} continues" if len(run_ids) == 1 else "the runs continue"
        answers = "" if asking is None else f"`{session.command('reply', asking)}` answers its question, "
        raise interrupted(
            f"only the watching has ended, {they}: {answers}`{session.command('logs', '-f', first)}` "
            f"watches, `{session.command('stop', *run_ids)}` stops."
        ) from None


def interrupted(sentence: str) -> EarlyExit:
    """Return the end of a verb whose watching Ctrl-C has ended."""
    if is_terminal(sys.stderr):
        err("")  # the terminal has written ^C
    return EarlyExit(ExitCode.INTERRUPTED, sentence)


@contextmanager
def interrupts_kept(*, held: bool = False) -> Iterator[Callable[[], None]]:
    """Keep in mind that Ctrl-C came, and yield a function that raises KeyboardInterrupt then.

    Python drops what a handler of signals raises in a finalizer, and each look at runs has hundreds: a loop
    that only Ctrl-C ends asks by that function. With `held` nothing else raises it: a short piece of work is
    not interrupted.
    """
    came: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if not held:
            raise KeyboardInterrupt

    def release() -> None:
        if came:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, remember)
    try:
        yield release
    finally:
        signal.signal(signal.SIGINT, before)


class Wakeup:
    """Lets another thread end a wait of the main thread, which Ctrl-C may end at any moment, too.

    With `threading.Event` one of 1,500 interrupts that met the end of a wait came out of it as "release
    unlocked lock". The descriptor stays open until the process ends: the other thread may still write.
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Return what `select` takes, for a wait for something else, too."""
        return self._descriptor

    def set(self) -> None:
        """End the wait that is under way, or the next one."""
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Forget what was set so far."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def wait(self, seconds: float) -> None:
        """Wait until it is set, at most so long."""
        select.select([self._descriptor], [], [], seconds)


T = TypeVar("T")

AT_MOST_EVERY_SECONDS = 1.0
STOP_WAIT_SECONDS = 12.0
"""A little more than the grace between TERM and KILL."""
_SILENT_SECONDS = 1.5


def wait_for(
    service: Service, run_ids: Sequence[str], check: Callable[[], T | None], seconds: float | None
) -> T | None:
    """Return the first value of `check` that is not None, or None after `seconds`, if there is a limit.

    `check` is called in a thread, at once and after each change of one of these runs.
    """
    changes = Changes(service.store)
    try:
        wait = Wait(seconds=math.inf if seconds is None else seconds, run_ids=frozenset(run_ids))
        return asyncio.run(wait_until(changes, check, wait))
    finally:
        changes.close()


def until_gone(session: Session, run_ids: list[str]) -> list[Observed]:
    """Return runs that were stopped, when no process of them lives or after 12 s.

    At a terminal, a remark explains why this takes longer than a moment.
    """

    def check() -> list[Observed] | None:
        observed = session.open_runs(run_ids)
        return None if any(one.live for one in observed) else observed

    if not run_ids:
        return []
    gone = wait_for(session.service, run_ids, check, _SILENT_SECONDS)
    if gone is None and is_terminal(sys.stderr) and not session.as_json:
        err("Stopped. The processes end within 12 s: a call of the model may finish, as it is billed anyway.")
    return (
        gone
        or wait_for(session.service, run_ids, check, STOP_WAIT_SECONDS - _SILENT_SECONDS)
        or session.open_runs(run_ids)
    )


def watch(session: Session, show: Callable[[], None]) -> NoReturn:
    """Call `show` at once, after changes of live runs and on a slow poll, until Ctrl-C.

    It is called at most once a second.

    Raises:
        EarlyExit: Ctrl-C came.
        OutputClosed: the reader of stdout has gone.
    """
    changes, changed = Changes(session.service.store), Wakeup()
    changes.add(lambda _: changed.set())
    try:
        with interrupts_kept() as check_interrupt:
            while True:
                changes.watch()
                changed.clear()
                show()
                check_interrupt()
                signal.sigtimedwait((), AT_MOST_EVERY_SECONDS)
                if reader_is_gone():
                    raise OutputClosed
                changed.wait(SLOW_POLL_SECONDS - AT_MOST_EVERY_SECONDS)
    except KeyboardInterrupt:
        raise interrupted("only the watching has ended, the runs continue.") from None
    finally:
        changes.close()


# -- The outcome of a run as an exit code, a sentence on stderr and a line.


_ENDINGS = {
    Status.COMPLETED: ExitCode.OK,
    Status.FAILED: ExitCode.FAILED,
    Status.STOPPED: ExitCode.STOPPED,
}
_WORST_FIRST = (ExitCode.NEEDS_ANSWER, ExitCode.FAILED, ExitCode.STOPPED)


def exit_of_run(meta: RunMeta) -> ExitCode | None:
    """Return the exit code of a run that has ended or asks; None while it works."""
    return ExitCode.NEEDS_ANSWER if meta.pending_questions else _ENDINGS.get(meta.status)


def exit_of_started(meta: RunMeta) -> ExitCode | None:
    """Return the same for the command that started the run: 6 if the machine had no room for its process."""
    if meta.error is not None and meta.error.code == "launch_failed":
        return ExitCode.ENVIRONMENT
    return exit_of_run(meta)


def worst(codes: Iterable[ExitCode | None]) -> ExitCode:
    """Return the code of several runs: a question (5) before a failure (1) before a stop (4) before 0."""
    found = set(codes)
    return next((code for code in _WORST_FIRST if code in found), ExitCode.OK)


def report_run(session: Session, view: RunView, *, is_known: bool = False) -> None:
    """Print open questions, a failure or a stop of a run to stderr, a line each.

    With `is_known` the followed log has just shown the reason of the end, which is not repeated.
    """
    for message in view.messages or []:
        options = f" [{' | '.join(map(one_line, message.options))}]" if message.options else ""
        command = session.command("reply", view.run_id, message.message_id, "ANSWER")
        report(
            f"run {view.run_id} asks {message.message_id}: {one_line(message.question)}{options} "
            f"Answer with `{command}`.",
            code="needs_answer",
            next_step=command,
        )
    if is_known and view.status in (Status.FAILED, Status.STOPPED):
        ended = f"failed ({one_line(view.error.code)})" if view.error is not None else "was stopped"
        report(f"run {view.run_id} {ended}: `{session.command('show', view.run_id)}` has all of it.")
    elif view.error is not None:
        remedy = for_people(view.error.hint) if view.error.hint else None
        what_next = f" {remedy}" if remedy else ""
        failed = one_line(f"run {view.run_id} failed ({view.error.code}): {view.error.message}")
        failed += "" if failed.endswith((".", "!", "?", "…")) else "."
        report(f"{failed}{what_next}", code=view.error.code, next_step=remedy)
    elif view.status is Status.STOPPED:
        stopped = one_line(f"run {view.run_id} was stopped. {view.summary or ''}")
        report(stopped, code="stopped", next_step=view.instructions)


def out_views(session: Session, views: Sequence[RunView]) -> None:
    """Print runs: as JSON, or each on one line with status, id and agent."""
    if session.as_json:
        out_json([view.to_wire() for view in views])
        return
    for view in views:
        look = look_of(view.status, len(view.messages or ()), view.live)
        out(f"{look.text:<12}  {view.run_id}  {one_line(view.agent)}")
