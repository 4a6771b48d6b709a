"""The event stream of a page: all rows at first, then what changes, and the log of the run that it shows."""

import asyncio
import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from subagent_server.run.watch import Watcher
from subagent_server.server.page.page_app import Feed
from subagent_server.verbs.access import USER
from subagent_server.verbs.page_data import RunTable, TableNews
from subagent_server.verbs.wait_for_runs import Changes
from tests.helpers.http_server import BOUND, HttpServer
from tests.helpers.planted import planted
from tests.helpers.processes import open_files
from tests.helpers.stored import make_stored
from tests.helpers.turns import asks, says
from tests.helpers.world import World
from tests.page.test_access import entered

Event = tuple[str, dict[str, Any]]


@contextmanager
def stream(server: HttpServer, secret: str, run_id: str | None = None) -> Iterator[Iterator[Event]]:
    """Give the events as they come; each has to come within the bound."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=BOUND)
    try:
        query = "" if run_id is None else f"?run={run_id}"
        connection.request("GET", f"/page/events{query}", headers={"Authorization": f"Bearer {secret}"})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.headers["x-accel-buffering"] == "no"

        def events() -> Iterator[Event]:
            kind, end = "", time.monotonic() + BOUND
            for line in answer:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                assert time.monotonic() < end, "nothing of the kind came in time"
                if name == "data":
                    yield kind, json.loads(value)

        yield events()
    finally:
        connection.close()


def test_a_page_sees_a_run_begin_ask_and_end(world: World) -> None:
    world.agent_saying(asks("Which?", "a", "b"), says("It is done."))
    with world.http_server() as server, stream(server, entered(world, server)) as events:
        assert next(events) == ("runs", {"all": True, "rows": [], "older": False})
        run_id = world.start(label="a label")
        row = next(row for _, news in events for row in news["rows"] if row.get("pendingQuestions"))
        assert row["runId"] == run_id and row["label"] == "a label" and not row["over"]
        world.reply(run_id, "a")
        row = next(row for _, news in events for row in news["rows"] if row["over"])
        assert (row["status"], row["summary"]) == ("completed", "It is done.") and row["endedAt"]
        assert world.cli("rm", run_id).returncode == 0
        assert next(news for _, news in events if news.get("gone"))["gone"] == [run_id]


def test_a_root_that_cannot_be_read_is_a_sentence_and_no_empty_list(world: World) -> None:
    with world.http_server() as server:
        secret = entered(world, server)
        shutil.rmtree(world.home / "runs", ignore_errors=True)
        (world.home / "runs").touch()
        with stream(server, secret) as events:
            kind, sentence = next(events)
        assert kind == "fault" and "Not a directory" in str(sentence)
        (world.home / "runs").unlink()
        with stream(server, secret) as events:
            assert next(events) == ("runs", {"all": True, "rows": [], "older": False})


def test_the_log_of_the_shown_run_comes_with_the_rows(world: World) -> None:
    run_id = world.asking_run(asks("Which?"), says("\x1b[31mIt is\u202e done.\x1b[0m"))
    with world.http_server() as server, stream(server, entered(world, server), run_id) as events:
        first = next(data for kind, data in events if kind == "log")
        assert first["first"] and "? q1: Which?" in first["text"] and not first["earlier"]
        world.reply(run_id, "a")
        text = ""
        while "✔ completed" not in text:
            text += next(data["text"] for kind, data in events if kind == "log")
        assert "Which?" not in text, "nothing comes twice"
        with Path(world.paths(run_id).log.path).open("a", encoding="utf-8") as log:
            log.write("12:00:00 a line\n" * 500)
        with stream(server, entered(world, server), run_id) as again:
            assert next(data for kind, data in again if kind == "log")["earlier"]


def test_a_page_and_a_client_that_wait_share_one_watch(world: World) -> None:
    world.agent_saying(says("Done.", latency=60))
    run_id = world.start()
    with world.http_server() as server, stream(server, entered(world, server), run_id) as events:
        assert next(kind for kind, _ in events if kind == "log")
        arguments = {"runId": run_id, "waitSeconds": 1}
        assert server.ask_modern("tools/call", name="check_status", arguments=arguments).status == 200
        assert sum("inotify" in name for name in open_files(server.pid)) == 1


def test_among_500_runs_alive_the_rows_come_and_each_line_of_a_log_is_heard(world: World) -> None:
    stored = make_stored(world.runs, 3)
    with planted(world.runs, 500) as run_ids, world.http_server() as server:
        shown = run_ids[7]
        with stream(server, entered(world, server), shown) as events:
            rows: set[str] = set()
            while not rows >= {*run_ids, *stored}:
                rows |= {
                    row["runId"] for row in next(news for kind, news in events if kind == "runs")["rows"]
                }
            began = time.monotonic()
            for number in range(8):
                with Path(world.paths(shown).log.path).open("a", encoding="utf-8") as log:
                    log.write(f"12:00:00 line {number}\n")
                assert next(news for kind, news in events if kind == "log")["text"].endswith(str(number))
            assert time.monotonic() - began < 8, "a look every 2 s would take about 16"
    for name in stored:
        shutil.rmtree(world.runs / name)  # they have no more than lists show


def test_the_streams_end_with_the_server_and_are_no_reason_to_wait(world: World) -> None:
    world.agent()
    with world.http_server() as server, stream(server, entered(world, server)) as events:
        assert next(events)[0] == "runs"
        server.signal(signal.SIGTERM)
        assert list(events) == []
        assert server.leaves(BOUND) == 0
        assert "Traceback" not in server.said


def test_a_page_that_is_closed_before_its_first_rows_leaves_nothing_at_work(world: World) -> None:
    async def closed() -> int:
        feed, before = Feed(world.service, USER, Changes(world.service.store)), asyncio.all_tasks()

        async def opened() -> None:
            async with feed.reader():
                pass

        page = asyncio.create_task(opened())
        await asyncio.sleep(0)
        page.cancel()
        await asyncio.wait([page])
        left = asyncio.all_tasks() - before
        if left:
            await asyncio.wait(left, timeout=5)
        return len(asyncio.all_tasks() - before)

    world.store.make_root()
    assert asyncio.run(closed()) == 0


def test_a_page_that_is_loaded_again_amid_the_first_look_gets_all_ended_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes, ended, whole = (*(threading.Event() for _ in range(3)), RunTable.read_over)

    def read_over(table: RunTable) -> TableNews:
        if begun.is_set():
            goes.set()
            assert ended.wait(BOUND)
            return whole(table)
        begun.set()
        assert goes.wait(BOUND)
        found = whole(table)
        ended.set()
        return found

    monkeypatch.setattr(RunTable, "read_over", read_over)

    async def seen() -> set[str]:
        feed, rows = Feed(world.service, USER, Changes(world.service.store)), set[str]()
        async with feed.reader():
            assert await asyncio.to_thread(begun.wait, BOUND)
        async with feed.reader() as reader, asyncio.timeout(10):
            while not rows:
                news = await reader.get()
                rows |= {row["runId"] for row in (news or {})["rows"]}
        feed.end()
        return rows

    stored = make_stored(world.runs, 3)
    assert asyncio.run(seen()) == {*stored}
    for name in stored:
        shutil.rmtree(world.runs / name)  # they have no more than lists show


def test_a_page_that_is_closed_as_its_log_begins_to_be_watched_leaves_no_watch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes, forgotten = threading.Event(), threading.Event(), threading.Event()

    def watch(*_: object) -> Callable[[], None]:
        begun.set()
        assert goes.wait(BOUND)
        return forgotten.set

    monkeypatch.setattr(Watcher, "watch", watch)

    async def closed() -> None:
        async def opened() -> None:
            async with Feed(world.service, USER, Changes(world.service.store)).log_watched(
                "20260101-000000-000-aaaaaa", asyncio.Queue()
            ):
                pass

        page = asyncio.create_task(opened())
        assert await asyncio.to_thread(begun.wait, BOUND)
        page.cancel()
        await asyncio.wait([page])
        goes.set()
        assert await asyncio.to_thread(forgotten.wait, 5)

    asyncio.run(closed())
