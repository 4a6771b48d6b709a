"""The box of a run: its rules, and the names in the working directory that are held as long as it is used."""

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from subagent_server.domain.definitions import AgentDefinition, SandboxLimits, ServerDefinition
from subagent_server.sandbox.box import Box, Rules, build_box, find_box_program
from subagent_server.sandbox.placeholders import Placeholders
from subagent_server.sandbox.protected_names import protect
from subagent_server.worker.runner_setup import RunnerSetup


class RunBox:
    """Builds the box of a run when it is first needed, and protects what other programs execute.

    `program` is its bubblewrap. Building takes some 20 ms, so it is for a thread beside the first model call.
    With `protects=False`, for programs that write nothing, no name is held. `adding` adds to its rules.
    """

    def __init__(
        self, setup: RunnerSetup, *, protects: bool, adding: Callable[[Rules], Rules] = lambda rules: rules
    ) -> None:
        """Raise BoxRefused if there can be no box, and PlaceRefused; nothing is held yet."""
        self._setup = setup
        self.protects = protects
        self._lock = threading.Lock()
        self._placeholders = Placeholders()
        self._rules = adding(_unprotected(setup))
        self._holds = False
        self._box: Box | None = None
        self.program = find_box_program(self._rules)
        self.open: list[str] = []
        """The names that other programs execute and that could not be protected, each with the reason."""

    @property
    def network(self) -> bool:
        """Whether there is a network in it."""
        return self._rules.network

    @property
    def limits(self) -> SandboxLimits:
        """What its programs may use."""
        return self._rules.limits

    @property
    def write_elsewhere(self) -> Sequence[Path]:
        """The places outside the working directory that its programs may write."""
        return self._rules.write

    def hold(self) -> None:
        """Hold the names that other programs execute, so that `open` is known. Blocking, for any thread.

        Raises:
            OSError: the working directory cannot be read.
        """
        with self._lock:
            self._hold()

    def built(self) -> Box:
        """Return the box; the first caller builds it. Blocking, for any thread.

        Raises:
            BoxRefused: there can be none.
            OSError: the working directory cannot be read.
        """
        with self._lock:
            if self._box is None:
                self._hold()
                self._box = build_box(self._rules)
            return self._box

    def built_for(self, servers: Sequence[ServerDefinition]) -> Box:
        """Return the box for MCP servers: the same, with their programs and without the agent's variables.

        Raises as `built` does.
        """
        self.built()
        programs = [Path(server.command or "") for server in servers]
        return build_box(replace(self._rules, environment=showing(programs, self._rules.environment), own={}))

    def release(self) -> None:
        """Give back the names that were held, when the last program has ended."""
        with self._lock:
            self._placeholders.release()

    def _hold(self) -> None:
        if self.protects and not self._holds:
            self._rules = self._protected()
            self._holds = True

    def _protected(self) -> Rules:
        self._setup.run.paths.outputs.make()
        worktree = self._setup.run.meta().worktree
        branches = None if worktree is None else worktree.branch.partition("/")[0]
        protected = protect(self._rules.cwd, self._placeholders, self._setup.agent.lifted, branches)
        self.open = protected.open
        return replace(
            self._rules,
            read=[_outputs(self._setup), *self._rules.read],
            over=[*self._rules.over, *protected.mounts],
            cwd_read_only=False,
        )


def _unprotected(setup: RunnerSetup) -> Rules:
    """Return the rules of a box in which the working directory cannot be written."""
    agent = setup.agent
    cwd = Path.cwd()
    return Rules(
        cwd=cwd,
        environment=showing(_interpreters(agent), setup.environment),
        own=agent.env,
        network=agent.network,
        limits=agent.sandbox_limits or SandboxLimits(),
        read=_places(agent.sandbox_read),
        write=_places(agent.write_elsewhere),
        over=[("--ro-bind", path) for path in _read_only_inside(setup, cwd)],
        hidden=[_root(setup), *_runtime_directory(setup.environment, cwd)],
        cwd_read_only=True,
    )


def showing(programs: Sequence[Path], environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with the directories of programs in PATH, which a box shows."""
    directories = [path.parent for path in programs if path.is_absolute()]
    directories += [Path(os.path.realpath(path)).parent for path in programs if path.is_absolute()]
    if not directories:
        return environment
    return {
        **environment,
        "PATH": os.pathsep.join([environment.get("PATH", os.defpath), *map(str, directories)]),
    }


def _root(setup: RunnerSetup) -> Path:
    return Path(os.path.realpath(setup.run.store.paths.root))


def _outputs(setup: RunnerSetup) -> Path:
    return _root(setup) / setup.run.run_id / setup.run.paths.outputs.path.name


def _interpreters(agent: AgentDefinition) -> list[Path]:
    """Return the interpreter of the agent's programs, if it has programs."""
    code_mode = agent.enabled_code_mode
    return [] if code_mode is None else [Path(code_mode.python or sys.executable)]


def _places(named: Sequence[str]) -> list[Path]:
    """Return the places elsewhere that the agent names and that are there, links resolved."""
    real = (Path(os.path.realpath(Path(name).expanduser())) for name in named)
    return [path for path in real if path.exists()]


def _read_only_inside(setup: RunnerSetup, cwd: Path) -> list[Path]:
    """Return the agents and the parts of this installation below the working directory, which shows them."""
    real = (Path(os.path.realpath(path)) for path in setup.read_only)
    root = _root(setup)
    return [path for path in real if path != root and path.is_relative_to(cwd) and path.is_dir()]


def _runtime_directory(environment: Mapping[str, str], cwd: Path) -> list[Path]:
    """Return the directory of the zygote if the environment names one: its socket is not for programs."""
    named = environment.get("SUBAGENT_RUNTIME_DIR")
    return [Path(os.path.realpath(cwd / named))] if named else []
