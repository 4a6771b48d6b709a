"""The view of a run, as its parent sees it: small, with the next call to make."""

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field

from subagent_server.process import marks, slots
from subagent_server.run import durable, transitions
from subagent_server.run.errors import SubagentError, UnknownMessage, UnreadableMeta
from subagent_server.run.executed_files import can_run_code
from subagent_server.run.journal import latest_text, recorded_can_run_code, recorded_usage
from subagent_server.run.paths import RootPaths, RunPaths
from subagent_server.run.processes import now
from subagent_server.run.records import (
    Failure,
    Message,
    Moment,
    Record,
    RunMeta,
    RunRequest,
    RunResult,
    Usage,
    worktree_view,
)
from subagent_server.run.schemas import shown_schema
from subagent_server.run.states import (
    MAX_ANSWER_CHARACTERS,
    MAX_LABEL_CHARACTERS,
    MAX_OPTION_CHARACTERS,
    MAX_OPTIONS,
    MAX_QUESTION_CHARACTERS,
    MessageStatus,
    Status,
    cut,
    maybe_cut,
)
from subagent_server.run.store import RunStore, read_worktree
from subagent_server.verbs.access import USER, Caller, OtherParents
from subagent_server.verbs.left_behind import quarantined
from subagent_server.verbs.reconcile import Observed, tree_usage
from subagent_server.verbs.service import Service

# -- The next step of a view, fitted to the state of the run. A model reads tool calls, a person commands.


MAX_RESULT_CHARACTERS = 8_000
Step = Literal[
    "wait",
    "wait_for_several",
    "answer",
    "await_answer",
    "take_answer",
    "logs",
    "result",
    "rest",
    "payload",
    "go_on",
    "play_on",
    "merge",
]
_STEPS: dict[Step, tuple[str, tuple[str, ...]]] = {
    "wait": ('check_status(runId="{run}", {wait})', ("wait", "{run}")),
    "wait_for_several": ("wait_for_runs({wait})", ("ls", "--watch")),
    "answer": (
        'reply_subagent(runId="{run}", messageId="{message}", answer="...", {wait})',
        ("reply", "{run}", "{message}", "ANSWER"),
    ),
    "await_answer": ('check_status(runId="{run}", messageId="{message}", {wait})', ("show", "{run}")),
    "take_answer": ('check_status(runId="{run}", messageId="{message}")', ("show", "{run}")),
    "logs": ('get_logs(runId="{run}")', ("logs", "{run}")),
    "result": ('get_logs(runId="{run}", stream="result")', ("show", "{run}")),
    "rest": ('get_logs(runId="{run}", stream="result", cursor="{shown}")', ("show", "{run}")),
    "payload": ('get_logs(runId="{run}", stream="payload")', ("show", "{run}")),
    "go_on": ('continue_run(runId="{run}")', ("continue", "{run}")),
    "play_on": ('continue_run(runId="{run}")', ("continue", "{run}", "--script", "FILE")),
    "merge": ('merge_run(runId="{run}")', ("merge", "{run}")),
}
"""Each step as a tool call, and as the words of a command."""


class NextCalls:
    """Makes the calls that a view names: tool calls with waits of `wait_seconds`, or commands."""

    def __init__(self, wait_seconds: float = 45, command: Callable[..., str] | None = None) -> None:
        """`command` makes a command of its words; without it, tool calls are made."""
        self._wait = f"waitSeconds={wait_seconds:g}"
        self._command = command

    def __call__(self, step: Step, run_id: str = "", message_id: str = "", prompt: str | None = None) -> str:
        """Return the call of a step; `prompt` is for `go_on` and `play_on` alone."""
        call, words = _STEPS[step]
        facts = {"run": run_id, "message": message_id, "wait": self._wait, "shown": MAX_RESULT_CHARACTERS}
        if self._command is not None:
            filled = [word.format(**facts) for word in words]
            return f"`{self._command(*filled, *([] if prompt is None else [prompt]))}`"
        call = call.format(**facts)
        return call if prompt is None else f'{call[:-1]}, prompt="{prompt}")'


AS_TOOLS = NextCalls()
"""Next calls for a model whose client is not known."""

_FIX = "Fix what the error names"
_AFTER_FAILURE = {
    "config": f"{_FIX} (the agent file or a variable), then start it again.",
    "launch_failed": f"{_FIX}, then start it again: it had not begun.",
    "storage": f"{_FIX}; then {{on}} continues it.",
    "model_error": f"{_FIX}; then {{on}} continues it.",
    # options of a start are not kept, so a limit that one has set is not met again
    "max_turns": "{on} continues it, with the limits of its agent file anew.",
    "timeout": "{on} continues it, with the limits of its agent file anew.",
    "budget": "{on} continues it, with the limits of its agent file anew, if it is worth that.",
    "ask_timeout": "{on_with_answer} continues it with your answer.",
    "invalid_output": "{on_with_result} lets it try once more.",
    "agent_error": "{logs} shows why; {on} continues it, or start it again with a task that avoids that.",
    "crashed": "{logs} shows how far it came; {on} continues it from there.",
    "lost": "{logs} shows how far it came; {on} continues it from there.",
}
"""What helps after a failure, by its code; `docs/meta-file.md` explains each."""


def for_parent(meta: RunMeta, calls: NextCalls, *, is_scripted: bool = False) -> str:
    """Return the next step of the parent of a run. A run whose model was a script continues by one alone."""
    run_id = meta.run_id
    go_on: Step = "play_on" if is_scripted else "go_on"
    if meta.pending:
        return f"The agent needs your answer. Next: {calls('answer', run_id, meta.pending[0].message_id)}."
    if not meta.status.is_terminal:
        return f"Not done yet. Next: {calls('wait', run_id)}, or {calls('wait_for_several')} for several."
    if meta.status is Status.COMPLETED:
        return "Done."
    if meta.status is Status.STOPPED:
        return (
            f"Stopped: nothing is left to do. {calls('logs', run_id)} shows how far it came, and "
            f"{calls(go_on, run_id)} would take it up again."
        )
    code = meta.error.code if meta.error is not None else "lost"
    return "Failed. " + _AFTER_FAILURE.get(code, _AFTER_FAILURE["lost"]).format(
        logs=calls("logs", run_id),
        on=calls(go_on, run_id),
        on_with_answer=calls(go_on, run_id, prompt="YOUR ANSWER"),
        # not every runner has the tool final_answer
        on_with_result=calls(go_on, run_id, prompt="Give the result in the form that its schema asks for."),
    )


def for_itself(meta: RunMeta, waiting: Message | None, calls: NextCalls) -> str:
    """Return the next step of the run itself; `waiting` is its first question that it has not closed."""
    if meta.status.is_terminal:
        return _over(meta)
    if waiting is None:
        return "Your run continues. update_status says how far it is, or ends it."
    is_there = waiting.message_status is not MessageStatus.PENDING
    call = calls("take_answer" if is_there else "await_answer", meta.run_id, waiting.message_id)
    return f"Your question {waiting.message_id} {'has' if is_there else 'waits for'} an answer. Next: {call}."


def _over(meta: RunMeta) -> str:
    return f"Your run is {meta.status.value}: nothing more can be done in it."


def for_asker(meta: RunMeta, message: Message, calls: NextCalls) -> str:
    """Return the next step of the asker of a question that it has named."""
    if meta.status.is_terminal:  # a stop has closed the question: the asker still lives for a moment
        return _over(meta)
    if message.answer_content is not None:
        return "Your question is answered: continue with the answer."
    if message.message_status is MessageStatus.PENDING:
        return f"No answer yet. Next: {calls('await_answer', meta.run_id, message.message_id)}."
    return "No answer came and none will: continue without one."


_FIRST_EVENTS = 20


def sandbox_mark(run: RunPaths) -> str | None:
    """Return the sandbox that the start of a run names; None before the start, or if nobody can read it."""
    try:
        for event in islice(durable.records(run.events), _FIRST_EVENTS):
            if event.get("type") == "run_started":
                return str(event.get("sandbox") or "") or None
    except OSError:
        pass  # a journal is data: one that is damaged keeps nobody from seeing the run
    return None


# -- A row of a run, for every list: its facts, its JSON and the schema of that.


MAX_ROW_SUMMARY_CHARACTERS = 300
_FOR_PEOPLE = {"created_at", "ended_at", "parent_run_id", "tokens", "cost_usd"}


class RunRow(Record):
    """A run in a list. A run whose state cannot be read has only its id and `unreadable`."""

    run_id: str
    agent: str | None = None
    label: str | None = None
    started_by: str | None = None
    status: Status | None = None
    pending_questions: int = 0
    live: bool | None = None
    live_reason: str | None = None
    node: str | None = None
    elapsed_seconds: float | None = None
    waiting_for_slot: bool | None = None
    summary: str | None = None
    unreadable: str | None = None
    created_at: Moment | None = None
    ended_at: Moment | None = None
    parent_run_id: str | None = None
    tokens: int | None = None
    cost_usd: str | None = None

    @property
    def is_over(self) -> bool:
        """True if the run has ended or cannot be read."""
        return self.status is None or (self.status.is_terminal and not self.live)

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object of the row for models, without missing facts."""
        return self.model_dump(mode="json", exclude_none=True, exclude=_FOR_PEOPLE)

    def to_full_wire(self) -> dict[str, Any]:
        """Return the JSON object of the row with the facts that a model would only pay for."""
        return super().to_wire()


def row_schema() -> dict[str, Any]:
    """Return the JSON Schema of a row for models."""
    schema = shown_schema(RunRow)
    hidden = {RunRow.model_fields[name].alias for name in _FOR_PEOPLE}
    properties = {name: each for name, each in schema["properties"].items() if name not in hidden}
    return schema | {"properties": properties, "required": ["runId", "pendingQuestions"]}


def row_of(root: RootPaths, observed: Observed, *, started_by: str | None = None) -> RunRow:
    """Return the row of a run as it was observed."""
    meta = observed.meta
    return RunRow(
        run_id=meta.run_id,
        agent=cut(meta.agent_name, MAX_LABEL_CHARACTERS),
        label=maybe_cut(meta.label, MAX_LABEL_CHARACTERS),
        started_by=started_by,
        status=meta.status,
        pending_questions=meta.pending_questions,
        live=observed.live,
        live_reason=observed.reason,
        node=observed.node,
        elapsed_seconds=elapsed_seconds(meta.created_at, meta.ended_at),
        waiting_for_slot=waits_for_slot(root, meta) or None,
        summary=maybe_cut(meta.error.message if meta.error else meta.summary, MAX_ROW_SUMMARY_CHARACTERS),
        created_at=meta.created_at,
        ended_at=meta.ended_at,
        parent_run_id=meta.parent_run_id,
        tokens=meta.usage.tokens or None,
        cost_usd=None if meta.usage.cost_usd is None else str(meta.usage.cost_usd),
    )


def elapsed_seconds(created: datetime, ended: datetime | None) -> float:
    """Return how long a run has been there, until its end, in seconds; 0 if a clock was set back."""
    return round(max(0.0, ((ended or datetime.now(UTC)) - created).total_seconds()), 1)


def waits_for_slot(root: RootPaths, meta: RunMeta) -> bool:
    """Whether a run waits until others have ended."""
    return meta.status is Status.READY and slots.is_waiting(root.slots, meta.run_id)


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
    """What every tool answers about a run. Empty fields are left out."""

    run_id: str
    agent: str
    label: str | None = None
    started_by: str | None = Field(default=None, description="Another parent, if it is not yours")
    status: Status
    revision: int
    live: bool | None = Field(default=None, description="Whether its processes live; absent where unknown")
    live_reason: str | None = Field(default=None, description="Why that is unknown, or what it waits for")
    node: str | None = Field(default=None, description="The other host on which it works")
    sandbox: str | None = Field(default=None, description="Present if its programs are not sandboxed")
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
        wire = super().to_wire()
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

    A result that cannot be read is a warning: who waits for several runs is shown the others all the same.
    """
    meta, run = observed.meta, store.paths.run(observed.meta.run_id)
    own = caller.run_id == meta.run_id and named is None
    ended, request = meta.status.is_terminal, None
    with suppress(UnreadableMeta):  # the state is all that is needed for a view
        request = store.read_request(meta.run_id)
    wanted = _wanted(meta, named, own)
    messages, omitted = _shown(wanted, named)
    asked = meta.message(named) if named and to_asker else None
    if asked is not None:
        instructions = for_asker(meta, asked, calls)
    elif own:
        instructions = for_itself(meta, next(iter(wanted), None), calls)
    else:
        is_scripted = request is not None and bool(request.scripted)
        instructions = for_parent(meta, calls, is_scripted=is_scripted)
    result, damage = None, list[str]()
    try:
        result = store.read_result(meta.run_id) if ended else None
    except UnreadableMeta as error:
        damage = [error.sentence]
    has_output = result is not None and result.has_output
    text = "" if result is None or has_output else result.text
    is_large = result is not None and has_output and len(result.to_json()) > MAX_OUTPUT_BYTES
    is_cut = len(text) > MAX_RESULT_CHARACTERS
    if is_cut:
        instructions += f" {calls('rest', meta.run_id)} has the rest."
    elif is_large:
        instructions += f" {calls('result', meta.run_id)} has the whole result."
    if meta.payload is not None and not has_output and caller.run_id != meta.run_id:
        instructions += f" {calls('payload', meta.run_id)} has its payload."
    mark = sandbox_mark(run)
    view = RunView(
        run_id=meta.run_id,
        agent=cut(meta.agent_name, MAX_LABEL_CHARACTERS),
        label=maybe_cut(meta.label, MAX_LABEL_CHARACTERS),
        started_by=_other_parent(meta, caller),
        status=meta.status,
        revision=meta.revision,
        live=observed.live,
        live_reason=observed.reason,
        node=observed.node,
        sandbox=cut(mark, MAX_LABEL_CHARACTERS) if mark and "unsandboxed" in mark else None,
        waiting_for_slot=waits_for_slot(store.paths, meta) or None,
        waiting_for_run=_awaited(run, meta),
        continues_run_id=maybe_cut(meta.continues_run_id, MAX_NAME_CHARACTERS),
        elapsed_seconds=elapsed_seconds(meta.created_at, meta.ended_at),
        usage=_usage(meta.usage if observed.live is False else meta.usage.merged(recorded_usage(run))),
        with_descendants=_usage(tree_usage(store, meta)) if store.children_of(meta.run_id) else None,
        worktree=_worktree(run, meta, calls),
        # together with a question it would be the call that asks it
        preview=None if ended or messages else (latest_text(run) or "")[:MAX_PREVIEW_CHARACTERS] or None,
        messages=messages or None,
        messages_omitted=omitted or None,
        instructions=instructions,
        summary=maybe_cut(meta.summary),
        result=text[:MAX_RESULT_CHARACTERS] or None,
        result_truncated=is_cut or None,
        sources=_sources(result),
        output_omitted=is_large or None,
        error=_error(meta.error),
        quarantined=_quarantined(run, request),
        warnings=_warnings(run, meta, request, result, damage),
    )
    if result is None or not has_output or is_large:
        return view
    return view.model_copy(update={"output": result.output})  # it is there even if it is null


def view_for(
    service: Service,
    observed: Observed,
    calls: NextCalls,
    message_id: str | None,
    caller: Caller,
    *,
    is_asker: bool = False,
) -> RunView:
    """Return the view of a run just opened; its asker takes the answer to the question that it names.

    The view shows the state before the acknowledgement, with the answer (seed
    `bidirectional_communication.txt`, 3.4). A parent that looks changes nothing, whatever it names.

    Raises:
        UnknownMessage.
    """
    run_id = observed.meta.run_id
    if message_id is None:
        return run_view(service.store, observed, calls, caller)
    message = observed.meta.message(message_id)
    if message is None:
        raise UnknownMessage(run_id, message_id, [m.message_id for m in observed.meta.pending])
    view = run_view(service.store, observed, calls, caller, message_id, to_asker=is_asker)
    if is_asker and message.message_status is MessageStatus.REPLIED:
        with suppress(SubagentError):  # the run ended meanwhile, or the disk refuses: the answer counts
            service.store.update(run_id, transitions.ReplyAcknowledged(message_id=message_id), now())
    return view


def message_view(message: Message) -> MessageView:
    """Return a question as it is shown."""
    options = message.options
    return MessageView(
        message_id=cut(message.message_id, MAX_NAME_CHARACTERS),
        question=cut(message.question_content, MAX_QUESTION_CHARACTERS),
        options=options and [cut(option, MAX_OPTION_CHARACTERS) for option in options[:MAX_OPTIONS]],
        status=message.message_status,
        answer=maybe_cut(message.answer_content, MAX_ANSWER_CHARACTERS),
        answered_by=maybe_cut(message.answered_by, MAX_NAME_CHARACTERS),
        asked_at=message.question_timestamp,
        expires_at=message.expires_at,
    )


def _error(failure: Failure | None) -> Failure | None:
    if failure is None:
        return None
    code = cut(failure.code, MAX_LABEL_CHARACTERS)
    return Failure(code=code, message=cut(failure.message), hint=maybe_cut(failure.hint))


def _wanted(meta: RunMeta, named: str | None, own: bool) -> list[Message]:
    """Return the questions of a view, the oldest first."""
    wanted = {MessageStatus.PENDING, MessageStatus.REPLIED} if own else {MessageStatus.PENDING}
    return [m for m in meta.messages if m.message_status in wanted or m.message_id == named]


def _shown(wanted: list[Message], named: str | None) -> tuple[list[MessageView], int]:
    """Return those of the wanted questions that fit into a view, and how many more there are.

    The question that the caller has named comes before all others, whatever its size.
    """
    room = MAX_MESSAGES_CHARACTERS
    fitting: dict[str, MessageView] = {}
    for message in sorted(wanted, key=lambda m: m.message_id != named):
        view = message_view(message)
        room -= len(view.question) + len(view.answer or "") + sum(map(len, view.options or ()))
        if fitting and room < 0:
            break
        fitting[message.message_id] = view
    return [fitting[m.message_id] for m in wanted if m.message_id in fitting], len(wanted) - len(fitting)


def _warnings(
    run: RunPaths, meta: RunMeta, request: RunRequest | None, result: RunResult | None, damage: list[str]
) -> list[str] | None:
    """Return the warnings of the end (files that can run code, ...) and of the start (missing tools)."""
    warnings = damage
    if result is not None:
        left = result.can_run_code
    else:
        left = recorded_can_run_code(run) if meta.status.is_terminal else None
    if left:
        warnings.append(can_run_code(left))
    warnings += (result.warnings if result is not None else None) or []
    warnings += request.warnings if request is not None else []
    return [cut(warning, MAX_WARNING_CHARACTERS) for warning in warnings[:MAX_WARNINGS]] or None


def _quarantined(run: RunPaths, request: RunRequest | None) -> list[str] | None:
    if not run.quarantine.exists():
        return None
    cwd = Path("/") if request is None else Path(os.path.realpath(request.cwd))
    found = [cut(kept, MAX_LABEL_CHARACTERS * 4) for kept in quarantined(run, cwd)]
    return found[-MAX_QUARANTINED:] or None


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
        shown["next"] = calls("merge", meta.run_id)
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
    awaited = marks.read_shim(run).get("waitingForRun")
    return cut(awaited, MAX_NAME_CHARACTERS) if isinstance(awaited, str) else None


def _usage(usage: Usage) -> dict[str, Any]:
    """Return the numbers without zeros, with null for an unknown one: a view is small."""
    return {name: value for name, value in usage.to_wire().items() if value != 0}


def _other_parent(meta: RunMeta, caller: Caller) -> str | None:
    """Return the words for the parent of a run if it is another than the caller, and there."""
    starter, others = meta.started_by, OtherParents(caller)
    if caller.process is None or not others.own(starter):
        return None
    return others.name(starter)


MAX_TOOL_ANSWER_BYTES = 40_000
"""Of an answer about many runs, as JSON. The first run is in it in any case.

Codex leaves out the middle of more than 48,000, and a wait shows each end once.
"""
MAX_IDS = 200
"""Of a list of ids; a sentence counts all of them."""
T = TypeVar("T", RunRow, RunView)


def those_that_fit(items: Iterable[T]) -> list[T]:
    """Return as many of the first `items` as fit into one answer; at most one more is looked at.

    The rest is counted in the answer, and comes with a later call.
    """
    fitting: list[T] = []
    room = MAX_TOOL_ANSWER_BYTES
    for item in items:
        room -= len(json.dumps(item.to_wire(), ensure_ascii=False).encode("utf-8", "replace"))
        if fitting and room < 0:
            break
        fitting.append(item)
    return fitting
