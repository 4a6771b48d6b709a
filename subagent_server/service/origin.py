"""Where the agents of a tree of runs come from: its first run says it, and no run below brings others in."""

from dataclasses import replace
from pathlib import Path

from subagent_server.domain.errors import SubagentError
from subagent_server.domain.records import AgentsFrom
from subagent_server.settings import Settings
from subagent_server.store.runs import RunStore


def agents_from(settings: Settings) -> AgentsFrom:
    """Return what the runs that are started with these settings hand down."""
    return AgentsFrom(
        directories=[str(directory) for directory in settings.agent_directories],
        project=_text(settings.project),
        home=_text(settings.home),
        trust_file=_text(settings.trust_file),
        trusts_all=settings.trusts_all,
    )


def confined(settings: Settings, store: RunStore) -> Settings:
    """Return the settings of a process of a run: its agents come from where those of its tree come from.

    What the process says of that itself, by flags or variables, does not count. If nothing is on record,
    there are no agents.
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
        return None  # whoever asks in the name of that run is refused, with the reason


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
