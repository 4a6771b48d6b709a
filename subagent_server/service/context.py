"""What every verb needs: the runs, a way to start them, the agents, the settings."""

from dataclasses import dataclass, field

from subagent_server.launch.launcher import Launcher
from subagent_server.launch.local import LocalLauncher
from subagent_server.service.agents import AgentShelf
from subagent_server.settings import Settings
from subagent_server.store.runs import RunStore


@dataclass(frozen=True)
class Service:
    """Handed to every verb. It remembers nothing of runs: all of that is on disk."""

    settings: Settings
    store: RunStore
    launcher: Launcher
    shelf: AgentShelf = field(repr=False)


def open_service(
    settings: Settings, launcher: Launcher | None = None, shelf: AgentShelf | None = None
) -> Service:
    """Return the verbs' context for these settings; runs are processes of this machine by default."""
    return Service(
        settings=settings,
        store=RunStore(settings.runs_root),
        launcher=launcher or LocalLauncher(),
        shelf=shelf or AgentShelf(settings.agent_directories, looked_for=settings.agents_by_default),
    )
