"""Waits lose nothing, end no run, and are bounded by the client's timeout (SPEC section 5, "Waits")."""

import asyncio
import os
import re
import signal
import threading
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace

import pytest

from subagent_server.process.launcher import Start
from subagent_server.run import processes
from subagent_server.server.connection import longest_wait_seconds
from subagent_server.tools.spec import Call
from subagent_server.tools.tool_table import PARENT_TOOLS, ToolDispatcher
from subagent_server.verbs.access import USER
from subagent_server.verbs.service import warm_start
from subagent_server.verbs.wait_for_runs import Changes, ChangeSource, Wait, wait_until
from tests.helpers.mcp_client import Mode
from tests.helpers.turns import asks, says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, Launcher, World


def test_waiting_for_several_runs_shows_each_question_once_and_each_end(world: World) -> None:
    world.agent()
    conversations = [
        {"when": {"prompt": "ask"}, "turns": [asks("Which colour?"), says("Painted.")]},
        {"when": {"prompt": "work"}, "turns": [says("Worked.")]},
    ]
    world.play(conversations=conversations)
    with world.serve() as parent:
        asking = parent.call("run_worker", prompt="ask")["runId"]
        first = parent.call("wait_for_runs", waitFor="all", waitSeconds=60)
        (view,) = first["runs"]
        assert view["runId"] == asking and view["messages"][0]["question"] == "Which colour?"
        assert "preview" not in view, "it would be the same question"
        assert first["working"] == [asking] and "reply_subagent" in first["instructions"]

        working = parent.call("run_worker", prompt="work")["runId"]
        second = parent.call("wait_for_runs", waitFor="any", waitSeconds=60, cursor=first["cursor"])
        (view,) = second["runs"]
        assert (view["runId"], view["result"]) == (working, "Worked."), "the question was shown already"
        assert second["working"] == [asking]

        nothing = parent.call("wait_for_runs", waitSeconds=0, cursor=second["cursor"])
        assert nothing["runs"] == [], "both were shown"
        assert f'reply_subagent(runId="{asking}", messageId="q1"' in nothing["instructions"]

        waiting = parent.begin("wait_for_runs", waitFor="all", waitSeconds=60, cursor=second["cursor"])
        parent.call("reply_subagent", runId=asking, answer="blue")
        last = waiting.result(BOUND)
        (view,) = last["runs"]
        assert (view["runId"], view["result"]) == (asking, "Painted.") and last["working"] == []
        assert last["instructions"] == "Nothing is left to wait for."
        assert [row["runId"] for row in parent.call("list_runs")["runs"]] == [working, asking]


def test_a_long_wait_says_what_its_runs_do_is_cut_with_a_note_and_ends_no_run(world: World) -> None:
    world.agent("asker")
    world.agent("napper", tools="bash")
    key = world.environment["ANTHROPIC_API_KEY"]
    nap = f"echo {key}; sleep 300\n\x1b[31mecho {'z' * 500}"
    asking = [asks(f"Go\non\x1b[2J? {'x' * 500}"), says("Done.")]
    conversations = [
        {"when": {"prompt": "ask"}, "turns": asking},
        {"when": {"prompt": "sleep"}, "turns": [shell("true"), shell(nap), says("Slept.")]},
    ]
    world.play(conversations=conversations)
    with world.serve("--max-wait", "12") as parent:
        asker = parent.call("run_asker", prompt="ask", label="the\nfirst")["runId"]
        world.asking(asker)
        napper = parent.call("run_napper", prompt="sleep")["runId"]
        is_napping = lambda: "sleep 300" in str(parent.call("check_status", runId=napper))  # noqa: E731
        wait_for(is_napping, BOUND, "the nap")
        cursor = parent.call("wait_for_runs", waitSeconds=0)["cursor"]
        both = parent.begin("wait_for_runs", waitSeconds=60, cursor=cursor)
        one = parent.begin("check_status", runId=napper, waitSeconds=10**400)
        answer = both.result(BOUND)
        assert answer["runs"] == [] and set(answer["working"]) == {asker, napper}
        assert answer["waitNote"].startswith("waitSeconds was cut to 12")
        assert one.result(BOUND)["waitNote"] == answer["waitNote"]
        assert one.result(BOUND)["live"]
        assert all(7 < elapsed < 60 for elapsed, _ in parent.progress)
        of_one, of_both = sorted((str(message) for _, message in parent.progress), key=len)
        assert re.fullmatch(r"napper, \d+ s, turn 2: bash echo .*; sleep 300 .*z…", of_one), of_one
        assert re.match(
            r"2 at work: asker \(the first\), \d+ s: asks Go on\\x1b\[2J\? x+…; napper, ", of_both
        )
        assert key not in of_both and of_both.isprintable() and len(of_both) < 400
        assert parent.call("check_status", runId=asker)["live"]
        parent.call("stop_run", runId=napper)


def test_a_client_that_gives_up_a_call_ends_the_wait_and_nothing_else(world: World) -> None:
    world.agent_saying(asks("Go on?"), says("Done."))
    with world.serve() as parent:
        run_id = parent.call("run_worker", prompt="Work.")["runId"]
        world.asking(run_id)
        cursor = parent.call("wait_for_runs", waitSeconds=0)["cursor"]
        parent.gives_up("wait_for_runs", after=0.3, waitFor="all", waitSeconds=60, cursor=cursor)
        assert parent.call("check_status", runId=run_id)["live"]
        answered = parent.call("reply_subagent", runId=run_id, answer="yes", waitSeconds=60)
        assert answered["updatedMetadata"]["result"] == "Done."


@pytest.mark.parametrize(
    ("client", "seconds"),
    [("Claude-Code", 1500), ("codex-mcp-client", 280), ("gemini-cli", 570), ("x", 50), (None, 50)],
)
def test_a_call_waits_as_long_as_its_client_does_or_the_flag_says(client: str | None, seconds: int) -> None:
    assert longest_wait_seconds(client, None) == seconds and longest_wait_seconds(client, 7.0) == 7


@pytest.mark.parametrize(
    ("client", "mode", "seconds"), [("claude-code", "auto", 1500), ("codex-mcp-client", "legacy", 280)]
)
def test_the_next_call_waits_up_to_the_timeout_of_the_client(
    world: World, client: str, mode: Mode, seconds: int
) -> None:
    world.agent_saying(asks("Go on?"))
    with world.serve(client=client, mode=mode) as parent:
        view = parent.call("run_worker", prompt="Go.")
        assert f"waitSeconds={seconds})" in view["instructions"], "the next call waits as long as it may"
        assert "waitNote" not in view


def test_an_end_that_its_parent_has_not_seen_is_in_the_next_wait_and_only_there(world: World) -> None:
    world.agent_saying(says("Done."))
    with world.serve() as parent:
        run_ids = [parent.call("run_worker", prompt=f"Work {number}.")["runId"] for number in range(2)]
        for run_id in run_ids:
            world.completed_and_gone(run_id)
            world.look(run_id)
        assert world.store.live_ids() == []
        answer = parent.call("wait_for_runs", waitSeconds=0)
        assert {(view["runId"], view["result"]) for view in answer["runs"]} == {(r, "Done.") for r in run_ids}
        assert parent.call("wait_for_runs", waitSeconds=0)["runs"] == []
        seen = parent.call("run_worker", prompt="Work on.", waitSeconds=60)
        assert seen["status"] == "completed"
        world.gone(seen["runId"])
        world.look(seen["runId"])
        assert parent.call("wait_for_runs", waitSeconds=0, cursor=answer["cursor"])["runs"] == []
    with world.serve() as another:
        assert another.call("wait_for_runs", waitSeconds=0)["runs"] == []


def test_an_end_that_its_server_did_not_live_to_show_is_shown_by_the_next_and_only_by_that(
    world: World,
) -> None:
    simulator = world.agent_saying(says("Done.", latency=1))
    with world.serve() as parent:
        run_id = parent.call("run_worker", prompt="Work.")["runId"]
        simulator.wait_for_requests(1, timeout=BOUND)
        os.killpg(os.getpgid(parent.server.pid), signal.SIGKILL)
    world.completed_and_gone(run_id)
    assert world.store.live_ids() == []
    with world.serve() as second:
        (view,) = second.call("wait_for_runs", waitSeconds=0)["runs"]
        assert (view["runId"], view["result"]) == (run_id, "Done.")
    with world.serve() as third:
        assert third.call("wait_for_runs", waitSeconds=0)["runs"] == []


def test_an_end_and_a_question_are_news_once_although_the_processes_still_live(world: World) -> None:
    world.agent()
    ended_and_asks = [
        {"when": {"prompt": "end"}, "turns": [asks("Now?"), says("Done.")]},
        {"when": {"prompt": "ask"}, "turns": [asks("Which colour?"), says("Painted.")]},
    ]
    world.play(conversations=ended_and_asks)
    with world.serve() as parent:
        ending, asking = (parent.call("run_worker", prompt=prompt)["runId"] for prompt in ("end", "ask"))
        world.asking(asking)
        world.asking(ending)
        processes.send_signal(world.shim(ending), signal.SIGSTOP)  # so that its end takes a while
        world.reply(ending, "yes")
        world.ended(ending)
        first = parent.call("wait_for_runs", waitSeconds=0)
        assert {view["runId"] for view in first["runs"]} == {ending, asking}
        assert world.look(ending).live
        again = parent.call("wait_for_runs", waitSeconds=1)
        assert (again["runs"], again["working"]) == ([], [asking]), "shown once, and waited for"
        assert len(again["cursor"]) <= 2 * 10, "a name and a revision for each run"
        (view,) = parent.call("wait_for_runs", runIds=[ending])["runs"]
        assert view["result"] == "Done.", "nothing is left of the named runs, so there is only this to say"
        processes.send_signal(world.shim(ending), signal.SIGCONT)
        world.gone(ending)
    with world.serve() as another:
        news = another.call("wait_for_runs", waitSeconds=0, cursor=again["cursor"])
        assert (news["runs"], news["working"]) == ([], [asking]), "a cursor says the same to another server"
        (view,) = another.call("wait_for_runs", waitSeconds=0)["runs"]
        assert view["runId"] == asking, "without it, what the client may not have seen is shown"


def test_the_end_of_a_run_whose_call_was_cancelled_during_the_start_is_shown(world: World) -> None:
    world.agent_saying(says("Done."))
    begun, goes = threading.Event(), threading.Event()

    class Slow(Launcher):
        def starting(self) -> AbstractContextManager[Start]:
            begun.set()
            assert goes.wait(BOUND)
            return super().starting()

    async def cancelled(dispatcher: ToolDispatcher) -> None:
        starting = asyncio.create_task(dispatcher.call("run_worker", Call({"prompt": "Go."}, BOUND)))
        assert await asyncio.to_thread(begun.wait, BOUND)
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        goes.set()
        await asyncio.to_thread(wait_for, has_ended, BOUND, "the end of the run")

    def has_ended() -> bool:
        return any(meta.status.is_terminal for meta in world.store.readable(world.store.run_ids()))

    launcher = Slow()
    launcher.warm = warm_start(world.service.settings)
    with closing(Changes(world.store)) as changes:
        service = replace(world.service, launcher=launcher)
        asyncio.run(cancelled(ToolDispatcher(service, changes, USER, PARENT_TOOLS)))
    for process in launcher.started:
        process.wait(BOUND)
    with world.serve() as parent:
        assert [view["result"] for view in parent.call("wait_for_runs", waitSeconds=0)["runs"]] == ["Done."]


def test_a_wait_that_is_cancelled_as_it_begins_to_watch_leaves_no_listener() -> None:
    begun, goes = threading.Event(), threading.Event()

    class Slow(ChangeSource):
        def _watch(self) -> None:
            begun.set()
            assert goes.wait(BOUND)

        def has_listeners(self) -> bool:
            return bool(self._listeners)

    async def cancelled(changes: Slow) -> None:
        waiting = asyncio.create_task(wait_until(changes, lambda: None, Wait(BOUND)))
        assert await asyncio.to_thread(begun.wait, BOUND)
        waiting.cancel()
        await asyncio.wait([waiting])
        goes.set()

    changes = Slow()
    asyncio.run(cancelled(changes))
    assert not changes.has_listeners()
