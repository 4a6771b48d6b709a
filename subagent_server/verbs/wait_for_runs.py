"""The verb `wait_for_runs`: which runs ask or have ended, and which of that the parent has seen already.

Tested in `tests/server/test_wait_for_runs.py` and `tests/server/test_parents.py`.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field

from subagent_server.run.errors import SubagentError, UnknownRun, visible
from subagent_server.run.journal import latest_step
from subagent_server.run.processes import now
from subagent_server.run.records import Record, RunMeta, StartedBy
from subagent_server.run.states import Status, cut
from subagent_server.run.store import RunStore, newest_unseen
from subagent_server.run.wake import SLOW_POLL_SECONDS
from subagent_server.run.watch import Watcher
from subagent_server.verbs.access import (
    ENDED,
    Caller,
    OtherParents,
    ShownRuns,
    check_open,
    others_sentence,
    read_cursor,
)
from subagent_server.verbs.reconcile import Observed, observe
from subagent_server.verbs.service import Service
from subagent_server.verbs.views import (
    MAX_IDS,
    NextCalls,
    RunView,
    elapsed_seconds,
    run_view,
    those_that_fit,
    waits_for_slot,
)

WaitFor = Literal["any", "all"]


class WaitResult(Record):
    """The answer of `wait_for_runs`."""

    runs: list[RunView]
    working: list[str]
    later: list[str] | None = Field(default=None, description="More that ask or have ended: the next call")
    cursor: str = Field(description="Pass it only from another connection")
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
    """The runs of one `wait_for_runs`.

    They are the named runs, or else the caller's live runs and its ended runs that no view has reported.

    `remembered` is what its connection was shown; a cursor replaces that.
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
        for run_id in run_ids or ():
            check_open(caller, service.store.read(run_id))
        self._named = list(dict.fromkeys(run_ids)) if run_ids else None
        if cursor:
            known = [*(self._named or []), *service.store.live_ids(), *remembered.unfinished]
            self._shown = read_cursor(cursor, service.store, known)
        self.run_ids = self._which()

    def look(self, wait_for: WaitFor) -> WaitResult | None:
        """Return the result of the wait now, or None while there is nothing to report."""
        self.run_ids = self._which()
        runs, unreadable = self._observe_all()
        news = [r for r in runs if self._is_news(r.meta)]
        asking = any(needs_parent(r.meta, self._shown.revision(r.meta.run_id)) for r in news)
        working = [r for r in runs if not r.meta.status.is_terminal]
        if working and not asking and not (news and wait_for == "any"):
            return None
        return self._result(runs, unreadable)

    def now(self) -> WaitResult:
        """Return the result of the wait when the time is over."""
        return self._result(*self._observe_all())

    def _observe_all(self) -> tuple[list[Observed], list[str]]:
        runs, unreadable = [], []
        for run_id in self.run_ids:
            try:
                runs.append(observe(self._service.store, run_id))
            except SubagentError as error:
                unreadable.append(error.sentence)
        return runs, unreadable

    def _result(self, runs: list[Observed], unreadable: list[str]) -> WaitResult:
        news = [r for r in runs if self._is_news(r.meta)]
        is_again = False
        if not news and self._named is not None and self._shown is self._remembered:
            is_again = all(r.meta.status.is_terminal for r in runs)  # there is no more to wait for
        news = runs if is_again else sorted(news, key=lambda r: not r.meta.pending)
        made = (run_view(self._service.store, each, self._next_calls, self._caller) for each in news)
        views = those_that_fit(made)
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
            other_parents=others_sentence(*self._count_others()),
            unreadable=unreadable or None,
            instructions=self._instructions(runs, news[: len(views)], len(news) - len(views), is_again),
        )

    def _may_come_again(self, run: Observed) -> bool:
        """Whether a later wait may look at this run again."""
        return not run.meta.status.is_terminal or run.live is not False or self._named is not None

    def _is_news(self, meta: RunMeta) -> bool:
        shown = self._shown.revision(meta.run_id)
        return shown < ENDED if meta.status.is_terminal else needs_parent(meta, shown)

    def _instructions(self, runs: list[Observed], news: list[Observed], omitted: int, is_again: bool) -> str:
        again = f"Next: {self._next_calls('wait_for_several')}."
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
        answer = self._next_calls("answer", asking[0].run_id, asking[0].pending[0].message_id)
        count = "1 asks" if len(asking) == 1 else f"{len(asking)} ask"
        return f"Still working: {working}, of which {count} what you were shown: {answer}. {again}"

    def _which(self) -> list[str]:
        """Return the runs to look at; those of a parent that goes during the wait join them."""
        if self._named is not None:
            return self._named
        store, others = self._service.store, OtherParents(self._caller)
        noted = dict.fromkeys([*self._shown.unfinished, *self._remembered.unfinished, *store.live_ids()])
        unseen_ends = [] if self._caller.is_child else newest_unseen(store.paths, now())
        own, self._others = [], []
        for run_id in dict.fromkeys([*noted, *unseen_ends]):
            try:
                parent_run_id, starter = self._origin(run_id)
            except UnknownRun:
                continue
            except SubagentError:
                own += [run_id] if run_id in noted else []  # shown as unreadable rather than left out
                continue
            if parent_run_id == self._caller.run_id:
                (self._others if others.own(starter) else own).append(run_id)
        return own

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

    def _count_others(self) -> tuple[int, int]:
        """Return how many runs of other parents work, and how many of these ask."""
        others = self._service.store.readable(self._others)
        working = [meta for meta in others if not meta.status.is_terminal]
        return len(working), sum(meta.pending_questions > 0 for meta in working)


# -- Changes of runs, and waiting for them: subscribe, read, then wait. Nothing is lost in between.
#
# The end of a wait never touches the run.


T = TypeVar("T")
PROGRESS_SECONDS = 10.0


class ChangeSource:
    """Something whose changes can be waited for."""

    def __init__(self) -> None:
        self._listeners: set[Callable[[str], None]] = set()
        self._lock = threading.Lock()

    def add(self, listener: Callable[[str], None]) -> None:
        """Call `listener(name)`, from another thread, at each change that is watched."""
        self._listeners.add(listener)

    def remove(self, listener: Callable[[str], None]) -> None:
        """Call it no more."""
        self._listeners.discard(listener)

    def watch(self) -> None:
        """Watch what is not watched yet. Reads directories: call it off the event loop."""
        with self._lock:
            self._watch()

    def _watch(self) -> None:
        """Watch what is not watched yet."""
        raise NotImplementedError

    def _notify(self, name: str) -> None:
        for listener in list(self._listeners):  # no lock: `watch` holds it while it walks trees
            listener(name)


class Changes(ChangeSource):
    """Reports every change of a live run under a root, by its id. All who wait share one watch."""

    def __init__(self, store: RunStore) -> None:
        super().__init__()
        self._store = store
        self.watcher = Watcher()
        """The one observer of the process: it also watches the agents directories."""
        self._watching = False

    def close(self) -> None:
        """Stop listening."""
        self.watcher.close()

    def _watch(self) -> None:
        if not self._watching and self._store.paths.is_ours:  # a wait makes no root: the first start does
            self._store.make_root()
            self.watcher.watch(self._store.paths.changes.path, self._notify)
            self._watching = True


class AgentChanges(ChangeSource):
    """Reports changes in some agents directories and below them.

    A missing or replaced directory is watched from the first subscription after the directory is there.
    """

    def __init__(self, directories: Sequence[Path], watcher: Watcher) -> None:
        super().__init__()
        self._directories = tuple(dict.fromkeys(directories))
        self._watcher = watcher
        self._watched: dict[Path, tuple[tuple[int, int], Callable[[], None]]] = {}
        """The directories by their paths: device and inode, and how to end the watch."""

    def _watch(self) -> None:
        for directory in self._directories:
            identity = None
            with suppress(OSError):
                facts = directory.stat()
                identity = facts.st_dev, facts.st_ino
            known, unwatch = self._watched.get(directory, (None, None))
            if identity == known:
                continue
            if unwatch is not None:  # another directory of the same name was watched
                unwatch()
                del self._watched[directory]
            if identity is not None:
                unwatch = self._watcher.watch(directory, self._notify, recursive=True)
                self._watched[directory] = (identity, unwatch)


@dataclass
class Wait:
    """How long to wait, for changes of which runs (None: any), and which function to call during the wait.

    `progress` gets the seconds waited so far, and the ids of the runs.
    """

    seconds: float
    run_ids: frozenset[str] | None = None
    progress: Callable[[float, Collection[str]], Awaitable[None]] | None = None
    poll_seconds: float = SLOW_POLL_SECONDS


async def until_root_is_made(store: RunStore) -> None:
    """Return as soon as the runs root is there: the first use makes the root, a wait does not."""
    while not store.paths.root.exists():
        await asyncio.sleep(SLOW_POLL_SECONDS)


async def wait_until(changes: ChangeSource, check: Callable[[], T | None], wait: Wait) -> T | None:
    """Return the first value of `check` that is not None, or None when the time is over.

    `check` reads files, so it runs in a thread: at the beginning, after each change, and at a slow poll.
    """
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()

    def hear(run_id: str) -> None:
        if (wait.run_ids is None or run_id in wait.run_ids) and not loop.is_closed():
            loop.call_soon_threadsafe(changed.set)

    def look() -> T | None:
        changes.watch()
        return check()

    changes.add(hear)  # not by the thread: a wait that is cancelled meanwhile would leave it there
    began = reported = loop.time()
    try:
        while True:
            changed.clear()
            found = await asyncio.to_thread(look)
            remaining = began + wait.seconds - loop.time()
            if found is not None or remaining <= 0:
                return found
            with suppress(TimeoutError):
                async with asyncio.timeout(min(remaining, wait.poll_seconds)):
                    await changed.wait()
            if wait.progress is not None and loop.time() - reported >= PROGRESS_SECONDS - wait.poll_seconds:
                reported = loop.time()
                await wait.progress(reported - began, wait.run_ids or ())
    finally:
        changes.remove(hear)


# -- The words of a progress notification: what the awaited runs do now, on one line.


MAX_SHOWN_RUNS = 3
MAX_NAME_CHARACTERS = 40
MAX_STEP_CHARACTERS = 120


def progress_text(store: RunStore, run_ids: Iterable[str]) -> str:
    """Return what these runs do, as far as they can be read; runs that have ended are left out."""
    metas = [meta for meta in store.readable(sorted(run_ids)) if not meta.status.is_terminal]
    if not metas:
        return "still waiting"
    words = [_words(store, meta) for meta in metas[:MAX_SHOWN_RUNS]]
    if len(metas) == 1:
        return words[0]
    more = [f"and {len(metas) - len(words)} more"] if len(metas) > len(words) else []
    return f"{len(metas)} at work: {'; '.join([*words, *more])}"


def _words(store: RunStore, meta: RunMeta) -> str:
    name = _line(meta.agent_name, MAX_NAME_CHARACTERS)
    if meta.label:
        name += f" ({_line(meta.label, MAX_NAME_CHARACTERS)})"
    seconds = elapsed_seconds(meta.created_at, None)
    return f"{name}, {seconds:.0f} s{_step(store, meta)}"


def _step(store: RunStore, meta: RunMeta) -> str:
    """Return what a run does: its question, its position in the queue, or the last step in its journal."""
    if meta.pending:
        return f": asks {_line(meta.pending[0].question_content, MAX_STEP_CHARACTERS)}"
    if meta.status is Status.READY:
        return ": waits for a slot" if waits_for_slot(store.paths, meta) else ": is being started"
    turn, words = latest_step(store.paths.run(meta.run_id))
    step = "" if turn is None else f", turn {turn}"
    return f"{step}: {_line(words, MAX_STEP_CHARACTERS)}" if words else step


def _line(text: str, most: int) -> str:
    """Return the beginning of a text that anybody may have written, on one line."""
    return cut(visible(cut(" ".join(text[: 2 * most].split()), most)), most)
