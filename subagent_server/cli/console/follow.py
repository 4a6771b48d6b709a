"""Watch runs: their journals, their changes, the end of their processes. Ctrl-C ends the watching alone.

All wake by changes in the directories of runs, and by a slow poll. Ctrl-C never ends a run.
"""

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import NoReturn, TypeVar

import click

from subagent_server.cli.console.app import Session
from subagent_server.cli.console.output import (
    EarlyExit,
    ExitCode,
    Flags,
    OutputClosed,
    err,
    is_terminal,
    out,
    out_json,
    reader_is_gone,
)
from subagent_server.cli.console.show_text import run_cell, what_cell
from subagent_server.cli.console.terminal import (
    UNKNOWN,
    coloured,
    cut,
    duration,
    line_width,
    look_of,
    one_line,
    short_number,
    table,
)
from subagent_server.run.errors import SubagentError
from subagent_server.run.files import Entry
from subagent_server.run.journal import in_order, page
from subagent_server.run.paths import RootPaths, RunPaths
from subagent_server.run.states import TOKENS, dollars, least_mark
from subagent_server.run.store import RunStore
from subagent_server.run.wake import SLOW_POLL_SECONDS
from subagent_server.run.watch import Watcher
from subagent_server.verbs.flow_calls import calls_of_flow, phases
from subagent_server.verbs.list_runs import Node, TreeRow, trees_of
from subagent_server.verbs.reconcile import Observed
from subagent_server.verbs.service import Service
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
        except SubagentError:  # the verb that comes next will say what is wrong with the run
            return False

    try:
        yield
    except KeyboardInterrupt:
        first, asking = run_ids[0], next(filter(asks, run_ids), None)
        goes_on = f"run {first} goes on" if len(run_ids) == 1 else "the runs continue"
        answers = "" if asking is None else f"`{session.command('reply', asking)}` answers its question, "
        raise interrupted(
            f"only the watching has ended, {goes_on}: {answers}`{session.command('logs', '-f', first)}` "
            f"watches, `{session.command('stop', *run_ids)}` stops."
        ) from None


def interrupted(sentence: str) -> EarlyExit:
    """Return the end of a verb whose watching Ctrl-C has ended."""
    if is_terminal(sys.stderr):
        err("")  # the terminal has written ^C
    return EarlyExit(ExitCode.INTERRUPTED, sentence)


@contextmanager
def interrupts_held() -> Iterator[Callable[[], None]]:
    """Defer Ctrl-C while a short piece of work must not be interrupted.

    Yields a function that raises the deferred KeyboardInterrupt, to be called once the run id is known.
    """
    came: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        came.append(number)

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


T = TypeVar("T")

AT_MOST_EVERY_SECONDS = 1.0
STOP_WAIT_SECONDS = 12.0
"""A little more than the grace between TERM and KILL."""
_SILENT_SECONDS = 1.5
_PAGE_LINES = 500

Show = Callable[[str, str], None]
"""Called with the id of a run and a new line of its file."""


@dataclass
class _Followed:
    """A run, its file, and how far that was read."""

    run: RunPaths
    file: Entry
    cursor: int
    is_over: bool = False

    def new_lines(self) -> Iterator[str]:
        while True:
            found = page(self.file, self.cursor, _PAGE_LINES)
            self.cursor = found.cursor
            yield from found.lines
            if found.at_end or not found.lines:
                return


class LogFollower:
    """Follows one journal each of some runs, and with `tree` also of the runs that they start.

    It watches before it reads, so no line is lost in between. A context manager: its exit ends the watch.
    """

    def __init__(self, session: Session, *, tree: bool = False) -> None:
        self._session = session
        self._tree = tree
        self._runs: dict[str, _Followed] = {}
        self._changed = threading.Event()
        self._watcher = Watcher()

    def __enter__(self) -> "LogFollower":
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher.close()

    def add(self, run_id: str, cursor: int) -> None:
        """Follow the journal of a run from a place on."""
        run = self._session.service.store.paths.run(run_id)
        self._runs[run_id] = _Followed(run, run.events, cursor)
        relevant = {entry.name for entry in (run.events, run.meta, run.exit)}

        def hear(name: str) -> None:
            if name in relevant:  # reading a run opens its lock file, which must not wake this loop again
                self._changed.set()

        self._watcher.watch(run.directory, hear)

    def until(self, done: Callable[[Observed], bool], show: Show) -> Observed:
        """Show lines until all runs have ended or `done` is true for one; return the first as it was then.

        Lines that were written until then are shown.

        Raises:
            OutputClosed: the reader of stdout has gone.
            UnknownRun, UnreadableMeta, NotAllowed, StorageFailed: as reading a run does.
            ForeignRoot: a run has not ended and its root is foreign.
        """
        while True:
            self._changed.clear()
            seen = [self._look(each) for each in self._runs.values() if not each.is_over]
            self._add_children()
            lines = ((id_, line) for id_, each in self._runs.items() for line in each.new_lines())
            for run_id, line in lines if len(self._runs) == 1 else in_order(lines):
                show(run_id, line)
            if any(map(done, seen)) or all(each.is_over for each in self._runs.values()):
                return seen[0]
            if reader_is_gone():
                raise OutputClosed
            self._session.service.store.paths.check_ours()  # runs of a foreign root are not waited for
            self._changed.wait(SLOW_POLL_SECONDS)

    def _look(self, followed: _Followed) -> Observed:
        run = followed.run
        observed = self._session.open_run(run.run_id)
        # Nothing more is written if the journal says so, or if the tree is gone: then reconciliation has
        # closed the journal. For a run of another host the status decides.
        followed.is_over = observed.meta.status.is_terminal and (not observed.live or run.journal_has_ended())
        return observed

    def _add_children(self) -> None:
        store = self._session.service.store
        for run_id in list(self._runs) if self._tree else []:
            for child in store.children_of(run_id):
                if child not in self._runs and store.exists(child):
                    self.add(child, 0)  # looked at in the next round, which an unheard change may delay
                    self._changed.set()


def wait_for(
    service: Service, run_ids: Sequence[str], check: Callable[[], T | None], seconds: float
) -> T | None:
    """Return the first value of `check` that is not None, or None after `seconds`.

    `check` is called in a thread, at once and after each change of one of these runs.
    """
    changes = Changes(service.store)
    try:
        wait = Wait(seconds=seconds, run_ids=frozenset(run_ids))
        return asyncio.run(wait_until(changes, check, wait))
    finally:
        changes.close()


def until_gone(session: Session, run_ids: list[str]) -> list[Observed]:
    """Return runs that were stopped, when no process of them lives or after 12 s.

    At a terminal, a remark says why this takes longer than a moment.
    """

    def look() -> list[Observed]:
        return [session.open_run(run_id) for run_id in run_ids]

    def check() -> list[Observed] | None:
        observed = look()
        return None if any(one.live for one in observed) else observed

    if not run_ids:
        return []
    gone = wait_for(session.service, run_ids, check, _SILENT_SECONDS)
    as_json = click.get_current_context().ensure_object(Flags).as_json
    if gone is None and is_terminal(sys.stderr) and not as_json:
        err("Stopped. The processes end within 12 s: a call of the model may finish, as it is billed anyway.")
    return gone or wait_for(session.service, run_ids, check, STOP_WAIT_SECONDS - _SILENT_SECONDS) or look()


def watch(session: Session, show: Callable[[], None]) -> NoReturn:
    """Call `show` at once, after changes of live runs and on a slow poll, until Ctrl-C.

    It is called at most once a second.

    Raises:
        EarlyExit: Ctrl-C came.
        OutputClosed: the reader of stdout has gone.
    """
    changes, changed = Changes(session.service.store), threading.Event()
    heard = False
    try:
        while True:
            if not heard and session.service.store.paths.is_ours:  # watching must not create a runs root
                changes.subscribe(lambda _: changed.set())
                heard = True
            changed.clear()
            show()
            threading.Event().wait(AT_MOST_EVERY_SECONDS)
            if reader_is_gone():
                raise OutputClosed
            changed.wait(SLOW_POLL_SECONDS - AT_MOST_EVERY_SECONDS)
    except KeyboardInterrupt:
        raise interrupted("only the watching has ended, the runs continue.") from None
    finally:
        changes.close()


# -- Trees of runs on a terminal: `ls --tree` and `ls --watch`.


_HEADER = ("STATUS", "RUN", "AGENT", "TIME", "TOKENS", "COST", "WHAT")
_LIMITS = (12, 32, 18, 6, 6, 8)
GROUPS = ("needs you", "working", "done")


def show_trees(session: Session, run_ids: list[str], *, quiet: bool, as_json: bool) -> None:
    """Print the trees of these runs: drawn, as ids only, or as JSON with nested `children`."""
    trees = trees_of(session.service, run_ids, session.caller)
    if as_json:
        out_json([tree.to_wire() for tree in trees])
    elif quiet:
        out("\n".join(row.run.run_id for tree in trees for _, row in tree.walk()))
    else:
        out("\n".join(drawn(session.service.store, trees)))


def watch_trees(session: Session, run_ids: Callable[[], list[str]], *, as_json: bool) -> NoReturn:
    """Show the trees of the runs that `run_ids` names, as they change, until Ctrl-C."""
    screen = TreeScreen(session, as_json=as_json)
    watch(session, lambda: screen.show(trees_of(session.service, run_ids(), session.caller)))


def drawn(store: RunStore, trees: Iterable[Node]) -> list[str]:
    """Return a header and a line for each run, children indented below their parent.

    Below a flow are its phases, and before each run that it has called is what the call became.
    """
    lines: list[TreeRow | None] = []
    cells: list[tuple[str, ...]] = [_HEADER]
    states: dict[str, str] = {}
    for depth, row in (line for tree in trees for line in tree.walk()):
        first, *rest = _cells(store.paths, depth, row)
        state = states.get(row.run.run_id)
        cells.append((first, *rest[:-1], " · ".join(filter(None, (state, rest[-1])))))
        calls = calls_of_flow(store, row.run.run_id)
        states |= {call.called_run_id: call.state for call in calls if call.called_run_id is not None}
        titles = [one_line(title) for title, _ in phases(calls)]
        cells += [("", "", _branch(depth + 1) + "phase", "", "", "", title) for title in titles]
        lines += [row, *(None for _ in titles)]
    header, *texts = table(cells, _LIMITS)
    return [
        _fitted(header),
        *(
            _fitted(text) if row is None else _coloured(row, text)
            for row, text in zip(lines, texts, strict=True)
        ),
    ]


def group_of(tree: Node) -> str:
    """Return the group of a tree, which its most urgent run decides."""
    rows = [row for _, row in tree.walk()]
    if any(row.run.pending_questions for row in rows):
        return "needs you"
    return "working" if any(not row.run.is_over for row in rows) else "done"


class TreeScreen:
    """Prints trees repeatedly: a new frame after each change."""

    def __init__(self, session: Session, *, as_json: bool) -> None:
        self._session = session
        self._as_json = as_json
        self._last: list[TreeRow] | None = None

    def show(self, trees: list[Node]) -> None:
        """Show the trees as they are now, unless only time has passed."""
        lasting = [
            replace(row, run=row.run.model_copy(update={"elapsed_seconds": None}))
            for tree in trees
            for _, row in tree.walk()
        ]
        if lasting == self._last:
            return
        self._last = lasting
        if self._as_json:
            out_json([tree.to_wire() for tree in trees], indent=None)
        else:
            out("\n".join(self._frame(trees)))

    def _frame(self, trees: list[Node]) -> Iterator[str]:
        if not trees:
            yield f"No runs in {one_line(str(self._session.settings.runs_root))}.\n"
        for name in GROUPS:
            if group := [tree for tree in trees if group_of(tree) == name]:
                yield f"{name} ({len(group)})"
                yield from [*drawn(self._session.service.store, group), ""]


def _cells(root: RootPaths, depth: int, of_tree: TreeRow) -> tuple[str, ...]:
    row, usage = of_tree.run, of_tree.with_descendants
    look = look_of(row.status, row.pending_questions, row.live)
    run, what = run_cell(row.run_id), what_cell(root, row)
    if row.unreadable is not None:
        return (look.text, run, "", "", "", "", what)
    cost = "" if usage.cost_usd is None else least_mark(usage.at_least, "costUsd") + dollars(usage.cost_usd)
    mark, tokens = least_mark(usage.at_least, *TOKENS), usage.tokens
    told = UNKNOWN if tokens is None else mark + short_number(tokens)
    agent = _branch(depth) + one_line(row.agent or "")
    return (look.text, run, agent, duration(row.elapsed_seconds or 0), told, cost, what)


def _coloured(row: TreeRow, line: str) -> str:
    look = look_of(row.run.status, row.run.pending_questions, row.run.live)
    return _fitted(line).replace(look.text, coloured(look.text, look.colour), 1)


def _fitted(line: str) -> str:
    """Return a line as wide as the terminal; in a pipe it is whole."""
    return cut(line, line_width()) if is_terminal(sys.stdout) else line


def _branch(depth: int) -> str:
    return "" if depth == 0 else f"{'  ' * (depth - 1)}└ "
