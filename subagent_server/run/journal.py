"""The journal of a run (`events.jsonl`), and the same for people (`run.log`)."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from subagent_server.run import durable, processes
from subagent_server.run.agent_definition import CODE_TOOL_NAME
from subagent_server.run.errors import StorageFailed, UnreadableMeta, visible
from subagent_server.run.files import Entry
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import Usage
from subagent_server.run.states import TOKENS, cut, dollars, known_sum, timestamp
from subagent_server.run.stderr import log

# -- The journal for people: an event becomes a few lines that read well under `tail -f`.


Event = dict[str, Any]

_INDENT = " " * 11
_KEPT = "\t"
_PREVIEW_LINES = 8
_PREVIEW_WIDTH = 160
_PROGRAM_LINES = 200


def render(event: Event) -> str:
    """Return the lines of one event, each ended by a newline; control characters are made visible."""
    draw = RENDERERS.get(event.get("type", ""), _other)
    head, *rest = draw(event).split("\n")
    clock = visible(str(event.get("at", ""))[11:19])
    lines = [f"{clock} {visible(head, _KEPT)}", *(_INDENT + visible(line, _KEPT) for line in rest)]
    return "\n".join(lines) + "\n"


def preview(text: str, lines: int = _PREVIEW_LINES) -> str:
    """Return the first lines of `text`, each cut to a readable width, and how much is left out."""
    every = text.rstrip("\n").split("\n")
    shown = [cut(line, _PREVIEW_WIDTH) for line in every[:lines]]
    if len(every) == lines + 1:  # a remark would take the line that it saves
        return preview(text, lines + 1)
    if len(every) > lines:
        shown.append(f"… {count(len(every) - lines, 'more line')}")
    return "\n".join(shown)


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def usage_line(usage: dict[str, Any]) -> str:
    """Return a run's usage in a few words. Zeros may be missing in it; an unknown number is null."""
    least = usage.get("atLeast") or ()
    tokens = known_sum(*(usage.get(kind, 0) for kind in TOKENS))
    words = [
        _figure(usage.get("turns", 0), "turn", "turns" in least),
        _figure(usage.get("toolCalls", 0), "tool call", "toolCalls" in least),
        _figure(tokens, "token", any(kind in least for kind in TOKENS)),
    ]
    if usage.get("costUsd") is not None:
        words.append(("at least " if "costUsd" in least else "") + dollars(usage["costUsd"]))
    return ", ".join(words)


def _figure(number: int | None, noun: str, is_least: bool) -> str:
    if number is None:
        return f"? {noun}s"
    return ("at least " if is_least else "") + count(number, noun)


def one_line(arguments: Any) -> str:
    """Return the arguments of a call on one line: the value alone if the only argument is a short text."""
    if isinstance(arguments, dict) and len(arguments) == 1:
        (value,) = arguments.values()
        if isinstance(value, str):
            return cut(" ⏎ ".join(value.strip().split("\n")), _PREVIEW_WIDTH)
    return cut(json.dumps(arguments, ensure_ascii=False, default=str), _PREVIEW_WIDTH)


def _started(e: Event) -> str:
    at = str(e.get("at", ""))
    date = at[:10]  # the lines have the time alone
    zone = "UTC" if at.endswith("Z") else at.rpartition(" ")[2]
    begun = f"▶ {e.get('agent')} started ({e.get('model') or e.get('runner')}) in {e.get('cwd')}"
    lines = [f"{begun}, {date} (times in {zone})"]
    if e.get("continuesRunId"):
        lines.append(f"continues run {e['continuesRunId']}")
    if e.get("sandbox"):
        lines.append(f"sandbox: {e['sandbox']}")
    if e.get("prompt"):  # a flow has none, nor has a run that continues where it was cut
        lines.append(preview(str(e["prompt"])))
    return "\n".join(lines)


def _call(e: Event) -> str:
    arguments = e.get("arguments")
    if e.get("toolName") == CODE_TOOL_NAME and isinstance(arguments, dict):
        code = preview(str(arguments.get("code", "")), _PROGRAM_LINES)
        limit = arguments.get("executionTimeout")  # the model may have left it out
        at_most = "" if limit is None else f" ({limit} s)"
        return f"→ {CODE_TOOL_NAME}{at_most}\n```python\n{code}\n```"
    return f"→ {e.get('toolName')} {one_line(arguments)}".rstrip()


def _result(e: Event) -> str:
    text = str(e.get("text", ""))
    mark, lines = ("✗", _PREVIEW_LINES) if e.get("isError") or e.get("exitCode") else ("←", 4)
    seconds = e.get("seconds")
    took = f" ({seconds:.1f} s)" if isinstance(seconds, int | float) else ""
    head = f"{mark} {e.get('toolName')}{took}"
    return f"{head}\n{preview(text, lines)}" if text.strip() else head


def _program_call(e: Event) -> str:
    return f"  → {e.get('call')}. {e.get('function')} {one_line(e.get('arguments'))}".rstrip()


def _program_result(e: Event) -> str:
    mark = "✗" if e.get("isError") else "←"
    return f"  {mark} {e.get('call')}. {e.get('function')} {one_line({'': str(e.get('text', ''))})}".rstrip()


def _todos(e: Event) -> str:
    todos = [todo for todo in e.get("todos") or [] if isinstance(todo, dict)]
    done = sum(todo.get("status") == "completed" for todo in todos)
    lines = [f"{_TODO_MARKS.get(str(todo.get('status')), '?')} {todo.get('content')}" for todo in todos]
    return f"☰ {done} of {count(len(todos), 'to-do')} done\n{preview(chr(10).join(lines), 20)}".rstrip()


_TODO_MARKS = {"pending": "·", "in_progress": "▸", "completed": "✔"}


def _question(e: Event) -> str:
    options = f"  [{' | '.join(e['options'])}]" if e.get("options") else ""
    return f"? {e.get('messageId')}: {preview(str(e.get('question', '')))}{options}"


def _reply(e: Event) -> str:
    return (
        f"! {e.get('messageId')} answered by the {e.get('answeredBy')}: {preview(str(e.get('answer', '')))}"
    )


def _edited(e: Event) -> str:
    uses, tokens = int(e.get("clearedToolUses") or 0), int(e.get("clearedTokens") or 0)
    return f"✂ the API no longer shows the model {count(uses, 'old tool result')} ({count(tokens, 'token')})"


def _server_log(e: Event) -> str:
    return f"[{e.get('server')}] {cut(str(e.get('text', '')), 2 * _PREVIEW_WIDTH)}"


def _subagent(e: Event) -> str:
    """Return the line of an event of another run or program: its name, and a line or two of its text."""
    kind, payload = str(e.get("event")), e.get("payload")
    origin = f"{e.get('subagentName') or 'subagents'} {str(e.get('subagentRunId') or '').rsplit('-', 1)[-1]}"
    mark = _EVENT_MARKS.get(kind, kind)
    if kind == "tool_result" and e.get("isError"):
        mark = "✗"
    facts = (e.get("toolName"), e.get("messageId"), e.get("status"), e.get("model"), e.get("count"))
    if kind == "subagent_end" and isinstance(payload, dict) and "message" in payload:
        payload = _error(payload)
    text = payload if isinstance(payload, str) else one_line(payload)
    shown = "" if payload is None else preview(text, 2)
    words = (mark, *(str(fact) for fact in facts if fact is not None), shown)
    begin = f"│ {origin.strip()}: "
    return begin + " ".join(word for word in words if word).replace("\n", f"\n{begin}")


_EVENT_MARKS = {
    "subagent_start": "▶ started",
    "subagent_end": "■ ended",
    "tool_call": "→",
    "tool_result": "←",
    "thought_trace": "~",
    "text": "",
    "question": "?",
    "reply": "!",
    "warning": "⚠",
}


def _ended(e: Event) -> str:
    marks = {"completed": "✔", "failed": "✘", "stopped": "■"}
    whole = e.get("withDescendants")
    usage = usage_line(whole or e.get("usage") or {}) + (", with the runs that it started" if whole else "")
    lines = [f"{marks.get(str(e.get('status')), '•')} {e.get('status')}: {usage}"]
    error = e.get("error")
    if isinstance(error, dict):
        lines.append(_error(error))
        if error.get("hint"):
            lines.append(f"hint: {error['hint']}")
    elif e.get("summary"):
        lines.append(preview(str(e["summary"])))
    return "\n".join(lines)


def _error(error: Event) -> str:
    return f"{error.get('code')}: {error.get('message')}"


def _agent_call(e: Event) -> str:
    name = f"{e.get('agent')} ({one_line(e['label'])})" if e.get("label") else str(e.get("agent"))
    return f"→ {name}: {e.get('state')} {e.get('calledRunId') or ''}".rstrip()


def _other(e: Event) -> str:
    facts = {key: value for key, value in e.items() if key not in ("seq", "at", "type")}
    return f"{e.get('type')} {one_line(facts)}"


RENDERERS: dict[str, Callable[[Event], str]] = {
    "run_started": _started,
    "turn": lambda e: f"── turn {e.get('turn')}",
    "thought": lambda e: f"~ {preview(str(e.get('text', '')), 4)}",
    "text": lambda e: preview(str(e.get("text", "")), 40),
    "tool_call": _call,
    "tool_result": _result,
    "question": _question,
    "reply": _reply,
    "no_reply": lambda e: f"! {e.get('messageId')} expired without an answer",
    "warning": lambda e: f"⚠ {e.get('message')}",
    "context_edited": _edited,
    "program_call": _program_call,
    "program_result": _program_result,
    "agent_call": _agent_call,
    "phase": lambda e: f"══ {e.get('name')}",
    "todos": _todos,
    "server_log": _server_log,
    "usage": lambda e: f"· {usage_line(e)}",
    "run_ended": _ended,
    "subagent_event": _subagent,
}
"""What makes the lines of each type of event."""


MAX_FIELD_CHARACTERS = 64_000
"""A longer text is cut in the middle and its event has `cut`; `outputs/` has all that tools printed."""


class RunJournal:
    """Writes events to both files. There is a single writer at a time: the worker, then reconciliation.

    A disk that refuses is a warning on stderr, and the run continues (SPEC section 6).
    """

    def __init__(self, run: RunPaths) -> None:
        self._run = run
        self._seq: int | None = None
        self._synced = 0.0

    def append(self, kind: str, now: datetime, facts: dict[str, Any]) -> None:
        """Append one event of type `kind` with these camelCase facts."""
        try:
            seq = self._seq or next_seq(self._run)
            self._seq = None  # a write that fails may have left its line all the same
            bounded = durable.with_texts(facts, _bounded)
            if bounded != facts:
                bounded["cut"] = True
            event = {"seq": seq, "at": timestamp(now), "type": kind, **bounded}
            durable.append_line(self._run.events, event)
            self._seq = seq + 1
            durable.append_bytes(self._run.log, render(event).encode("utf-8", "replace"))
            self._show_to_other_hosts()
        except OSError as error:
            log(f"The journal of the run could not be written ({error}); the run continues.")

    def _show_to_other_hosts(self) -> None:
        """Sync on a node, once a second at most: other hosts saw an entry after 4 to 5 s else (NFS)."""
        if processes.NODE in os.environ and time.monotonic() - self._synced >= 1.0:
            self._synced = time.monotonic()
            self._run.events.sync()
            self._run.log.sync()


def next_seq(run: RunPaths) -> int:
    """Return the number of the next event. A last line without its newline counts: the next write adds it."""
    lines = (durable.torn_line(run.events), *reversed(durable.tail(run.events, 50).lines))
    events = filter(None, map(durable.parse, lines))
    return next((event["seq"] + 1 for event in events if isinstance(event.get("seq"), int)), 1)


def recorded_usage(run: RunPaths) -> Usage | None:
    """Return the usage by the last entry of the journal: newer than the meta file while the run works."""
    try:
        event = durable.last_of(run.events, "usage")
        return None if event is None else Usage.model_validate(event)
    except (OSError, ValidationError):
        return None  # a journal is data: one that is damaged must not keep a run from being stopped


def recorded_can_run_code(run: RunPaths) -> list[str]:
    """Return the files that a run left and that can run code, by the end of its journal."""
    try:
        warning = durable.last_of(run.events, "warning") or {}
    except OSError:
        return []
    found = warning.get("canRunCode")
    return [path for path in found if isinstance(path, str)] if isinstance(found, list) else []


def page(file: Entry, cursor: int | None, lines: int, max_bytes: int = 1 << 20) -> durable.LinePage:
    """Return a page of a line file: its last lines, or about `max_bytes` of the lines from `cursor` on.

    Raises:
        UnreadableMeta.
    """
    try:
        if cursor is None:
            return durable.tail(file, lines)
        return durable.read_from(file, cursor, lines, max_bytes=max_bytes)
    except OSError as error:
        raise UnreadableMeta(file.directory.path.name, file.path, error.strerror or str(error)) from error


def in_order(lines: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return lines of several journals, each with the id of its run, in the order of their times."""
    # stable: lines of one moment stay as they are
    return sorted(lines, key=lambda each: str((durable.parse(each[1]) or {}).get("at", "")))


def _bounded(text: str) -> str:
    if len(text) <= MAX_FIELD_CHARACTERS:
        return text
    half = MAX_FIELD_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


# -- The latest step of an agent, from the tail of its journal.
#
# A journal is data: a damaged journal has no step, and the run is listed all the same.


_WORDS = frozenset({"text", "tool_call", "warning", "subagent_event"})
"""The events that show what an agent does."""
_WITHIN = 60


def latest_text(run: RunPaths) -> str | None:
    """Return the last text or call of the agent, for a preview; None if the journal has neither."""
    for event in _newest_first(run):
        if event.get("type") in _WORDS:
            return render(event)[9:].rstrip("\n")
    return None


def latest_step(run: RunPaths) -> tuple[int | None, str | None]:
    """Return the number of the agent's turn and its last text or call, on one line; None: not in the tail."""
    turn: int | None = None
    words: str | None = None
    for event in _newest_first(run):
        kind, number = event.get("type"), event.get("turn")
        if words is None and kind in _WORDS:
            words = render(event).split("\n", 1)[0].partition(" ")[2].removeprefix("→ ")
        if turn is None and kind == "turn" and type(number) is int:
            turn = number
    return turn, words


def latest_doing(run: RunPaths) -> str | None:
    """Return the last question, text or call of the agent, else its task; None if the journal has none."""
    for event in _newest_first(run):
        match event.get("type"):
            case "question":
                return str(event.get("question") or "") or None
            case "run_started":
                return str(event.get("prompt") or "") or None
            case kind if kind in _WORDS:
                return render(event)[9:].rstrip("\n")
    return None


def _newest_first(run: RunPaths) -> Iterator[dict[str, Any]]:
    try:
        lines = durable.tail(run.events, _WITHIN).lines
    except OSError:
        return
    yield from filter(None, map(durable.parse, reversed(lines)))


# -- The conversation of a run with its model (`transcript.jsonl`), a message a line: enough to continue from.
#
# A message with tool calls is on the disk before the first call begins, so a continuation knows of every
# call with a possible effect (SPEC section 6).


Message = dict[str, Any]


class Transcript:
    """Appends messages. A message refused by the disk is written before the next (SPEC section 6)."""

    def __init__(self, run: RunPaths) -> None:
        self._file = run.transcript
        self._waiting: list[Message] = []

    def append(self, message: Message) -> None:
        """Append a message; a disk that refuses is a warning on stderr, and the run continues."""
        self._waiting.append(message)
        try:
            while self._waiting:
                durable.append_line(self._file, self._waiting[0])
                self._waiting.pop(0)
        except OSError as error:
            log(f"The transcript could not be written ({error}); the run continues.")
            return
        if _calls_tools(message):
            # A power cut must not hide what a tool has done. The file's name may be as new as its first line.
            with suppress(OSError):
                self._file.sync()
                self._file.directory.sync()

    def begin(self, messages: Iterable[Message]) -> None:
        """Make these messages the whole transcript, at once and durably; a disk that refuses is a warning."""
        messages = list(messages)
        lines = [json.dumps(message, ensure_ascii=False, separators=(",", ":")) for message in messages]
        data = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        try:
            durable.write_durably(self._file, data)
        except StorageFailed as error:
            log(f"{error.sentence} The run continues.")
            self._waiting = [] if self._file.exists() else messages


def read_transcript(run: RunPaths) -> Iterator[Message]:
    """Yield the whole messages of the conversation; a torn line is left out."""
    return durable.records(run.transcript)


def _calls_tools(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") == "tool_use" for block in content
    )
