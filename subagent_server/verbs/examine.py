"""The doctor: checks the files of runs, for kill tests, property tests, CI and bug reports.

Each check names a defect in a sentence; without any defect the run is as SPEC section 4 defines.

Tested in `tests/cli/test_doctor.py`; the tests in `tests/faults/` and `tests/soak/` rely on it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce

from subagent_server.process import marks
from subagent_server.run import durable, locks, processes
from subagent_server.run.errors import SubagentError, UnknownRun
from subagent_server.run.journal import recorded_usage
from subagent_server.run.paths import RECORD_BYTES, REMOVED_CHILD, RunPaths
from subagent_server.run.records import RunMeta, Transition, Usage
from subagent_server.run.secrets import secret_values
from subagent_server.run.states import (
    ALWAYS,
    TRANSITIONS,
    Event,
    MessageStatus,
    Status,
    Target,
    derived_status,
)
from subagent_server.run.store import RunStore
from subagent_server.verbs.reconcile import Observed, children, observe, subtree, tree_is_gone
from subagent_server.verbs.run_worktree import open_worktree

_WORKING = frozenset({Status.RUNNING, Status.WAITING, Status.REPLIED})
NOT_SETTLED = "its worktree is not settled, and each reader tries again"
_LARGEST_SEARCHED = 64 << 20
_DEEPEST = 4
"""How deep the files of a run go."""


@dataclass(frozen=True)
class Defect:
    """A contradiction in the files of a run."""

    run_id: str
    what: str


def examine(store: RunStore, run_ids: Iterable[str], environment: Mapping[str, str]) -> Iterator[Defect]:
    """Reconcile runs, as every reader does, and yield their defects. `environment`: its secrets."""
    secrets = {name: value.encode() for name, value in secret_values(environment).items()}
    # To look at all processes takes 2 ms for each hundred: too long to do it for each of many runs. A run
    # that has neither a process nor a mark now never gets a process.
    may_live = {*marks.runs_with_processes(), *store.live_ids()}
    for run_id in run_ids:
        yield from _defects(store, run_id, secrets, may_live=run_id in may_live)


def _defects(
    store: RunStore, run_id: str, secrets: Mapping[str, bytes], *, may_live: bool
) -> Iterator[Defect]:
    try:
        observed = observe(store, run_id)
        request = store.read_request(run_id)
    except UnknownRun:
        return  # a start that never was
    except SubagentError as error:
        yield Defect(run_id, error.sentence)
        return
    case = _Case(store, store.paths.run(run_id), observed, secrets, may_live)
    if request.run_id != run_id:
        yield Defect(run_id, f"request.json is that of run {request.run_id}")
    for check in _CHECKS:
        try:
            for what in check(case):
                yield Defect(run_id, what)
        except SubagentError as error:  # an unreadable file is a defect too
            yield Defect(run_id, error.sentence)
        except OSError as error:
            yield Defect(run_id, f"{error.filename} cannot be read: {error.strerror}")


@dataclass(frozen=True)
class _Case:
    """A run under examination."""

    store: RunStore
    run: RunPaths
    observed: Observed
    secrets: Mapping[str, bytes]
    may_live: bool

    @property
    def meta(self) -> RunMeta:
        return self.observed.meta

    @property
    def is_over(self) -> bool:
        """Whether the run has ended and its last process is gone."""
        return self.meta.status.is_terminal and self.observed.live is False


def _history(case: _Case) -> Iterator[str]:
    """Every step was legal and begins in the status that the last step left; the run ended at most once."""
    status = Status.READY
    for number, step in enumerate(case.meta.transitions, start=1):
        if step.from_status is not status:
            yield f"transition {number} ({step.event}) begins at {step.from_status}, not at {status}"
        if not _is_legal(step):
            yield f"transition {number} goes by {step.event} from {step.from_status} to {step.to_status}"
        status = step.to_status
    if status is not case.meta.status:
        yield f"the status is {case.meta.status}, but its transitions lead to {status}"
    starts = sum(step.event is Event.WORKER_STARTED for step in case.meta.transitions)
    if starts > 1:
        yield f"its worker started {starts} times"
    if case.meta.revision < len(case.meta.transitions):
        yield f"its revision {case.meta.revision} is less than its {len(case.meta.transitions)} transitions"


def _is_legal(step: Transition) -> bool:
    if step.event in ALWAYS:
        return step.to_status is step.from_status
    target = TRANSITIONS[step.from_status].get(step.event)
    if target is Target.SAME:
        return step.to_status is step.from_status
    if target is Target.DERIVED:
        return step.to_status in _WORKING
    return target == step.to_status


def _messages(case: _Case) -> Iterator[str]:
    meta = case.meta
    statuses = [message.message_status for message in meta.messages]
    if meta.pending_questions != statuses.count(MessageStatus.PENDING):
        yield f"pendingQuestions is {meta.pending_questions}, but {len(meta.pending)} are pending"
    if meta.status.is_terminal:
        left = [s for s in statuses if s in (MessageStatus.PENDING, MessageStatus.REPLIED)]
        if left:
            yield f"it has ended with {len(left)} questions still open"
    elif meta.status in _WORKING and meta.status is not derived_status(statuses):
        yield f"its status is {meta.status}, but its questions make it {derived_status(statuses)}"
    names = [message.message_id for message in meta.messages]
    if len(set(names)) != len(names):
        yield "two of its questions have one id"


def _ending(case: _Case) -> Iterator[str]:
    """The status, its time, its error and the result agree."""
    meta = case.meta
    result = case.store.read_result(meta.run_id)
    if meta.status is Status.COMPLETED and result is None:
        yield "it is completed without a result.json"
    if result is not None and result.outcome is not meta.status:
        yield f"result.json says {result.outcome}, the status is {meta.status}"
    if meta.status.is_terminal != (meta.ended_at is not None):
        yield f"it is {meta.status}, and the time of its end is {meta.ended_at}"
    if (meta.status is Status.FAILED) != (meta.error is not None):
        yield f"it is {meta.status}, and its error is {meta.error}"
    if meta.payload is not None:
        size = len(case.store.read_payload(meta.run_id) or b"")
        if size != meta.payload.size:
            yield f"its payload has {size} bytes, and {meta.payload.size} by its state"


def _journal(case: _Case) -> Iterator[str]:
    """Numbers are dense, and a run that is over has one event of its end, the true one, as its last."""
    events = list(durable.records(case.run.events))
    numbers = [event.get("seq") for event in events]
    if numbers != list(range(1, len(numbers) + 1)):
        yield "the numbers of events.jsonl are not dense"
    ends = [event for event in events if event.get("type") == "run_ended"]
    if len(ends) > 1:
        yield f"events.jsonl says {len(ends)} times that it ended"
    if case.is_over and not ends:
        yield "events.jsonl does not say how it ended"
    if ends and ends[-1].get("status") != case.meta.status.value:
        yield f"events.jsonl says {ends[-1].get('status')}, the status is {case.meta.status}"


def _usage(case: _Case) -> Iterator[str]:
    recorded = recorded_usage(case.run)
    if case.is_over and recorded is not None and case.meta.usage != case.meta.usage.merged(recorded):
        yield "its usage is less than what events.jsonl tells"


def _tree(case: _Case) -> Iterator[str]:
    """A finished tree costs the sum of its runs; removed runs count in the runs above them."""
    meta, started = case.meta, case.store.children_of(case.meta.run_id)
    if not case.is_over or (
        started and any(case.store.is_marked(each.run_id) for each in subtree(case.store, meta))
    ):
        return
    below = list(children(case.store, meta))
    total = reduce(Usage.plus, (child.with_descendants for child in below), meta.usage)
    # a mark of a missing part may be of a run that is being removed, and older versions made none
    is_whole = len(below) == len(started) and not case.run.children.entry(REMOVED_CHILD).exists()
    stated, total = (usage.model_copy(update={"at_least": ()}) for usage in (meta.with_descendants, total))
    if stated != stated.caught_up(total) or (is_whole and stated != total):
        yield f"its withDescendants is {_sums(stated)}, but its runs sum up to {_sums(total)}"


def _sums(usage: Usage) -> str:
    return json.dumps({n: v for n, v in usage.to_wire().items() if v})


def _processes(case: _Case) -> Iterator[str]:
    """A finished run has no process, no lock and no mark of a live run; an unfinished run lives."""
    if not case.meta.status.is_terminal and case.observed.live is False:
        yield f"it is {case.meta.status}, and nobody works on it"
    if not case.is_over:
        return
    left = marks.processes_of(case.meta.run_id) if case.may_live else []
    if left:
        yield f"it is over, and {len(left)} of its processes live (pid {left[0].pid})"
    shim = marks.shim_on_record(case.run)
    # it leaves in a moment, and its lock with it; on another host it cannot be seen
    is_kept = case.observed.node is not None or (shim is not None and processes.is_alive(shim))
    if locks.is_held(case.run.live_lock) and not is_kept:
        yield "it is over, and its live.lock is held"
    if not tree_is_gone(case.run):
        yield "it is over, and exit.json does not say that its tree is gone"
    if case.store.is_marked(case.meta.run_id) and open_worktree(case.store, case.meta.run_id) is None:
        yield "it is over, and is among those that may be live"


def _worktree(case: _Case) -> Iterator[str]:
    if case.is_over and case.meta.worktree is not None:
        why = open_worktree(case.store, case.meta.run_id)
        if why is not None:
            yield f"{NOT_SETTLED}: {why}"


def _children(case: _Case) -> Iterator[str]:
    for child in case.store.children_of(case.meta.run_id):
        try:
            meta = case.store.read(child)
        except SubagentError:
            continue  # a start that never was, or a finding of its own
        if meta.parent_run_id != case.meta.run_id:
            yield f"{child} is among its children, but its parent is {meta.parent_run_id}"
        elif case.is_over and not meta.status.is_terminal:
            yield f"it is over, and its child {child} is {meta.status}"


def _secrets(case: _Case) -> Iterator[str]:
    """No value of a secret variable of this process is in any file of the run."""
    for file in case.run.files.files_below(_DEEPEST) if case.secrets else ():
        with suppress(OSError):  # not a file that we wrote, or larger than is searched
            content = file.read(_LARGEST_SEARCHED)
            for name, value in case.secrets.items():
                if value in content:
                    yield f"{file.path.relative_to(case.run.directory)} holds the value of {name}"


def _shim(case: _Case) -> Iterator[str]:
    for path in (case.run.shim, case.run.exit):
        try:
            json.loads(path.read(RECORD_BYTES))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            yield f"{path.name} cannot be read: {error}"


_CHECKS: tuple[Callable[[_Case], Iterator[str]], ...] = (
    *(_history, _messages, _ending, _journal, _usage, _tree),
    *(_processes, _worktree, _children, _shim, _secrets),
)
