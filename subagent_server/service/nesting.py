"""Runs that start runs: which agents, how deep, and how many of one tree (SPEC section 6, "Recursion")."""

from subagent_server.domain.errors import SubagentError
from subagent_server.domain.records import RunMeta
from subagent_server.service.access import Caller, NotAllowed
from subagent_server.service.context import Service


def agents_of(service: Service, caller: Caller) -> set[str]:
    """Return the names of the agents that a child's own agent file lets it start.

    Raises:
        UnreadableMeta: what was asked of its run cannot be read.
    """
    if caller.run_id is None:
        return {agent.name for agent in service.shelf.agents()}
    named = service.store.read_request(caller.run_id).agent.get("agents")
    return {str(name) for name in named} if isinstance(named, list) else set()


def check_leads(service: Service, caller: Caller) -> None:
    """Refuse the parent tools to a child whose agent may not start others.

    Raises:
        NotAllowed.
    """
    if caller.run_id is not None and not agents_of(service, caller):
        raise NotAllowed(
            f"The agent of run {caller.run_id} may start no other agents, so it has none to lead: "
            "ask_parent reaches whoever can do more."
        )


def check_may_start(service: Service, caller: Caller, agent: str) -> RunMeta | None:
    """Return the run that wants to start `agent`, or None where it is the user's side.

    Raises:
        NotAllowed: its file does not name the agent, or the tree of runs is as deep or as large as it may be.
    """
    if caller.run_id is None:
        return None
    allowed = agents_of(service, caller)
    if agent not in allowed:
        raise NotAllowed(
            f"The agent of run {caller.run_id} may not start {agent}: its file names "
            f"{', '.join(sorted(allowed)) or 'none'} under `agents`."
        )
    parent = service.store.read(caller.run_id)
    if parent.status.is_terminal:
        raise NotAllowed(f"Run {parent.run_id} is {parent.status.value}, so it can start nothing more.")
    _check_size(service, parent)
    return parent


def _check_size(service: Service, parent: RunMeta) -> None:
    settings = service.settings
    if parent.depth >= settings.max_depth:
        raise NotAllowed(
            f"Run {parent.run_id} is {parent.depth} levels deep, and {settings.max_depth} is the limit: "
            "do the work here, or raise SUBAGENT_MAX_DEPTH."
        )
    alive = sum(1 for meta in _live_of(service, parent.root_run_id) if meta.run_id != parent.root_run_id)
    if alive >= settings.max_descendants:
        raise NotAllowed(
            f"{alive} runs below {parent.root_run_id} are at work, and {settings.max_descendants} is the "
            "limit: wait for some to end, or raise SUBAGENT_MAX_DESCENDANTS."
        )


def _live_of(service: Service, root_run_id: str) -> list[RunMeta]:
    found: list[RunMeta] = []
    for run_id in service.store.live_ids():
        try:
            meta = service.store.read(run_id)
        except SubagentError:
            continue  # it cannot be counted; the doctor lists it
        if meta.root_run_id == root_run_id and not meta.status.is_terminal:
            found.append(meta)
    return found
