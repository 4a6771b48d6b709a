"""Opening a program that carries out a run: what it carries on, how it reaches its worker, and its start."""

import array
import asyncio
import fcntl
import os
import select
import socket
import sys
import termios
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from subagent_server.extensions.programs import relay
from subagent_server.extensions.programs.boxed_start import ASKED, BoxedStart, box_of_program, host_program
from subagent_server.extensions.programs.program import (
    ChildServer,
    Dialect,
    ProgramEvents,
    ProgramRunner,
    ProgramTask,
    is_session_id,
)
from subagent_server.loop.prompt import task_blocks
from subagent_server.process import marks
from subagent_server.run.agent_definition import RunnerName
from subagent_server.run.errors import RunRefused, SubagentError
from subagent_server.run.files import Directory
from subagent_server.run.history import PreviousRun
from subagent_server.run.host_programs import NoHostProgram
from subagent_server.run.records import RunRequest, worktree_text
from subagent_server.run.stderr import log
from subagent_server.run.store import RunStore
from subagent_server.sandbox.file_watch import watching
from subagent_server.sandbox.readable import BoxRefused, end_of_run
from subagent_server.server.connection import ClientConnection, SharedByClients
from subagent_server.server.stdio import Reports, Serving
from subagent_server.toolbox.agent_process import AgentProcess, ProcessOrder
from subagent_server.toolbox.mcp.transport import ServerLog
from subagent_server.toolbox.run_context import Permissions
from subagent_server.toolbox.workspace import entered_off_loop
from subagent_server.verbs.access import run_as_caller
from subagent_server.verbs.inputs import copied_inputs
from subagent_server.verbs.service import Service
from subagent_server.worker.delegation import service_of
from subagent_server.worker.previous_run import LONGEST_CHAIN, read_previous_runs
from subagent_server.worker.runners import RunnerSetup
from subagent_server.worker.sandbox_setup import RunBox, mark_of, refused, sandbox_rules_text
from subagent_server.worker.worker_run import WorkerRun

# -- Carry on the conversation of a program: by the program's own session, else as text.


_MOST_CALLS = 50
_LONGEST_ARGUMENTS = 300
_GO_ON = "Go on where you were cut off."


@dataclass(frozen=True)
class PreviousSession:
    """The facts that a run needs of the runs that it carries on.

    `messages` is the conversation so far. `session_id` names the program's own session, None without a
    session. `untold` are tasks that the session may lack. `unknown` are calls whose end is not recorded.
    `spent` is the cost of the session so far, None if a part of it is not known. `state` is the directory
    that holds the session, if the program keeps it in a sandbox.
    """

    messages: Sequence[dict[str, Any]] = ()
    session_id: str | None = None
    untold: Sequence[str] = ()
    unknown: Sequence[str] = ()
    spent: Decimal | None = Decimal(0)
    state: Directory | None = None

    def words(self, prompt: str) -> str:
        """Return the words for the program: the new task, behind all that its session does not hold."""
        if not self.messages:
            return prompt
        parts = list(self.untold) if self.session_id is not None else [_in_words(self.messages)]
        if self.unknown:
            lines = "\n".join(f"- {call}" for call in self.unknown)
            parts.append(
                "The run before ended in the middle of these calls. It is not known what they did, and none "
                f"was repeated; find out before you make them again:\n{lines}"
            )
        return "\n\n".join([*parts, prompt if prompt.strip() else _GO_ON])


def previous_session(store: RunStore, request: RunRequest, *, boxed: bool) -> PreviousSession:
    """Return what the run of `request` carries on. Blocking.

    A program in a sandbox has the sessions of others in a sandbox alone, and the other way round.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta: a run of the chain is gone, or cannot be read.
    """
    if request.continues_run_id is None:
        return PreviousSession()
    past = read_previous_runs(store, request.continues_run_id)
    homes = [store.paths.run(run.run_id).program_home for run in past]
    named = [store.read(run.run_id).external_session_id or "" for run in past]
    kept = [is_session_id(name) and home.exists() == boxed for name, home in zip(named, homes, strict=True)]
    sessions = [name if is_kept else None for name, is_kept in zip(named, kept, strict=True)]
    last = max((n for n, session in enumerate(sessions) if session is not None), default=None)
    messages = [*past[0].messages, *(_said(run.prompt) for run in past if not run.messages)]
    untold = [
        run.prompt for run in past[0 if last is None else last :] if not run.calls and not _answered(run)
    ]
    return PreviousSession(
        messages=messages,
        session_id=None if last is None else sessions[last],
        untold=[text for text in untold if text.strip()],
        spent=_spent(store, request.continues_run_id),
        state=homes[last] if last is not None and boxed else None,
        unknown=[
            _call(run, call_id) for run in past for call_id in run.calls if not run.calls[call_id].finished
        ][:_MOST_CALLS],
    )


def _spent(store: RunStore, run_id: str | None) -> Decimal | None:
    """Return what the runs of a chain have cost together, None if one of them does not say it."""
    total = Decimal(0)
    for _ in range(LONGEST_CHAIN):
        if run_id is None:
            break
        try:
            meta = store.read(run_id)
        except SubagentError:
            return None
        if meta.external_session_id is not None:
            if meta.usage.cost_usd is None:
                return None
            total += meta.usage.cost_usd
        run_id = meta.continues_run_id
    return total


def _answered(run: PreviousRun) -> bool:
    """Whether the program has said something to the last task of a run."""
    return bool(run.messages) and run.messages[-1].get("role") == "assistant"


def _call(run: PreviousRun, call_id: str) -> str:
    call = run.calls[call_id]
    return f"{call.name} {str(call.arguments)[:_LONGEST_ARGUMENTS]}"


def _said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _in_words(messages: Sequence[dict[str, Any]]) -> str:
    """Return a conversation as text, for a program that keeps none of its own."""
    said = []
    for message in messages:
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": str(content)}]
        text = "\n".join(str(block.get("text", "")) for block in blocks if isinstance(block, dict))
        said.append(f"<{'task' if message.get('role') == 'user' else 'result'}>\n{text}\n")
    return "This is what was said before:\n\n" + "\n".join(said)


# -- The connections by which the program of a run reaches the tools of a child: its worker answers them.
#
# The program starts a relay (`extensions/programs/relay.py`) as its MCP server, which leads to pipes that the
# program has inherited. So the token of the run stays outside of a box, nothing lies on a disk, a box needs
# no socket, and nothing heavy waits beside each program. Whoever may look into the program has the rights
# of the run: in a box, the processes of the same box. They can also write into these pipes and empty them,
# so nothing here waits for a pipe without the event loop.


MOST_CONNECTIONS = 4
"""Connections of one run at once; one more waits until one of them has ended."""
_LEAVE_SECONDS = 2.0
_UNREAD_SECONDS = 1.0
"""How long the last answers of a connection may lie unread: their relay may be gone."""
_POLL_SECONDS = 0.01
_CHUNK = 1 << 16
_MOST_CHUNKS = 32
_END = b"\0"
_NAME = "subagent"


class _Pipe:
    """A pipe that the program inherits. It names the pipe to a relay, which opens the end that it needs.

    `writing` is held, so that a relay that reads finds no end of file: not if only relays write.
    """

    def __init__(self, *, relays_write: bool = False) -> None:
        self.reading, self.writing = os.pipe()
        if relays_write:
            os.close(self.writing)
            self.writing = -1
        self.inode = str(os.fstat(self.reading).st_ino)

    def opened(self, flags: int) -> int:
        """Return a descriptor of its own kind, which never blocks."""
        return os.open(f"/proc/self/fd/{self.reading}", flags | os.O_NONBLOCK | os.O_CLOEXEC)

    def is_read(self) -> bool:
        """Whether nothing lies in it."""
        count = array.array("i", [0])
        fcntl.ioctl(self.reading, termios.FIONREAD, count)
        return count[0] == 0

    def clear(self) -> None:
        """Throw away what lies in it."""
        with os.fdopen(self.opened(os.O_RDONLY), "rb", buffering=0) as file:
            for _ in range(_MOST_CHUNKS):  # more than a pipe holds: another process may go on writing
                if not file.read(_CHUNK):
                    break

    def close(self) -> None:
        os.close(self.reading)
        if self.writing >= 0:
            os.close(self.writing)


class ChildConnections:
    """Answers each relay with the tools of a child, from `open` to `aclose`."""

    def __init__(self, run: WorkerRun, service: Service) -> None:
        """Nothing is opened yet. The processes that `service` starts are reaped by its owner."""
        self._service = service
        self._caller = run_as_caller(run.store, run.run_id)
        self._shared = SharedByClients(self._service, self._caller)
        self._reports = Reports()
        self._pipes: list[_Pipe] = []
        """That of the tickets, and for each connection one from the relay and one to it."""
        self._offered: dict[int, tuple[int, int]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def relay(self) -> ChildServer:
        """The command by which the program reaches this worker."""
        words = ["-I", "-S", str(Path(relay.__file__).resolve()), *(pipe.inode for pipe in self._pipes)]
        return ChildServer(_NAME, sys.executable, words)

    def inherited(self) -> list[int]:
        """Return new descriptors for the program to inherit. The caller closes them."""
        return [os.dup(pipe.reading) for pipe in self._pipes]

    def open(self) -> None:
        """Take connections from now on. Raises OSError: there is no room for more descriptors."""
        self._pipes.append(_Pipe())
        for _ in range(MOST_CONNECTIONS):
            self._pipes += [_Pipe(relays_write=True), _Pipe()]
        for number in range(MOST_CONNECTIONS):
            self._offer(number)

    def _offer(self, number: int) -> None:
        """Let a relay take a connection. Until it has, an end to write is open, or poll(2) would say EOF."""
        up = self._pipes[1 + 2 * number]
        incoming = up.opened(os.O_RDONLY)
        self._offered[number] = (incoming, up.opened(os.O_WRONLY))
        asyncio.get_running_loop().add_reader(incoming, self._begin, number)
        os.write(self._pipes[0].writing, bytes([number]))

    def _begin(self, number: int) -> None:
        """Answer a relay, which has shown its ticket."""
        incoming, held = self._offered[number]
        try:
            os.read(incoming, 1)
        except BlockingIOError:  # another process was quicker
            return
        del self._offered[number]
        asyncio.get_running_loop().remove_reader(incoming)
        os.close(held)
        answering = asyncio.create_task(self._answer(number, incoming))
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    async def _answer(self, number: int, incoming: int) -> None:
        """Answer one relay until it ends, then let another one take its connection."""
        up, down = self._pipes[1 + 2 * number : 3 + 2 * number]
        reader, from_relay = await _reading(incoming)
        writer = await _writing(down.opened(os.O_WRONLY))
        ours, theirs = socket.socketpair()
        inside, outside = await asyncio.open_connection(sock=ours)
        upward = asyncio.create_task(_carry(reader, outside, ends=True))
        downward = asyncio.create_task(_carry(inside, writer, ends=False))
        cutting = asyncio.create_task(_cut(incoming, down, outside))
        try:
            await self._serve(theirs)
            await asyncio.wait([downward], timeout=_UNREAD_SECONDS)
            writer.write(_END)
            deadline = time.monotonic() + _UNREAD_SECONDS
            while time.monotonic() < deadline and not (
                down.is_read() and writer.transport.get_write_buffer_size() == 0
            ):
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            for task in (upward, downward, cutting):
                task.cancel()
            await asyncio.wait([upward, downward, cutting])
            outside.close()
            from_relay.close()
            writer.transport.abort()
            up.clear()
            down.clear()
            if not self._closing:
                self._offer(number)

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.setblocking(True)  # a long answer is written by a thread
            client = ClientConnection(self._service, "child", self._caller, self._shared)
            serving = Serving(client, connection.fileno(), connection.fileno(), self._reports)
            try:
                failure = await serving.until_left()
                if failure is not None:
                    log(f"A connection of the program has failed: {failure}")
            finally:
                with suppress(OSError):  # it is not connected any more
                    connection.shutdown(socket.SHUT_RDWR)
                await serving.aclose()

    async def aclose(self) -> None:
        """End the connections: they end by themselves once their programs have ended, else they are cut."""
        self._closing = True
        for incoming, held in self._offered.values():
            asyncio.get_running_loop().remove_reader(incoming)
            os.close(incoming)
            os.close(held)
        if self._answering:
            _, late = await asyncio.wait(self._answering, timeout=_LEAVE_SECONDS)
            for answering in late:
                answering.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for pipe in self._pipes:
            pipe.close()
        self._pipes = []
        self._shared.runs.close()


async def _reading(descriptor: int) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    return reader, transport


async def _writing(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", buffering=0)
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _cut(incoming: int, down: _Pipe, outside: asyncio.StreamWriter) -> None:
    """Cut a connection whose relay has closed its end, and whose answers nobody reads.

    The end of file would come behind all that the relay has sent, which is not read before the answers are.
    """
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    with select.epoll() as closed:
        closed.register(incoming, 0)  # it reports that the other end is closed, and no data
        loop.add_reader(closed.fileno(), gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(closed.fileno())
    unread = 0.0
    while unread < _UNREAD_SECONDS:
        await asyncio.sleep(_POLL_SECONDS)
        unread = 0.0 if down.is_read() else unread + _POLL_SECONDS
    outside.transport.abort()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, ends: bool) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
        if ends:
            writer.write_eof()


DIALECTS: dict[RunnerName, tuple[str, str]] = {
    "claude": ("claude", "ClaudeDialect"),
    "codex": ("codex", "CodexDialect"),
    "gemini": ("acp", "GeminiDialect"),
    "acp": ("acp", "AcpDialect"),
    "command": ("command", "CommandDialect"),
}
"""The programs that can carry out a run: under the name of their runner the module and its class.

A worker imports that of its own agent alone: the library of one protocol takes 17 MiB and 0.4 s.
"""

_UNSANDBOXED = "none (unsandboxed: the program works with all rights of the user, within its own rules)"


async def open_runner(setup: RunnerSetup) -> ProgramRunner:
    """Return the runner of a program, with the start of the run recorded and the program not yet started.

    Raises:
        RunRefused: `config`, if the agent asks for something that cannot be kept.
        UnknownRun, UnreadableMeta: the run to carry on is gone.
    """
    agent, run = setup.agent, setup.run
    request = run.request()
    box = await asyncio.to_thread(box_of_program, setup)
    setup.record_start(request, _UNSANDBOXED if box is None else mark_of(box), agent.model)
    log = ServerLog(
        agent.runner,
        run.paths.server_logs,
        run.masker,
        lambda server, text: run.record("server_log", server=server, text=text),
    )
    events = ProgramEvents(run, lambda: log.tail)
    past = await asyncio.to_thread(previous_session, run.store, request, boxed=box is not None)
    if past.session_id is not None:
        run.session_opened(past.session_id)
    run.paths.program.make()
    async with AsyncExitStack() as opened:
        boxed = None if box is None else BoxedStart(setup, box, past.state)
        connections = _connections(setup, opened)
        task = _task(setup, request, past, box, connections.relay)
        run.adopt([*past.messages, {"role": "user", "content": list(task.content)}])
        module, name = DIALECTS[agent.runner]
        make = getattr(import_module(f"subagent_server.extensions.programs.{module}"), name)
        dialect: Dialect = make(task, events, Permissions(run, beside_work=True))
        start = partial(_start, setup, dialect, log, connections, boxed)
        watched = entered_off_loop(watching(setup.watch, f"the program {agent.runner}"))
        return ProgramRunner(run, agent, dialect, events, start, opened.pop_all().aclose, watched)


def _connections(setup: RunnerSetup, opened: AsyncExitStack) -> ChildConnections:
    """Return the connections by which the program asks, open from now until `opened` is closed.

    Raises:
        RunRefused: `launch_failed`, if there is no room for their descriptors.
    """
    delegation = setup.delegation
    if delegation is not None:
        service = delegation.service
    else:
        service = service_of(setup.run, setup.environment, setup.agent)
    connections = ChildConnections(setup.run, service)
    opened.push_async_callback(connections.aclose)
    try:
        connections.open()
    except OSError as error:
        raise RunRefused(
            "launch_failed",
            f"The worker cannot open the pipes by which its program asks: {error.strerror}.",
            "Raise the limit of open files (`ulimit -n`), or run less at once.",
        ) from error
    return connections


def _task(
    setup: RunnerSetup, request: RunRequest, past: PreviousSession, box: RunBox | None, child: ChildServer
) -> ProgramTask:
    agent, run = setup.agent, setup.run
    inputs = copied_inputs(run.paths)
    words = past.words(request.prompt)
    texts = [
        block["text"] if block["type"] == "text" else f"({file.path})"
        for file, kind in inputs
        for block in task_blocks("", [(file, kind)])
    ]
    return ProgramTask(
        agent=agent,
        run_id=run.run_id,
        prompt="\n\n".join([*texts, words]) if texts else words,
        content=task_blocks(words, inputs),
        preamble=_preamble(setup) if box is None else f"{_preamble(setup)} {sandbox_rules_text(box)}",
        cwd=Path.cwd(),
        child=child,
        state=run.paths.program,
        environment=setup.environment,
        resumes=past.session_id,
        spent=past.spent,
        kept=None if box is None else run.paths.program_home,
    )


def _preamble(setup: RunnerSetup) -> str:
    return (
        f"You are run {setup.run.run_id} of the subagent {setup.agent.name}: another agent, your parent, "
        "gave you the task and sees only your final result. If you need a decision or a fact that only the "
        "parent has, call the tool ask_parent of the MCP server subagent; its tool update_status says how "
        f"far you are. {worktree_text(setup.run.meta().worktree)}"
    ).rstrip()


async def _start(
    setup: RunnerSetup,
    dialect: Dialect,
    log: ServerLog,
    connections: ChildConnections,
    boxed: BoxedStart | None,
) -> AgentProcess:
    launch = await asyncio.to_thread(dialect.launch)
    environment = {**setup.environment, **launch.environment}
    try:
        program, *arguments = launch.argv
        order = ProcessOrder(
            argv=[program if boxed is not None else host_program(setup, program), *arguments],
            environment={name: value for name, value in environment.items() if name not in launch.lacking},
            cwd=Path.cwd(),
            box=None if boxed is None else await boxed.entered(launch.environment),
            descriptors=[*launch.descriptors, *connections.inherited()],
            spare=marks.shims_on_record(setup.run.store.paths),
        )
        return await AgentProcess.start(order, log.write)
    except BoxRefused as refusal:
        if refusal.passes:
            raise end_of_run(f"The program {launch.argv[0]}", refusal) from refusal
        raise refused(ASKED, refusal.reason) from refusal
    except (OSError, ValueError, NoHostProgram) as error:
        why = error.why if isinstance(error, NoHostProgram) else getattr(error, "strerror", None) or error
        raise RunRefused(
            "config",
            f"The program {launch.argv[0]} of the agent cannot be started: {why}.",
            "Install it, or fix `command` and `args` in the agent file; a long prompt belongs on stdin.",
        ) from error
