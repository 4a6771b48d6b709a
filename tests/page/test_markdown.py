"""Markdown becomes a tree of allowed elements: never HTML, no address that runs something, and never slow."""

import asyncio
import json
import os
from unittest.mock import Mock

import pytest

from subagent_server.server.page import markdown
from subagent_server.server.page.markdown import MAX_CHARACTERS, parse, tree_of


def test_what_models_write_becomes_elements() -> None:
    tree = parse("# T\n\nA **b** `c` [d](https://e.f)\n\n- 1\n\n| x |\n|---|\n| y |\n\n```py\nz<1\n```")
    names = [node[0] for node in tree]
    assert names == ["h1", "p", "ul", "table", "pre"]
    assert ["a", "https://e.f", ["d"]] in tree[1][2]


@pytest.mark.parametrize(
    "text",
    [
        *("<script>x()</script>", "<img src=x onerror=x()>", "[x](javascript:x())"),
        *("[x](  JaVaScRiPt:x())", "[x](data:text/html,<script>)", "[x](file:///etc/passwd)"),
        *("[x](//evil.example)", "![x](https://evil.example/pixel.png)", '[x](https://a.b "\u202e")'),
    ],
)
def test_nothing_of_a_text_runs_or_fetches(text: str) -> None:
    written = json.dumps(parse(text))
    for word in ('["script"', '["img"', '"javascript:', '"data:', '"file:', '"//evil', '"JaVa'):
        assert word not in written


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        ("[" * 2_000, False),
        ("> " * 2_000, False),
        ("*a" * 20_000, True),
        (f"{'|a' * 9_000}\n{'|-' * 9_000}", True),
    ],
)
def test_a_text_of_too_many_parts_is_shown_plain(text: str, is_plain: bool) -> None:
    assert (asyncio.run(tree_of(text)) is None) == is_plain


@pytest.mark.process
def test_a_parser_that_takes_too_long_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(markdown, "SECONDS", 0.001)
    assert asyncio.run(tree_of("[" * 60_000)) is None


def test_a_long_text_is_shown_plain() -> None:
    assert asyncio.run(tree_of("x" * (MAX_CHARACTERS + 1))) is None


def test_a_text_is_shown_plain_where_there_is_no_room_for_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", Mock(side_effect=BlockingIOError))
    assert asyncio.run(tree_of("x")) is None
