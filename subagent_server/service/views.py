"""The view of a run, as its parent sees it: small, with the next call to make."""

import os
from pathlib import Path
from typing import Any

from pydantic import Field

from subagent_server.domain.errors import UnreadableMeta
from subagent_server.domain.executed_files import can_run_code
from subagent_server.domain.limits import (
    MAX_ANSWER_CHARACTERS,
    MAX_LABEL_CHARACTERS,
    MAX_OPTION_CHARACTERS,
    MAX_OPTIONS,
    MAX_QUESTION_CHARACTERS,
    cut,
    maybe_cut,
)
from subagent_server.domain.records import (
    Failure,
    Message,
    Moment,
    Record,
    RunMeta,
    RunResult,
    Usage,
)
from subagent_server.domain.states import MessageStatus, Status
from subagent_server.domain.worktrees import worktree_view
from subagent_server.service.access import USER, Caller
from subagent_server.service.left_behind import quarantined
from subagent_server.service.next_calls import NextCalls, for_asker, for_itself, for_parent
from subagent_server.service.parents import OtherParents
from subagent_server.service.reconcile import Observed
from subagent_server.service.run_row import elapsed_seconds, waits_for_slot
from subagent_server.service.sandbox_mark import lack_of_sandbox
from subagent_server.service.shim_record import read_shim
from subagent_server.service.tree_usage import tree_usage
from subagent_server.store.latest import latest_words
from subagent_server.store.logs import recorded_can_run_code, recorded_usage
from subagent_server.store.paths import RunPaths
from subagent_server.store.run_files import read_worktree
from subagent_server.store.runs import RunStore

MAX_RESULT_CHARACTERS = 8_000
MAX_OUTPUT_BYTES = 32_000
MAX_PREVIEW_CHARACTERS = 300
MAX_SOURCES = 20
MAX_SOURCE_CHARACTERS = 500
MAX_WARNINGS = 10
MAX_QUARANTINED = 20
MAX_WARNING_CHARACTERS = 1_000
MAX_MESSAGES_CHARACTERS = 40_000
"""Of all questions of a view together; the first is there in any case."""
MAX_NAME_CHARACTERS = 64
"""Of ids and other words that are short unless somebody has written into the files of the run."""


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
    started_by: str | None = Field(default=None, description="Another parent, if it is not yours")
    status: Status
    revision: int
    live: bool | None = Field(default=None, description="Whether its processes live; absent where unknown")
    sandbox: str | None = Field(default=None, description="There if its programs have all rights of the user")
    waiting_for_slot: bool | None = None
    waiting_for_run: str | None = Field(default=None, description="The run it continues, which still ends")
    continues_run_id: str | None = None
    elapsed_seconds: float
    usage: dict[str, Any] = Field(default_factory=dict)
    with_descendants: dict[str, Any] | None = Field(default=None, description="Usage with all runs below")
    worktree: dict[str, Any] | None = Field(
        default=None, description="Its git worktree, and the call to merge"
    )
    preview: str | None = None
    messages: list[MessageView] | None = None
    messages_omitted: int | None = Field(
        default=None, description="Further questions: they follow when these are settled"
    )
    instructions: str = ""
    summary: str | None = None
    result: str | None = None
    result_truncated: bool | None = None
    sources: list[dict[str, str]] | None = None
    output: Any = None
    output_omitted: bool | None = None
    error: Failure | None = None
    wait_note: str | None = None
    quarantined: list[str] | None = Field(
        default=None, description="Moved out of its directory; a person restores"
    )
    warnings: list[str] | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object of the view; an output of null is kept if present."""
        wire = self.model_dump(mode="json", exclude_none=True)
        if "output" in self.model_fields_set:
            wire["output"] = self.output
        return wire


def run_view(
    store: RunStore,
    observed: Observed,
    calls: NextCalls,
    caller: Caller = USER,
    named: str | None = None,
    *,
    to_asker: bool = False,
) -> RunView:
    """Return the view that a caller has of a run; `named` is a question to show in any case.

    `to_asker`: the asker of that question reads the view. In a view of itself a run also sees answers not
    taken yet, so a run whose program died during a wait finds them again.

    Raises:
        UnreadableMeta: its result cannot be read.
    """
    meta, run = observed.meta, store.paths.run(observed.meta.run_id)
    own = caller.run_id == meta.run_id and named is None
    ended = meta.status.is_terminal
    messages, omitted = _shown(meta, named, own)
    result = store.read_result(meta.run_id) if ended else None
    has_output = result is not None and result.has_output
    text = "" if result is None or has_output else result.text
    is_large = result is not None and has_output and len(result.to_json()) > MAX_OUTPUT_BYTES
    view = RunView(
        run_id=meta.run_id,
        agent=cut(meta.agent_name, MAX_LABEL_CHARACTERS),
        label=maybe_cut(meta.label, MAX_LABEL_CHARACTERS),
        started_by=_other_parent(meta, caller),
        status=meta.status,
        revision=meta.revision,
        live=observed.live,
        sandbox=maybe_cut(lack_of_sandbox(run), MAX_LABEL_CHARACTERS),
        waiting_for_slot=waits_for_slot(store.paths, meta.run_id, meta.status) or None,
        waiting_for_run=_awaited(run, meta),
        continues_run_id=maybe_cut(meta.continues_run_id, MAX_NAME_CHARACTERS),
        elapsed_seconds=elapsed_seconds(meta.created_at, meta.ended_at),
        usage=_usage(meta.usage if observed.live is False else meta.usage.merged(recorded_usage(run))),
        with_descendants=_usage(tree_usage(store, meta)) if store.children_of(meta.run_id) else None,
        worktree=_worktree(run, meta, calls),
        preview=None if ended else (latest_words(run) or "")[:MAX_PREVIEW_CHARACTERS] or None,
        messages=messages or None,
        messages_omitted=omitted or None,
        instructions=_instructions(meta, named if to_asker else None, calls, own=own),
        summary=maybe_cut(meta.summary),
        result=text[:MAX_RESULT_CHARACTERS] or None,
        result_truncated=len(text) > MAX_RESULT_CHARACTERS or None,
        sources=_sources(result),
        output_omitted=is_large or None,
        error=_error(meta.error),
        quarantined=_quarantined(store, meta),
        warnings=_warnings(store, meta, result),
    )
    if result is None or not has_output or is_large:
        return view
    return view.model_copy(update={"output": result.output})  # it is there even if it is null


def message_view(message: Message) -> MessageView:
    """Return a question as it is shown."""
    return MessageView(
        message_id=cut(message.message_id, MAX_NAME_CHARACTERS),
        question=cut(message.question_content, MAX_QUESTION_CHARACTERS),
        options=_options(message.options),
        status=message.message_status,
        answer=maybe_cut(message.answer_content, MAX_ANSWER_CHARACTERS),
        answered_by=maybe_cut(message.answered_by, MAX_NAME_CHARACTERS),
        asked_at=message.question_timestamp,
        expires_at=message.expires_at,
    )


def _options(options: list[str] | None) -> list[str] | None:
    if options is None:
        return None
    return [cut(option, MAX_OPTION_CHARACTERS) for option in options[:MAX_OPTIONS]]


def _error(failure: Failure | None) -> Failure | None:
    if failure is None:
        return None
    code = cut(failure.code, MAX_LABEL_CHARACTERS)
    return Failure(code=code, message=cut(failure.message), hint=maybe_cut(failure.hint))


def _wanted(meta: RunMeta, named: str | None, own: bool) -> list[Message]:
    """Return the questions of a view, the oldest first."""
    wanted = {MessageStatus.PENDING, MessageStatus.REPLIED} if own else {MessageStatus.PENDING}
    return [m for m in meta.messages if m.message_status in wanted or m.message_id == named]


def _shown(meta: RunMeta, named: str | None, own: bool) -> tuple[list[MessageView], int]:
    """Return the questions that fit into a view, the oldest first, and how many more there are.

    The question that the caller has named comes before all others, whatever its size.
    """
    wanted = _wanted(meta, named, own)
    room = MAX_MESSAGES_CHARACTERS
    fitting: set[str] = set()
    for message in sorted(wanted, key=lambda m: m.message_id != named):
        view = message_view(message)
        room -= len(view.question) + len(view.answer or "") + sum(map(len, view.options or ()))
        if fitting and room < 0:
            break
        fitting.add(message.message_id)
    return [message_view(m) for m in wanted if m.message_id in fitting], len(wanted) - len(fitting)


def _warnings(store: RunStore, meta: RunMeta, result: RunResult | None) -> list[str] | None:
    """Return the warnings of the end (files that can run code) and of the start (missing tools)."""
    found = _can_run_code(store, meta, result)
    try:
        warnings = store.read_request(meta.run_id).warnings
    except UnreadableMeta:
        warnings = []  # the state is all that is needed for a view
    return [cut(warning, MAX_WARNING_CHARACTERS) for warning in [*found, *warnings][:MAX_WARNINGS]] or None


def _quarantined(store: RunStore, meta: RunMeta) -> list[str] | None:
    run = store.paths.run(meta.run_id)
    if not run.quarantine.exists():
        return None
    try:
        cwd = Path(os.path.realpath(store.read_request(meta.run_id).cwd))
    except UnreadableMeta:
        cwd = Path("/")
    found = [cut(kept, MAX_LABEL_CHARACTERS * 4) for kept in quarantined(run, cwd)]
    return found[-MAX_QUARANTINED:] or None


def _can_run_code(store: RunStore, meta: RunMeta, result: RunResult | None) -> list[str]:
    if not meta.status.is_terminal:
        return []
    recorded = recorded_can_run_code(store.paths.run(meta.run_id)) if result is None else result.can_run_code
    return [can_run_code(recorded)] if recorded else []


def _worktree(run: RunPaths, meta: RunMeta, calls: NextCalls) -> dict[str, Any] | None:
    """Return the worktree of a run, and how it is merged if there is something to merge."""
    if meta.worktree is None:
        return None
    try:
        state = read_worktree(run)
    except UnreadableMeta:
        state = None
    shown = worktree_view(meta.worktree, state)
    if meta.status.is_terminal and shown.get("merged") is False and "takenOverBy" not in shown:
        shown["next"] = calls.merge(meta.run_id)
    return {
        key: cut(value, MAX_LABEL_CHARACTERS * 4) if isinstance(value, str) else value
        for key, value in shown.items()
    }


def _sources(result: RunResult | None) -> list[dict[str, str]] | None:
    """Return the pages that the result holds, with little weight in the schema that every tool carries."""
    sources = (result.sources if result is not None else None) or []
    shown = [source.model_dump(exclude_none=True) for source in sources[:MAX_SOURCES]]
    return [{key: cut(text, MAX_SOURCE_CHARACTERS) for key, text in each.items()} for each in shown] or None


def _awaited(run: RunPaths, meta: RunMeta) -> str | None:
    """Return the run whose processes have to be gone before this run begins, if still waiting."""
    if meta.status is not Status.READY or meta.continues_run_id is None:
        return None
    awaited = read_shim(run).get("waitingForRun")
    return cut(awaited, MAX_NAME_CHARACTERS) if isinstance(awaited, str) else None


def _usage(usage: Usage) -> dict[str, Any]:
    """Return the figures without zeros, with null for an unknown one: a view is small."""
    return {
        name: value for name, value in usage.model_dump(mode="json", exclude_none=True).items() if value != 0
    }


def _instructions(meta: RunMeta, asked: str | None, calls: NextCalls, *, own: bool) -> str:
    message = meta.message(asked) if asked else None
    if message is not None:
        return for_asker(meta, message, calls)
    if own:
        return for_itself(meta, next(iter(_wanted(meta, None, own=True)), None), calls)
    return for_parent(meta, calls)


def _other_parent(meta: RunMeta, caller: Caller) -> str | None:
    """Return the words for the parent of a run if it is another than the caller, and there."""
    starter, others = meta.started_by, OtherParents(caller)
    if caller.process is None or not others.own(starter):
        return None
    return others.name(starter)
