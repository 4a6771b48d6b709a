"""Results and logs as a parent gets them: small at once, whole page by page (SPEC sections 5 and 7)."""

import json
from typing import Any

from subagent_server.run import transitions
from subagent_server.run.records import RunResult
from subagent_server.run.states import Status
from tests.helpers.mcp_client import Parent
from tests.helpers.raw_server import HELLO, READY, tool_call
from tests.helpers.runs import RUN_ID, STARTED, T0, start_run
from tests.helpers.turns import call, says, shell
from tests.helpers.world import World


def pages(parent: Parent, run_id: str, stream: str, **first: Any) -> list[dict[str, Any]]:
    """Return every page of a stream, from the one that `first` asks for."""
    found = [parent.call("get_logs", runId=run_id, stream=stream, **first)]
    while not found[-1]["atEnd"]:
        found.append(parent.call("get_logs", runId=run_id, stream=stream, cursor=found[-1]["cursor"]))
        assert len(found) < 100
    return found


def test_a_long_text_is_cut_with_a_pointer_and_whole_page_by_page(world: World) -> None:
    text = "".join(f"{n:05d} ünïcode\n" for n in range(4000)) + "the end"
    world.agent_saying(says(text))
    with world.serve() as parent:
        view = parent.call("run_worker", prompt="Write.", waitSeconds=60)
        assert view["status"] == "completed"
        assert view["result"] == text[:8000] and view["resultTruncated"]
        more = f'get_logs(runId="{view["runId"]}", stream="result", cursor="8000") has the rest.'
        assert view["instructions"] == f"Done. {more}"
        rest = pages(parent, view["runId"], "result", cursor="8000")
        assert view["result"] + "".join(page["text"] for page in rest) == text, "nothing is read twice"
        found = pages(parent, view["runId"], "result")
        assert "".join(page["text"] for page in found) == text and len(found) > 2
        assert {page["totalCharacters"] for page in found} == {len(text)}
        assert all(len(page["text"]) <= 8_000 for page in found), "Codex shows its model no more"


def test_a_structured_result_is_whole_in_the_view_or_left_out_with_a_pointer(world: World) -> None:
    schema = {"type": "array", "items": {"type": "string"}}
    small, large = ["a", "ü"], [f"{n:06d}" for n in range(8000)]
    world.agent(outputSchema=schema)
    answers = [
        {"when": {"prompt": prompt}, "turns": [call("final_answer", value=value)]}
        for prompt, value in (("small", small), ("large", large))
    ]
    world.play(conversations=answers)
    with world.serve() as parent:
        view = parent.call("run_worker", prompt="small", waitSeconds=60)
        assert view["output"] == small and "result" not in view and "outputOmitted" not in view
        assert view["instructions"] == "Done.", "there is nothing more to read"
        view = parent.call("run_worker", prompt="large", waitSeconds=60)
        assert "output" not in view and view["outputOmitted"] and "get_logs" in view["instructions"]
        text = "".join(page["text"] for page in pages(parent, view["runId"], "result"))
        assert json.loads(text)["output"] == large


def test_the_text_is_what_javascript_writes_of_the_structure(world: World) -> None:
    start_run(world.store, RUN_ID, STARTED)
    result = RunResult(outcome=Status.COMPLETED, text="", output={"score": 1.0, "more": [2.0, 0.5, "3.0"]})
    world.store.update(RUN_ID, transitions.Finished(summary="Done."), T0, result=result)
    world.abandoned.add(RUN_ID)
    with world.raw_server() as server:
        server.say(HELLO, READY)
        answer = server.result_of(tool_call(1, "check_status", runId=RUN_ID))
    text = answer["content"][0]["text"]
    assert '"output":{"score":1,"more":[2,0.5,"3.0"]}' in text
    assert json.loads(text) == answer["structuredContent"]


def test_logs_and_events_are_read_from_their_end_and_on_from_a_cursor(world: World) -> None:
    world.agent_saying(shell("seq 1 3; echo 'a\x1b[31mb'"), says("Done.\n" + "line\n" * 30 + "x" * 30_000))
    with world.serve() as parent:
        run_id = parent.call("run_worker", prompt="Count.", waitSeconds=60)["runId"]
        world.gone(run_id)
        log = world.paths(run_id).log.path.read_text(encoding="utf-8")
        assert "\x1b" not in log, "a log cannot colour the terminal of who reads it"
        last = parent.call("get_logs", runId=run_id, lines=2)
        assert last["text"] == "\n".join(log.splitlines()[-2:]) and last["atEnd"]
        again = parent.call("get_logs", runId=run_id, cursor=last["cursor"])
        assert again["text"] == "" and again["cursor"] == last["cursor"]
        found = pages(parent, run_id, "log", cursor="0", lines=7)
        assert "\n".join(page["text"] for page in found) == log.rstrip("\n")

        events = pages(parent, run_id, "events", cursor="0", lines=3)
        lines = "\n".join(page["text"] for page in events).splitlines()
        whole = world.paths(run_id).events.path.read_text(encoding="utf-8").splitlines()
        assert len(lines) == len(whole)
        assert {line[-2:] == " …" for line in lines if len(line) == 20_000} == {True}, "a cut line says so"
        assert [json.loads(line)["seq"] for line in lines if len(line) < 20_000] == [
            json.loads(line)["seq"] for line in whole if len(line) < 20_000
        ]
        assert parent.call("get_logs", runId=run_id, stream="payload")["text"] == ""

        torn = [b"%d " % n + b"\xc3" * 300 for n in range(100)]
        world.paths(run_id).log.path.write_bytes(b"\n".join([*torn, b""]))
        found = pages(parent, run_id, "log", cursor="0", lines=1000)
        shown = "\n".join(page["text"] for page in found).splitlines()
        assert [int(line.split()[0]) for line in shown] == [*range(100)], "halves of characters, too"
