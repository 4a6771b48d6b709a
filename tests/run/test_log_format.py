"""`run.log` reads well under `tail -f`, and nothing in it moves anybody's cursor."""

import json
import re
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from subagent_server.run.journal import preview, render
from tests.helpers.scale import times

AT = "2026-11-22T09:30:15.417Z"
STORY = Path(__file__).with_name("data") / "log.txt"
"""Events, each with the lines of it behind four spaces."""
CASES = re.findall(r"^(\{.*\})\n((?:    .*\n)+)", STORY.read_text(encoding="utf-8"), re.MULTILINE)
KINDS = sorted({json.loads(event)["type"] for event, _ in CASES})
TEXT = st.text(max_size=60)
HOSTILE = "\x1b[2J\x1b]0;title\x07\r\b\x7f\x9b31m\u202e\u2028\u0085\0\ud83d"


@pytest.mark.parametrize(("event", "shown"), CASES, ids=lambda value: value[:40])
def test_every_kind_of_event_has_its_own_way_of_saying_it(event: str, shown: str) -> None:
    lines = render({"seq": 1, "at": AT, **json.loads(event)})
    assert lines == "09:30:15 " + textwrap.dedent(shown)


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


def test_a_program_that_failed_shows_its_error_below_the_traceback() -> None:
    frames = "  File 'program.py', line 1, in run\n    search()\n    ~~~~~~^^\n" * 2
    text = f"Traceback (most recent call last):\n{frames}ToolError: Not found.\n[exit code 1]"
    failed = {"type": "tool_result", "at": AT, "toolName": "bash", "isError": True, "text": text}
    assert "ToolError: Not found." in render(failed)


def check_harmless(shown: str) -> None:
    """Assert that only newlines and tabs move the cursor, and that the text can be written."""
    assert shown.endswith("\n")
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    shown.encode("utf-8")
