"""Where a soak happens: its directories, its agents, and the processes that belong to it."""

import os
import random
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from subagent_server.run import processes, stderr
from subagent_server.run.errors import SubagentError
from subagent_server.run.records import RunMeta
from subagent_server.run.store import RunStore
from subagent_server.settings import read_settings
from subagent_server.verbs.service import Service, open_service
from tests.helpers import bubblewrap
from tests.helpers.files import write_agent
from tests.helpers.installation import Installation
from tests.helpers.processes import REPOSITORY
from tests.helpers.repositories import make_repository
from tests.soak.audit import Audit
from tests.soak.orders import PROGRAM

_MAX_RUNS = 5
_AGENTS: dict[str, dict[str, object]] = {
    "free": {"agents": ["helper"], "sandbox": "none"},
    "pair": {"maxConcurrent": 2, "sandbox": "none"},
    "helper": {"sandbox": "none"},
    "boxed": {"sandbox": "bwrap"},
    "coder": {"sandbox": "bwrap", "codeMode": {"enabled": True}},
    "tree": {"sandbox": "none", "isolation": "worktree"},
    "boxed-tree": {"sandbox": "bwrap", "isolation": "worktree"},
}
_SPARE = "subagent-spare"
_ZYGOTE = "subagent_server.worker.zygote_main"
_LOOKING = {"--reconcile", "--observe"}
_POINT = re.compile(r'failpoint\("([a-z_.]+)"\)')


@dataclass(frozen=True)
class Found:
    """A process of the soak: what it is, and the run that it belongs to, where it belongs to one."""

    kind: str
    identity: processes.Identity
    run_id: str | None


class Field:
    """Everything below one directory. `base_url` is where the model is."""

    def __init__(self, home: Path, base_url: str, audit: Audit) -> None:
        self.home = home
        self.runs, self.work = home / "runs", home / "work"
        self.effects = effects_of(home)
        self.errors = home / "errors"
        agents = home / "agents"
        for directory in (agents, self.effects, self.errors):
            directory.mkdir(parents=True)
        program = home / "program.py"
        program.write_text(PROGRAM, encoding="utf-8")
        by_program: dict[str, object] = {
            "runner": "command",
            "sandbox": "none",
            "command": sys.executable,
            "args": [str(program), str(self.effects)],
        }
        agents_to_write: dict[str, dict[str, object]] = {**_AGENTS, "program": by_program}
        for name, keys in agents_to_write.items():
            prompt = "" if "command" in keys else "Do as ordered."
            write_agent(agents, name, prompt, description=f"The agent {name}.", **keys)
        make_repository(self.work)
        (self.work / ".git" / "info" / "exclude").write_text("effects/\n", encoding="utf-8")
        (home / ".gitconfig").write_text("[user]\nname = A\nemail = a@example.com\n", encoding="utf-8")
        self.audit = audit
        self.store = RunStore(self.runs)
        self.store.make_root()
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "ANTHROPIC_API_KEY": "sk-ant-the-key-of-the-soak-0123456789",
            "ANTHROPIC_BASE_URL": base_url,
            "SUBAGENT_AGENTS": str(agents),
            "SUBAGENT_RUNS": str(self.runs),
            "SUBAGENT_MAX_RUNS": str(_MAX_RUNS),
            "SUBAGENT_RUNTIME_DIR": str(home / "warm"),
            "SUBAGENT_WARM_IDLE": "60",
            **bubblewrap.settings(),
        }

    @cached_property
    def installation(self) -> Installation:
        """The program of all who are started here and may be killed; made when it is first asked for."""
        return Installation(self.home / "installed")

    @cached_property
    def service(self) -> Service:
        """The verbs, in this process, which nobody kills."""
        return open_service(read_settings(environment=self.environment, cwd=self.work))

    def metas(self) -> Iterator[RunMeta]:
        """Yield the raw states on disk of the runs that may be live; nothing is reconciled."""
        for run_id in self.store.live_ids():
            try:
                yield self.store.read(run_id)
            except SubagentError:
                continue  # a start that never was; the doctor judges the others

    def working(self) -> list[RunMeta]:
        """Return the raw states of the runs that have not ended."""
        return [meta for meta in self.metas() if not meta.status.is_terminal]

    # -- processes

    def members(self) -> Iterator[Found]:
        """Yield every process that this soak has started, itself left out."""
        zygotes: list[int] = []
        workers: dict[int, str | None] = {}
        seen: set[int] = set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            identity = processes.identify(int(entry.name))
            found = None if identity is None else self._classified(identity)
            if found is not None and processes.is_alive(found.identity):
                zygotes += [found.identity.pid] if found.kind == "zygote" else []
                workers |= {found.identity.pid: found.run_id} if found.kind == "worker" else {}
                seen.add(found.identity.pid)
                yield found
        for worker, run_id in workers.items():  # what is in a box shows no mark
            for identity in processes.descendants([worker]):
                if identity.pid not in seen:
                    yield Found(_kind_of(_command(identity.pid)), identity, run_id)
        for identity in processes.descendants(zygotes):
            if _command(identity.pid)[0] == _SPARE:
                yield Found("spare", identity, None)

    def clear(self) -> None:
        """End what is left, if anything is: a soak that was broken off, or one that has found something."""
        for found in self.members():
            processes.send_signal(found.identity, signal.SIGKILL)

    def _classified(self, identity: processes.Identity) -> Found | None:
        command = _command(identity.pid)
        entries = b""
        with suppress(OSError):  # it has ended
            entries = Path(f"/proc/{identity.pid}/environ").read_bytes()
        environment = dict(item.partition(b"=")[::2] for item in entries.split(b"\0") if b"=" in item)
        words = set(command)
        named = next((Path(w).name for w in command if w.startswith(f"{self.runs}/")), None)
        if "subagent_server.worker" in words and named:
            return Found("reconcile" if words & _LOOKING else "worker", identity, named)
        if named and any(word.endswith("process/shim.py") for word in command):
            return Found("shim", identity, named)
        if _ZYGOTE in words and str(self.home / "warm") in words:
            return Found("zygote", identity, None)
        if environment.get(b"SUBAGENT_RUNS") != str(self.runs).encode():
            return None
        if (owner := environment.get(b"SUBAGENT_RUN_ID")) is not None:
            return Found(_kind_of(command), identity, owner.decode())
        if "serve" in words:
            return Found("HTTP server" if "--http" in words else "server", identity, None)
        return Found("git" if _kind_of(command) == "git" else "starter", identity, None)


def _kind_of(command: list[str]) -> str:
    return {"git": "git", "bwrap": "box"}.get(Path(command[0]).name, "grandchild")


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return [""]


def effects_of(home: Path) -> Path:
    """Return where runs leave the marks of what they have done: their tools write in `work` only."""
    return home / "work" / "effects"


def lethal_points() -> list[str]:
    """Return every point at which the program may be told to die, read from its source."""
    package = REPOSITORY / "subagent_server"
    sources = (path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py")))
    return sorted({point for source in sources for point in _POINT.findall(source)})


def deadly_environment(chance: random.Random) -> dict[str, str]:
    """Return what makes a process and its runs die at a few points now and then, or nothing."""
    if chance.random() < 0.2:
        return {}
    chosen = chance.sample(lethal_points(), 2)
    return {stderr.VARIABLE: ",".join(f"{point}:{chance.uniform(0.1, 0.5):.2f}" for point in chosen)}
