"""The journal for people: an event becomes a few lines that read well under `tail -f`."""

import json
from collections.abc import Callable
from typing import Any

from subagent_server.domain.code_mode import CODE_TOOL_NAME
from subagent_server.domain.figures import TOKENS, known_sum
from subagent_server.domain.money import dollars
from subagent_server.domain.visible import visible

Event = dict[str, Any]

_INDENT = " " * 11
_KEPT = "\t"
_PREVIEW_LINES = 8
_PREVIEW_WIDTH = 160
_PROGRAM_LINES = 200


def render(event: Event) -> str:
    """Return the lines of one event, each ended by a newline; control characters are made visible."""
    draw = _RENDERERS.get(event.get("type", ""), _other)
    head, *rest = draw(event).split("\n")
    clock = visible(str(event.get("at", ""))[11:19])
    lines = [f"{clock} {visible(head, _KEPT)}", *(_INDENT + visible(line, _KEPT) for line in rest)]
    return "\n".join(lines) + "\n"


def preview(text: str, lines: int = _PREVIEW_LINES) -> str:
    """Return the first lines of `text`, each cut to a readable width, and how much is left out."""
    every = text.rstrip("\n").split("\n")
    shown = [
        line if len(line) <= _PREVIEW_WIDTH else line[: _PREVIEW_WIDTH - 1] + "…" for line in every[:lines]
    ]
    if len(every) == lines + 1:  # a remark would take the line that it saves
        return preview(text, lines + 1)
    if len(every) > lines:
        shown.append(f"… {count(len(every) - lines, 'more line')}")
    return "\n".join(shown)


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def usage_line(usage: dict[str, Any]) -> str:
    """Return a run's usage in a few words. Zeros may be missing in it; what is not known is null."""
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


def one_line(arguments: Any, width: int = _PREVIEW_WIDTH) -> str:
    """Return the arguments of a call on one line: the value alone if the only argument is a short text."""
    if isinstance(arguments, dict) and len(arguments) == 1:
        (value,) = arguments.values()
        if isinstance(value, str):
            return _cut(" ⏎ ".join(value.strip().split("\n")), width)
    return _cut(json.dumps(arguments, ensure_ascii=False, default=str), width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _started(e: Event) -> str:
    date = str(e.get("at", ""))[:10]  # the lines have the time alone
    begun = f"▶ {e.get('agent')} started ({e.get('model') or e.get('runner')}) in {e.get('cwd')}"
    lines = [f"{begun}, {date} (times in UTC)"]
    if e.get("continuesRunId"):
        lines.append(f"carries on run {e['continuesRunId']}")
    if e.get("sandbox"):
        lines.append(f"sandbox: {e['sandbox']}")
    return "\n".join([*lines, preview(str(e.get("prompt", "")))])


def _call(e: Event) -> str:
    arguments = e.get("arguments")
    if e.get("toolName") == CODE_TOOL_NAME and isinstance(arguments, dict):
        code = preview(str(arguments.get("code", "")), _PROGRAM_LINES)
        return f"→ {CODE_TOOL_NAME} ({arguments.get('executionTimeout')} s)\n```python\n{code}\n```"
    return f"→ {e.get('toolName')} {one_line(arguments)}".rstrip()


def _result(e: Event) -> str:
    text = str(e.get("text", ""))
    mark = "✗" if e.get("isError") or e.get("exitCode") else "←"
    seconds = e.get("seconds")
    took = f" ({seconds:.1f} s)" if isinstance(seconds, int | float) else ""
    head = f"{mark} {e.get('toolName')}{took}"
    return f"{head}\n{preview(text, 4)}" if text.strip() else head


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
    return f"[{e.get('server')}] {_cut(str(e.get('text', '')), 2 * _PREVIEW_WIDTH)}"


def _progress(e: Event) -> str:
    total = f"/{e['total']:g}" if isinstance(e.get("total"), int | float) else ""
    message = f": {e['message']}" if e.get("message") else ""
    return f"… {e.get('toolName')} {e.get('progress', 0):g}{total}{message}"


def _subagent(e: Event) -> str:
    """Return the line of an event of another run or program: its name, and a line or two of its text."""
    kind, payload = str(e.get("event")), e.get("payload")
    origin = f"{e.get('subagentName') or 'subagents'} {str(e.get('subagentRunId') or '').rsplit('-', 1)[-1]}"
    mark = _TOLD_MARKS.get(kind, kind)
    if kind == "tool_result" and e.get("isError"):
        mark = "✗"
    facts = (e.get("toolName"), e.get("messageId"), e.get("status"), e.get("model"), e.get("count"))
    told = "" if payload is None else preview(_text_of(payload), 2)
    words = (mark, *(str(fact) for fact in facts if fact is not None), told)
    begin = f"│ {origin.strip()}: "
    return begin + " ".join(word for word in words if word).replace("\n", f"\n{begin}")


def _text_of(payload: Any) -> str:
    return payload if isinstance(payload, str) else one_line(payload)


_TOLD_MARKS = {
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
    lines = [f"{marks.get(str(e.get('status')), '•')} {e.get('status')}: {usage_line(e.get('usage') or {})}"]
    error = e.get("error")
    if isinstance(error, dict):
        lines.append(f"{error.get('code')}: {error.get('message')}")
        if error.get("hint"):
            lines.append(f"hint: {error['hint']}")
    elif e.get("summary"):
        lines.append(preview(str(e["summary"])))
    return "\n".join(lines)


def _other(e: Event) -> str:
    facts = {key: value for key, value in e.items() if key not in ("seq", "at", "type")}
    return f"{e.get('type')} {one_line(facts)}"


_RENDERERS: dict[str, Callable[[Event], str]] = {
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
    "todos": _todos,
    "server_log": _server_log,
    "tool_progress": _progress,
    "usage": lambda e: f"· {usage_line(e)}",
    "run_ended": _ended,
    "subagent_event": _subagent,
}
