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

    `agent_directories` are looked at in order, the earlier wins; `agents_by_default` where nobody named
    them, so that one may be missing. `max_runs` is how many runs of the root work
    at once. `max_wait_seconds` bounds one waiting call; None leaves it to what the client bears.
    """

    agent_directories: tuple[Path, ...]
    runs_root: Path
    cwd: Path
    environment: Mapping[str, str]
    passed_over: Path | None = None
    """A `runs/` that was not used because it is not proven to be ours."""
    agents_by_default: bool = False
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
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Return the settings that flags, environment and working directory give, in this order of strength.

    Raises:
        BadArgument: a variable that should be a number is none.
    """
    environment = dict(os.environ) if environment is None else environment
    cwd = Path.cwd() if cwd is None else cwd
    root = _runs_root(runs, environment, cwd)
    return Settings(
        agent_directories=_agent_directories(agents, environment, cwd),
        runs_root=root.path,
        passed_over=root.passed_over,
        cwd=cwd,
        environment=environment,
        agents_by_default=not agents and not environment.get("SUBAGENT_AGENTS"),
        max_runs=max_runs or _number(environment, "SUBAGENT_MAX_RUNS", DEFAULT_MAX_RUNS),
        max_wait_seconds=max_wait_seconds,
        max_depth=_number(environment, "SUBAGENT_MAX_DEPTH", 3),
        max_descendants=_number(environment, "SUBAGENT_MAX_DESCENDANTS", 50),
        warm=environment.get("SUBAGENT_WARM") != "0",
        warm_idle_seconds=_number(environment, "SUBAGENT_WARM_IDLE", DEFAULT_WARM_IDLE_SECONDS),
        runtime_directory=cwd / place if (place := environment.get("SUBAGENT_RUNTIME_DIR")) else None,
    )


def _agent_directories(flags: Sequence[Path], environment: Mapping[str, str], cwd: Path) -> tuple[Path, ...]:
    if flags:
        return tuple(cwd / path for path in flags)
    named = [name for name in environment.get("SUBAGENT_AGENTS", "").split(os.pathsep) if name]
    return tuple(cwd / name for name in named or DEFAULT_AGENT_DIRECTORIES)


def _runs_root(flag: Path | None, environment: Mapping[str, str], cwd: Path) -> FoundRoot:
    named = flag or environment.get("SUBAGENT_RUNS")
    return FoundRoot(cwd / named) if named else find_root(cwd)


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise BadArgument(f"{name} is {text[:40]!r}: set it to a whole number of at least 1, or unset it.")
    return int(text)
