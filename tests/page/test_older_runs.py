"""Runs that ended so long ago that the page does not show them by itself."""

import shutil
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from subagent_server.verbs import page_data
from subagent_server.verbs.page_data import RunTable
from tests.helpers.http_server import Reply
from tests.helpers.stored import make_stored
from tests.helpers.world import World
from tests.page.test_access import entered, get
from tests.page.test_stream import stream

STORED, SHOWN, PART = 80, 50, 20


@pytest.fixture(autouse=True)
def small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 50 of 500 ended runs be enough, and a part have 20 rows of 200, in servers too: they are forks."""
    monkeypatch.setattr(page_data, "MAX_ENDED", SHOWN)
    monkeypatch.setattr(page_data, "MAX_ROWS", PART)


def test_a_page_reaches_all_ended_runs_part_by_part_and_by_search(world: World) -> None:
    stored = make_stored(world.runs, STORED)
    shown, behind = stored[-SHOWN:], stored[:-SHOWN][::-1]
    with world.http_server() as server:
        secret = entered(world, server)

        def ask(before: str, words: str = "") -> Reply:
            return get(server, f"/page/older?{urlencode({'before': before, 'q': words})}", secret)

        with stream(server, secret) as events:
            news = next(news for _, news in events if news.get("older"))
            assert {row["runId"] for row in news["rows"]} == set(shown)
        found = _all_parts(ask, min(shown))
        assert [row["runId"] for row in found] == behind and all(row["over"] for row in found)
        searched = _all_parts(ask, min(shown), "Task STOPPED")
        wanted = [row["runId"] for row in found if row["status"] == "stopped" and "label" in row]
        assert [row["runId"] for row in searched] == wanted and wanted
        assert ask("../../etc").status == 400 and ask("").status == 400
        assert ask(min(shown), "x" * 501).status == 400
        assert server.ask("GET", f"/page/older?before={min(shown)}").status == 401
    for name in stored:
        shutil.rmtree(world.runs / name)  # they have no more than lists show


def test_a_page_that_stays_open_keeps_no_more_ended_runs_than_one_that_is_opened(world: World) -> None:
    table = RunTable(world.service)
    stored = make_stored(world.runs, SHOWN + 1)
    assert len(table.look(stored).rows) == SHOWN + 1
    assert [row["runId"] for row in table.rows] == stored[1:] and table.has_older
    for name in stored:
        shutil.rmtree(world.runs / name)  # they have no more than lists show


def _all_parts(ask: Callable[[str, str], Reply], first: str, words: str = "") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    before: str | None = first
    while before is not None:
        part = ask(before, words).json
        assert len(part["rows"]) <= PART
        rows, before = rows + part["rows"], part["before"]
    return rows
