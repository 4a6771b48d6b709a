"""Reading the runs that a run continues. Their files are data: any may be damaged."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from subagent_server.run import durable, processes
from subagent_server.run.agent_definition import CODE_TOOL_NAME, tool_name
from subagent_server.run.errors import SubagentError, UnreadableMeta
from subagent_server.run.history import PreviousCall, PreviousChild, PreviousRun
from subagent_server.run.journal import read_transcript
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import RunMeta
from subagent_server.run.store import RunStore
from subagent_server.verbs.inputs import copied_inputs

Event = dict[str, Any]

LONGEST_CHAIN = 1_000


def read_previous_runs(store: RunStore, run_id: str) -> list[PreviousRun]:
    """Return the run, preceded by the runs it continued, back to the last run with a transcript.

    Once a run has begun, its own transcript has the whole conversation. A run that ended earlier has only its
    request; then the run that it was to continue comes first.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta: a run of the chain is gone, or cannot be read.
    """
    found: list[PreviousRun] = []
    named: str | None = run_id
    while named is not None and len(found) < LONGEST_CHAIN:
        meta = store.read(named)
        try:
            found.append(_previous_run(store, meta))
        except OSError as error:
            directory = store.paths.run(named).directory
            raise UnreadableMeta(
                named, Path(error.filename or directory), error.strerror or str(error)
            ) from error
        named = None if found[-1].messages else store.read_request(named).continues_run_id
    return found[::-1]


def _previous_run(store: RunStore, meta: RunMeta) -> PreviousRun:
    run = store.paths.run(meta.run_id)
    model, calls, todos = _of_journal(run)
    return PreviousRun(
        run_id=meta.run_id,
        status=meta.status,
        prompt=store.read_request(meta.run_id).prompt,
        model=model,
        inputs=copied_inputs(run),
        messages=list(read_transcript(run)),
        calls=calls,
        questions=meta.messages,
        children=[
            child for name in store.children_of(meta.run_id) if (child := _child(store, name)) is not None
        ],
        todos=todos,
        tells_all=_is_since_boot(meta),
    )


def _is_since_boot(meta: RunMeta) -> bool:
    """Whether unsynced writes are there for sure: within one boot, a kill loses none of them."""
    here = (processes.host_name(), processes.boot_id())
    return meta.launch is not None and (meta.launch.host, meta.launch.boot_id) == here


def _child(store: RunStore, run_id: str) -> PreviousChild | None:
    try:
        meta, request = store.read(run_id), store.read_request(run_id)
    except SubagentError:
        return None  # a start that never was, or an unreadable run
    tool = tool_name(meta.agent_name, distinct=bool(request.agent.get("distinctTool")))
    return PreviousChild(run_id, meta.agent_name, tool, request.prompt, meta.status)


def _of_journal(run: RunPaths) -> tuple[str | None, dict[str, PreviousCall], list[Any]]:
    """Return the model, the tool calls that had begun and the to-do list, by the journal."""
    model: str | None = None
    calls: dict[str, PreviousCall] = {}
    todos: list[Any] = []
    for event in durable.records(run.events):
        match event.get("type"):
            case "run_started" | "warning":  # of the change to another model
                model = event["model"] if isinstance(event.get("model"), str) else model
            case "tool_call" | "tool_result" if event.get("server") is not True:  # the API makes those
                call = _call(event, calls)
                if call is not None:
                    calls[call.call_id] = call
            case "program_call" | "program_result" | "agent_call":
                _add_call_of_program(event, calls)
            case "todos":
                todos = event["todos"] if isinstance(event.get("todos"), list) else todos
    return model, calls, todos


def _call(event: Event, known: dict[str, PreviousCall]) -> PreviousCall | None:
    """Return a call as updated by a further event. A call with a result had begun, recorded or not."""
    call_id, name = event.get("toolCallId"), event.get("toolName")
    if not isinstance(call_id, str) or not isinstance(name, str):
        return None
    if event["type"] == "tool_call":
        return PreviousCall(call_id, name, event.get("arguments"), _moment(event))
    return _finished(known.get(call_id) or PreviousCall(call_id, name), event)


def _finished(call: PreviousCall, event: Event) -> PreviousCall:
    return replace(
        call,
        finished=True,
        text=str(event.get("text", "")),
        is_error=event.get("isError") is True,
        whole=event.get("cut") is not True,
    )


def _add_call_of_program(event: Event, calls: dict[str, PreviousCall]) -> None:
    """Add a call to the program that made it: programs run one after the other, so it is the last begun."""
    programs = [call for call in calls.values() if call.name == CODE_TOOL_NAME and not call.finished]
    number, function = event.get("call"), event.get("function")
    if programs and isinstance(run_id := event.get("calledRunId"), str):
        programs[-1].runs.append(run_id)
    if not programs or not isinstance(number, int) or not isinstance(function, str):
        return
    made = programs[-1].made
    if event["type"] == "program_call":
        made[number] = PreviousCall(str(number), function, event.get("arguments"))
    elif number in made:
        made[number] = _finished(made[number], event)


def _moment(event: Event) -> datetime | None:
    try:
        return datetime.fromisoformat(str(event.get("at")))
    except ValueError:
        return None
