"""Many runs at once, each of which asks for a word of its own and has to end with that word."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp import Client

from benchmarks.bench_world import BenchWorld
from benchmarks.memory import Worked, worked_seconds
from subagent_server.process.marks import read_shim
from subagent_server.run import processes
from subagent_server.run.states import Event, MessageStatus, Status
from tests.helpers.truth import examine_all
from tests.helpers.turns import Turn, asks, says, tool_results

AGENT = "guest"
LANES = 4
"""The number of parallel calls of the parent while many runs start or end."""
WAIT_SECONDS = 45
_CALL_SECONDS = 120.0
_GONE_SECONDS = 120.0
_LOOK_SECONDS = 0.002


def model(body: dict[str, Any]) -> Turn:
    """Ask for the word of the run that asks; then end with the answer, whatever it is."""
    messages = body["messages"]
    name = messages[0]["content"][-1]["text"]
    if len(messages) == 1:
        return asks(f"What is the word of {name}?")
    return says(_last_words(name, tool_results(body)[0]))


def _last_words(name: str, word: str) -> str:
    return f"{name} was given: {word}"


@dataclass
class Guest:
    """A run that waits for its word."""

    name: str
    word: str
    run_id: str
    message_id: str


@dataclass(frozen=True)
class Cost:
    """What a step of a run took, in milliseconds."""

    known: float
    """Until its parent knew of it."""
    done: float
    """Until all of it was done."""
    worked: float
    """The time that its processes had a processor for it."""


@dataclass
class Crowd:
    """The runs of a world, which come and leave through its server as a parent has them do so."""

    world: BenchWorld
    client: Client
    present: list[Guest] = field(default_factory=list)
    left: list[Guest] = field(default_factory=list)
    _count: int = 0

    async def come(self) -> Cost:
        """Start a run, and return what it took until the parent has its question."""
        self._count += 1
        name = f"guest {self._count}"
        began = time.perf_counter()
        view = await self._call(f"run_{AGENT}", prompt=name, waitSeconds=WAIT_SECONDS)
        took = (time.perf_counter() - began) * 1000
        questions = [message for message in view.get("messages", []) if name in message["question"]]
        if view["status"] != Status.WAITING or len(questions) != 1:
            raise RuntimeError(f"{name} does not ask: {view}")
        guest = Guest(name, secrets.token_hex(8), view["runId"], questions[0]["messageId"])
        self.present.append(guest)
        return Cost(took, took, sum(map(worked_seconds, self.processes_of(guest))) * 1000)

    async def leave(self, place: int = 0) -> Cost:
        """Give a run its word; return what it took until all of it was gone.

        `place` is that of the run among those that are there, in the order in which they have come.
        """
        guest = self.present.pop(place)
        worked = Worked(self.processes_of(guest))
        mark = self.world.service.store.paths.change_mark(guest.run_id)  # its shim removes it last
        began = time.perf_counter()
        async with asyncio.timeout(_GONE_SECONDS), asyncio.TaskGroup() as group:
            answering = group.create_task(self._answered(guest))
            while mark.exists():
                await asyncio.sleep(_LOOK_SECONDS)
                worked.look()
        gone = (time.perf_counter() - began) * 1000
        self.left.append(guest)
        return Cost(answering.result(), gone, worked.milliseconds)

    async def _answered(self, guest: Guest) -> float:
        """Return after how many milliseconds the parent knows how the run ended that it has answered."""
        began = time.perf_counter()
        answer = await self._call(
            "reply_subagent",
            runId=guest.run_id,
            messageId=guest.message_id,
            answer=guest.word,
            waitSeconds=WAIT_SECONDS,
        )
        took = (time.perf_counter() - began) * 1000
        view = answer["updatedMetadata"]
        if view["status"] != Status.COMPLETED:
            raise RuntimeError(f"{guest.name} was given its word and is {view['status']}: {view}")
        return took

    async def many_come(self, number: int, is_room: Callable[[], bool]) -> None:
        """Let so many come, a few at a time; fewer if there is no room."""
        left = iter(range(number))

        async def lane() -> None:
            for _ in left:
                if not is_room():
                    return
                await self.come()

        await _together(lane)

    async def all_leave(self) -> None:
        """Let everybody go, a few at a time."""

        async def lane() -> None:
            while self.present:
                await self.leave()

        await _together(lane)

    async def _call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, arguments, read_timeout_seconds=_CALL_SECONDS)
        if result.is_error or not result.structured_content:
            raise RuntimeError(f"{tool} was refused: {result.content}")
        return dict(result.structured_content)

    # -- looking

    def processes_of(self, guest: Guest) -> list[processes.Identity]:
        """Return shim and worker of a run."""
        facts = read_shim(self.world.service.store.paths.run(guest.run_id))
        found = [processes.Identity.from_json(facts.get(who)) for who in ("shim", "worker")]
        return [identity for identity in found if identity is not None]

    def waiting(self) -> int:
        """Return how many wait at this moment: only this crowd answers, so a run that has asked waits on."""
        return sum(self._waits(guest) for guest in self.present)

    def _waits(self, guest: Guest) -> bool:
        meta = self.world.service.store.read(guest.run_id)
        alive = [identity for identity in self.processes_of(guest) if processes.is_alive(identity)]
        return meta.status is Status.WAITING and meta.pending_questions == 1 and len(alive) == 2

    def faults(self) -> Iterator[str]:
        """Yield the faults once all have left: runs that were lost, mixed up, answered twice, or remain."""
        store = self.world.service.store
        known = {guest.run_id for guest in self.left}
        if len(known) != self._count or known != set(store.run_ids()):
            yield f"{self._count} have come, {len(known)} have left, and {len(store.run_ids())} are stored"
        for guest in self.left:
            yield from (f"{guest.name}, run {guest.run_id}, {what}" for what in self._wrong_with(guest))
        for finding in examine_all(store, self.world.environment):
            yield f"run {finding.run_id}: {finding.what}"
        yield from (f"process {pid} is left" for pid in self._left())

    def _wrong_with(self, guest: Guest) -> Iterator[str]:
        store = self.world.service.store
        meta, result = store.read(guest.run_id), store.read_result(guest.run_id)
        if meta.status is not Status.COMPLETED or result is None:
            yield f"is {meta.status.value}: {meta.error}"
        elif result.text != _last_words(guest.name, guest.word):
            yield f"was given {guest.word!r} and says {result.text!r}"
        messages = [(m.message_status, m.answer_content) for m in meta.messages]
        if messages != [(MessageStatus.ACKNOWLEDGED, guest.word)]:
            yield f"has these messages: {messages}"
        if (times := sum(step.event is Event.REPLY_ACKNOWLEDGED for step in meta.transitions)) != 1:
            yield f"took its answer {times} times"

    def _left(self) -> Iterator[int]:
        """Yield the processes that name a run of this world on their command line."""
        runs = f"{self.world.service.settings.runs_root}/".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has just left
            if runs in command:
                yield int(entry.name)


async def _together(lane: Callable[[], Any]) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(LANES):
            group.create_task(lane())
