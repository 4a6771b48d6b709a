"""Environment and flags, read once, as one frozen value that is handed down."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from subagent_server.domain.errors import BadArgument
from subagent_server.store.root import FoundRoot, find_root

Role = Literal["all", "parent", "child"]

DEFAULT_AGENT_DIRECTORIES = ("agents", ".claude/agents")
DEFAULT_MAX_RUNS = 64
DEFAULT_WARM_IDLE_SECONDS = 900


@dataclass(frozen=True)
class Settings:
    """Where agents and runs are, and the bounds of this installation.

    `agent_directories` are looked at in order, the earlier wins. If nobody named them, they are the usual
    places of `project`. `max_runs` is how many runs of the root work at once. `max_wait_seconds` bounds one
    waiting call; None leaves it to what the client bears.
    """

    agent_directories: tuple[Path, ...]
    runs_root: Path
    cwd: Path
    environment: Mapping[str, str]
    passed_over: Path | None = None
    """A `runs/` that was not used because it is not proven to be ours."""
    project: Path | None = None
    """The directory that has to be trusted for its agents to run, or None if a person named the agents."""
    trusts_all: bool = False
    """Whether this one command trusts whatever it finds (`--trust`)."""
    trust_file: Path | None = None
    """Where the user's word on directories is kept."""
    home: Path | None = None
    max_runs: int = DEFAULT_MAX_RUNS
    max_wait_seconds: float | None = None
    max_depth: int = 3
    max_descendants: int = 50
    warm: bool = True
    """Whether runs may be started by a fork of a warm process."""
    warm_idle_seconds: int = DEFAULT_WARM_IDLE_SECONDS
    """How long that process stays with nothing to do."""
    runtime_directory: Path | None = None
    """Where that process is found, where it is not the usual place."""

    @property
    def agents_by_default(self) -> bool:
        """Whether nobody named the agents, so that one of their directories may be missing."""
        return self.project is not None

    @property
    def is_of_a_run(self) -> bool:
        """Whether the environment says that this process belongs to a run, proven or not."""
        return self.child_run_id is not None or self.child_token is not None

    @property
    def child_run_id(self) -> str | None:
        """The run whose child this process is, where its environment says so."""
        return self.environment.get("SUBAGENT_RUN_ID") or None

    @property
    def child_token(self) -> str | None:
        """What proves that this process is that run's child."""
        return self.environment.get("SUBAGENT_RUN_TOKEN") or None


def read_settings(
    *,
    agents: Sequence[Path] = (),
    runs: Path | None = None,
    max_runs: int | None = None,
    max_wait_seconds: float | None = None,
    trust: bool = False,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Return the settings that flags, environment and working directory give, in this order of strength.

    Raises:
        BadArgument: a variable that should be a number is none, or a run wants to trust.
    """
    environment = dict(os.environ) if environment is None else environment
    cwd = Path.cwd() if cwd is None else cwd
    root = _runs_root(runs, environment, cwd)
    named = agents or environment.get("SUBAGENT_AGENTS")
    home = _absolute(environment.get("HOME"))
    settings = Settings(
        agent_directories=_agent_directories(agents, environment, cwd),
        runs_root=root.path,
        passed_over=root.passed_over,
        cwd=cwd,
        environment=environment,
        project=None if named else cwd,
        trusts_all=trust,
        trust_file=_trust_file(environment, home),
        home=home,
        max_runs=max_runs or _number(environment, "SUBAGENT_MAX_RUNS", DEFAULT_MAX_RUNS),
        max_wait_seconds=max_wait_seconds,
        max_depth=_number(environment, "SUBAGENT_MAX_DEPTH", 3),
        max_descendants=_number(environment, "SUBAGENT_MAX_DESCENDANTS", 50),
        warm=environment.get("SUBAGENT_WARM") != "0",
        warm_idle_seconds=_number(environment, "SUBAGENT_WARM_IDLE", DEFAULT_WARM_IDLE_SECONDS),
        runtime_directory=cwd / place if (place := environment.get("SUBAGENT_RUNTIME_DIR")) else None,
    )
    if trust and settings.is_of_a_run:
        raise BadArgument("A run cannot trust, so it has no --trust: leave it out.")
    return settings


def _agent_directories(flags: Sequence[Path], environment: Mapping[str, str], cwd: Path) -> tuple[Path, ...]:
    if flags:
        return tuple(cwd / path for path in flags)
    named = [name for name in environment.get("SUBAGENT_AGENTS", "").split(os.pathsep) if name]
    return tuple(cwd / name for name in named or DEFAULT_AGENT_DIRECTORIES)


def _runs_root(flag: Path | None, environment: Mapping[str, str], cwd: Path) -> FoundRoot:
    named = flag or environment.get("SUBAGENT_RUNS")
    return FoundRoot(cwd / named) if named else find_root(cwd)


def _trust_file(environment: Mapping[str, str], home: Path | None) -> Path | None:
    """Return where trust is kept; a configuration directory that is not absolute counts as not set (XDG)."""
    configuration = _absolute(environment.get("XDG_CONFIG_HOME")) or (home and home / ".config")
    return configuration and configuration / "subagent" / "trust.json"


def _absolute(text: str | None) -> Path | None:
    return Path(text) if text and Path(text).is_absolute() else None


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise BadArgument(f"{name} is {text[:40]!r}: set it to a whole number of at least 1, or unset it.")
    return int(text)
