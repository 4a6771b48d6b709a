"""The origin of the agents of a tree of runs: the first run decides, and no run below brings others in."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import SubagentError
from subagent_server.domain.records import AgentsFrom
from subagent_server.settings import Settings
from subagent_server.store.runs import RunStore


def agents_from(settings: Settings, agent: AgentDefinition, cwd: Path) -> AgentsFrom:
    """Return the origin that a run of `agent` in `cwd` hands down, if started with these settings.

    The agent has its named servers, and its variables are replaced.
    """
    return AgentsFrom(
        directories=[str(directory) for directory in settings.agent_directories],
        project=_text(settings.project),
        home=_text(settings.home),
        trust_file=_text(settings.trust_file),
        trusts_all=settings.trusts_all,
        configs=sorted(_configs(agent, cwd)),
    )


def may_serve(settings: Settings, config: Path) -> bool:
    """Whether this process may serve the agent of a file: a run only what its own agent's servers name."""
    if not settings.is_of_a_run:
        return True
    origin = _on_record(settings, RunStore(settings.runs_root))
    return origin is not None and os.path.realpath(settings.cwd / config) in origin.configs


def confined(settings: Settings, store: RunStore) -> Settings:
    """Return the settings of a process of a run: its agents have the origin of its tree.

    The flags and variables of the process itself do not count. If nothing is on record, there are no agents.
    """
    origin = _on_record(settings, store) or AgentsFrom(directories=[])
    return replace(
        settings,
        agent_directories=tuple(Path(directory) for directory in origin.directories),
        project=_path(origin.project),
        home=_path(origin.home),
        trust_file=_path(origin.trust_file),
        trusts_all=origin.trusts_all,
    )


def _on_record(settings: Settings, store: RunStore) -> AgentsFrom | None:
    try:
        return store.read_request(settings.child_run_id or "").agents_from
    except SubagentError:
        return None  # the door refuses a caller in the name of that run, with the reason


def _configs(agent: AgentDefinition, cwd: Path) -> Iterator[str]:
    """Yield the files that the servers of an agent get as `--config`, links resolved."""
    for server in agent.mcp_servers.values():
        for before, word in pairwise(["", *server.args]):
            named = word if before == "--config" else word.removeprefix("--config=")
            if named != word or before == "--config":
                with suppress(ValueError):  # a NUL: no file has such a name
                    yield os.path.realpath(cwd / named)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
