"""The agent of `agent_start`: it has no file, only a model, and the prompt of its run is a contract."""

from collections.abc import Sequence
from typing import Literal

from pydantic import ConfigDict

from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import SubagentError
from subagent_server.run.journal import latest_text
from subagent_server.run.records import Moment, Record, RunMeta
from subagent_server.run.states import MAX_SUMMARY_CHARACTERS, Status, cut, maybe_cut
from subagent_server.verbs.access import USER, Caller
from subagent_server.verbs.reconcile import observe
from subagent_server.verbs.service import Service
from subagent_server.verbs.views import (
    MAX_NAME_CHARACTERS,
    MAX_PREVIEW_CHARACTERS,
    MAX_TOOL_ANSWER_BYTES,
)

DEFAULT_CONTRACT_MODEL = "sonnet"


def contract_agent(model: str | None) -> AgentDefinition:
    """Return the agent, with every tool of an agent file without `tools`."""
    return AgentDefinition(
        name="contract",  # in lists; an agent file of this name is another agent
        by_contract=True,
        description="Fulfils a contract.",
        model=model or DEFAULT_CONTRACT_MODEL,
    )


# -- The state of an agent in the words of the seed `agent_mcp_server.txt`.
#
# Tested in `tests/tools/`.


Lifecycle = Literal["ready", "running", "stopped", "completed"]
_LIFECYCLE: dict[Status, Lifecycle] = {
    Status.READY: "running",  # `agent_start` has answered so: a status never goes backwards
    Status.RUNNING: "running",
    Status.WAITING: "running",
    Status.REPLIED: "running",
    Status.COMPLETED: "completed",
    Status.FAILED: "stopped",
    Status.STOPPED: "stopped",
}


class AgentStatus(Record):
    """An agent as `agent_status` shows it; its keys are those of the seed."""

    model_config = ConfigDict(alias_generator=None)

    agent_id: str
    status: Lifecycle | None = None
    started_at: Moment | None = None
    completed_at: Moment | None = None
    stopped_at: Moment | None = None
    preview: str | None = None
    summary: str | None = None
    payload_size: int | None = None
    payload_url: str | None = None
    error: str | None = None


def agent_statuses(
    service: Service, agent_ids: Sequence[str], caller: Caller = USER, url: str | None = None
) -> list[tuple[AgentStatus, RunMeta | None]]:
    """Return the statuses of agents in their order, each with the state of its run.

    One that cannot be read has the error in its own object.

    `url` is the address of this server, for the addresses of payloads.

    The texts of many are shorter: an answer keeps its size.
    """
    room = min(MAX_SUMMARY_CHARACTERS, MAX_TOOL_ANSWER_BYTES // max(1, len(agent_ids)))
    return [_looked_at(service, agent_id, caller, room, url) for agent_id in agent_ids]


def _looked_at(
    service: Service, agent_id: str, caller: Caller, room: int, url: str | None
) -> tuple[AgentStatus, RunMeta | None]:
    try:
        meta = observe(service.store, agent_id, caller).meta
    except SubagentError as error:
        name = cut(agent_id.encode("utf-8", "replace").decode(), MAX_NAME_CHARACTERS)
        return AgentStatus(agent_id=name, error=cut(error.sentence, room)), None
    status = status_of(meta, url)
    if not meta.status.is_terminal:
        words = latest_text(service.store.paths.run(meta.run_id)) or ""
        status = status.model_copy(update={"preview": words[: min(room, MAX_PREVIEW_CHARACTERS)] or None})
    shorter = {"summary": maybe_cut(status.summary, room), "error": maybe_cut(status.error, room)}
    return status.model_copy(update=shorter), meta


def status_of(meta: RunMeta, url: str | None = None) -> AgentStatus:
    """Return the status of an agent by its state alone. A failed one is `stopped`, with its error."""
    is_completed, has_ended = meta.status is Status.COMPLETED, meta.status.is_terminal
    payload, failure, error = meta.payload, meta.error, None
    if failure is not None:
        hint = "" if failure.hint is None else f". {failure.hint}"
        error = cut(f"{failure.code}: {failure.message.rstrip('.') if hint else failure.message}{hint}")
    return AgentStatus(
        agent_id=meta.run_id,
        status=_LIFECYCLE[meta.status],
        started_at=meta.created_at,
        completed_at=meta.completed_at if is_completed else None,
        stopped_at=meta.ended_at if has_ended and not is_completed else None,
        summary=(meta.summary or "") if is_completed else meta.summary if meta.error is not None else None,
        payload_size=None if payload is None else payload.size,
        payload_url=f"{url}api/agents/{meta.run_id}/payload" if payload is not None and url else None,
        error=error,
    )
