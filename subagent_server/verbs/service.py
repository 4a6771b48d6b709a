"""The context of every verb: the runs, a way to start them, the agents, the settings."""

import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from subagent_server.process.launcher import Launcher, LocalLauncher
from subagent_server.process.zygote_client import WarmStart
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import BadArgument, SubagentError, UnknownAgent
from subagent_server.run.files import is_directory
from subagent_server.run.records import AgentsFrom, RunRequest
from subagent_server.run.store import RunStore
from subagent_server.settings import Settings

if TYPE_CHECKING:
    from subagent_server.agents.discover import Catalog

# -- The agents available now. Changed files are read again.


Fingerprint = tuple[tuple[str, int, int], ...]


class AgentRegistry:
    """The catalog of some directories, read again when a file in them has changed.

    A missing directory is listed as a problem, unless the directory is only `looked_for` by default. `also`
    are agents that come before those of the directories: the start of a run has read and judged them.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        *,
        also: Sequence[AgentDefinition] = (),
        looked_for: bool = False,
        is_one: bool = False,
    ) -> None:
        self.directories = tuple(directories)
        """Where agents are looked for, the earlier wins."""
        self._also = {agent.name: agent for agent in also}
        self._looked_for = looked_for
        self._is_one = is_one
        self._read: tuple[Fingerprint, Catalog] | None = None
        self._keep_seconds, self._looked_at = 0.0, -math.inf

    def keep_for(self, seconds: float) -> None:
        """Look at the files at most once in this time from now on: many callers ask."""
        self._keep_seconds = seconds

    @classmethod
    def of_one(cls, definition: AgentDefinition) -> "AgentRegistry":
        """Return a registry with exactly one agent (`serve --config`)."""
        return cls((), also=[definition], is_one=True)

    def is_named(self, agent: AgentDefinition) -> bool:
        """Whether this very agent was named by a person (`serve --config`), or is judged already."""
        return agent is self._also.get(agent.name)

    def catalog(self) -> "Catalog":
        """Return the catalog of the directories as they are now."""
        # Here and below: verbs about runs, such as `ls`, read no agent file and do not wait for YAML.
        from subagent_server.agents.discover import discover

        read = self._read  # one value: several threads may ask
        if read is not None and time.monotonic() < self._looked_at + self._keep_seconds:
            return read[1]
        self._looked_at = time.monotonic()
        seen = _fingerprint(self.directories)
        if read is None or seen != read[0]:
            present = [d for d in self.directories if _may_be_there(d) or not self._looked_for]
            self._read = read = (seen, discover(present))
        return read[1]

    def agents(self) -> list[AgentDefinition]:
        """Return the agents that loaded, by name; those of a directory without their prompts."""
        return list({**self.catalog().agents, **self._also}.values())

    def names(self) -> frozenset[str] | None:
        """Return the names that agents may name, or None if only one agent is known (`serve --config`)."""
        return None if self._is_one else frozenset({**self.catalog().agents, **self._also})

    def get(self, name: str) -> AgentDefinition:
        """Return the agent of this name or tool name, whole, as its file is now.

        Raises:
            UnknownAgent: none loaded; the sentence has the reason if a file of that name was refused.
            AgentFileError: the file has just become unreadable.
        """
        for agent in self._also.values():
            if name in (agent.name, agent.tool_name):
                return agent
        if self._is_one:
            raise UnknownAgent(name, list(self._also))
        listed = self.catalog().require(name)
        if listed.source is None:
            return listed
        from subagent_server.agents.formats import load_agent_file
        from subagent_server.agents.yaml_reader import shown

        whole = load_agent_file(listed.source)  # a catalog keeps no prompts
        if whole.name != listed.name:
            raise UnknownAgent(listed.name, [whole.name], f"{shown(listed.source)} has just changed")
        return whole.model_copy(update={"distinct_tool": listed.distinct_tool})


def _may_be_there(directory: Path) -> bool:
    try:
        return is_directory(directory)
    except OSError:  # what is above it is closed, or does not answer: the catalog reports it
        return True


def _fingerprint(directories: Sequence[Path]) -> Fingerprint:
    """Return a value that differs after each change of these directories.

    Every file counts, not agent files alone: prompts and schemas lie next to the agent files.
    """
    from subagent_server.agents.discover import MAX_ENTRIES

    found: list[tuple[str, int, int]] = []
    for directory in directories:
        found += islice(_entries(directory, MAX_ENTRIES), MAX_ENTRIES)
    return tuple(sorted(found))


def _entries(directory: Path, most: int) -> Iterator[tuple[str, int, int]]:
    """Yield what is in a directory tree, with time and size. Links to directories are not followed."""
    pending = [str(directory)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                here = list(islice(entries, most))
        except OSError:
            continue  # gone meanwhile, or not to be read
        for entry in here:
            try:
                status = entry.stat()
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
            except OSError:
                continue  # gone meanwhile, or a link to nowhere
            yield entry.path, status.st_mtime_ns, status.st_size


# -- The origin of the agents of a tree of runs: the first run decides, and no run below brings others in.


def agents_from(settings: Settings, agent: AgentDefinition) -> AgentsFrom:
    """Return the origin that a run of `agent` hands down, if started with these settings."""
    return AgentsFrom(
        directories=[str(directory) for directory in settings.agent_directories],
        project=_text(settings.project),
        home=_text(settings.home),
        trust_file=_text(settings.trust_file),
        trusts_all=settings.trusts_all,
        served=sorted(each.agent.name for each in agent.served.values()),
    )


def confined(settings: Settings, store: RunStore) -> Settings:
    """Return the settings of a process of a run: its agents have the origin of its tree.

    The flags and variables of the process itself do not count. If nothing is on record, there are no agents.
    """
    try:
        recorded = store.read_request(settings.child_run_id or "").agents_from
    except SubagentError:
        recorded = None  # the door refuses a caller in the name of that run, with the reason
    origin = recorded or AgentsFrom(directories=[])
    return replace(
        settings,
        agent_directories=tuple(Path(directory) for directory in origin.directories),
        project=_path(origin.project),
        home=_path(origin.home),
        trust_file=_path(origin.trust_file),
        trusts_all=origin.trusts_all,
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


@dataclass(frozen=True)
class Service:
    """The first argument of every verb. It remembers nothing about runs: the disk holds everything."""

    settings: Settings
    store: RunStore
    launcher: Launcher
    registry: AgentRegistry = field(repr=False)


def open_service(
    settings: Settings,
    launcher: Launcher | None = None,
    registry: AgentRegistry | None = None,
    also: Sequence[AgentDefinition] = (),
) -> Service:
    """Return the verbs' context for these settings; runs are processes of this machine by default.

    For a process of a run the agents are the agents of its tree, whatever the settings are; `also` are those
    that its agent has as MCP servers. A `registry` of one agent is for the user's side alone.
    """
    store = RunStore(settings.runs_root)
    if settings.is_of_a_run:
        settings = confined(settings, store)
    return Service(
        settings=settings,
        store=store,
        launcher=launcher or LocalLauncher(warm_start(settings)),
        registry=registry
        or AgentRegistry(settings.agent_directories, also=also, looked_for=settings.agents_by_default),
    )


def warm_start(settings: Settings) -> WarmStart | None:
    """Return the way to the zygote, or None if the settings do without a zygote.

    No run starts the zygote, because the zygote would count as a process of the run and end together with the
    run.
    """
    if not settings.warm:
        return None
    return WarmStart(
        settings.runtime_directory, settings.warm_idle_seconds, may_spawn=settings.child_run_id is None
    )


# -- Runs whose model is a script: played by the worker itself, without a key, and never billed.
#
# The key is the mark. The environment of such a run has a key that this module has made, and no other key
# of the Messages API; so the runs that it starts call the same script, and none can call the real API by
# mistake.


KEY, ADDRESS = "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"
_AUTH_TOKEN = "ANTHROPIC_AUTH_TOKEN"
_MARK = "scripted-model-"
"""The beginning of the key of a scripted model; the real API knows no such keys."""

WARNING = "The model is played by a script, so nothing is billed and no budget is watched."


@dataclass(frozen=True)
class PlayedScript:
    """The script of a model: the name of its file, and its content."""

    name: str
    text: str


def is_scripted(environment: Mapping[str, str]) -> bool:
    """Whether runs with this environment call a scripted model."""
    return environment.get(KEY, "").startswith(_MARK)


def new_key() -> str:
    """Return a key for one scripted model."""
    return f"{_MARK}{secrets.token_urlsafe(24)}"


def scripted_environment(
    environment: Mapping[str, str], key: str, address: str | None = None
) -> dict[str, str]:
    """Return an environment that calls the scripted model of this key, and has no way to another."""
    kept = {name: value for name, value in environment.items() if name not in (KEY, ADDRESS, _AUTH_TOKEN)}
    return {**kept, KEY: key, **({ADDRESS: address} if address is not None else {})}


def scripted_service(service: Service, agent: AgentDefinition, script: PlayedScript | None) -> Service:
    """Return the service that starts this run: with a script, or below a scripted run, a scripted one.

    Raises:
        BadArgument: the agent does not call the Messages API, so no script can play its model.
    """
    environment = service.settings.environment
    if script is not None:
        environment = scripted_environment(environment, new_key())
    elif not is_scripted(environment):
        return service
    if not agent.is_built_in:
        raise BadArgument(
            f"Agent {agent.name} thinks by `runner: {agent.runner}`, and a script plays the Messages API "
            "alone: start it without a script."
        )
    environment = {**environment, agent.api_key_env: environment[KEY]}  # for the check of the agent
    return replace(service, settings=replace(service.settings, environment=environment))


def check_stays_scripted(service: Service, before: RunRequest, script: PlayedScript | None) -> None:
    """Refuse a run that would call a real model after one whose model was a script. Raises BadArgument."""
    if before.scripted and script is None and not is_scripted(service.settings.environment):
        raise BadArgument(
            f"The model of run {before.run_id} was a script, and a real model is not called by mistake: "
            "start a new run, or give a script on the command line by `--script FILE`."
        )


def calling_script(agent: AgentDefinition) -> AgentDefinition:
    """Return an agent that has no address and no key of its own."""
    env = {name: value for name, value in agent.env.items() if name not in (KEY, ADDRESS, _AUTH_TOKEN)}
    return agent.model_copy(update={"base_url": None, "api_key_env": KEY, "env": env})
