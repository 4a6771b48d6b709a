"""The box of a run: what its programs may read and write, and what is read-only in its working directory."""

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from subagent_server.domain.definitions import AgentDefinition, SandboxLimits
from subagent_server.host import atomic
from subagent_server.host.control_groups import group_of_run
from subagent_server.host.inside import printable
from subagent_server.sandbox.box import Box, Rules, build_box, find_box_program
from subagent_server.sandbox.git_credentials import config_without_credentials
from subagent_server.sandbox.git_directories import GitSettings, common_directory, git_settings
from subagent_server.sandbox.held_places import Held, hold
from subagent_server.worker.runner_setup import RunnerSetup
from subagent_server.worktrees.store import worktree_mounts


class RunBox:
    """Builds boxes for the programs of a run, each by what is in the working directory at that moment.

    `program` is the bubblewrap. A box takes some milliseconds, so it is for a thread beside the first model
    call. With `protects=False`, for programs that write nothing, the working directory is read-only.
    `adding` adds to its rules.
    """

    def __init__(
        self, setup: RunnerSetup, *, protects: bool, adding: Callable[[Rules], Rules] = lambda rules: rules
    ) -> None:
        """Raise BoxRefused if there can be no box, and PlaceRefused."""
        self._setup = setup
        self.protects = protects
        self._lock = threading.Lock()
        self._rules = adding(_unprotected(setup))
        self._git: GitSettings | None = None
        self.program = find_box_program(self._rules)

    @property
    def network(self) -> bool:
        """Whether there is a network in it."""
        return self._rules.network

    @property
    def commits(self) -> bool:
        """Whether its programs have a repository of their own."""
        return self._setup.run.meta().worktree is not None

    @property
    def limits(self) -> SandboxLimits:
        """What its programs may use."""
        return self._rules.limits

    @property
    def write_elsewhere(self) -> Sequence[Path]:
        """The places outside the working directory that its programs may write."""
        return self._rules.write

    def open(self) -> list[str]:
        """Return what programs of the host execute and a box cannot protect, each with the reason. Blocking.

        Raises:
            OSError: the working directory cannot be read.
        """
        if not self.protects:
            return []
        places = [printable(str(link)) for link in self._setup.places.links]
        return [*self._held().open, *(f"{link}: it is a link that leads to agents" for link in places)]

    def built(self) -> Box:
        """Return a box. Blocking, for any thread.

        Raises:
            BoxRefused: there can be none.
            OSError: the working directory cannot be read.
        """
        return build_box(self._protected())

    def built_for(self, changed: Callable[[Rules], Rules]) -> Box:
        """Return a box by the rules of this one, changed, as for an MCP server.

        Raises as `built` does; PlaceRefused.
        """
        rules = changed(self._protected())
        return build_box(replace(rules, over=[*rules.over, *_read_only(self._setup, rules.write)]))

    def _protected(self) -> Rules:
        if not self.protects:
            return self._rules
        self._setup.run.paths.outputs.make()
        worktree = self._setup.run.meta().worktree
        mounts = [] if worktree is None else worktree_mounts(worktree)
        return replace(
            self._rules,
            own={**self._settings().identity, **self._rules.own},
            read=[_outputs(self._setup), *self._rules.read],
            over=[*self._rules.over, *mounts, *self._held().mounts],
            shown_as=self._config_as_shown(),
            cwd_read_only=False,
        )

    def _config_as_shown(self) -> dict[Path, Path]:
        """Return the configuration of the repository, if it has secrets, and the file in its place."""
        cwd, copy = self._rules.cwd, self._setup.run.paths.git_config
        config = (common_directory(cwd) or cwd / ".git") / "config"
        if config.is_symlink() or not config.is_file():
            return {}
        if (shown := config_without_credentials(config)) is None:
            return {}
        atomic.write_durably(copy, shown)
        return {config: _root(self._setup) / self._setup.run.run_id / copy.path.name}

    def _held(self) -> Held:
        return hold(self._rules.cwd, self._settings().executed, self._setup.agent.lifted)

    def _settings(self) -> GitSettings:
        """Return what git of the host reads here. It is asked once: `.git` is read-only for the run."""
        if self.commits:  # git of the host reads nothing that a run writes, and its store has the author
            return GitSettings()
        with self._lock:
            if self._git is None:
                self._git = git_settings(self._setup.environment, self._rules.cwd)
            return self._git


def _unprotected(setup: RunnerSetup) -> Rules:
    """Return the rules of a box in which the working directory cannot be written."""
    agent, cwd = setup.agent, Path.cwd()
    write = _places(agent.write_elsewhere)
    return Rules(
        cwd=cwd,
        environment=showing(_interpreters(agent), setup.environment),
        own=agent.env,
        network=agent.network,
        limits=agent.sandbox_limits or SandboxLimits(),
        read=_places(agent.sandbox_read),
        write=write,
        over=_read_only(setup, [cwd, *write]),
        hidden=[*setup.places.roots, *_runtime_directory(setup.environment, cwd)],
        cwd_read_only=True,
        group=group_of_run(setup.run.run_id),
    )


def _read_only(setup: RunnerSetup, written: Sequence[Path]) -> list[tuple[str, Path]]:
    """Return the mounts for the places of all runs that lie where the programs of a box write."""
    places = (path for path in setup.places.read_only if path.is_dir())
    return [("--ro-bind", path) for path in places if any(map(path.is_relative_to, written))]


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


def _runtime_directory(environment: Mapping[str, str], cwd: Path) -> list[Path]:
    """Return the directory of the zygote if the environment names one: its socket is not for programs."""
    named = environment.get("SUBAGENT_RUNTIME_DIR")
    return [Path(os.path.realpath(cwd / named))] if named else []
