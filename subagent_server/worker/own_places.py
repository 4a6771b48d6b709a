"""The places that programs of the host read for all runs, and that no run may write.

These are this installation, which the end of a run, its servers for children and the next run execute; the
directories of agents; and the runs roots: those of this run, and those of all other live runs of the user.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import RunRefused
from subagent_server.domain.executed_files import is_lifted
from subagent_server.host.host_programs import steps_to
from subagent_server.host.processes import this_process
from subagent_server.sandbox.box import homes
from subagent_server.sandbox.readable import shows_too_much
from subagent_server.service.live_runs import LiveRun, enter
from subagent_server.settings import state_directory_of

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class OwnPlaces:
    """`roots` are runs roots, which no program of a run sees; `read_only` are places that it may read.

    `links` lie in the working directory and lead to agents: a mount does not keep them from being replaced.
    """

    roots: list[Path]
    read_only: list[Path]
    links: list[Path]
    written: list[Path]
    """Where programs in boxes write, of this run and of the others: nothing there is executed by the host."""

    @property
    def all(self) -> list[Path]:
        """The places that no tool of a run changes."""
        return [*self.roots, *self.read_only]


def own_places(agent: AgentDefinition, environment: Mapping[str, str], root: Path, cwd: Path) -> OwnPlaces:
    """Note this run among the live ones, and return the places that it may not write. Blocking.

    Directories of agents and the installation below `cwd` are left out if the author names them in
    `sandboxWrite`.

    Raises:
        RunRefused: `config`, if the working directory lies in such a place.
    """
    named = [Path(name) for name in environment.get("SUBAGENT_AGENTS", "").split(os.pathsep) if name]
    agents, installation = [_real(str(path)) for path in named], _installation()
    inside = next((place for place in installation if cwd.is_relative_to(place)), None)
    inside = inside or next((place for place in agents if place in cwd.parents), None)
    if inside is not None and agent.sandbox != "none":
        raise RunRefused(
            "config",
            f"The working directory {cwd} lies in {inside}, where agents or the installation of subagent "
            "are, which no run may write.",
            "Start the run in the directory of a project.",
        )
    named_to_write = [*agent.write_elsewhere, *agent.written_by_servers]
    own = [] if agent.sandbox == "none" else [*_in_box(cwd, environment), *map(_real, named_to_write)]
    others = enter(state_directory_of(environment), LiveRun(this_process(), root, agents, own))
    places = dict.fromkeys([*agents, *installation, *(place for other in others for place in other.agents)])
    return OwnPlaces(
        list(dict.fromkeys([root, *(other.root for other in others)])),
        [path for path in places if not _is_lifted(path, cwd, agent)],
        [step for path in named for step in steps_to(path) if step.is_relative_to(cwd) and step.is_symlink()],
        [*own, *(place for other in others for place in other.writes)],
    )


def _in_box(cwd: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return the working directory unless it holds a home directory, which no box may write."""
    return [] if shows_too_much(cwd, homes(environment)) else [cwd]


def _is_lifted(path: Path, cwd: Path, agent: AgentDefinition) -> bool:
    return path.is_relative_to(cwd) and is_lifted(path.relative_to(cwd).parts, agent.lifted)


def _installation() -> list[Path]:
    """Return the real directories from which this interpreter executes code, but for those of the system."""
    named = (sys.prefix, sys.exec_prefix, sys.base_prefix, str(_PACKAGE), *sys.path)
    found = (_real(name) for name in named if name)
    return [
        path for path in dict.fromkeys(found) if path.is_dir() and path not in (_PACKAGE.parent, Path("/usr"))
    ]


def _real(name: str) -> Path:
    return Path(os.path.realpath(Path(name).expanduser()))
