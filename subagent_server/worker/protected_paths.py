"""The paths that no run may write, and the watch of files that other programs execute by themselves.

Protected are this installation, which the end of a run, its servers for children and the next run execute;
the directories of agents; and the runs roots: those of this run, and of all other live runs of the user.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import filterfalse, islice
from pathlib import Path

from subagent_server.process.zygote_protocol import default_directory
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import LockTimeout, RunRefused, StorageFailed
from subagent_server.run.executed_files import is_lifted
from subagent_server.run.host_programs import steps_to
from subagent_server.run.paths import HIDDEN_RUNS, RUNS, is_marked
from subagent_server.run.processes import this_process
from subagent_server.run.stderr import lack_of_room
from subagent_server.sandbox.disarmed_repositories import disarmed
from subagent_server.sandbox.file_watch import (
    CommandWatch,
    NameWatch,
    OwnWrites,
    Seen,
    new_repositories,
    own_hooks,
)
from subagent_server.sandbox.quarantine import Quarantine, Taken
from subagent_server.sandbox.readable import homes, shows_too_much, working_copies
from subagent_server.settings import configuration_directory_of, state_directory_of
from subagent_server.verbs.left_behind import left_facts, left_since, look_for_run, taken_facts
from subagent_server.verbs.live_runs import LiveRun, enter, known_roots
from subagent_server.worker.worker_run import WorkerRun

_PACKAGE = Path(__file__).parents[1]
_MOST_ENTRIES = 20_000
"""How many directories of agents are looked at for agents."""


@dataclass(frozen=True)
class ProtectedPaths:
    """`roots` are runs roots, our state and the directory of zygotes, which no program of a run sees: with a
    file there it could hold a lock that every start waits for, or take the orders of starters. `read_only`
    are directories that it may read.

    `links` lie in the working directory and lead to agents: a mount does not keep them from being replaced.
    """

    roots: list[Path]
    read_only: list[Path]
    links: list[Path]
    written: list[Path]
    """Where programs in boxes write, and the working copies around `cwd`, where earlier ones may have.

    Nothing there is executed by the host.
    """

    @property
    def all(self) -> list[Path]:
        """The directories that no tool of a run changes, but for our state around a worktree."""
        every = (*self.roots, *self.read_only)
        return [path for path in every if path / "worktrees" not in Path.cwd().parents]

    def mounts_in(self, written: Sequence[Path]) -> list[tuple[str, Path]]:
        """Return the mounts of a box for what lies where its programs write."""
        present = filter(os.path.exists, self.read_only)
        return [("--ro-bind", path) for path in present if any(map(path.is_relative_to, written))]


def protected_paths(
    agent: AgentDefinition, environment: Mapping[str, str], root: Path, cwd: Path
) -> ProtectedPaths:
    """Note this run among the live ones, and return the paths that it may not write. Blocking.

    Directories of agents and the installation below `cwd` are left out if the author names them in
    `sandboxWrite`.

    Raises:
        RunRefused: `config`, if the working directory lies in such a path.
    """
    own = [agent, *(each.agent for each in agent.served.values())]
    files = [file for each in own for file in (each.source, *each.read_from.values()) if file is not None]
    directories = _agent_directories(environment)
    named = [*_agent_locations(directories), *files]
    agents, installation = list(map(_real, named)), _installation()
    configuration, state = _own_directories(environment, cwd)
    ours = [*configuration, *state]
    written: list[Path] = []
    if agent.sandbox != "none":
        # 1. Refuse to work in what no run may write.
        around = [each for each in installation if cwd.is_relative_to(each)]
        around += [each for each in map(_real, directories) if each in cwd.parents]
        around += [
            each for each in ours if cwd.is_relative_to(each) and each / "worktrees" not in cwd.parents
        ]
        if around:
            raise RunRefused(
                "config",
                f"The working directory {cwd} lies in {around[0]}, where agents, the installation of "
                "subagent or its own files are, which no run may write.",
                "Start the run in the directory of a project.",
            )
        # 2. Find where boxes write: never in a working directory that holds a home directory.
        written += [] if shows_too_much(cwd, homes(environment)) else [cwd]
        written += map(_real, [*agent.write_elsewhere, *agent.written_by_servers])
    # 3. Make our directories that are missing there, or a run could; note this run, and find the others.
    with _noting(state_directory_of(environment)):
        for each in ours:
            if any(map(each.is_relative_to, written)):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
        written += [each / ".git" for each in written if each != cwd or not _holds_git(agent, cwd)]
        known = known_roots(state_directory_of(environment))
        named_so = [each / name for each in written for name in (RUNS, HIDDEN_RUNS)]
        hides = [
            each
            for each in dict.fromkeys([*known, *named_so])
            if any(map(each.is_relative_to, written)) and is_marked(each)
        ]
        mine = LiveRun(this_process(), root, agents, written, hides)
        others = enter(state_directory_of(environment), mine)
    if (writer := next((other for other in others if other.writes_records_of(root)), None)) is not None:
        raise RunRefused(
            "storage",
            f"A run that is at work, with its records in {writer.root}, could write those in {root}.",
            "Wait for the end of that run, or let `--runs` name another directory.",
        )
    held = [*agents, *installation, *configuration, *(each for other in others for each in other.agents)]
    links = (step for path in named for step in steps_to(path))
    return ProtectedPaths(
        roots=list(dict.fromkeys([root, *state, *hides, *(other.root for other in others)])),
        read_only=[
            path
            for path in dict.fromkeys(held)
            if not (path.is_relative_to(cwd) and is_lifted(path.relative_to(cwd).parts, agent.lifted))
        ],
        links=[
            step
            for step in dict.fromkeys(links)
            if step.is_relative_to(cwd)
            and os.path.islink(step)  # noqa: PTH114 - see `steps_to`
            and not any(map(step.is_relative_to, agents))
        ],
        written=[
            *written,
            *working_copies(cwd, environment)[1:],
            *(each for other in others for each in other.writes),
        ],
    )


@contextmanager
def _noting(state: Path | None) -> Iterator[None]:
    """Return what is wrong with our state directory if this run cannot be noted there."""
    try:
        yield
    except LockTimeout as error:
        hint = "A stopped process may hold it (`fuser` names it): end that one first."
        raise RunRefused("storage", error.sentence, hint) from error
    except (OSError, StorageFailed) as error:
        why = error.strerror or error if isinstance(error, OSError) else error.sentence.rstrip(".")
        raise RunRefused(
            "storage",
            f"The live runs cannot be noted in {state}: {why}.",
            "Make that directory yours alone (mode 0700), with room on its disk, or set XDG_STATE_HOME to a "
            "directory that you may write.",
        ) from error


def _holds_git(agent: AgentDefinition, cwd: Path) -> bool:
    """Whether `.git` is read-only in the boxes of this run: one that comes later is not the user's."""
    return os.path.lexists(cwd / ".git") and not is_lifted((".git",), agent.lifted)


def _agent_directories(environment: Mapping[str, str]) -> list[Path]:
    return [Path(name) for name in environment.get("SUBAGENT_AGENTS", "").split(os.pathsep) if name]


def _agent_locations(directories: Sequence[Path]) -> list[Path]:
    """Return directories of agents and the links in them, by which agents elsewhere are found."""
    entries = (
        Path(above, name)
        for directory in directories
        for above, below, files in os.walk(directory)
        for name in (*below, *files)
    )
    # The methods of `Path` raise for a link whose end is closed to this user, or has too long a name.
    links = list(filter(os.path.islink, islice(entries, _MOST_ENTRIES)))
    inner = (each for link in filter(os.path.isdir, links) for each in _entries(link))
    return [*directories, *links, *filter(os.path.islink, inner)]


def _entries(directory: Path) -> list[Path]:
    with suppress(OSError):
        return list(islice(directory.iterdir(), _MOST_ENTRIES))
    return []


def _own_directories(environment: Mapping[str, str], cwd: Path) -> tuple[list[Path], list[Path]]:
    """Return where this package keeps what it uses again: trust; and live runs, worktrees, zygotes."""
    named = (configuration_directory_of(environment), state_directory_of(environment))
    configuration, state = ([_real(str(each))] if each is not None else [] for each in named)
    zygotes = cwd / (environment.get("SUBAGENT_RUNTIME_DIR") or default_directory())
    with suppress(OSError):
        if zygotes.lstat().st_uid != os.getuid():  # no zygote uses it: a link could lead to where runs work
            return configuration, state
    return configuration, [*state, _real(zygotes)]


def _installation() -> list[Path]:
    """Return the real directories from which this interpreter executes code, but for those of the system."""
    named = (sys.prefix, sys.exec_prefix, sys.base_prefix, str(_PACKAGE), *sys.path)
    found = (_real(name) for name in named if name)
    return [
        path for path in dict.fromkeys(found) if path.is_dir() and path not in (_PACKAGE.parent, Path("/usr"))
    ]


def _real(name: str | Path) -> Path:
    return Path(os.path.realpath(Path(name).expanduser()))


class ExecutedWatch:
    """Looks at the files that other programs execute: around each command, before the first, and at the end.

    An agent without a shell, programs, servers and an editor that writes needs none of it.
    """

    def __init__(self, run: WorkerRun, agent: AgentDefinition, environment: Mapping[str, str]) -> None:
        selection = agent.selection
        servers = any(server.type == "stdio" for server in agent.mcp_servers.values())
        self._needed = servers or selection.bash or selection.edit or agent.enabled_code_mode is not None
        self._run = run
        self._since = time.time()
        self._before: asyncio.Task[Seen] | None = None
        """The first look."""
        self._quarantine = Quarantine(run.paths.quarantine)
        self._cwd = Path.cwd()
        self._directories = _agent_directories(environment)
        own = OwnWrites(state_directory_of(environment))
        names = NameWatch(self._cwd, self._quarantine, own, agent.lifted, lambda: self._configured)
        self.commands = CommandWatch(names, run.paths.before, self._tell, run.masker.text)

    def begin(self) -> None:
        """Look for the first time, during the first call of the model; what changes from now on counts."""
        if self._needed:
            self._since = time.time()
            self._before = asyncio.create_task(self._first_look())
            self._before.add_done_callback(_retrieve)

    async def _first_look(self) -> Seen:
        await self._run.first_request.wait()
        return await asyncio.to_thread(lambda: look_for_run(self._run.store, self._cwd, self._configured))

    @cached_property
    def _configured(self) -> tuple[str, ...]:
        """What else is executed: hooks that git is configured with, and agents in directories not there yet.

        Git of the host reads no repository that this run writes, which has no hooks of the user.
        """
        hooks = () if self._run.meta().worktree is not None else own_hooks(self._cwd)
        missing = filterfalse(os.path.exists, map(_real, _agent_locations(self._directories)))
        agents = [each for each in missing if each.is_relative_to(self._cwd)]
        return (*hooks, *(str(each.relative_to(self._cwd)) for each in agents))

    async def found(self) -> list[str]:
        """Return what can run code since then, for people, and record it in the journal.

        A machine without room for a look is a warning: the run has its outcome by now.
        """
        if self._before is None or not self._run.first_request.is_set():
            return []  # no tool has been called
        try:
            before = await self._before
            after = await asyncio.to_thread(look_for_run, self._run.store, self._cwd, before.hooks)
            await asyncio.to_thread(self._disarm, new_repositories(before, after))
        except Exception as error:
            if (lack := lack_of_room(error)) is None:
                raise
            self._run.record("warning", message=f"Whether files that run code came was not seen. {lack}")
            return []
        found = left_since(before, after, self._since)
        if found:
            self._run.record("warning", **left_facts(found))
        return found

    def _disarm(self, repositories: list[str]) -> None:
        """Take hooks and configuration from repositories that came below the top; there, it is a person's."""
        taken = disarmed(
            self._cwd, [path for path in repositories if path not in ("", ".git")], self._quarantine
        )
        if taken:
            self._run.record("warning", **taken_facts(taken, self._cwd))

    def _tell(self, taken: Taken) -> str:
        """Record what came during a command, and return the remark for the agent."""
        self._run.record("warning", **taken_facts(taken, self._cwd))
        moved = ", ".join(kept.shown(self._cwd) for kept in taken.moved)
        stuck = ", ".join(taken.stuck)
        remarks: list[str] = []
        if moved:
            remarks.append(
                f"[moved out of the working directory, because other programs execute it by themselves: "
                f"{moved}. A person can give it back: say in your answer what it is for]"
            )
        if stuck:
            remarks.append(
                "[other programs execute such files by themselves, and they could not be moved away: "
                f"{stuck}]"
            )
        return "\n".join(remarks)


def _retrieve(look: "asyncio.Task[Seen]") -> None:
    """Take note of a failure: asyncio prints those of a look that nobody awaits, as the run ended before."""
    if not look.cancelled():
        look.exception()
