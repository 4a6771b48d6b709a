"""The context of every verb: the runs, a way to start them, the agents, the settings."""

from dataclasses import dataclass, field

from subagent_server.forkserver.client import WarmStart
from subagent_server.launch.launcher import Launcher
from subagent_server.launch.local import LocalLauncher
from subagent_server.service.agents import AgentRegistry
from subagent_server.service.origin import confined
from subagent_server.settings import Settings
from subagent_server.store.runs import RunStore


@dataclass(frozen=True)
class Service:
    """The first argument of every verb. It remembers nothing about runs: the disk holds everything."""

    settings: Settings
    store: RunStore
    launcher: Launcher
    registry: AgentRegistry = field(repr=False)


def open_service(
    settings: Settings, launcher: Launcher | None = None, registry: AgentRegistry | None = None
) -> Service:
    """Return the verbs' context for these settings; runs are processes of this machine by default.

    For a process of a run the agents are the agents of its tree, whatever the settings say. A `registry` of
    one agent is given only after `may_serve` has allowed it.
    """
    store = RunStore(settings.runs_root)
    if settings.is_of_a_run:
        settings = confined(settings, store)
    return Service(
        settings=settings,
        store=store,
        launcher=launcher or LocalLauncher(warm_start(settings)),
        registry=registry or AgentRegistry(settings.agent_directories, looked_for=settings.agents_by_default),
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
