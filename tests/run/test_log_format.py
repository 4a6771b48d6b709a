"""`run.log` reads well under `tail -f`, and nothing in it moves anybody's cursor."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from subagent_server.run.journal import preview, render
from tests.helpers.scale import times

AT = "2026-11-22T09:30:15.417Z"
USAGE = {"turns": 3, "toolCalls": 7, "inputTokens": 1200, "outputTokens": 34, "costUsd": "0.01"}
STORY: list[tuple[dict[str, Any], str]] = [
    (
        {
            "type": "run_started",
            "agent": "reviewer",
            "model": "m-1",
            "cwd": "/src",
            "prompt": "Look.",
            "sandbox": "none",
        },
        "▶ reviewer started (m-1) in /src, 2026-11-22 (times in UTC)\n"
        "           sandbox: none\n           Look.",
    ),
    ({"type": "turn", "turn": 1}, "── turn 1"),
    ({"type": "thought", "text": "Hm."}, "~ Hm."),
    ({"type": "text", "text": "I look."}, "I look."),
    ({"type": "tool_call", "toolName": "bash", "arguments": {"command": "ls\npwd"}}, "→ bash ls ⏎ pwd"),
    ({"type": "tool_call", "toolName": "grep", "arguments": {"a": 1, "b": "ü"}}, '→ grep {"a": 1, "b": "ü"}'),
    (
        {"type": "tool_result", "toolName": "bash", "seconds": 0.25, "text": "a\nb"},
        "← bash (0.2 s)\n           a\n           b",
    ),
    (
        {"type": "tool_result", "toolName": "bash", "seconds": 1, "text": "no", "isError": True},
        "✗ bash (1.0 s)\n           no",
    ),
    (
        {"type": "tool_result", "toolName": "bash", "seconds": 1, "text": "no", "exitCode": 1},
        "✗ bash (1.0 s)\n           no",
    ),
    (
        {"type": "question", "messageId": "q1", "question": "Go?", "options": ["yes", "no"]},
        "? q1: Go?  [yes | no]",
    ),
    (
        {"type": "reply", "messageId": "q1", "answer": "yes", "answeredBy": "person"},
        "! q1 answered by the person: yes",
    ),
    ({"type": "no_reply", "messageId": "q2"}, "! q2 expired without an answer"),
    ({"type": "warning", "message": "Slow."}, "⚠ Slow."),
    ({"type": "usage", **USAGE}, "· 3 turns, 7 tool calls, 1,234 tokens, $0.01"),
    (
        {"type": "run_ended", "status": "completed", "usage": USAGE, "summary": "Fine."},
        "✔ completed: 3 turns, 7 tool calls, 1,234 tokens, $0.01\n           Fine.",
    ),
    (
        {
            "type": "run_ended",
            "status": "failed",
            "error": {"code": "timeout", "message": "Late.", "hint": "More."},
        },
        "✘ failed: 0 turns, 0 tool calls, 0 tokens\n           timeout: Late.\n           hint: More.",
    ),
    ({"type": "something_new", "fact": "x"}, "something_new x"),
]
KINDS = sorted({str(event["type"]) for event, _ in STORY})
TEXT = st.text(max_size=60)
HOSTILE = "\x1b[2J\x1b]0;title\x07\r\b\x7f\x9b31m\u202e\u2028\u0085\0\ud83d"


@pytest.mark.parametrize(
    ("event", "shown"), STORY, ids=lambda value: value["type"] if isinstance(value, dict) else ""
)
def test_every_kind_of_event_has_its_own_way_of_saying_it(event: dict[str, Any], shown: str) -> None:
    assert render({"seq": 1, "at": AT, **event}) == f"09:30:15 {shown}\n"


@pytest.mark.parametrize("kind", KINDS)
def test_no_event_can_move_the_cursor_of_its_reader(kind: str) -> None:
    fields = ("agent", "model", "cwd", "prompt", "sandbox", "text", "toolName", "question", "messageId")
    more = ("answer", "answeredBy", "message", "summary", "status")
    event = {"type": kind, "at": AT, **dict.fromkeys((*fields, *more), HOSTILE), "options": [HOSTILE]}
    for extra in (
        {},
        {"arguments": {"a": HOSTILE}, "error": {"code": HOSTILE, "message": HOSTILE, "hint": HOSTILE}},
    ):
        check_harmless(render({**event, **extra}))
    check_harmless(render({**event, "at": HOSTILE}))
    check_harmless(render({**event, "at": "0123456789\n" + HOSTILE[::-1]}))


def test_what_is_escaped_can_still_be_read() -> None:
    assert render({"type": "text", "at": AT, "text": "\x1b[31mred\x1b[0m\ttab"}) == (
        "09:30:15 \\x1b[31mred\\x1b[0m\ttab\n"
    )


@settings(max_examples=times(50, 150), deadline=None, database=None)
@given(kind=st.sampled_from(KINDS) | TEXT, facts=st.dictionaries(TEXT, TEXT), text=TEXT)
def test_any_text_becomes_whole_harmless_lines(kind: str, facts: dict[str, str], text: str) -> None:
    check_harmless(render({**facts, "type": kind, "at": AT, "text": text, "seconds": 1.0}))


def test_a_long_text_is_cut_and_says_how_much_is_left_out() -> None:
    shown = preview("\n".join(["x" * 1000] * 20), lines=8).split("\n")
    assert [len(line) for line in shown[:-1]] == [160] * 8
    assert shown[-1] == "… 12 more lines"
    assert preview("a\nb\n\n", lines=2) == "a\nb"
    assert preview("", lines=2) == ""


def check_harmless(shown: str) -> None:
    """Assert that only newlines and tabs move the cursor, and that the text can be written."""
    assert shown.endswith("\n")
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    shown.encode("utf-8")
