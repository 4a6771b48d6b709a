"""A real MCP client that a run's shell starts is the run's child: it asks, reports, and no more."""

import json
import signal
import sys
from decimal import Decimal

from subagent_server.run import processes
from tests.helpers.forked import PROGRAM
from tests.helpers.turns import says, shell, tool_results
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

CLIENT = f"""
import asyncio, json, os, sys
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

async def main(calls):
    words = {[*PROGRAM, "serve", "--role", "child"]!r}
    server = StdioServerParameters(command=words[0], args=words[1:], env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        print(json.dumps(sorted(tool.name for tool in (await client.list_tools()).tools)))
        for tool, arguments in calls:
            arguments = {{k: v.replace("SELF", os.environ["SUBAGENT_RUN_ID"]) if isinstance(v, str) else v
                         for k, v in arguments.items()}}
            result = await client.call_tool(tool, arguments)
            text = "".join(block.text for block in result.content)
            print(json.dumps({{"refused": text}} if result.is_error else result.structured_content))

asyncio.run(main(json.loads(sys.argv[1])))
"""


def client(*calls: tuple[str, dict[str, object]]) -> str:
    """Return the command that makes these calls of the server that a child has."""
    return f"{sys.executable} client.py '{json.dumps(calls)}'"


def test_a_question_of_a_program_outlives_the_program_and_its_server_and_the_next_takes_the_answer(
    world: World,
) -> None:
    world.agent()
    (world.work / "client.py").write_text(CLIENT, encoding="utf-8")
    asks = client(
        ("ask_parent", {"question": "Which colour?", "options": ["red", "blue"], "waitSeconds": 45})
    )
    takes = client(
        ("check_status", {"runId": "SELF"}),
        ("check_status", {"runId": "SELF", "messageId": "q1"}),
        ("update_status", {"status": "running", "summary": "painting blue"}),
        ("list_runs", {}),
        ("check_status", {"runId": "20990101-000000-000-aaaaaa"}),
    )
    simulator = world.play(
        shell(f"{asks} & echo $! > pid; wait $!; echo died"),
        shell(f"for try in $(seq 600); do test -e answered && break; sleep 0.1; done; {takes}"),
        says("Blue."),
    )
    run_id = world.start_asking()
    _kill_client_and_server(world)
    answered = world.cli("reply", run_id, "blue")
    assert answered.returncode == 0, answered.stderr
    (world.work / "answered").touch()
    assert world.completed(run_id) == "Blue."
    results = [tool_results(request.body)[0] for request in simulator.requests[1:]]
    assert "died" in results[0] and "answer" not in results[0]
    tools, looked, taken, told, listed, foreign = (json.loads(line) for line in results[1].splitlines())
    assert tools == ["ask_parent", "check_status", "update_status"]
    assert looked["messages"][0]["answer"] == "blue" and 'messageId="q1"' in looked["instructions"]
    assert taken["messages"][0]["answer"] == "blue" and told["summary"] == "painting blue"
    assert "There is no tool 'list_runs'" in listed["refused"] and "There is no run" in foreign["refused"]
    message = world.meta(run_id).messages[0]
    assert (message.message_status, message.answered_by) == ("acknowledged_by_subagent", "person")


def _kill_client_and_server(world: World) -> None:
    pid = int((world.work / "pid").read_text(encoding="utf-8"))
    found = [processes.identify(pid), *processes.descendants([pid])]
    assert len(found) > 1, "the client has a server"
    for identity in found:
        assert identity is not None
        processes.send_signal(identity, signal.SIGKILL)
    wait_for(lambda: not any(i is not None and processes.is_alive(i) for i in found), BOUND, "both deaths")


def test_the_budget_of_the_first_run_bounds_its_whole_tree(world: World) -> None:
    world.agent("again", agents=["again"], budgetUsd=0.05, model="claude-sonnet-4-5")
    world.environment["SUBAGENT_MAX_DEPTH"] = "2"
    spent = {"usage": {"input_tokens": 1000, "output_tokens": 1000}}
    again = {"name": "run_again", "input": {"prompt": "Again.", "waitSeconds": 60}}
    simulator = world.play({"tool_use": [again], "repeat": 20, **spent})
    run_id = world.start("Go.", agent="again")
    code, why = world.failed(run_id)
    meta = world.meta(run_id)
    assert code == "budget" and meta.with_descendants.cost_usd is not None, why
    runs = len(world.store.run_ids())
    one_call = meta.with_descendants.cost_usd / len(simulator.requests)
    assert Decimal("0.05") <= meta.with_descendants.cost_usd <= Decimal("0.05") + one_call
    assert meta.with_descendants.turns == len(simulator.requests) and runs > 1
