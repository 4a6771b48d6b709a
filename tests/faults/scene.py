"""A home with a runs root that has been planted into, the command and the server in it, and the judge."""

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any

from subagent_server.run.store import RunStore
from tests.faults.canaries import SECRET, Outside, changed, holders_of_secret, tree
from tests.faults.planted import AGENT, SAMPLED_KINDS, Kind, plant, write_run
from tests.helpers.bounded import Ended, call_bounded, little_room
from tests.helpers.forked import PROGRAM
from tests.helpers.raw_server import HELLO, READY, RawServer, request, tool_call

TRUST = "subagent trust --runs"
"""What a refusal to change anything in somebody else's root names."""
HEALTHY = "20261122-healthy"
FAULT = "a fault of the server"
_STREAMS = ("log", "events", "result", "payload")


class Scene:
    """A home below which everything lies. `ours`: the product makes the root before it is planted into."""

    def __init__(self, home: Path, stack: ExitStack, *, ours: bool) -> None:
        self.home, self.root, self.work = home, home / "runs", home / "work"
        self.work.mkdir()
        self._write_agents(startable=ours)
        if ours:
            RunStore(self.root).make_root()
        else:
            _make_foreign(self.root)
        write_run(self.root, HEALTHY, "completed", self.work)
        self.outside = stack.enter_context(Outside(home / "outside"))
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "SUBAGENT_AGENTS": str(home / "agents"),
            "SUBAGENT_RUNS": str(self.root),
            "SUBAGENT_WARM": "0",
            "ANTHROPIC_API_KEY": "the-key-of-the-tests",
            "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        }
        self._stack = stack
        self._calls = count()
        self._before: dict[str, Any] = {}

    def plant(self, kinds: Sequence[Kind] = SAMPLED_KINDS) -> Sequence[Kind]:
        """Plant these kinds, and return them."""
        for kind in kinds:
            plant(self.root, kind, self.outside, self.work)
        return kinds

    def hold(self, run_id: str) -> None:
        """Hold the `live.lock` of a run, as its shim would, until the end of the test."""
        descriptor = os.open(self.root / run_id / "live.lock", os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._stack.callback(os.close, descriptor)

    def call(
        self,
        *words: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        but: str = "",
    ) -> Ended:
        """Run the command to its end, with `env` added to its environment, without the variable `but`."""
        environment = {n: v for n, v in {**self.environment, **(env or {})}.items() if n != but}
        return call_bounded(*words, environment=environment, cwd=cwd or self.home)

    # -- the judge

    def seen(self) -> "Scene":
        """Remember what is outside now: from here on it must not change."""
        self._before = self.outside.snapshot()
        return self

    def check(self, *said: str) -> None:
        """Check that nothing outside has changed, was executed or ended, was shown or came into the root."""
        assert changed(self._before, self.outside.snapshot()) == {}
        for text in said:
            assert SECRET not in text, text[max(0, text.index(SECRET) - 500) :][:1000]
        assert holders_of_secret(self.root, self.outside.inodes()) == []

    def judged(self, *words: str) -> Ended:
        """Run the command over what is planted, and check."""
        ended = self.call(*words)
        self.check(ended.said)
        return ended

    # -- the server

    @contextmanager
    def server(self) -> Iterator["Asker"]:
        """Start the server, with so much memory that what is endless is noticed."""
        errors = self.home / "server.err"
        with little_room():
            started = RawServer([*PROGRAM, "serve"], self.environment, self.work, errors)
        with started as server:
            server.say(HELLO)
            server.answer_to("hello")
            server.say(READY)
            yield Asker(server, self._calls)
        told = errors.read_text(encoding="utf-8", errors="replace")
        assert "Traceback" not in told, told[-3000:]
        assert SECRET not in told

    def _write_agents(self, *, startable: bool) -> None:
        """Write an agent, whose runs are refused if not `startable`: so no test leaves a process behind."""
        agents = self.home / "agents"
        agents.mkdir()
        unsupported = "tools: Bash(git diff:*)\n"
        for name, more in ((AGENT, "" if startable else unsupported), ("refused", unsupported)):
            front = f"---\nname: {name}\ndescription: Does the work.\n{more}---\nYou do it.\n"
            (agents / f"{name}.md").write_text(front, encoding="utf-8")


class Asker:
    """Asks a server several things at once, and keeps all that it says."""

    def __init__(self, server: RawServer, numbers: Iterator[int]) -> None:
        self._server, self._numbers = server, numbers
        self._documents = cycle(("meta", "log", "result"))
        self.heard: list[str] = []

    def __call__(self, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the answers to requests that are sent at once. Each is a result, or one sentence."""
        numbered = [each | {"id": next(self._numbers)} for each in requests]
        self._server.say(*numbered)
        answers = [self._server.answer_to(each["id"]) for each in numbered]
        for asked, answer in zip(requests, answers, strict=True):
            self.heard.append(str(answer))
            assert FAULT not in self.heard[-1] and "Traceback" not in self.heard[-1], (asked, answer)
        return answers

    def tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Return the result of a tool call."""
        (answer,) = self(tool_call(0, name, **arguments))
        result: dict[str, Any] = answer["result"]
        return result

    def looks_at(self, run_id: str) -> None:
        """Ask for all pages of a run, and for one of its documents."""
        pages = [tool_call(0, "get_logs", runId=run_id, stream=stream) for stream in _STREAMS]
        kind = next(self._documents)
        document = request(0, "resources/read", uri=f"run://{run_id}/{kind}")
        self(tool_call(0, "check_status", runId=run_id), *pages, document)


def sentence(result: dict[str, Any]) -> str:
    """Return what a tool call was refused with."""
    assert result.get("isError"), result
    text: str = result["content"][0]["text"]
    return text


def _make_foreign(root: Path) -> None:
    """Make a root as a clone or an archive brings it along: all but the proof."""
    root.mkdir(mode=0o700)
    for name in (".changes", ".slots"):
        (root / name).mkdir(mode=0o700)
    (root / ".gitignore").write_text("*\n", encoding="utf-8")


def unchanged(root: Path, before: dict[str, Any]) -> None:
    """Check that a root is as it was, to the byte and the nanosecond."""
    assert changed(before, tree(root)) == {}
