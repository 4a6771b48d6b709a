"""What commands print about runs: the cells of a list, the events of a log, and how a run ended."""

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

from subagent_server.cli.console.app import Session
from subagent_server.cli.console.output import ExitCode, has_person, is_terminal, out, out_json, report
from subagent_server.cli.console.terminal import (
    coloured,
    cut,
    duration,
    escape_lines,
    folded,
    for_people,
    line_width,
    look_of,
    one_line,
    padded,
    width_of,
    with_local_time,
    without_colours,
)
from subagent_server.run.errors import UnreadableMeta
from subagent_server.run.journal import count, latest_doing, render
from subagent_server.run.paths import RootPaths
from subagent_server.run.records import RunMeta
from subagent_server.run.states import TOKENS, Status, dollars
from subagent_server.run.store import read_request
from subagent_server.verbs.views import RunRow, RunView

# -- The cells that every list of runs on a terminal shares. A short list does not wait for pydantic.


def run_cell(run_id: str) -> str:
    """Return the id for a list: on a terminal its last part, which every command takes as well."""
    return run_id.rpartition("-")[2] if is_terminal(sys.stdout) else run_id


def age_cell(row: RunRow) -> str:
    """Return how long ago the run was made, in one unit: `41s`, `3m`, `2d`."""
    if row.created_at is None:
        return ""
    words = duration((datetime.now(UTC) - row.created_at).total_seconds())
    return words[: next(place + 1 for place, c in enumerate(words) if c.isalpha())]


def what_cell(root: RootPaths, row: RunRow) -> str:
    """Return the cell WHAT: the label of the run, and its result, its present step or its task."""
    if row.unreadable is not None:
        return one_line(row.unreadable)
    slot = "waits for a slot" if row.waiting_for_slot else None
    run = root.run(row.run_id)
    told = row.summary or row.live_reason or slot or latest_doing(run)
    if not told:  # it has not begun, or never did
        with suppress(UnreadableMeta):
            told = read_request(run).prompt
    node = f"on {row.node}" if row.node and not row.is_over else None
    return " · ".join(one_line(text) for text in (row.label, node, told) if text)


# -- The events of runs on a terminal: coloured, named if there are several runs, and never printed twice.


Event = dict[str, Any]

_CLOCK = 9
"""Columns of the time before the first line of an event."""
_INDENT = " " * 11
_LEAST_ROOM = 30
"""Columns behind a prefix, below which the terminal breaks the lines."""
_MOST_NAME = 24
_COLOURS = {
    "run_started": "bold",
    "thought": "grey",
    "usage": "grey",
    "turn": "grey",
    "tool_call": "cyan",
    "tool_result": "grey",
    "program_call": "cyan",
    "program_result": "grey",
    "question": "yellow",
    "reply": "yellow",
    "no_reply": "yellow",
    "warning": "yellow",
    "server_log": "grey",
    "tool_progress": "grey",
}
_ENDS = {"completed": "green", "failed": "red", "stopped": "grey"}
_NAMES = ("blue", "magenta", "cyan", "green", "yellow")
_SHOWN_OTHERWISE = frozenset({"ask_parent", "final_answer"})


@dataclass
class EventText:
    """Writes the events of one run as lines, and remembers which words it has shown already.

    `full` shows everything that the journal has of tools and texts. `whole_texts` shows the words of the
    agent whole. `left_out` are types of events that the reader knows otherwise, and `apart` runs whose own
    events are shown beside.
    """

    prefix: str = ""
    full: bool = False
    whole_texts: bool = False
    left_out: frozenset[str] = frozenset()
    apart: Collection[str] = ()
    stream: TextIO | None = None
    last_text: str = ""
    used: str = ""
    has_ended: bool = False
    """Whether the end of the run was shown, with its reason."""

    def lines(self, event: Event) -> list[str]:
        """Return the lines of an event; none if it says nothing new."""
        try:
            if self._is_known(event):
                return []
            event = with_local_time(event)
            drawn = list(self._drawn(event))
        except (TypeError, ValueError, AttributeError, OverflowError):
            drawn = [one_line(json.dumps(event, ensure_ascii=False))]  # a journal is data: this one is odd
        return [f"{self.prefix}{line}" for line in self._folded(drawn)]

    def _folded(self, lines: list[str]) -> list[str]:
        """Return lines that a terminal would break, broken so that each piece stands behind the prefix."""
        room = line_width() - width_of(without_colours(self.prefix))
        if not self.prefix or room < _LEAST_ROOM or not is_terminal(self.stream or sys.stdout):
            return lines
        return [piece for line in lines for piece in folded(line, room, _INDENT)]

    def _is_known(self, event: Event) -> bool:
        kind = event.get("type")
        if kind == "usage":
            self.used = _used(event)  # the line of the next turn says it, and the end does
            return not self.full
        if kind in self.left_out:
            return True
        if kind == "subagent_event":
            return event.get("subagentRunId") in self.apart
        if kind in ("tool_call", "tool_result") and event.get("toolName") in _SHOWN_OTHERWISE:
            return not self.full and not event.get("isError")
        return False

    def _drawn(self, event: Event) -> Iterator[str]:
        kind = str(event.get("type"))
        head, *rest = self._text(event, kind).split("\n")
        clock, head = head[:_CLOCK], head[_CLOCK:]
        if kind == "text":
            self.last_text = str(event.get("text", ""))
            if event.get("cut"):
                self.last_text = ""  # the journal has only a part of it
        self.has_ended = self.has_ended or kind == "run_ended"
        colour = _ENDS.get(str(event.get("status"))) if kind == "run_ended" else _COLOURS.get(kind)
        if kind == "tool_result" and (event.get("isError") or event.get("exitCode")):
            colour = "red"
        yield coloured(clock, "grey", self.stream) + coloured(head, colour, self.stream)
        calm = None if kind in ("text", "run_started", "run_ended", "question", "tool_call") else colour
        for line in rest:
            yield coloured(line, calm, self.stream)

    def _text(self, event: Event, kind: str) -> str:
        """Return the escaped text of an event, its first line behind the time."""
        short = escape_lines(render(event))
        head = short.partition("\n")[0]
        if kind == "turn":
            return head + self.used
        if kind == "text" and (self.full or self.whole_texts):
            return head[:_CLOCK] + _indented(str(event.get("text", "")))[len(_INDENT) :]
        if kind == "run_ended" and self._has_shown(event):
            return head
        return self._full(event, kind, head) if self.full else short

    def _has_shown(self, end: Event) -> bool:
        """Whether the words of the agent that were shown last begin with the summary of the run."""
        summary = str(end.get("summary") or "").strip()
        return bool(summary) and not end.get("error") and self.last_text.strip().startswith(summary)

    def _full(self, event: Event, kind: str, head: str) -> str:
        """Return the text with all that the journal has."""
        match kind:
            case "tool_call":
                given = event.get("arguments")
                arguments = given if isinstance(given, dict) else {"": given}
                called = f"{head[:_CLOCK]}→ {one_line(str(event.get('toolName')))}"
                return "\n".join([called, *(_argument(*each) for each in arguments.items())])
            case "tool_result":
                return "\n".join([head, *([_indented(str(event["text"]))] if event.get("text") else [])])
            case "thought":
                return head[:_CLOCK] + _indented(f"~ {event.get('text', '')}")[len(_INDENT) :]
            case "run_started":
                return "\n".join([head, _indented(str(event.get("prompt", "")))])
            case "subagent_event" if event.get("payload") is not None:
                return "\n".join([head, _argument("", event["payload"])])
        return escape_lines(render(event))


def _indented(text: str) -> str:
    return escape_lines(text, _INDENT)


def _argument(name: str, value: Any) -> str:
    said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    begin = f"{name}:" if name else ""
    return _indented(f"{begin}\n{said}" if begin and "\n" in said else f"{begin} {said}".strip())


def _used(event: Event) -> str:
    """Return what a run has used so far, to be said behind a turn."""
    told = [event[kind] for kind in TOKENS if isinstance(event.get(kind), int)]
    words = f" · {count(sum(told), 'token')}" if told else ""
    cost = f" · {dollars(event['costUsd'])}" if event.get("costUsd") is not None else ""
    return f"{words}{cost} so far" if words or cost else ""


def prefixes(names: dict[str, str], stream: TextIO | None) -> dict[str, str]:
    """Return what stands before each line of several runs, by their ids: agent and last part of the id."""
    shown = {
        run_id: f"{cut(one_line(agent), _MOST_NAME)} {run_id.rpartition('-')[2]}"
        for run_id, agent in names.items()
    }
    width = max(map(width_of, shown.values()), default=0)
    return {
        run_id: coloured(f"{padded(name, width)} │ ", _NAMES[number % len(_NAMES)], stream)
        for number, (run_id, name) in enumerate(shown.items())
    }


def log_next_to_result() -> EventText:
    """Return the text of a log on stderr, whose reader gets the result on stdout.

    If both are a terminal, the words of the agent stand there whole, and its questions are asked there.
    """
    on_screen = is_terminal(sys.stderr) and is_terminal(sys.stdout)
    asked = frozenset({"question", "reply"}) if has_person() else frozenset[str]()
    return EventText(whole_texts=on_screen, left_out=asked, stream=sys.stderr)


# -- The outcome of a run as an exit code, a sentence on stderr and a line.


_ENDINGS = {
    Status.COMPLETED: ExitCode.OK,
    Status.FAILED: ExitCode.FAILED,
    Status.STOPPED: ExitCode.STOPPED,
}
_WORST_FIRST = (ExitCode.NEEDS_ANSWER, ExitCode.FAILED, ExitCode.STOPPED)


def exit_of_run(meta: RunMeta) -> ExitCode | None:
    """Return the exit code of a run that has ended or asks; None while it works."""
    return ExitCode.NEEDS_ANSWER if meta.pending_questions else _ENDINGS.get(meta.status)


def exit_of_started(meta: RunMeta) -> ExitCode | None:
    """Return the same for the command that started the run: 6 if the machine had no room for its process."""
    if meta.error is not None and meta.error.code == "launch_failed":
        return ExitCode.ENVIRONMENT
    return exit_of_run(meta)


def worst(codes: Iterable[ExitCode | None]) -> ExitCode:
    """Return the code of several runs: a question (5) before a failure (1) before a stop (4) before 0."""
    found = set(codes)
    return next((code for code in _WORST_FIRST if code in found), ExitCode.OK)


def report_run(session: Session, view: RunView, *, is_known: bool = False) -> None:
    """Print open questions, a failure or a stop of a run to stderr, a line each.

    `is_known` says that the followed log has just shown the reason of the end, which is not repeated.
    """
    for message in view.messages or []:
        options = f" [{' | '.join(map(one_line, message.options))}]" if message.options else ""
        command = session.command("reply", view.run_id, message.message_id, "ANSWER")
        report(
            f"run {view.run_id} asks {message.message_id}: {one_line(message.question)}{options} "
            f"Answer with `{command}`.",
            code="needs_answer",
            next_step=command,
        )
    if is_known and view.status in (Status.FAILED, Status.STOPPED):
        ended = f"failed ({one_line(view.error.code)})" if view.error is not None else "was stopped"
        report(f"run {view.run_id} {ended}: `{session.command('show', view.run_id)}` has all of it.")
    elif view.error is not None:
        remedy = for_people(view.error.hint) if view.error.hint else None
        what_next = f" {remedy}" if remedy else ""
        failed = one_line(f"run {view.run_id} failed ({view.error.code}): {view.error.message}")
        failed += "" if failed.endswith((".", "!", "?", "…")) else "."
        report(f"{failed}{what_next}", code=view.error.code, next_step=remedy)
    elif view.status is Status.STOPPED:
        stopped = one_line(f"run {view.run_id} was stopped. {view.summary or ''}")
        report(stopped, code="stopped", next_step=session.command("continue", view.run_id))


def out_views(views: Sequence[RunView], as_json: bool) -> None:
    """Print runs: as JSON, or each on one line with status, id and agent."""
    if as_json:
        out_json([view.to_wire() for view in views])
        return
    for view in views:
        look = look_of(view.status, len(view.messages or ()), view.live)
        out(f"{look.text:<12}  {view.run_id}  {one_line(view.agent)}")
