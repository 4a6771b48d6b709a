"""Environment and flags, read once, as one frozen value that is handed down."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from subagent_server.run.errors import BadArgument, HostError
from subagent_server.run.files import read_plain
from subagent_server.run.paths import FoundRoot, find_root
from subagent_server.run.states import LAUNCHER

Role = Literal["all", "parent", "child"]
"""The tools that a server shows: those of a parent, those of a child run, or both."""

DEFAULT_AGENT_DIRECTORIES = ("agents", ".claude/agents")
DEFAULT_MAX_RUNS = 64
DEFAULT_TOOLS_BUDGET = 8_000
DEFAULT_MAX_DEPTH = 3
DEFAULT_MAX_DESCENDANTS = 50
DEFAULT_WARM_IDLE_SECONDS = 60
DEFAULT_LEASE_SECONDS, LEAST_LEASE_SECONDS = 60, 2
MAX_OWN_BYTES = 64 << 10


@dataclass(frozen=True)
class Settings:
    """The directories of agents and runs, and the bounds of this installation."""

    agent_directories: tuple[Path, ...]
    """Directories of agent files; the earlier wins. By default they are the usual ones of `project`."""
    runs_root: Path
    """The directory of run directories."""
    cwd: Path
    """The directory that relative paths are relative to."""
    environment: Mapping[str, str]
    """The variables that runs inherit."""
    passed_over: Path | None = None
    """A `runs/` that was not used because it is not proven to be ours."""
    project: Path | None = None
    """The directory that has to be trusted for its agents to run, or None if a person named the agents."""
    trusts_all: bool = False
    """Whether this one command trusts the agents and MCP servers of the directory (`--trust`)."""
    trust_file: Path | None = None
    """The file that lists the trusted directories, or None if there is no home."""
    token_file: Path | None = None
    """The file with the tokens of parents that come over HTTP, or None if there is no home."""
    state_directory: Path | None = None
    """Where worktrees of runs are made, in the state directory of the user, or None if there is no home."""
    home: Path | None = None
    """The home of the user, or None if the environment names none."""
    max_runs: int = DEFAULT_MAX_RUNS
    """The number of runs of the root that work at once; more wait."""
    max_wait_seconds: float | None = None
    """The longest wait of one call; None: the known limit of the client."""
    agent_patterns: tuple[str, ...] = ()
    """Patterns of the names of the agents that a server shows (`--agent`); without any, all are shown."""
    tools_budget: int = DEFAULT_TOOLS_BUDGET
    """The most bytes that a model reads of all tools together. Agents start by `run_agent` where a tool for
    each would take more."""
    max_depth: int = DEFAULT_MAX_DEPTH
    """The deepest level at which a run may be started by runs; a first run has depth 0."""
    max_descendants: int = DEFAULT_MAX_DESCENDANTS
    """The number of live runs below one first run."""
    warm: bool = True
    """Whether runs may be forks of the zygote."""
    warm_idle_seconds: int = DEFAULT_WARM_IDLE_SECONDS
    """How long the zygote stays without work."""
    runtime_directory: Path | None = None
    """The directory of the zygote, or None for the usual one."""
    launcher: str = "local"
    """Where runs work whose agents do not set it: local, slurm, or ssh:HOST."""
    lease: int = DEFAULT_LEASE_SECONDS
    """After how many seconds of silence a run on a node is ended there."""
    has_max_runs: bool = False
    """Whether somebody named `max_runs`: an engine has a queue of its own."""
    contract_model: str | None = None
    """The model of agents that are started by a contract; None: there are no lifecycle tools."""

    @property
    def page_directory(self) -> Path | None:
        """The directory with the codes of the page, in the state directory of the user; None without one."""
        return self.token_file and self.token_file.parent / "page"

    @property
    def agents_by_default(self) -> bool:
        """Whether the agent directories are the usual ones, which may be missing."""
        return self.project is not None

    @property
    def is_of_a_run(self) -> bool:
        """Whether this process belongs to a run by its environment, proven or not."""
        return self.child_run_id is not None or self.child_token is not None

    @property
    def child_run_id(self) -> str | None:
        """The run that started this process, by its environment, or None."""
        return self.environment.get("SUBAGENT_RUN_ID") or None

    @property
    def child_token(self) -> str | None:
        """The token that proves that this process is that run's child, or None."""
        return self.environment.get("SUBAGENT_RUN_TOKEN") or None


def read_settings(
    *,
    agents: Sequence[Path] = (),
    runs: Path | None = None,
    max_runs: int | None = None,
    trust: bool = False,
    launcher: str | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Return the settings from flags, environment and working directory, in this order of strength.

    Raises:
        BadArgument: a variable is not a number, the launcher is none, or a run wants to trust.
        HostError: the working directory is gone.
    """
    environment = dict(os.environ) if environment is None else environment
    cwd = _working_directory() if cwd is None else cwd
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
        trust_file=(own := configuration_directory_of(environment)) and own / "trust.json",
        token_file=(state := state_directory_of(environment)) and state / "http-tokens",
        state_directory=state,
        home=home,
        max_runs=max_runs or _number(environment, "SUBAGENT_MAX_RUNS", DEFAULT_MAX_RUNS),
        has_max_runs=bool(max_runs or environment.get("SUBAGENT_MAX_RUNS")),
        launcher=_launcher(launcher or environment.get("SUBAGENT_LAUNCHER") or "local"),
        lease=_number(environment, "SUBAGENT_LEASE", DEFAULT_LEASE_SECONDS, LEAST_LEASE_SECONDS),
        tools_budget=_number(environment, "SUBAGENT_TOOLS_BUDGET", DEFAULT_TOOLS_BUDGET),
        max_depth=_number(environment, "SUBAGENT_MAX_DEPTH", DEFAULT_MAX_DEPTH),
        max_descendants=_number(environment, "SUBAGENT_MAX_DESCENDANTS", DEFAULT_MAX_DESCENDANTS),
        warm=environment.get("SUBAGENT_WARM") != "0",
        warm_idle_seconds=_number(environment, "SUBAGENT_WARM_IDLE", DEFAULT_WARM_IDLE_SECONDS),
        runtime_directory=cwd / runtime if (runtime := environment.get("SUBAGENT_RUNTIME_DIR")) else None,
    )
    # A program of a run may call this command too, and must not widen what it may start.
    if trust and settings.is_of_a_run:
        raise BadArgument("A run cannot trust, so it has no --trust: leave it out.")
    return settings


def _launcher(name: str) -> str:
    if not re.fullmatch(LAUNCHER, name):
        raise BadArgument(f"The launcher is {name[:80]!r}: name local, slurm, or ssh:HOST.")
    return name


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise HostError("The working directory is gone: go to one that exists, then try again.") from error


def _agent_directories(flags: Sequence[Path], environment: Mapping[str, str], cwd: Path) -> tuple[Path, ...]:
    if flags:
        return tuple(cwd / path for path in flags)
    named = [name for name in environment.get("SUBAGENT_AGENTS", "").split(os.pathsep) if name]
    return tuple(cwd / name for name in named or DEFAULT_AGENT_DIRECTORIES)


def _runs_root(flag: Path | None, environment: Mapping[str, str], cwd: Path) -> FoundRoot:
    named = flag or environment.get("SUBAGENT_RUNS")
    return FoundRoot(cwd / named) if named else find_root(cwd)


def configuration_directory_of(environment: Mapping[str, str]) -> Path | None:
    """Return our directory in the user's configuration; a variable that is not absolute is not set (XDG)."""
    home = _absolute(environment.get("HOME"))
    configuration = _absolute(environment.get("XDG_CONFIG_HOME")) or (home and home / ".config")
    return configuration and configuration / "subagent"


def read_own_file(path: Path) -> bytes:
    """Return the bytes of a file of the user's configuration, which only this user can have written.

    Raises:
        OSError: it cannot be read, or is another kind of file.
        ValueError: others could have written it; its text is why.
    """
    data, facts = read_plain(path, MAX_OWN_BYTES, os.O_NOFOLLOW)
    if facts.st_uid != os.getuid():
        raise ValueError("it is another user's")
    if facts.st_mode & 0o022:
        raise ValueError("others may write it")
    return data


def state_directory_of(environment: Mapping[str, str]) -> Path | None:
    """Return our directory in the state directory of the user (XDG), or None if there is no home."""
    home = _absolute(environment.get("HOME"))
    state = _absolute(environment.get("XDG_STATE_HOME")) or (home and home / ".local" / "state")
    return state and state / "subagent"


def _absolute(text: str | None) -> Path | None:
    return Path(text) if text and Path(text).is_absolute() else None


def _number(environment: Mapping[str, str], name: str, default: int, least: int = 1) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < least:
        raise BadArgument(
            f"{name} is {text[:40]!r}: set it to a whole number from {least} to 999999999, or unset it."
        )
    return int(text)
