"""`subagent show` and `compare`: everything about a run, or two runs side by side."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from subagent_server.agents.known_names import resolve_model
from subagent_server.cli.console.app import Session, complete_runs, json_session
from subagent_server.cli.console.terminal import (
    GAP,
    UNKNOWN,
    coloured,
    cost_text,
    duration,
    err,
    escape_lines,
    facts,
    for_people,
    has_colours,
    head,
    line_width,
    look_of,
    moment,
    one_line,
    out,
    out_json,
    prose,
    run_cell,
    table,
)
from subagent_server.run.errors import SubagentError
from subagent_server.run.journal import count, read_transcript, usage_line
from subagent_server.run.journal import one_line as arguments_line
from subagent_server.run.records import Message, RunMeta, RunRequest, RunResult
from subagent_server.run.states import MessageStatus, Status, least_mark
from subagent_server.verbs.access import OtherParents
from subagent_server.verbs.flow_calls import call_lines, flow_calls
from subagent_server.verbs.left_behind import restore as give_back
from subagent_server.verbs.list_runs import RunTotals, run_totals
from subagent_server.verbs.merge_run import run_diff
from subagent_server.verbs.page_data import KeptProgram, kept_programs
from subagent_server.verbs.reconcile import Observed, subtree
from subagent_server.verbs.views import RunView, sandbox_mark

_INDENT = "    "
_ROLES = {"system": "grey", "user": "green", "assistant": "bold"}
_OUTCOMES: dict[int | None, tuple[str, str]] = {
    0: ("✔ done", "green"),
    1: ("✘ failed", "red"),
    2: ("✘ died", "red"),
    3: ("✘ torn", "red"),
}
_CUT_OFF = ("? cut off", "yellow")
_MOST_CALLS = 50
_PROMPT_LINES = 12


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("--code", is_flag=True, help="Its programs of code mode, each with its calls and its output.")
@click.option("--diff", is_flag=True, help="What it has changed in its git worktree, as a patch.")
@click.option("--transcript", is_flag=True, help="Its conversation with the model, with the system prompt.")
@click.option(
    "--markdown", is_flag=True, help="As Markdown, for the page of a CI job; texts of models are quoted."
)
@click.option(
    "--restore",
    metavar="NAME",
    help="Give back what was moved to its quarantine, by number or path, to where it was.",
)
@json_session
def show(  # a flag for each way of looking
    session: Session,
    run: str,
    code: bool,
    diff: bool,
    transcript: bool,
    markdown: bool,
    restore: str | None,
) -> None:
    """Show everything about a run.

    What it was asked, its state, what it asked and what it was answered, what it cost, how it ended, and
    where its files are. With --json: its view, as the MCP tools answer it.
    """
    if sum((code, diff, transcript, markdown, restore is not None)) > 1:
        # the others quote nothing, and with --markdown they could end in the page of a job
        raise click.UsageError("--code, --diff, --transcript, --markdown and --restore exclude each other.")
    observed = session.open_run(session.run_id(run))
    run_id = observed.meta.run_id
    if restore is not None:
        path = str(give_back(session.service.store, run_id, restore, session.caller))
        session.say_done({"runId": run_id, "restored": path}, f"{one_line(path)} is back where it was.")
    elif code:
        _show_code(session, run_id)
    elif diff:
        patch = run_diff(session.service, run_id, session.caller)
        if session.as_json:
            out_json({"runId": run_id, "diff": patch})
        else:
            out(escape_lines(patch.rstrip("\n")) or f"Run {run_id} has changed nothing.")
    elif transcript:
        _show_transcript(session, run_id)
    else:
        show_run(session, observed, markdown=markdown)


def show_run(session: Session, observed: Observed, *, markdown: bool = False) -> None:
    """Print everything about a run. Raises as `out` does, and as reading a run."""
    meta, view = observed.meta, session.view(observed)
    if session.as_json:
        out_json(view.to_wire())
        return
    result = session.service.store.read_result(meta.run_id) if meta.status.is_terminal else None
    if markdown:
        out(run_markdown(meta, view, result))
        return
    questions = (_question(session, meta, message) for message in meta.messages)
    parts = [_state(session, observed, view), _asked(session, meta), *questions, _ending(view, result)]
    out("\n\n".join(part for part in parts if part))


def _state(session: Session, observed: Observed, view: RunView) -> str:
    meta, run = observed.meta, session.service.store.paths.run(observed.meta.run_id)
    look = look_of(meta.status, meta.pending_questions, observed.live)
    exactly = "" if look.word == meta.status.value else f" ({meta.status.value})"
    waits = f" (waits for the end of all of run {view.waiting_for_run})" if view.waiting_for_run else ""
    waits = " (waits for a slot)" if view.waiting_for_slot else waits
    live = ["unknown here" if observed.live is None else "yes" if observed.live else "no"]
    if observed.live and (observed.node or observed.reason is None):
        live.append(f"its processes live{f' on {observed.node}' if observed.node else ''}")
    live += [] if observed.reason is None else [observed.reason]
    tree = None
    if view.with_descendants is not None:
        runs = count(sum(1 for _ in subtree(session.service.store, meta)), "run")
        tree = one_line(f"{usage_line(view.with_descendants)}, in {runs}")
    calls = call_lines(flow_calls(session.service.store, meta.run_id), _MOST_CALLS)
    quarantine = [one_line(kept) for kept in view.quarantined or []]
    if quarantine:
        quarantine.append(f"gives one back: {session.command('show', meta.run_id, '--restore', 'NUMBER')}")
    return facts(
        [
            ("run", meta.run_id),
            ("agent", one_line(meta.agent_name)),
            ("label", one_line(meta.label or "")),
            ("status", f"{coloured(look.text, look.colour)}{exactly}{waits}"),
            ("live", one_line(": ".join(live))),
            ("created", moment(meta.created_at)),
            ("started", moment(meta.started_at) if meta.started_at else None),
            ("ended", moment(meta.ended_at) if meta.ended_at else None),
            ("elapsed", duration(view.elapsed_seconds)),
            ("usage", one_line(usage_line(view.usage))),
            ("tree", tree),
            ("sandbox", prose(one_line(sandbox_mark(run) or ""))),
            ("worktree", "\n".join(map(one_line, _worktree(view.worktree or {})))),
            ("warnings", "\n".join(prose(one_line(warning)) for warning in view.warnings or [])),
            ("moved", "\n".join(quarantine)),
            ("parent", one_line(meta.parent_run_id or "")),
            ("client", one_line(OtherParents(session.caller).name(meta.started_by) or "")),
            ("continues", one_line(meta.continues_run_id or "")),
            ("calls", "\n".join(map(one_line, calls))),
            ("children", "\n".join(_children(session, meta))),
            ("files", one_line(session.shown(run.directory))),
            ("payload", f"{meta.payload.size:,} bytes, in payload.gz" if meta.payload else None),
            ("now", escape_lines(view.preview or "")),
        ]
    )


def _worktree(shown: dict[str, Any]) -> Iterator[str]:
    if not shown:
        return
    yield f"{shown.get('branch', '')} from {str(shown.get('base', ''))[:12]} of {shown.get('from', '')}"
    if "commits" in shown:
        merged = ", merged" if shown["merged"] else ""
        files, commits = count(shown["files"], "file"), count(shown["commits"], "commit")
        yield f"{commits}, {files}, +{shown['insertions']} -{shown['deletions']}{merged}"
    for name in ("path", "state", "trouble", "takenOverBy", "leftBehind", "next"):
        if name in shown:
            yield f"{name}: {shown[name]}"
    yield from shown.get("notes", [])


def _children(session: Session, meta: RunMeta) -> Iterator[str]:
    store = session.service.store
    for run_id in store.children_of(meta.run_id):
        try:
            child = store.read(run_id)
        except SubagentError:
            yield run_id
            continue
        look = look_of(child.status, child.pending_questions, child.ended_at is None)
        yield f"{run_id}  {look.text}  {one_line(child.agent_name)}"


def _model_of(request: RunRequest) -> str | None:
    """Return the model that the run was started with, with its effort, and whether a script played it."""
    agent = request.agent
    named = agent.get("model")
    if request.runner != "messages":
        unnamed = "none" if request.runner == "flow" else "its own"
        model = f"{named or unnamed} (runner: {request.runner})"
    else:
        model = resolve_model(named if isinstance(named, str) else None)
    effort = f", effort {agent['effort']}" if agent.get("effort") else ""
    return one_line(f"{model}{effort}{', played by a script' if request.scripted else ''}")


def _asked(session: Session, meta: RunMeta) -> str:
    try:
        request = session.service.store.read_request(meta.run_id)
    except SubagentError as error:
        return facts([("prompt", for_people(error.sentence))])
    source = request.agent.get("source")
    return facts(
        [
            ("model", _model_of(request)),
            ("file", one_line(session.shown(Path(str(source)))) if source else ""),
            ("cwd", one_line(request.cwd)),
            ("inputs", "\n".join(one_line(name) for name in request.inputs)),
            ("prompt", prose(escape_lines(head(request.prompt, _PROMPT_LINES)))),
        ]
    )


def _question(session: Session, meta: RunMeta, message: Message) -> str:
    if message.answer_content is not None:
        by = one_line(message.answered_by or "parent")
        answer = f"{escape_lines(message.answer_content)}\n(by the {by})"
    elif message.message_status is MessageStatus.PENDING:
        answer = f"none yet: {session.command('reply', meta.run_id, message.message_id, 'ANSWER')}"
    else:
        answer = f"none: {message.message_status.value}"
    return facts(
        [
            (one_line(message.message_id), prose(f"? {escape_lines(message.question_content)}")),
            ("options", " | ".join(one_line(option) for option in message.options or [])),
            ("answer", answer),
        ]
    )


def _ending(view: RunView, result: RunResult | None) -> str:
    text = "" if result is None else escape_lines(result.words)
    # The summary of a run is the beginning of its text, unless its agent wrote another one.
    error, summary = view.error, escape_lines(view.summary or "")
    return facts(
        [
            ("error", prose(escape_lines(f"{error.code}: {error.message}")) if error else None),
            ("hint", prose(for_people(error.hint or "")) if error else None),
            ("next", prose(one_line(view.instructions)) if error else None),
            ("summary", prose(summary) if not text.startswith(summary) else None),
            ("result", text),
        ]
    )


# -- As Markdown, for the page of a CI job.
#
# Texts of models, children and files go into code spans and fenced blocks, whose fence is longer than any
# run of backticks inside. So it forges no heading, link, mention or HTML of the page.


MAX_CHARACTERS = 60_000
"""Characters of a result: the page of a job takes 1 MiB in all, and a job may have many runs."""
_BACKTICKS = re.compile("`+")


def run_markdown(meta: RunMeta, view: RunView, result: RunResult | None) -> str:
    """Return how a run ended, what it cost, what it asked, and its result."""
    look = look_of(meta.status, meta.pending_questions, view.live)
    parts = [f"### {look.text}: {_code_span(meta.agent_name)}", "\n".join(_markdown_facts(meta, view))]
    if result is not None and result.words:
        parts.append(_fenced(result.words, "json" if result.has_output else "text"))
    return "\n\n".join(parts)


def _markdown_facts(meta: RunMeta, view: RunView) -> Iterator[str]:
    yield f"- run: {_code_span(meta.run_id)}"
    if meta.label:
        yield f"- label: {_code_span(meta.label)}"
    ended = f", ended {moment(meta.ended_at)}" if meta.ended_at else ""
    yield f"- time: {duration(view.elapsed_seconds)}{ended}"
    yield f"- usage: {_code_span(usage_line(view.usage))}"
    if view.with_descendants is not None:
        yield f"- with the runs that it started: {_code_span(usage_line(view.with_descendants))}"
    if meta.status is Status.STOPPED and view.summary:
        yield f"- why: {_code_span(view.summary)}"
    if view.error is not None:
        yield f"- error: {_code_span(view.error.code)} {_code_span(view.error.message)}"
        if view.error.hint:
            yield f"- hint: {_code_span(for_people(view.error.hint))}"
    for warning in view.warnings or []:
        yield f"- warning: {_code_span(warning)}"
    for message in meta.messages:
        yield f"- {_markdown_question(message)}"


def _markdown_question(message: Message) -> str:
    answer, status = message.answer_content, message.message_status.value.replace("_", " ")
    outcome = status if answer is None else f"answer: {_code_span(answer)}"
    return f"asked: {_code_span(message.question_content)}, {outcome}"


def _code_span(text: str) -> str:
    """Return a text on one line as a code span."""
    line = one_line(text) or " "
    fence = "`" * (_longest(line) + 1)
    space = " " if "`" in line else ""
    return f"{fence}{space}{line}{space}{fence}"


def _fenced(text: str, language: str) -> str:
    """Return a text as a fenced block, without its rest if it is very long."""
    rest = len(text) - MAX_CHARACTERS
    shown = escape_lines(text[:MAX_CHARACTERS])
    fence = "`" * max(3, _longest(shown) + 1)
    more = f"\n\n{rest:,} more characters are in `result.json` of the run." if rest > 0 else ""
    return f"{fence}{language}\n{shown}\n{fence}{more}"


def _longest(text: str) -> int:
    """Return the length of the longest run of backticks in a text."""
    return max(map(len, _BACKTICKS.findall(text)), default=0)


# -- the conversation


def _show_transcript(session: Session, run_id: str) -> None:
    system = str(session.service.store.read_request(run_id).agent.get("systemPrompt") or "")
    messages = list(read_transcript(session.service.store.paths.run(run_id)))
    if session.as_json:
        out_json({"system": system, "messages": messages})
        return
    if not messages:
        err(f"Run {run_id} has no conversation on record: `subagent logs {run_id}` shows its work.")
        return
    spoken = [{"role": "system", "content": system}] if system.strip() else []
    out("\n\n".join(map(_message, [*spoken, *messages])))


def _message(message: dict[str, Any]) -> str:
    role, content = one_line(str(message.get("role"))), message.get("content")
    blocks = content if isinstance(content, list) else [content]
    title = coloured(f"── {role}", _ROLES.get(role, "bold"))
    return "\n".join([title, *(escape_lines(_block(block), _INDENT) for block in blocks)])


def _block(block: Any) -> str:
    """Return the text of a block of a message. A transcript is data: a block of another form is its JSON."""
    match block:
        case str():
            return block
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "thinking", "thinking": str(text)}:
            return f"~ {text}"
        case {"type": "tool_use", "name": str(name), "input": arguments}:
            return f"→ {name} {json.dumps(arguments, ensure_ascii=False, indent=1)}"
        case {"type": "tool_result", "content": inner, **rest}:
            mark = "✗" if rest.get("is_error") else "←"
            parts = inner if isinstance(inner, list) else [inner]
            return f"{mark} " + "\n".join(map(_block, parts))
        case {"type": "image" | "document" as kind, "source": {"media_type": str(media)}}:
            return f"[{kind}: {media}]"
    return json.dumps(block, ensure_ascii=False)


# -- the programs of code mode


def _show_code(session: Session, run_id: str) -> None:
    programs = kept_programs(session.service.store.paths.run(run_id))
    if session.as_json:
        out_json([asdict(program) for program in programs])
        return
    texts = "\n\n".join(map(_program, programs))
    out(texts or f"Run {run_id} has run no programs: only agents with `codeMode` do.")


def _program(program: KeptProgram) -> str:
    words, colour = _OUTCOMES.get(program.outcome, _CUT_OFF)
    parts = [f"program {program.program}  {coloured(words, colour)}", _highlighted(program.code)]
    ends = {str(call.get("call")): call for call in program.calls if "isError" in call}  # they are data
    begun = [call for call in program.calls if "function" in call and "isError" not in call]
    parts += [_call_text(call, ends.get(str(call.get("call")))) for call in begun]
    parts += [escape_lines(program.output, _INDENT)] if program.output.strip() else []
    return "\n".join(parts)


def _call_text(call: dict[str, Any], end: dict[str, Any] | None) -> str:
    mark = "?" if end is None else "✗" if end.get("isError") else "←"
    brought = "" if end is None else f"  {mark} {one_line(str(end.get('text', '')))[:160]}"
    head = f"→ {call.get('call')}. {call.get('function')} {arguments_line(call.get('arguments'))}"
    return f"{one_line(head)}{brought or '  ? its end is not known'}"


def _highlighted(code: str) -> str:
    """Return the code, escaped, in colours if the terminal has them."""
    text = escape_lines(code.strip("\n"))
    if not has_colours():
        return escape_lines(text, _INDENT)
    from rich.console import Console  # only where it is shown
    from rich.syntax import Syntax

    console = Console(force_terminal=True, color_system="standard", width=10_000)
    with console.capture() as captured:
        console.print(Syntax(text, "python", theme="ansi_dark", background_color="default"), soft_wrap=True)
    return "\n".join(f"{_INDENT}{line.rstrip()}" for line in captured.get().rstrip("\n").split("\n"))


# -- Two runs side by side: `subagent compare`.


_FIGURE_NAMES = 18
"""Columns of the names of the numbers; the two runs share the rest of the line."""


@click.command()
@click.argument("first", metavar="A", shell_complete=complete_runs)
@click.argument("second", metavar="B", shell_complete=complete_runs)
@json_session
def compare(session: Session, first: str, second: str) -> None:
    """Show two runs side by side: how they ended, their turns and tools, tokens, cost, time and results.

    Tokens and cost are those of the whole tree of a run, turns and tools its own; its time is that since its
    worker began. A number that is not known is `-`, and a sum of which a part is not known has a ≥.
    """
    a, b = (run_totals(session.service, session.open_run(session.run_id(name))) for name in (first, second))
    same = a.result is not None and a.result == b.result
    if session.as_json:
        out_json({"runs": [a.to_wire(), b.to_wire()], "sameResult": same})
        return
    each = (line_width() - _FIGURE_NAMES) // 2 - len(GAP)
    out("\n".join(table([*_rows(a, b)], (_FIGURE_NAMES, each))))
    out("")
    if same:
        out(f"Both have this result:\n{_result(a)}")
        return
    for run in (a, b):
        out(f"Result of {run.run_id}:\n{_result(run)}\n")


def _rows(a: RunTotals, b: RunTotals) -> Iterator[tuple[str, ...]]:
    yield "", run_cell(a.run_id), run_cell(b.run_id)
    yield "agent", one_line(a.agent), one_line(b.agent)
    yield "model", _model(a), _model(b)
    yield "status", _status(a), _status(b)
    yield "time", duration(a.seconds), duration(b.seconds)
    yield "cost", *(cost_text(run.cost_usd, run.at_least or ()) for run in (a, b))
    yield "turns", _count(a.turns), _count(b.turns)
    for name in ("input", "output", "cache read", "cache write"):
        yield f"{name} tokens", _tokens(a, name), _tokens(b, name)
    yield "tool calls", _count(a.tool_calls), _count(b.tool_calls)
    for tool in dict.fromkeys([*a.tools, *b.tools]):
        yield f"  {one_line(tool)}", _count(a.tools.get(tool, 0)), _count(b.tools.get(tool, 0))


def _model(run: RunTotals) -> str:
    return f"{one_line(run.model or UNKNOWN)}{' (a script)' if run.scripted else ''}"


def _status(run: RunTotals) -> str:
    error = f": {one_line(run.error.code)}" if run.error is not None else ""
    return f"{look_of(run.status, 0, None if run.status.is_terminal else True).text}{error}"


def _tokens(run: RunTotals, kind: str) -> str:
    first, _, second = kind.partition(" ")
    mark = least_mark(run.at_least or (), f"{first}{second.capitalize()}Tokens")
    number = getattr(run, f"{kind.replace(' ', '_')}_tokens")
    return UNKNOWN if number is None else mark + _count(number)


def _count(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def _result(run: RunTotals) -> str:
    """Return the result of a run; of one that failed without any, its error."""
    if run.result is None:
        return UNKNOWN if run.error is None else one_line(f"{run.error.code}: {run.error.message}")
    if isinstance(run.result, str):
        return escape_lines(run.result)
    return escape_lines(json.dumps(run.result, ensure_ascii=False, indent=2))
