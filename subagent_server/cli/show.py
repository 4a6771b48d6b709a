"""`subagent show`: print everything about a run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from subagent_server.catalog.models import resolve_model
from subagent_server.cli.console.colours import coloured
from subagent_server.cli.console.complete import complete_runs
from subagent_server.cli.console.error_text import for_people
from subagent_server.cli.console.flags import json_option
from subagent_server.cli.console.output import err, out, out_json
from subagent_server.cli.console.programs import program_text
from subagent_server.cli.console.run_markdown import run_markdown
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.console.text import (
    duration,
    escape_lines,
    facts,
    head,
    look_of,
    moment,
    one_line,
    prose,
)
from subagent_server.cli.console.transcript_text import transcript_text
from subagent_server.domain.errors import SubagentError
from subagent_server.domain.records import Message, RunMeta, RunRequest, RunResult
from subagent_server.domain.states import MessageStatus
from subagent_server.service.kept_programs import kept_programs
from subagent_server.service.left_behind import restore as give_back
from subagent_server.service.merge_run import run_diff
from subagent_server.service.open_run import open_run
from subagent_server.service.parents import OtherParents
from subagent_server.service.reconcile import Observed
from subagent_server.service.sandbox_mark import sandbox_mark
from subagent_server.service.tree_usage import subtree
from subagent_server.service.views import RunView
from subagent_server.store.log_format import count, usage_line
from subagent_server.store.transcript import read_transcript

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
@json_option
@pass_session
def show(  # a flag for each way of looking
    session: Session,
    run: str,
    code: bool,
    diff: bool,
    transcript: bool,
    markdown: bool,
    restore: str | None,
    as_json: bool,
) -> None:
    """Show everything about a run.

    What it was asked, how it stands, what it asked and what it was answered, what it cost, how it ended, and
    where its files are. With --json: its view, as the MCP tools answer it.
    """
    observed = open_run(session.service, session.run_id(run), session.caller)
    if restore is not None:
        _restore(session, observed.meta.run_id, restore, as_json)
        return
    if code:
        _show_code(session, observed.meta.run_id, as_json)
        return
    if diff:
        _show_diff(session, observed.meta.run_id, as_json)
        return
    if transcript:
        _show_transcript(session, observed.meta.run_id, as_json)
        return
    view = session.view(observed)
    if as_json:
        out_json(view.to_wire())
        return
    if markdown:
        out(run_markdown(observed.meta, view, _result(session, view)))
        return
    parts = [
        _state(session, observed, view),
        _asked(session, observed.meta),
        *(_question(session, observed.meta, message) for message in observed.meta.messages),
        _ending(session, view),
    ]
    out("\n\n".join(part for part in parts if part))


def _restore(session: Session, run_id: str, name: str, as_json: bool) -> None:
    path = str(give_back(session.service.store, run_id, name, session.caller))
    if as_json:
        out_json({"runId": run_id, "restored": path})
    else:
        err(f"{one_line(path)} is back where it was.")


def _show_code(session: Session, run_id: str, as_json: bool) -> None:
    programs = kept_programs(session.service.store.paths.run(run_id))
    if as_json:
        out_json([program.to_wire() for program in programs])
        return
    texts = [program_text(program) for program in programs]
    out("\n\n".join(texts) or f"Run {run_id} has run no programs: only agents with `codeMode` do.")


def _show_diff(session: Session, run_id: str, as_json: bool) -> None:
    patch = run_diff(session.service, run_id, session.caller)
    if as_json:
        out_json({"runId": run_id, "diff": patch})
        return
    out(escape_lines(patch.rstrip("\n")) or f"Run {run_id} has changed nothing.")


def _worktree(view: RunView) -> str:
    """Return the lines on the worktree of a run."""
    shown = view.worktree or {}
    lines = [f"{shown.get('branch', '')} from {str(shown.get('base', ''))[:12]} of {shown.get('from', '')}"]
    if "commits" in shown:
        merged = ", merged" if shown["merged"] else ""
        files, commits = count(shown["files"], "file"), count(shown["commits"], "commit")
        lines.append(f"{commits}, {files}, +{shown['insertions']} -{shown['deletions']}{merged}")
    lines += [
        f"{name}: {shown[name]}" for name in ("path", "state", "takenOverBy", "leftBehind") if name in shown
    ]
    if "next" in shown:
        lines.append(f"next: {shown['next']}")
    return "\n".join(map(one_line, [*lines, *shown.get("notes", [])])) if shown else ""


def _show_transcript(session: Session, run_id: str, as_json: bool) -> None:
    agent = session.service.store.read_request(run_id).agent
    system = str(agent.get("systemPrompt") or "")
    messages = list(read_transcript(session.service.store.paths.run(run_id)))
    if as_json:
        out_json({"system": system, "messages": messages})
    elif messages:
        out("\n\n".join(transcript_text(system, messages)))
    else:
        err(f"Run {run_id} has no conversation yet.")


def _state(session: Session, observed: Observed, view: RunView) -> str:
    meta = observed.meta
    look = look_of(meta.status, meta.pending_questions, observed.live)
    exactly = "" if look.word == meta.status.value else f" ({meta.status.value})"
    waits = " (waits for a slot)" if view.waiting_for_slot else _awaits(view)
    return facts(
        [
            ("run", meta.run_id),
            ("agent", one_line(meta.agent_name)),
            ("label", one_line(meta.label or "")),
            ("status", f"{coloured(look.text, look.colour)}{exactly}{waits}"),
            ("live", _live(observed)),
            ("created", moment(meta.created_at)),
            ("started", moment(meta.started_at) if meta.started_at else None),
            ("ended", moment(meta.ended_at) if meta.ended_at else None),
            ("elapsed", duration(view.elapsed_seconds)),
            ("usage", one_line(usage_line(view.usage))),
            ("tree", _tree(session, meta, view)),
            ("sandbox", prose(one_line(sandbox_mark(session.service.store.paths.run(meta.run_id)) or ""))),
            ("worktree", _worktree(view)),
            ("warnings", "\n".join(prose(one_line(warning)) for warning in view.warnings or [])),
            ("quarantine", _quarantine(session, view)),
            ("parent", one_line(meta.parent_run_id or "")),
            ("client", one_line(OtherParents(session.caller).name(meta.started_by) or "")),
            ("continues", one_line(meta.continues_run_id or "")),
            ("children", "\n".join(_children(session, meta))),
            ("files", one_line(session.shown(session.service.store.paths.run(meta.run_id).directory))),
            ("now", "" if meta.pending else escape_lines(view.preview or "")),
        ]
    )


def _quarantine(session: Session, view: RunView) -> str:
    lines = [one_line(kept) for kept in view.quarantined or []]
    back = session.command("show", view.run_id, "--restore", "NUMBER")
    return "\n".join([*lines, f"gives one back: {back}"]) if lines else ""


def _tree(session: Session, meta: RunMeta, view: RunView) -> str | None:
    """Return the usage of the run and of all its descendants."""
    if view.with_descendants is None:
        return None
    runs = sum(1 for _ in subtree(session.service.store, meta))
    return one_line(f"{usage_line(view.with_descendants)}, in {count(runs, 'run')}")


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


def _awaits(view: RunView) -> str:
    return f" (waits for the end of all of run {view.waiting_for_run})" if view.waiting_for_run else ""


def _live(observed: Observed) -> str:
    if observed.live is None:
        host = observed.meta.launch.host if observed.meta.launch else "another host"
        return one_line(f"unknown here: it runs on {host}")
    return "yes: its processes live" if observed.live else "no"


def _model_of(request: RunRequest) -> str | None:
    """Return the model that the run was started with, with its effort, and whether a script played it."""
    agent = request.agent
    given = agent.get("model")
    if agent.get("runner", "messages") != "messages":
        model = f"{given or 'its own'} (runner: {agent['runner']})"
    else:
        model = resolve_model(given if isinstance(given, str) else None)
    effort = f", effort {agent['effort']}" if agent.get("effort") else ""
    return one_line(f"{model}{effort}{', played by a script' if request.scripted else ''}")


def _asked(session: Session, meta: RunMeta) -> str:
    try:
        request = session.service.store.read_request(meta.run_id)
    except SubagentError as error:
        return facts([("prompt", for_people(error.sentence))])
    return facts(
        [
            ("model", _model_of(request)),
            (
                "file",
                one_line(session.shown(Path(str(source)))) if (source := request.agent.get("source")) else "",
            ),
            ("cwd", one_line(request.cwd)),
            ("inputs", "\n".join(one_line(name) for name in request.inputs)),
            ("prompt", prose(escape_lines(head(request.prompt, _PROMPT_LINES)))),
        ]
    )


def _question(session: Session, meta: RunMeta, message: Message) -> str:
    options = " | ".join(one_line(option) for option in message.options or [])
    answer: str | None = None
    if message.answer_content is not None:
        answer = (
            f"{escape_lines(message.answer_content)}\n(by the {one_line(message.answered_by or 'parent')})"
        )
    elif message.message_status is MessageStatus.PENDING:
        answer = f"none yet: {session.command('reply', meta.run_id, message.message_id, 'ANSWER')}"
    else:
        answer = f"none: {message.message_status.value}"
    return facts(
        [
            (one_line(message.message_id), prose(f"? {escape_lines(message.question_content)}")),
            ("options", options),
            ("answer", answer),
        ]
    )


def _result(session: Session, view: RunView) -> RunResult | None:
    return session.service.store.read_result(view.run_id) if view.status.is_terminal else None


def _ending(session: Session, view: RunView) -> str:
    result = _result(session, view)
    text = ""
    if result is not None:
        text = _output(result.output) if result.has_output else escape_lines(result.text)
    error, summary = view.error, escape_lines(view.summary or "")
    return facts(
        [
            ("error", prose(escape_lines(f"{error.code}: {error.message}")) if error else None),
            ("hint", prose(for_people(error.hint or "")) if error else None),
            ("summary", prose(summary) if not text.startswith(summary) else None),
            ("result", text),
        ]
    )


def _output(value: Any) -> str:
    return escape_lines(json.dumps(value, ensure_ascii=False, indent=2))
