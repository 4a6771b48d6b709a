"""The real command in a process of its own, in a home of its own, and runs for it to find."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from subagent_server.extensions.simulator import Simulator
from subagent_server.run import locks, transitions
from subagent_server.run.journal import RunJournal
from subagent_server.run.processes import now
from subagent_server.run.records import Failure, RunMeta, RunResult
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from subagent_server.settings import read_settings
from subagent_server.verbs.access import token_hash
from subagent_server.verbs.trust_check import coverage, trust
from tests.helpers import bubblewrap, warm
from tests.helpers.files import write_agent
from tests.helpers.forked import PROGRAM, popen, run
from tests.helpers.processes import open_files
from tests.helpers.runs import STARTED, make_meta, make_request
from tests.helpers.wait import wait_for

BOUND = 120.0
"""How long one command may take, in seconds, on a machine that has much else to do."""

Completed = subprocess.CompletedProcess[str]
Model = Callable[..., Simulator]

FAILED = transitions.RunFailed(failure=Failure(code="agent_error", message="It broke.", hint="Try again."))
STOPPED = transitions.StopRequested(reason="enough")
TOKEN = "a-token-that-cannot-be-guessed"
"""The token of every run that is made by hand."""
_OF_REQUESTS = ("prompt", "scripted", "cwd")
"""Facts of a run that is made by hand which its request has, and its state has not."""


def run_name(tail: str) -> str:
    """Return a run id that ends in `tail`."""
    return f"20261122-093015-417-{tail}"


def inside(run_id: str, token: str = TOKEN) -> dict[str, str]:
    """Return the variables that a run gives to its programs.

    Its id must differ from those of other tests: who has it in its environment is taken for its process.
    """
    return {"SUBAGENT_RUN_ID": run_id, "SUBAGENT_RUN_TOKEN": token}


class Cli:
    """Calls the command in `home`, where its runs and agents are; agents are trusted as they are written."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.trusts = True
        self.store = RunStore(home / "runs")
        (home / "agents").mkdir(exist_ok=True)
        kept = {
            n: v for n, v in os.environ.items() if not n.startswith(("SUBAGENT", "ANTHROPIC", "NO_COLOR"))
        }
        configuration = home.with_name(f"{home.name}.config")  # outside of the directory to be trusted
        self.environment = {
            **kept,
            **warm.settings(),
            "COLUMNS": "80",
            "PYTHONUTF8": "1",
            "ANTHROPIC_API_KEY": "no-model-is-called-with-this",
            "XDG_CONFIG_HOME": str(configuration),
            "XDG_STATE_HOME": str(home.with_name(f"{home.name}.state")),
        }

    def have_boxes(self) -> None:
        """Let MCP servers work in boxes from here on."""
        self.environment |= bubblewrap.settings()

    def __call__(
        self,
        *words: str,
        stdin: str | bytes = "",
        env: Mapping[str, str] | None = None,
        seconds: float = BOUND,
    ) -> Completed:
        """Run the command to its end."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        environment = {**self.environment, **(env or {})}
        done = run([*PROGRAM, *words], environment, cwd=self.home, stdin=given, seconds=seconds)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
        return Completed(words, done.returncode, out, err)

    def leaves_with(self, code: int, said: str, *words: str, **options: Any) -> None:
        """Run a command that has to leave with this code and say this on stderr."""
        done = self(*words, **options)
        assert done.returncode == code and said in done.stderr, done.stderr

    def json(self, *words: str, code: int = 0, env: Mapping[str, str] | None = None) -> Any:
        """Run the command with --json and return what it printed."""
        done = self(*words, "--json", env=env)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def on_screen(self, *words: str, columns: int = 80) -> str:
        """Run the command with its stdout on a terminal, and return what that shows, without colours."""
        shown = self.raw_screen(*words, COLUMNS=str(columns)).replace("\r\n", "\n")
        return re.sub(r"\x1b\[[0-9;]*m", "", shown)

    def raw_screen(self, *words: str, **environment: str) -> str:
        """Return all that the command writes to a terminal."""
        outer, inner = pty.openpty()
        shown = b""
        env = {"TERM": "xterm", "COLORTERM": "", **environment}
        try:
            with self.start(*words, stdout=inner, env=env) as command:
                os.close(inner)
                with suppress(OSError):  # the terminal has no other end any more
                    while part := os.read(outer, 1 << 16):
                        shown += part
                said = command.end()[2]
        finally:
            os.close(outer)
        assert "Traceback" not in said, said
        return shown.decode()

    def start(self, *words: str, **options: Any) -> "Running":
        """Start the command and return while it runs."""
        return Running([*PROGRAM, *words], self.home, self.environment, options)

    def agent(self, name: str, **keys: Any) -> None:
        """Write an agent file."""
        keys = {"description": f"Does {name}.", **keys}
        write_agent(self.home / "agents", name, "You are an agent.", **keys)
        if self.trusts:
            self.trust()

    def trust(self) -> None:
        """Trust the directory with what is there now, as its owner does."""
        settings = read_settings(environment=self.environment, cwd=self.home)
        trust(settings, coverage(settings, self.home))

    # -- runs made by hand

    def made(self, tail: str, *happened: transitions.RunEvent, **facts: Any) -> str:
        """Make a run to which `happened` has happened since it was started, and return its id."""
        run_id = self._created(tail, facts)
        self._publish(run_id, happened, facts)
        return run_id

    def _created(self, tail: str, facts: dict[str, Any]) -> str:
        run_id = run_name(tail)
        origin = {"directories": [str(self.home / "agents")]}
        asked = {key: facts[key] for key in (*_OF_REQUESTS, "parent_run_id") if key in facts}
        self.store.create(make_request(run_id, agents_from=origin, **asked))
        return run_id

    def _publish(self, run_id: str, happened: Sequence[transitions.RunEvent], facts: dict[str, Any]) -> None:
        stated = {key: value for key, value in facts.items() if key not in _OF_REQUESTS}
        self.store.publish(make_meta(run_id, child_token_hash=token_hash(TOKEN), **stated))
        for event in (STARTED, *happened):
            self.store.update(run_id, event, now())

    def completed(self, tail: str, text: str = "All good.", output: Any = None, **facts: Any) -> str:
        """Make a run that has completed with this result."""
        run_id = self.made(tail, **facts)
        given: dict[str, Any] = {"outcome": Status.COMPLETED, "text": text}
        result = RunResult(**given) if output is None else RunResult(**given, output=output)
        self.store.update(run_id, transitions.Finished(summary=text[:60]), now(), result=result)
        return run_id

    def record(self, run_id: str, *events: tuple[str, dict[str, Any]]) -> None:
        """Write events into the journal of a run."""
        journal = RunJournal(self.store.paths.run(run_id))
        for kind, facts in events:
            journal.append(kind, now(), facts)

    def meta(self, run_id: str) -> RunMeta:
        """Return the state of a run as it is on disk."""
        return self.store.read(run_id)

    def hold(self, run_id: str) -> int:
        """Make a run's processes seem to live until the descriptor that is returned is closed."""
        descriptor = locks.take(self.store.paths.run(run_id).live_lock)
        assert descriptor is not None
        return descriptor

    @contextmanager
    def living(self, tail: str, *happened: transitions.RunEvent, **facts: Any) -> Iterator[str]:
        """Make a run whose processes seem to live: this process holds its lock before it is one."""
        run_id = self._created(tail, facts)
        descriptor = self.hold(run_id)
        try:
            self._publish(run_id, happened, facts)
            yield run_id
        finally:
            os.close(descriptor)


def asked(question: str = "Which colour?", *options: str) -> transitions.QuestionAsked:
    """Return a question that will not expire while a test runs."""
    return transitions.QuestionAsked(
        question=question, options=options, expires_at=now() + timedelta(hours=1)
    )


class Running:
    """A command that runs. Leaving the `with` block kills it."""

    def __init__(
        self, command: list[str], home: Path, environment: dict[str, str], options: dict[str, Any]
    ) -> None:
        extra = options.pop("env", {})
        streams: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
        }
        self.process = popen(command, {**environment, **extra}, cwd=home, **streams)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(BOUND)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def hear(self, wanted: str, stream: str = "stdout") -> str:
        """Return what came on a stream until it holds `wanted`."""
        pipe = getattr(self.process, stream)
        return hear(pipe.fileno(), wanted)

    def is_watching(self) -> bool:
        """Whether the process listens to changes of files by now."""
        return any("inotify" in name for name in open_files(self.process.pid))

    def interrupt(self) -> None:
        """Send what Ctrl-C sends."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str, str]:
        """Return the exit code and the rest of stdout and stderr."""
        out, err = self.process.communicate(timeout=BOUND)
        return self.process.wait(BOUND), (out or b"").decode(), (err or b"").decode()


def hear(descriptor: int, wanted: str, seconds: float = BOUND) -> str:
    """Return what can be read from `descriptor` until it holds `wanted`."""
    heard, deadline = b"", time.monotonic() + seconds
    while wanted.encode() not in heard:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"no {wanted!r} within {seconds:g} s in {heard!r}"
        more = os.read(descriptor, 65536)
        assert more, f"no {wanted!r} at the end of {heard!r}"
        heard += more
    return heard.decode("utf-8", "replace")


def until_watching(running: Running) -> None:
    """Return when the process listens to changes."""
    wait_for(running.is_watching, BOUND, "a command that watches")


def stored(cli: Cli) -> list[str]:
    """Return the names of the runs that are there, oldest first."""
    return cli.store.run_ids()[::-1]
