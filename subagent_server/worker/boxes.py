"""Where the programs of a run work: in a box of bubblewrap, or with all rights of the user.

If there can be no box, `bwrap` is refused, and `auto` goes on without a box and says so. `network: false` and
`sandboxLimits` hold in a box alone, so an agent with one of them never runs without a box.

If bubblewrap is known to work here, the box is built beside the first model call; else the start waits until
the box is found closed. An agent that insists on a box is refused before that call if something in its
directory that programs of the host execute cannot be protected.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import RunRefused
from subagent_server.domain.tool_selection import Selection
from subagent_server.sandbox.limits import limits_as_text
from subagent_server.sandbox.refusal import BoxRefused, PlaceRefused, tried_twice
from subagent_server.sandbox.server_places import ServerPlace, place_of
from subagent_server.sandbox.trial import is_proven, try_box
from subagent_server.service.unsupported import asked_by_servers, asked_of_box
from subagent_server.toolkit.tool import Tool
from subagent_server.toolkit.workspace.bash import BashTool
from subagent_server.toolkit.workspace.off_loop import off_loop
from subagent_server.worker.run_box import RunBox
from subagent_server.worker.runner_setup import RunnerSetup

NO_PROGRAMS = "not needed (the agent has no tool that starts programs)"
NO_GROUP = (
    "systemd has given no control group for the programs of this run, so only the private memory of each "
    "process is bounded."
)
_SAYS_NONE = "the agent file says `sandbox: none`"
_UNSANDBOXED = "none (unsandboxed: programs run with all rights of the user"


@dataclass(frozen=True)
class Place:
    """Where programs work: a box, or None for no box; `mark` says so to people, `words` to the model.

    `servers` builds the boxes of MCP servers, None if none works in a box: as a rule it is `box` itself.
    """

    box: RunBox | None
    mark: str
    words: str = ""
    servers: RunBox | None = None

    def open(self) -> Sequence[str]:
        """Return what programs of the host execute and a box leaves open, each with the reason. Blocking."""
        held = self.box or self.servers
        return held.open() if held is not None else ()


def planned_place(setup: RunnerSetup, selection: Selection) -> Place:
    """Return the place that the agent asks for; whether the box works shows when it is entered. Blocking.

    Raises:
        RunRefused: `config`, if the agent insists on a box and there can be none.
    """
    agent = setup.agent
    writes = selection.bash or agent.enabled_code_mode is not None
    tools = writes or selection.grep or selection.glob or selection.ls
    servers = "box" in _places_of_servers(agent)
    is_boxed = tools and agent.sandbox != "none"
    if not is_boxed and not servers:
        return _tools_without_box(agent)
    try:
        box = RunBox(setup, protects=writes or servers)
    except BoxRefused as refusal:
        return without_box(agent, refusal.reason)
    except PlaceRefused as refusal:
        raise place_refused(refusal) from refusal
    if agent.sandbox == "bwrap" and (opened := box.open()):
        raise unprotected(opened)
    if not is_boxed:
        return replace(_tools_without_box(agent), servers=box)
    mark = f"{mark_of(box)}{_mark_of_servers(agent)}"
    return Place(box, mark, words_of(box) if writes else "", box if servers else None)


def _tools_without_box(agent: AgentDefinition) -> Place:
    """Return the place of an agent whose tools have no box by its file, or start no program."""
    if agent.sandbox == "none":
        return without_box(agent, _SAYS_NONE)
    return Place(None, f"{NO_PROGRAMS}{_mark_of_servers(agent)}")


async def entered(place: Place, tools: Sequence[Tool]) -> None:
    """Start the shell in the box, or try the box if there is no shell, unless such boxes are known to work.

    Raises:
        BoxRefused: there is no such box here. Nothing is left running.
    """
    wanted = place.box or place.servers
    if wanted is None or is_proven(wanted.program):
        return
    shell = _shell_of(tools)
    if place.box is not None and shell is not None:
        await shell.begin(wait=True)
    else:
        await off_loop(lambda: tried_twice(lambda: try_box(wanted.built())))


async def get_ready(place: Place, tools: Sequence[Tool]) -> None:
    """Start the shell in the box if it was not started to enter it: beside the first model call."""
    shell = _shell_of(tools)
    with suppress(BoxRefused, OSError):  # the first command meets it again, and says it
        if place.box is not None and shell is not None:
            await shell.begin(wait=False)


def _shell_of(tools: Sequence[Tool]) -> BashTool | None:
    return next((tool for tool in tools if isinstance(tool, BashTool)), None)


def without_box(agent: AgentDefinition, reason: str) -> Place:
    """Return the place of programs without a box.

    Raises:
        RunRefused: `config`, if the agent asks for something that only a box can give.
    """
    no_box = None if reason == _SAYS_NONE else reason  # which is about the agent, and not about its servers
    asked = [*asked_of_box(agent).values(), *(asked_by_servers(agent) if no_box is not None else {})]
    if asked:
        raise refused(asked[0], reason)
    return Place(None, f"{_UNSANDBOXED}; {reason}){_mark_of_servers(agent, no_box)}")


def refused(asked: str, reason: str) -> RunRefused:
    """Return the refusal of a run whose agent asks for something that only a box can give."""
    return RunRefused(
        "config",
        f"{asked} cannot be kept: {reason}.",
        "Put that right (`subagent doctor` tries the sandbox), or take the key out of the agent file.",
    )


def _mark_of_servers(agent: AgentDefinition, no_box: str | None = None) -> str:
    """Return the end of a mark: where the MCP servers of the agent work."""
    places = _places_of_servers(agent, no_box).values()
    said = "; ".join(f"{place.where}: {', '.join(names)}" for place, names in places)
    return f"; MCP servers {said}" if said else ""


def _places_of_servers(
    agent: AgentDefinition, no_box: str | None = None
) -> dict[str, tuple[ServerPlace, list[str]]]:
    """Return the places of the agent's MCP servers, with their names there, by the kind of place."""
    found: dict[str, tuple[ServerPlace, list[str]]] = {}
    for name, server in agent.mcp_servers.items():
        if (place := place_of(agent, server, no_box)) is not None:
            found.setdefault(place.works, (place, []))[1].append(name)
    return found


def place_refused(refusal: PlaceRefused) -> RunRefused:
    """Return the refusal of a run that may not work at a place."""
    return RunRefused("config", f"{refusal.reason}.", refusal.hint)


def unprotected(names: Sequence[str]) -> RunRefused:
    """Return the refusal of a run in whose box these names would be open."""
    return RunRefused(
        "config",
        f"sandbox: bwrap cannot be kept: a name that other programs execute stays open ({names[0]}).",
        "Put that right, or name the path in `sandboxWrite`, which lifts its protection.",
    )


def mark_of(box: RunBox) -> str:
    """Return the mark of a box, which people read."""
    return f"bwrap ({'network' if box.network else 'no network'}; {limits_as_text(box.limits)})"


def words_of(box: RunBox) -> str:
    """Return what a model has to know, to take the walls of the box for rules and not for faults."""
    elsewhere = "".join(f", {path}" for path in box.write_elsewhere)
    no_commit = (
        " So is .git: leave your changes uncommitted (an agent that has to commit needs "
        "`isolation: worktree`, or `sandbox: none`)."
    )
    network = (
        " There is no network in it, so nothing can be downloaded or installed from elsewhere: a package "
        "that pip or npm cannot find may well exist."
    )
    return (
        f"What you start works in a sandbox. It can write the working directory{elsewhere} and /tmp; "
        "everything else is read-only or not there, on purpose, and so are files that other programs "
        "execute (.mcp.json, .envrc and their kind)."
        f"{'' if box.commits else no_commit}{'' if box.network else network}"
    )
