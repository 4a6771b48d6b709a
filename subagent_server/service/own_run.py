"""The verbs of a run's own worker: begin, tell, ask, end. Nobody else uses them."""

import os
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from subagent_server.domain import events
from subagent_server.domain.errors import IllegalTransition, StorageFailed, SubagentError
from subagent_server.domain.events import RunEvent
from subagent_server.domain.limits import cut
from subagent_server.domain.past import PastRun
from subagent_server.domain.records import (
    Failure,
    Message,
    RunMeta,
    RunRequest,
    RunResult,
    Usage,
    WorkerIdentity,
)
from subagent_server.domain.secrets import Masker
from subagent_server.host import locks, processes
from subagent_server.host.clock import now
from subagent_server.host.directory import Directory, Entry, NotPlain
from subagent_server.host.failpoints import failpoint
from subagent_server.host.sleeper import Sleeper
from subagent_server.host.stderr import MaskedText, flush, log_exception
from subagent_server.launch import marks
from subagent_server.service.context import Service, open_service
from subagent_server.service.ending import stop_children
from subagent_server.service.inputs import copied_inputs
from subagent_server.service.model_calls import ModelCalls
from subagent_server.service.nested_events import NestedEvents
from subagent_server.service.past import read_past
from subagent_server.service.questions import ask
from subagent_server.service.reconcile import ending_facts, observe, reconcile_after_worker
from subagent_server.service.shared_pace import SharedPace
from subagent_server.service.tree import settle_usage
from subagent_server.settings import read_settings
from subagent_server.store.last_state import LastState
from subagent_server.store.logs import RunJournal
from subagent_server.store.paths import run_at
from subagent_server.store.runs import RunStore
from subagent_server.store.transcript import Transcript


class OwnRun:
    """A run as the process sees it that is its worker. `slots` are the descriptors it works by."""

    def __init__(self, directory: Path, slots: list[int]) -> None:
        self.masker = Masker()
        """Takes secrets out of all that is written here. Replaced once the agent is known."""
        self._run = run_at(directory)
        self._store = RunStore(directory.parent)
        self._slots = slots
        self._journal = RunJournal(self._run)
        self._transcript = Transcript(self._run)
        self._state = LastState(self._store, self._run.run_id)
        self._sleeper: Sleeper | None = None
        self.model_calls = ModelCalls(self._store, self._run)
        """Asked before each call of a model: budgets bound the trees of runs."""
        self._parent: str | None = None
        """Who started this run: the empty text where no run did, None as long as nobody has looked."""

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._run.run_id

    @property
    def root(self) -> Path:
        """The runs root."""
        return self._store.paths.root

    @property
    def outputs(self) -> Directory:
        """Where outputs go that are too long for the model."""
        return self._run.outputs

    @property
    def other_shims(self) -> Callable[[processes.Identity], bool]:
        """Whether a process is the shim of a run of this root, by the record: no run ends another's shim."""
        return marks.shims_on_record(self._store.paths)

    @property
    def server_logs(self) -> Directory:
        """Where what its MCP servers print goes."""
        return self._run.server_logs

    @property
    def printed(self) -> str:
        """The name of the file that holds what this process prints."""
        return self._run.worker_out.name

    # -- beginning

    def begin(self) -> bool:
        """Record that the worker lives; False where the run was ended meanwhile."""
        identity = processes.this_process()
        worker = WorkerIdentity(
            host=identity.host, pid=identity.pid, start_time=identity.start_time, boot_id=identity.boot_id
        )
        try:
            self._apply(events.WorkerStarted(worker=worker))
        except IllegalTransition:
            return False
        failpoint("worker.started")
        return True

    def starting_place(self) -> int:
        """Return a held lock, one of as many as there are cores; where all are taken, wait for one.

        Raises:
            StorageFailed: none of them is a lock file.
        """
        slots = self._run.root.slots
        taken: list[Entry] = []
        for number in range(os.cpu_count() or 1):
            place = slots.entry(f"starting.{number}")
            with suppress(NotPlain):
                descriptor = locks.take(place)
                if descriptor is not None:
                    return descriptor
                taken.append(place)
        if not taken:
            raise StorageFailed(slots.path, "it holds something else than lock files")
        descriptor = locks.open_lock(random.choice(taken))
        locks.lock(descriptor)
        return descriptor

    def request(self) -> RunRequest:
        """Return what was asked. Raises UnreadableMeta."""
        return self._store.read_request(self.run_id)

    def inputs(self) -> tuple[tuple[Entry, str], ...]:
        """Return the copied input files in their order, each with its media type."""
        return copied_inputs(self._run)

    def past(self, run_id: str) -> list[PastRun]:
        """Return the run that this one carries on, and what that one carried on, as far as it is needed.

        Raises:
            UnknownRun, UnreadableMeta: it is there no more.
        """
        return read_past(self._store, run_id)

    def lead(self, environment: dict[str, str]) -> Service:
        """Return the context of the parent's verbs, with the settings that `environment` gives."""
        return open_service(read_settings(runs=self.root, environment=environment))

    def pace(self, base_url: str, key_name: str) -> SharedPace:
        """Return how the runs of this root spare an API together that they call with one key."""
        return SharedPace(self._store.paths.backoff, base_url, key_name)

    def nested_events(self) -> NestedEvents:
        """Return what the runs that this one has started tell."""
        return NestedEvents(self._store, self.run_id)

    @property
    def has_dead_parent(self) -> bool:
        """Whether another run started this one, and nobody keeps that one any more."""
        if self._parent is None:
            self._parent = self.meta().parent_run_id or ""
        if not self._parent:
            return False
        with suppress(
            SubagentError, OSError
        ):  # its id is none, or the disk refuses: the next look may do better
            return not locks.is_held(self._store.paths.run(self._parent).live_lock)
        return False

    def heed_parent(self) -> None:
        """End this run where its parent is dead and nobody has said so: its worker and keeper were killed.

        Whoever reads a dead run declares it so and ends what it started; its children read it now and then.
        """
        with suppress(SubagentError):  # it was removed, or the disk refuses: the next look may do better
            observe(self._store, self._parent or "")

    # -- telling

    def mask_output(self) -> None:
        """Let nothing secret into what this process prints, which is a file of the run."""
        sys.stderr = MaskedText(sys.stderr, lambda text: self.masker.text(text))

    def meta(self) -> RunMeta:
        """Return the state of the run. Raises UnreadableMeta."""
        return self._state.read()

    def record(self, kind: str, facts: dict[str, Any]) -> None:
        """Append an event to the journal; a disk that refuses is a warning."""
        self._journal.append(kind, now(), self.masker.data(facts))
        failpoint("worker.told")

    def tell_fault(self) -> None:
        """Print where the exception that is being handled comes from; not even a full disk stops it."""
        log_exception()

    def remember(self, message: dict[str, Any]) -> None:
        """Append a message to the transcript; a disk that refuses is a warning."""
        self._transcript.append(self.masker.message(message))
        failpoint("worker.remembered")

    def adopt(self, messages: list[dict[str, Any]]) -> None:
        """Begin the transcript with the conversation that this run carries on."""
        self._transcript.begin(self.masker.message(message) for message in messages)

    # -- asking

    def ask(self, question: str, options: list[str] | None, timeout_seconds: float) -> Message:
        """Record a question. Raises BadArgument, IllegalTransition."""
        masked: list[str] | None = self.masker.data(options)
        return ask(self._store, self.run_id, self.masker.text(question), masked, timeout_seconds)

    def expire(self, message_id: str) -> None:
        """Record that no answer came. Raises IllegalTransition where the run has ended."""
        self._apply(events.QuestionExpired(message_id=message_id))

    def acknowledge(self, message_id: str) -> None:
        """Record that the answer was read. Raises IllegalTransition, MessageClosed: the run has ended."""
        self._apply(events.ReplyAcknowledged(message_id=message_id))

    def seconds_left(self, message: Message) -> float:
        """Return how long an answer may still come."""
        return (message.expires_at - now()).total_seconds() if message.expires_at else float("inf")

    def open(self) -> None:
        """Begin to hear of changes. Call it inside the event loop."""
        self._sleeper = Sleeper(self._run.wake(os.getpid()))

    async def sleep(self, seconds: float) -> None:
        """Return at the next change of the run, at the slow poll, or when the time is over."""
        if self._sleeper is not None:
            await self._sleeper.sleep(seconds)

    def wake(self) -> None:
        """Wake all who sleep here."""
        if self._sleeper is not None:
            self._sleeper.wake_all()

    def close(self) -> None:
        """Hear of changes no more."""
        if self._sleeper is not None:
            self._sleeper.close()
            self._sleeper = None

    def give_back_slots(self) -> None:
        """Let others work. The slots are not taken again."""
        for descriptor in self._slots:
            with suppress(OSError):
                locks.give_back(descriptor)
        self._slots.clear()

    # -- ending

    def end(self, result: RunResult, summary: str | None, usage: Usage | None) -> RunMeta:
        """Write how the run ended; where somebody else ended it first, it stays as it is.

        Raises:
            SubagentError: neither the result nor the failure to store it could be written.
        """
        result = RunResult.model_validate(
            self.masker.data(result.model_dump(mode="json", exclude_unset=True))
        )
        result = result if result.error is None else result.model_copy(update={"error": _cut(result.error)})
        event: RunEvent
        if result.error is None:
            event = events.Finished(summary=cut(self.masker.text(summary or "")) or None, usage=usage)
        else:
            event = events.RunFailed(failure=result.error, usage=usage)
        try:
            return self._store.update(self.run_id, event, now(), result=result)
        except SubagentError as error:
            failure = Failure(code="storage", message=error.sentence)
            return self._apply(events.RunFailed(failure=failure, usage=usage))

    def settle(self, usage: Usage) -> RunMeta:
        """Add what the run has cost and was not written with its end."""
        return self._apply(events.UsageSettled(usage=usage))

    def end_children(self) -> None:
        """End the runs that this one started and that have not ended."""
        failpoint("worker.ended")
        stop_children(self._store, self.run_id)
        settle_usage(self._store, self.run_id)

    def conclude(self, meta: RunMeta) -> None:
        """Say in the journal how the run ended: the last that is said there."""
        self.record("run_ended", ending_facts(meta))

    def leave_unbegun(self, failure: Failure | None = None) -> None:
        """End a run whose worker cannot begin, or has no need to; its journal says so too."""
        if failure is not None:
            self._apply(events.RunFailed(failure=failure))
        reconcile_after_worker(self._store, self.run_id)

    def leave(self) -> NoReturn:
        """End this process with code 0, at once, whatever its threads still wait for."""
        flush()
        failpoint("worker.leaving")
        os._exit(0)

    def _apply(self, event: RunEvent) -> RunMeta:
        return self._store.update(self.run_id, event, now())


def _cut(failure: Failure) -> Failure:
    hint = None if failure.hint is None else cut(failure.hint)
    return failure.model_copy(update={"message": cut(failure.message), "hint": hint})


def reconcile_directory(directory: Path, ended: dict[str, Any]) -> None:
    """Write how the run in `directory` ended, whose worker is gone; `ended` is what its keeper saw."""
    reconcile_after_worker(RunStore(directory.parent), directory.name, ended)


def settle_directory(directory: Path) -> None:
    """Look at the run in `directory` as every reader does: what nobody keeps any more is ended."""
    observe(RunStore(directory.parent), directory.name)
