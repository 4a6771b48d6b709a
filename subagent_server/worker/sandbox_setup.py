"""Where the programs of a run work: in a box of bubblewrap, or with all rights of the user.

If there can be no box, `bwrap` is refused, and `auto` continues without one and warns. `network: false` and
`sandboxLimits` hold in a box alone, so an agent with one of them never runs without a box.

If bubblewrap is known to work here, the box is built during the first model call; else the start waits until
the box is found closed. An agent that insists on a box is refused before that call if something in its
directory that programs of the host execute cannot be protected.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from subagent_server.run.agent_definition import AgentDefinition, SandboxLimits, Selection
from subagent_server.run.confined_path import printable
from subagent_server.run.errors import RunRefused
from subagent_server.sandbox.box import Box, Held, Rules, build_box, find_box_program, hold
from subagent_server.sandbox.box_limits import limits_as_text
from subagent_server.sandbox.git_files import GitSettings, configurations_as_shown, git_settings
from subagent_server.sandbox.readable import (
    BoxRefused,
    PathRefused,
    end_of_run,
    named_paths,
    showing,
    tried_twice,
)
from subagent_server.sandbox.server_locations import (
    ServerLocation,
    asked_by_servers,
    asked_of_box,
    location_of,
)
from subagent_server.sandbox.verify import is_proven, try_here
from subagent_server.toolbox.bash import BashTool
from subagent_server.toolbox.tool import Tool
from subagent_server.toolbox.workspace import off_loop
from subagent_server.worker.runners import RunnerSetup
from subagent_server.worktrees.store_of_run import worktree_mounts

# -- The box of a run: what its programs may read and write, and what is read-only in its working directory.


class RunBox:
    """Builds boxes for the programs of a run, each by what is in the working directory at that moment.

    `program` is the bubblewrap. A box takes some milliseconds, so it is for a thread during the first model
    call. With `protects=False`, for programs that write nothing, the working directory is read-only.
    `adding` adds to its rules.
    """

    def __init__(
        self, setup: RunnerSetup, *, protects: bool, adding: Callable[[Rules], Rules] = lambda rules: rules
    ) -> None:
        """Raise BoxRefused if there can be no box, and PathRefused."""
        self._setup = setup
        self.protects = protects
        self.rules = adding(_unprotected(setup))
        self.program = find_box_program(self.rules)

    @property
    def commits(self) -> bool:
        """Whether its programs have a repository of their own."""
        return self._setup.run.meta().worktree is not None

    def open(self) -> list[str]:
        """Return what programs of the host execute and a box cannot protect, each with the reason. Blocking.

        Raises:
            OSError: the working directory cannot be read.
        """
        if not self.protects:
            return []
        links = [printable(str(link)) for link in self._setup.protected.links]
        try:
            held = self._held().open
        except BoxRefused as refusal:
            held = [refusal.reason]
        return [*held, *(f"{link}: it is a link that leads to agents" for link in links)]

    def built(self) -> Box:
        """Return a box. Blocking, for any thread.

        Raises:
            BoxRefused: there can be none.
            OSError: the working directory cannot be read.
        """
        return build_box(self._protected())

    def built_for(self, changed: Callable[[Rules], Rules]) -> Box:
        """Return a box by the rules of this one, changed, as for an MCP server.

        Raises as `built` does; PathRefused.
        """
        rules = changed(self._protected())
        return build_box(replace(rules, over=[*rules.over, *self._setup.protected.mounts_in(rules.write)]))

    def _protected(self) -> Rules:
        if not self.protects:
            return self.rules
        self._setup.run.paths.outputs.make()
        worktree = self._setup.run.meta().worktree
        mounts = [] if worktree is None else worktree_mounts(worktree)
        return replace(
            self.rules,
            own={**self._settings.identity, **self.rules.own},
            read=[_directory(self._setup) / self._setup.run.paths.outputs.path.name, *self.rules.read],
            over=[*self.rules.over, *mounts, *self._held().mounts],
            shown_as=configurations_as_shown(self.rules.cwd, self._setup.run.paths.git_config),
            cwd_read_only=False,
        )

    def _held(self) -> Held:
        return hold(self.rules.cwd, self._settings.executed, self._setup.agent.lifted)

    @cached_property
    def _settings(self) -> GitSettings:
        """What git of the host reads here: `.git` is read-only for the run, so it stays that."""
        if self.commits:  # git of the host reads nothing that a run writes, and its store has the author
            return GitSettings()
        return git_settings(self._setup.environment, self.rules.cwd)


def _unprotected(setup: RunnerSetup) -> Rules:
    """Return the rules of a box in which the working directory cannot be written. Raises PathRefused."""
    agent, cwd, code_mode = setup.agent, Path.cwd(), setup.agent.enabled_code_mode
    interpreters = [] if code_mode is None else [Path(code_mode.python or sys.executable)]
    written = [cwd, *setup.protected.written]
    write = named_paths("sandboxWrite", agent.write_elsewhere, written)
    return Rules(
        cwd=cwd,
        environment=showing(interpreters, setup.environment, written),
        own=agent.env,
        network=agent.network,
        limits=agent.sandbox_limits or SandboxLimits(),
        read=named_paths("sandboxRead", agent.sandbox_read, written),
        write=write,
        over=setup.protected.mounts_in([cwd, *write]),
        hidden=setup.protected.roots,
        cwd_read_only=True,
        group=setup.run.run_id,
        written=setup.protected.written,
    )


def _directory(setup: RunnerSetup) -> Path:
    """Return the directory of the run, links of the root resolved."""
    return Path(os.path.realpath(setup.run.store.paths.root)) / setup.run.run_id


NO_PROGRAMS = "not needed (the agent has no tool that starts programs)"
NO_GROUP = (
    "systemd has given no control group for the programs of this run, so only the private memory of each "
    "process is bounded."
)
_SAYS_NONE = "the agent file says `sandbox: none`"
_UNSANDBOXED = "none (unsandboxed: programs run with all rights of the user"


@dataclass(frozen=True)
class Sandbox:
    """Where programs work: a box, or None for no box; `mark` is its text for people, `words` for the model.

    `servers` builds the boxes of MCP servers, None if none works in a box: as a rule it is `box` itself.
    """

    box: RunBox | None
    mark: str
    words: str = ""
    servers: RunBox | None = None

    @property
    def build(self) -> Callable[[], Box] | None:
        """Builds boxes for programs; None if they work without one."""
        return None if self.box is None else self.box.built

    @property
    def build_for_servers(self) -> Callable[[Callable[[Rules], Rules]], Box] | None:
        """Builds boxes for MCP servers; None if none works in one."""
        return None if self.servers is None else self.servers.built_for

    def open(self) -> Sequence[str]:
        """Return what programs of the host execute and a box leaves open, each with the reason. Blocking."""
        held = self.box or self.servers
        return held.open() if held is not None else ()


def planned_sandbox(setup: RunnerSetup, selection: Selection) -> Sandbox:
    """Return the sandbox that the agent asks for; whether the box works shows when it is entered. Blocking.

    Raises:
        RunRefused: `config`, if the agent insists on a box and there can be none.
    """
    agent = setup.agent
    writes = selection.bash or agent.enabled_code_mode is not None
    tools = writes or selection.grep or selection.glob or selection.ls
    servers = "box" in _server_locations(agent)
    is_boxed = tools and agent.sandbox != "none"
    if not is_boxed and not servers:
        return _tools_without_box(agent)
    try:
        box = RunBox(setup, protects=writes or servers)
    except BoxRefused as refusal:
        return without_box(agent, refusal.reason)
    except PathRefused as refusal:
        raise path_refused(refusal) from refusal
    if agent.sandbox == "bwrap" and (opened := box.open()):
        raise unprotected(opened)
    if not is_boxed:
        return replace(_tools_without_box(agent), servers=box)
    mark = f"{mark_of(box)}{_mark_of_servers(agent)}"
    return Sandbox(box, mark, sandbox_rules_text(box) if writes else "", box if servers else None)


def _tools_without_box(agent: AgentDefinition) -> Sandbox:
    """Return the sandbox of an agent whose tools have no box by its file, or start no program."""
    if agent.sandbox == "none":
        return without_box(agent, _SAYS_NONE)
    return Sandbox(None, f"{NO_PROGRAMS}{_mark_of_servers(agent)}")


async def entered(agent: AgentDefinition, sandbox: Sandbox) -> Sandbox:
    """Try the box, unless such boxes are known to work.

    Return where the programs work: without a box if there is no such box here, and the agent allows that.

    Raises:
        RunRefused: there is no such box, or not now. Nothing is left running.
    """
    wanted = sandbox.box or sandbox.servers
    if wanted is None or is_proven(wanted.program):
        return sandbox
    try:
        await off_loop(lambda: tried_twice(lambda: try_here(wanted.built, wanted.rules)))
    except BoxRefused as refusal:
        if refusal.passes:
            raise end_of_run("The programs of the run", refusal) from refusal
        return without_box(agent, refusal.reason)
    return sandbox


async def get_ready(sandbox: Sandbox, tools: Sequence[Tool]) -> None:
    """Start the shell in the box: during the first model call."""
    shell = next((tool for tool in tools if isinstance(tool, BashTool)), None)
    with suppress(BoxRefused, OSError):  # the first command meets it again, and reports it
        if sandbox.box is not None and shell is not None:
            await shell.begin()


def without_box(agent: AgentDefinition, reason: str) -> Sandbox:
    """Return the sandbox of programs without a box.

    Raises:
        RunRefused: `config`, if the agent asks for something that only a box has.
    """
    no_box = None if reason == _SAYS_NONE else reason  # which is about the agent, and not about its servers
    asked = [*asked_of_box(agent).values(), *(asked_by_servers(agent) if no_box is not None else {})]
    if asked:
        raise refused(asked[0], reason)
    return Sandbox(None, f"{_UNSANDBOXED}; {reason}){_mark_of_servers(agent, no_box)}")


def refused(asked: str, reason: str) -> RunRefused:
    """Return the refusal of a run whose agent asks for something that only a box has."""
    return RunRefused(
        "config",
        f"{asked} cannot be kept: {reason}.",
        "Put that right (`subagent doctor` tries the sandbox), or take the key out of the agent file.",
    )


def _mark_of_servers(agent: AgentDefinition, no_box: str | None = None) -> str:
    """Return the end of a mark: where the MCP servers of the agent work."""
    locations = _server_locations(agent, no_box).values()
    where = "; ".join(f"{location.where}: {', '.join(names)}" for location, names in locations)
    return f"; MCP servers {where}" if where else ""


def _server_locations(
    agent: AgentDefinition, no_box: str | None = None
) -> dict[str, tuple[ServerLocation, list[str]]]:
    """Return the locations of the agent's MCP servers, with their names there, by the kind of location."""
    found: dict[str, tuple[ServerLocation, list[str]]] = {}
    for name, server in agent.mcp_servers.items():
        if (location := location_of(agent, server, no_box)) is not None:
            found.setdefault(location.works, (location, []))[1].append(name)
    return found


def path_refused(refusal: PathRefused) -> RunRefused:
    """Return the refusal of a run for a path in which no run may work or write."""
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
    return f"bwrap ({'network' if box.rules.network else 'no network'}; {limits_as_text(box.rules.limits)})"


def sandbox_rules_text(box: RunBox) -> str:
    """Return what a model has to know, to take the walls of the box for rules and not for faults."""
    elsewhere = "".join(f", {path}" for path in box.rules.write)
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
        f"{'' if box.commits else no_commit}{'' if box.rules.network else network}"
    )
