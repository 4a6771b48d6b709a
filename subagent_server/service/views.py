"""A run as its parent sees it: small, and it says what to do next."""

from typing import Any

from pydantic import Field

from subagent_server.domain.records import Failure, Message, Moment, Record, RunMeta, Usage
from subagent_server.domain.states import MessageStatus, Status
from subagent_server.launch import slots
from subagent_server.service.listing import elapsed_seconds
from subagent_server.service.reconcile import Observed
from subagent_server.store.logs import latest_words, recorded_usage
from subagent_server.store.runs import RunStore

MAX_RESULT_CHARACTERS = 8_000
MAX_OUTPUT_BYTES = 32_000
MAX_PREVIEW_CHARACTERS = 300
NEXT_WAIT_SECONDS = 45


class MessageView(Record):
    """A question that is open, or that the asker asked about."""

    message_id: str
    question: str
    options: list[str] | None = None
    status: MessageStatus
    answer: str | None = None
    answered_by: str | None = None
    asked_at: Moment
    expires_at: Moment | None = None


class RunView(Record):
    """What every tool answers about a run. Fields that say nothing are left out."""

    run_id: str
    agent: str
    label: str | None = None
    status: Status
    revision: int
    live: bool | None = Field(default=None, description="Whether its processes live; absent where unknown")
    waiting_for_slot: bool | None = None
    elapsed_seconds: float
    usage: dict[str, Any] = Field(default_factory=dict)
    preview: str | None = None
    messages: list[MessageView] | None = None
    instructions: str = ""
    summary: str | None = None
    result: str | None = None
    result_truncated: bool | None = None
    output: Any = None
    output_omitted: bool | None = None
    error: Failure | None = None
    wait_note: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object of the view; an output of null is kept where there is one."""
        wire = self.model_dump(mode="json", exclude_none=True)
        if "output" in self.model_fields_set:
            wire["output"] = self.output
        return wire


def run_view(store: RunStore, observed: Observed, asked: str | None = None) -> RunView:
    """Return the view of a run; `asked` names the question that its asker wants to see.

    Raises:
        UnreadableMeta: its result cannot be read.
    """
    meta = observed.meta
    facts: dict[str, Any] = {
        "run_id": meta.run_id,
        "agent": meta.agent_name,
        "label": meta.label,
        "status": meta.status,
        "revision": meta.revision,
        "live": observed.live,
        "elapsed_seconds": elapsed_seconds(meta.created_at, meta.ended_at),
        "messages": [message_view(m) for m in _shown(meta, asked)] or None,
        "instructions": _instructions(meta, asked),
        "error": meta.error,
    }
    if meta.status.is_terminal:
        facts |= {"usage": _usage(meta.usage), "summary": meta.summary, **_outcome(store, meta)}
    else:
        facts |= _progress(store, meta)
    return RunView(**facts)


def message_view(message: Message) -> MessageView:
    """Return a question as it is shown."""
    return MessageView(
        message_id=message.message_id,
        question=message.question_content,
        options=message.options,
        status=message.message_status,
        answer=message.answer_content,
        answered_by=message.answered_by,
        asked_at=message.question_timestamp,
        expires_at=message.expires_at,
    )


def _shown(meta: RunMeta, asked: str | None) -> list[Message]:
    return [m for m in meta.messages if m.message_status is MessageStatus.PENDING or m.message_id == asked]


def _progress(store: RunStore, meta: RunMeta) -> dict[str, Any]:
    run = store.paths.run(meta.run_id)
    words = latest_words(run)
    waits = meta.status is Status.READY and slots.is_waiting(store.paths.slots, meta.run_id)
    return {
        "usage": _usage(meta.usage.merged(recorded_usage(run))),
        "preview": words[:MAX_PREVIEW_CHARACTERS] if words else None,
        "waiting_for_slot": True if waits else None,
        "summary": meta.summary,
    }


def _outcome(store: RunStore, meta: RunMeta) -> dict[str, Any]:
    result = store.read_result(meta.run_id)
    if result is None:
        return {}
    facts: dict[str, Any] = {}
    if result.has_output:
        if len(result.to_json()) > MAX_OUTPUT_BYTES:
            facts["output_omitted"] = True
        else:
            facts["output"] = result.output
    elif result.text:
        cut = len(result.text) > MAX_RESULT_CHARACTERS
        facts["result"] = result.text[:MAX_RESULT_CHARACTERS] if cut else result.text
        facts["result_truncated"] = True if cut else None
    return facts


def _usage(usage: Usage) -> dict[str, Any]:
    """Return the figures that are not zero: a view is small."""
    return {name: value for name, value in usage.model_dump(mode="json", exclude_none=True).items() if value}


def _instructions(meta: RunMeta, asked: str | None) -> str:
    message = meta.message(asked) if asked else None
    if message is not None:
        return _to_the_asker(meta, message)
    if meta.pending:
        first = meta.pending[0].message_id
        return (
            "The agent needs your answer. Next: "
            f'reply_subagent(runId="{meta.run_id}", messageId="{first}", answer="...", '
            f"waitSeconds={NEXT_WAIT_SECONDS})."
        )
    if not meta.status.is_terminal:
        return (
            f'Not done yet. Next: check_status(runId="{meta.run_id}", waitSeconds={NEXT_WAIT_SECONDS}), '
            f"or wait_for_runs(waitSeconds={NEXT_WAIT_SECONDS}) for several."
        )
    if meta.status is Status.COMPLETED:
        return f'Done. get_logs(runId="{meta.run_id}", stream="result") has the whole result.'
    return f'Ended without success. get_logs(runId="{meta.run_id}") shows how far it came.'


def _to_the_asker(meta: RunMeta, message: Message) -> str:
    if message.answer_content is not None:
        return "Your question is answered: go on with the answer."
    if message.message_status is MessageStatus.PENDING:
        return (
            f'No answer yet. Next: check_status(runId="{meta.run_id}", '
            f'messageId="{message.message_id}", waitSeconds={NEXT_WAIT_SECONDS}).'
        )
    return "No answer came and none will: go on without one."
