"""A small world for runs: agents, a scripted model, a runs root, the real server and the real command.

What a test leaves running is stopped with it, and then every run on disk has to be in order.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subagent_server.extensions.simulator import Simulator
from subagent_server.process.launcher import LaunchPackage, LocalLauncher, LocalStart, Reservation, Start
from subagent_server.process.marks import read_shim
from subagent_server.run import locks, processes
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import RunMeta, RunResult
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from subagent_server.settings import read_settings
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.questions import reply
from subagent_server.verbs.reconcile import Observed, observe
from subagent_server.verbs.service import Service, open_service, warm_start
from subagent_server.verbs.start import StartOrder, start
from tests.helpers import bubblewrap, warm
from tests.helpers.files import write_agent
from tests.helpers.forked import PROGRAM, run
from tests.helpers.http_server import HttpServer, free_port
from tests.helpers.mcp_client import Mode, Parent, connected
from tests.helpers.raw_server import RawServer
from tests.helpers.truth import check_ended, processes_of, read_lines
from tests.helpers.turns import Turn
from tests.helpers.wait import wait_for

BOUND = 120.0
"""How long anything may take, in seconds, on a machine that has much else to do."""
API_KEY = "sk-ant-the-key-of-the-tests-0123456789"


class Launcher(LocalLauncher):
    """Keeps the processes that were started here, to collect each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[subprocess.Popen[bytes]] = []
        self.given: dict[str, dict[str, str]] = {}
        """The environment of each run that was started here. Only root may read it of the worker itself."""

    def adopt(self, process: "subprocess.Popen[bytes]") -> None:
        """Keep a process."""
        self.started.append(process)

    def starting(self) -> AbstractContextManager[Start]:
        """Start as ever, and keep what the run is given."""
        return closing(_KeptStart(self))


class _KeptStart:
    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._start = LocalStart(launcher)
        self.close = self._start.close

    def reserve(self, run: RunPaths) -> Reservation:
        return _KeptReservation(self._launcher, run.run_id, self._start.reserve(run))


@dataclass(frozen=True)
class _KeptReservation:
    launcher: Launcher
    run_id: str
    reservation: Reservation

    def start(self, package: LaunchPackage) -> None:
        self.launcher.given[self.run_id] = {**package.environment, "SUBAGENT_RUN_ID": self.run_id}
        self.reservation.start(package)

    def give_up(self) -> None:
        self.reservation.give_up()


class World:
    """Everything a run needs, below one directory. Runs work in `work`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.agents, self.runs, self.work = home / "agents", home / "runs", home / "work"
        for directory in (self.agents, self.work):
            directory.mkdir()
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "ANTHROPIC_API_KEY": API_KEY,
            "SUBAGENT_AGENTS": str(self.agents),
            "SUBAGENT_RUNS": str(self.runs),
            **warm.settings(),
            **bubblewrap.settings(),
        }
        self.errors = home / "server.err"
        self.store = RunStore(self.runs)
        self.abandoned: set[str] = set()
        """Runs that a test has broken on purpose: their files need not be in order at its end."""
        self._launcher = Launcher()
        self._model = ExitStack()

    # -- what runs need

    def play(self, *turns: Turn, **script: Any) -> Simulator:
        """Let the model say these turns to every run that is started from now on."""
        simulator = self._model.enter_context(Simulator({"turns": list(turns), **script}))
        self.environment["ANTHROPIC_BASE_URL"] = simulator.base_url
        return simulator

    def agent(self, name: str = "worker", prompt: str = "You do what you are told.", **keys: Any) -> None:
        """Write an agent file. Its programs run with all rights of the user, unless `sandbox` says otherwise.

        Most worlds look at what a program of a run does to the rest of it; in a box it could do nothing.
        """
        usual = {"description": f"Does the work of a {name}.", "sandbox": "none"}
        write_agent(self.agents, name, prompt, **{**usual, **keys})

    def agent_saying(self, *turns: Turn, **keys: Any) -> Simulator:
        """Write the agent, and let the model say these turns to every run that is started from now on."""
        self.agent(**keys)
        return self.play(*turns)

    # -- doors

    @property
    def service(self) -> Service:
        """The verbs, with the environment as it is now."""
        settings = read_settings(environment=dict(self.environment), cwd=self.work)
        self._launcher.warm = warm_start(settings)
        return open_service(settings, self._launcher)

    def start(self, prompt: str = "Do it.", agent: str = "worker", **order: Any) -> str:
        """Start a run in this process and return its id."""
        return start(self.service, StartOrder(agent, prompt, **order)).run_id

    def completed_run(self, prompt: str = "Do it.", agent: str = "worker", **order: Any) -> str:
        """Start a run and return its id as soon as it has completed."""
        run_id = self.start(prompt, agent, **order)
        self.completed(run_id)
        return run_id

    def start_asking(self, prompt: str = "Do it.", agent: str = "worker", **order: Any) -> str:
        """Start a run and return its id as soon as it asks."""
        run_id = self.start(prompt, agent, **order)
        self.asking(run_id)
        return run_id

    def asking_run(self, *turns: Turn, **keys: Any) -> str:
        """Write the agent, let the model say these turns, and return a run of it as soon as it asks."""
        self.agent_saying(*turns, **keys)
        return self.start_asking()

    def reply(self, run_id: str, answer: str, message_id: str | None = None) -> Observed:
        """Answer a question."""
        return reply(self.service, run_id, answer, message_id)

    def continued(self, run_id: str, prompt: str) -> str:
        """Continue a run by the command, and return the new one."""
        done = self.cli("continue", run_id, prompt, "--detach")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def stop(self, run_id: str, reason: str | None = None) -> Observed:
        """Stop a run."""
        return stop(self.service, run_id, reason)

    def look(self, run_id: str) -> Observed:
        """Look at a run as everybody does: what is on disk is made to agree with the processes first."""
        return observe(self.store, run_id)

    @contextmanager
    def serve(
        self, *flags: str, mode: Mode = "auto", client: str = "test", env: Mapping[str, str] | None = None
    ) -> Iterator[Parent]:
        """Start the server and give a client of it."""
        command = [*PROGRAM, "serve", *flags]
        environment = {**self.environment, **(env or {})}
        with connected(command, environment, self.work, self.errors, mode=mode, client_name=client) as parent:
            yield parent

    def raw_server(self, *flags: str) -> RawServer:
        """Start the server without a client."""
        return RawServer([*PROGRAM, "serve", *flags], self.environment, self.work, self.errors)

    def http_server(self, *flags: str, port: int | None = None) -> HttpServer:
        """Start the server over HTTP, on a port of its own if none is named."""
        port = port or free_port()
        command = [*PROGRAM, "serve", "--http", f"127.0.0.1:{port}", *flags]
        return HttpServer(command, self.environment, self.work, self.errors, port)

    def cli(self, *words: str, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Run the command to its end."""
        environment = {**self.environment, **(env or {})}
        done = run([*PROGRAM, *words], environment, cwd=self.work, seconds=BOUND)
        out, err = done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def refused(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        """Run a command that has to refuse, and return its one line."""
        done = self.cli(*words, env=env)
        assert done.returncode in (2, 6) and not done.stdout and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    # -- looking at files, which changes nothing

    def paths(self, run_id: str) -> RunPaths:
        """Return where the files of a run are."""
        return self.store.paths.run(run_id)

    def meta(self, run_id: str) -> RunMeta:
        """Return the state as it is on disk."""
        return self.store.read(run_id)

    def events(self, run_id: str, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the events of a run so far, all or those of one type."""
        return [e for e in read_lines(self.paths(run_id).events.path) if kind is None or e["type"] == kind]

    def result(self, run_id: str) -> RunResult:
        """Return the result of a run that has one."""
        result = self.store.read_result(run_id)
        assert result is not None, f"run {run_id} has no result"
        return result

    def given_to(self, run_id: str) -> dict[str, str]:
        """Return the environment of the worker of a run that was started in this process."""
        return self._launcher.given[run_id]

    def shim(self, run_id: str) -> processes.Identity:
        """Return the shim of a run, as soon as it is recorded."""
        return self._recorded(run_id, "shim")

    def worker(self, run_id: str) -> processes.Identity:
        """Return the worker of a run, as soon as it is recorded."""
        return self._recorded(run_id, "worker")

    # -- waiting

    def until(self, run_id: str, condition: Callable[[RunMeta], object], seconds: float = BOUND) -> RunMeta:
        """Return the state on disk as soon as it fulfils `condition`; nobody reconciles it meanwhile."""
        wait_for(lambda: condition(self.meta(run_id)), seconds, f"a state of run {run_id}")
        return self.meta(run_id)

    def ended(self, run_id: str, seconds: float = BOUND) -> RunMeta:
        """Return the state on disk as soon as the run has ended by itself."""
        return self.until(run_id, lambda meta: meta.status.is_terminal, seconds)

    def judged(self, run_id: str) -> None:
        """Return as soon as a reader says that the run has ended, by itself or by what became of it."""
        wait_for(lambda: self.look(run_id).meta.status.is_terminal, BOUND, f"the verdict on run {run_id}")

    def asking(self, run_id: str, count: int = 1) -> RunMeta:
        """Return the state on disk as soon as `count` questions are open."""
        return self.until(run_id, lambda meta: meta.pending_questions >= count)

    def completed(self, run_id: str) -> str:
        """Return the text of a run that has to complete."""
        meta = self.ended(run_id)
        assert meta.status is Status.COMPLETED, meta.error
        return self.result(run_id).text

    def completed_and_gone(self, run_id: str) -> str:
        """Return the text of a run that has to complete, when no process of it is left."""
        text = self.completed(run_id)
        self.gone(run_id)
        return text

    def failed(self, run_id: str) -> tuple[str, str]:
        """Return code and message of a run that has to fail."""
        meta = self.ended(run_id)
        assert meta.error is not None, meta.status
        return meta.error.code, meta.error.message

    def gone(self, run_id: str) -> None:
        """Return as soon as no process of the run is left.

        The lock says it last: a process that is being taken down has lost its environment, by which it is
        found, before its open files.
        """
        run = self.paths(run_id)
        wait_for(
            lambda: not locks.is_held(run.live_lock) and not processes_of(run),
            BOUND,
            f"the end of all of run {run_id}",
        )

    # -- the end of the world

    def close(self) -> None:
        """Stop what still runs, then check every run."""
        try:
            mine = [run_id for run_id in self.store.run_ids() if self.paths(run_id).meta.exists()]
            for run_id in mine:
                if run_id not in self.abandoned:
                    self.stop(run_id, "the test is over")
            self._model.close()  # a run that is stopped waits for an answer that is under way
            for run_id in mine:
                self._settle(run_id)
            for process in self._launcher.started:
                process.wait(BOUND)
            if self.errors.exists():
                assert "Traceback" not in self.errors.read_text(encoding="utf-8")
        finally:
            self._model.close()

    def _settle(self, run_id: str) -> None:
        if run_id in self.abandoned:
            for identity in processes_of(self.paths(run_id)):
                kill(identity)
            return
        wait_for(lambda: self.look(run_id).live is False, BOUND, f"the end of run {run_id}")
        self.gone(run_id)
        check_ended(self.store, run_id, self.environment)

    def _recorded(self, run_id: str, who: str) -> processes.Identity:
        def found() -> processes.Identity | None:
            return processes.Identity.from_json(read_shim(self.paths(run_id)).get(who))

        wait_for(found, BOUND, f"the {who} of run {run_id}")
        identity = found()
        assert identity is not None
        return identity


def kill(identity: processes.Identity) -> None:
    """End a process as nothing else can, and return when it is dead."""
    processes.send_signal(identity, signal.SIGKILL)
    wait_for(lambda: not processes.is_alive(identity), BOUND, f"the death of {identity.pid}")
