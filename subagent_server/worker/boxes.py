"""Where the programs of a run work: in a box of bubblewrap, or with all rights of the user.

`bwrap` is refused where there can be no box, `auto` then goes on without one, and says so. What an agent asks
for besides (`network: false`, `sandboxLimits`) holds in a box alone, so it is never run without.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from subagent_server.domain.definitions import AgentDefinition, SandboxLimits, ServerDefinition
from subagent_server.domain.errors import RunRefused
from subagent_server.domain.tool_selection import Selection
from subagent_server.sandbox.box import Box, Rules, build_box
from subagent_server.sandbox.limits import limits_as_text
from subagent_server.sandbox.placeholders import Placeholders
from subagent_server.sandbox.protected_names import ProtectedNames, protect
from subagent_server.sandbox.refusal import BoxRefused
from subagent_server.sandbox.trial import try_box
from subagent_server.service.unsupported import asked_of_box
from subagent_server.toolkit.tool import Tool
from subagent_server.toolkit.workspace.bash import BashTool
from subagent_server.toolkit.workspace.off_loop import off_loop
from subagent_server.worker.runner_setup import RunnerSetup

NO_PROGRAMS = "not needed (the agent has no tool that starts programs)"
_SAYS_NONE = "the agent file says `sandbox: none`"
_UNSANDBOXED = "none (unsandboxed: programs run with all rights of the user"


@dataclass(frozen=True)
class Place:
    """Where programs work: a box, or None for no wall at all; `mark` says it to people, `words` to the model.

    `open` says which names that other programs execute could not be protected. `release` gives back the names
    that were held in the working directory, when the last program has ended. MCP servers whose entry asks for
    it are started in a `server_box`.
    """

    box: Box | None
    mark: str
    words: str = ""
    open: Sequence[str] = ()
    release: Callable[[], None] = lambda: None
    server_box: Box | None = None


def planned_place(setup: RunnerSetup, selection: Selection) -> Place:
    """Return the place that the agent asks for; whether the box works shows when it is entered.

    Raises:
        RunRefused: `config`, if the agent insists on a box and there can be none.
    """
    agent = setup.agent
    tools = selection.bash or selection.grep or selection.glob or selection.ls
    servers = [server for server in agent.mcp_servers.values() if server.sandbox]
    is_boxed = tools and agent.sandbox != "none"
    if not is_boxed and not servers:
        return without_box(agent, _SAYS_NONE) if agent.sandbox == "none" else Place(None, NO_PROGRAMS)
    placeholders = Placeholders()
    try:
        protected = _protected(setup, placeholders) if selection.bash or servers else None
        own = _rules(setup, protected)
        box = build_box(own)
        server_box = build_box(_rules_of_servers(own, servers)) if servers else None
        if protected is not None and protected.open and agent.sandbox == "bwrap":
            raise _unprotected(protected.open)
    except BoxRefused as refusal:
        placeholders.release()
        return without_box(agent, refusal.reason)
    except BaseException:
        placeholders.release()
        raise
    opened = protected.open if protected is not None else ()
    if not is_boxed:
        mark = without_box(agent, _SAYS_NONE).mark if tools else NO_PROGRAMS
        return Place(None, mark, "", opened, placeholders.release, server_box)
    words = _words(box) if selection.bash else ""
    return Place(box, _mark(box), words, opened, placeholders.release, server_box)


def _protected(setup: RunnerSetup, placeholders: Placeholders) -> ProtectedNames:
    """Return the protected names of the working directory, held from here on. Raises BoxRefused."""
    setup.run.paths.outputs.make()
    build_box(_rules(setup, None))  # refused before a name is held in a home directory
    return protect(Path.cwd(), placeholders, setup.agent.sandbox_write)


async def entered(place: Place, tools: list[Tool]) -> None:
    """Start the shell in the box, or try the box if there is no shell.

    Raises:
        BoxRefused: there is no such box here. Nothing is left running.
    """
    shell = next((tool for tool in tools if isinstance(tool, BashTool)), None)
    if place.box is not None and shell is not None:
        await shell.begin()
    elif (box := place.box or place.server_box) is not None:
        await off_loop(lambda: try_box(box))


def without_box(agent: AgentDefinition, reason: str) -> Place:
    """Return the place of programs without a box.

    Raises:
        RunRefused: `config`, if the agent asks for something that only a box can give.
    """
    asked = [*asked_of_box(agent).values(), *(_boxed_servers(agent) if reason != _SAYS_NONE else ())]
    if asked:
        raise RunRefused(
            "config",
            f"{asked[0]} cannot be kept: {reason}.",
            "Put that right (`subagent doctor` tries the sandbox), or take the key out of the agent file.",
        )
    return Place(None, f"{_UNSANDBOXED}; {reason})")


def _boxed_servers(agent: AgentDefinition) -> list[str]:
    return [f"mcpServers.{name}.sandbox" for name, server in agent.mcp_servers.items() if server.sandbox]


def _unprotected(names: Sequence[str]) -> RunRefused:
    return RunRefused(
        "config",
        f"sandbox: bwrap cannot be kept: a name that other programs execute stays open ({names[0]}).",
        "Put that right, or name the path in `sandboxWrite`, which lifts its protection.",
    )


def _rules(setup: RunnerSetup, protected: ProtectedNames | None) -> Rules:
    """Return the rules of the box; without `protected` names the working directory cannot be written."""
    agent, run = setup.agent, setup.run
    cwd = Path.cwd()
    root = Path(os.path.realpath(run.store.paths.root))
    outputs = root / run.run_id / run.paths.outputs.path.name
    agents = [("--ro-bind", path) for path in _agents_inside(setup, cwd)]
    return Rules(
        cwd=cwd,
        environment=setup.environment,
        own=agent.env,
        network=agent.network,
        limits=agent.sandbox_limits or SandboxLimits(),
        read=[*([outputs] if protected is not None else []), *_places(agent.sandbox_read)],
        over=[*agents, *(protected.mounts if protected is not None else ())],
        hidden=[root, *_runtime_directory(setup.environment, cwd)],
        cwd_read_only=protected is None,
    )


def _rules_of_servers(rules: Rules, servers: Sequence[ServerDefinition]) -> Rules:
    """Return the rules for MCP servers: the same, without the agent's variables, and with their programs."""
    programs = [Path(server.command or "") for server in servers]
    directories = [path.parent for path in programs if path.is_absolute()]
    directories += [Path(os.path.realpath(path)).parent for path in programs if path.is_absolute()]
    path = os.pathsep.join([rules.environment.get("PATH", os.defpath), *map(str, directories)])
    return replace(rules, environment={**rules.environment, "PATH": path}, own={})


def _places(named: Sequence[str]) -> list[Path]:
    """Return the places of `sandboxRead` that are there, links resolved."""
    real = (Path(os.path.realpath(Path(name).expanduser())) for name in named)
    return [path for path in real if path.exists()]


def _agents_inside(setup: RunnerSetup, cwd: Path) -> list[Path]:
    """Return the directories of agents below the working directory: they are shown there, as git has them."""
    real = (Path(os.path.realpath(path)) for path in setup.read_only)
    root = Path(os.path.realpath(setup.run.store.paths.root))
    return [path for path in real if path != root and path.is_relative_to(cwd) and path.is_dir()]


def _runtime_directory(environment: Mapping[str, str], cwd: Path) -> list[Path]:
    """Return the directory of the zygote if the environment names one: its socket is not for programs."""
    named = environment.get("SUBAGENT_RUNTIME_DIR")
    return [Path(os.path.realpath(cwd / named))] if named else []


def _mark(box: Box) -> str:
    return f"bwrap ({'network' if box.network else 'no network'}; {limits_as_text(box.limits)})"


def _words(box: Box) -> str:
    """Return what the model has to know, to take the walls of the box for rules and not for faults."""
    network = (
        "There is no network in it, so nothing can be downloaded or installed from elsewhere: a package that "
        "pip or npm cannot find may well exist."
    )
    return (
        "Your shell works in a sandbox. It can write the working directory and /tmp; everything else is "
        "read-only or not there, on purpose, and so are files that other programs execute (.git/hooks, "
        f".git/config, .mcp.json, .envrc and their kind). {'' if box.network else network}"
    ).strip()
