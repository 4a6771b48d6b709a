"""What three tasks cost with direct tool calls and in code mode: tokens, turns and time.

`python -m benchmarks.code_tokens` prints them, then the table of docs/code-mode.md. The tasks are a single
look-up, a join of two tools, and a fan-out over 50 items; the agent has 10, 50 or 250 tools. The scripted
model does what a good one does: directly it makes up to 10 calls in a turn; in code mode it writes one
program, after a look at the functions where the description lists their names alone. Tokens are estimated
from sizes, four characters each; a cache would make those of the input cheaper on both sides. Lines in which
code mode costs more are printed like the others.
"""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.scale import Scale
from benchmarks.shop_server import ITEMS
from benchmarks.table import Line, table
from tests.helpers.turns import Turn, calls, says, use

TITLE = "Code mode compared with direct calls"
TOOLS = (10, 50, 250)
AT_ONCE = 10
"""How many calls the model makes directly in one turn."""
CODE_TOOL = "execute_python_code"
SERVER = Path(__file__).with_name("shop_server.py")
WAIT_SECONDS = 300

PROGRAMS = {
    "look-up": "shop.get_item(item=7).json()['price']",
    "join": (
        "names = {each['owner']: each['name'] for each in shop.list_owners().json()}\n"
        "owned = {}\n"
        "for each in shop.list_items().json():\n"
        "    owned[names[each['owner']]] = owned.get(names[each['owner']], 0) + 1\n"
        "owned"
    ),
    "fan-out": (
        "items = [each['item'] for each in shop.list_items().json()]\n"
        "found = gather(*(lambda item=item: shop.get_item(item=item) for item in items))\n"
        "sum(each.json()['price'] for each in found)"
    ),
}
"""The tasks, with the program of each."""
LOOK = "help(shop.list_items)\nhelp(shop.list_owners)\nhelp(shop.get_item)"
DIRECT_CALLS = {
    "look-up": [[use("get_item", item=7)]],
    "join": [[use("list_owners"), use("list_items")]],
    "fan-out": [
        [use("list_items")],
        *(
            [use("get_item", item=item) for item in range(first, first + AT_ONCE)]
            for first in range(0, ITEMS, AT_ONCE)
        ),
    ],
}
"""The calls of each task, turn by turn."""


def model(body: dict[str, Any]) -> Turn:
    """Do the task that the prompt names, by a program if there is the tool for it."""
    messages = body["messages"]
    task = messages[0]["content"][-1]["text"]
    done = sum(message["role"] == "assistant" for message in messages)
    code_tool = next((tool for tool in body["tools"] if tool["name"] == CODE_TOOL), None)
    turns = DIRECT_CALLS[task] if code_tool is None else list(_programs(task, code_tool))
    if done == len(turns):
        return says("Done.")
    return calls(*turns[done])


def _programs(task: str, code_tool: dict[str, Any]) -> Iterator[list[Turn]]:
    if "def get_item" not in code_tool["description"]:
        yield [use(CODE_TOOL, code=LOOK, executionTimeout=60)]
    yield [use(CODE_TOOL, code=PROGRAMS[task], executionTimeout=60)]


@dataclass(frozen=True)
class Cost:
    """What a task has cost."""

    tokens_in: int
    tokens_out: int
    turns: int
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """One task with so many tools, done both ways."""

    task: str
    tools: int
    direct: Cost
    code: Cost


def measure(scale: Scale) -> list[Line]:
    """Return four lines for each task and number of tools. Raises as `compared` does."""
    return [line for each in compared() for line in _lines(each)]


def compared() -> list[Comparison]:
    """Do each task both ways with each number of tools.

    Raises:
        RuntimeError: a run did not complete.
    """
    with bench_world(model, []) as world:
        for tools in TOOLS:
            write_agent(world, f"direct-{tools}", tools, {})
            write_agent(world, f"code-{tools}", tools, {"codeMode": {"enabled": True}})
        return asyncio.run(_compared(world))


def write_agent(world: BenchWorld, name: str, tools: int, keys: dict[str, Any]) -> None:
    """Write an agent that has so many tools of the shop."""
    command = {"command": sys.executable, "args": ["-S", str(SERVER), str(tools)]}
    server = {"shop": {**command, "sandboxRead": [str(SERVER.parent)]}}
    front = {"name": name, "description": "Shops.", "tools": "mcp__shop", "mcpServers": server, **keys}
    lines = [f"{key}: {json.dumps(value)}" for key, value in front.items()]
    text = "\n".join(["---", *lines, "---", "You find things out."])
    (world.directory / "agents" / f"{name}.md").write_text(text, encoding="utf-8")


async def _compared(world: BenchWorld) -> list[Comparison]:
    found = []
    async with world.client() as client:
        for task in PROGRAMS:
            for tools in TOOLS:
                direct = await _cost(client, f"run_direct_{tools}", task)
                code = await _cost(client, f"run_code_{tools}", task)
                found.append(Comparison(task, tools, direct, code))
    return found


async def _cost(client: Client, tool: str, task: str) -> Cost:
    result = await client.call_tool(tool, {"prompt": task, "waitSeconds": WAIT_SECONDS})
    view: dict[str, Any] = result.structured_content or {}
    if view.get("status") != "completed":
        raise RuntimeError(f"{tool}, {task}: {result.content}")
    usage = view["usage"]
    read = sum(usage.get(name, 0) for name in ("inputTokens", "cacheReadTokens", "cacheWriteTokens"))
    return Cost(read, usage["outputTokens"], usage["turns"], view["elapsedSeconds"])


def _lines(of: Comparison) -> Sequence[Line]:
    what, baseline, direct, code = f"{of.task}, {of.tools} tools", "direct calls", of.direct, of.code
    return [
        Line(f"{what}: tokens in", [code.tokens_in], baseline, [direct.tokens_in], unit="tokens"),
        Line(f"{what}: tokens out", [code.tokens_out], baseline, [direct.tokens_out], unit="tokens"),
        Line(f"{what}: turns", [code.turns], baseline, [direct.turns], unit="turns"),
        Line(f"{what}: time", [code.seconds], baseline, [direct.seconds], unit="s"),
    ]


def document(comparisons: Sequence[Comparison]) -> str:
    """Return the table for people: code mode compared with direct calls, **bold** if it costs more."""
    rows = [
        "| task | tools | tokens in | direct | tokens out | direct | turns | direct |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in comparisons:
        pairs = [
            (each.code.tokens_in, each.direct.tokens_in),
            (each.code.tokens_out, each.direct.tokens_out),
            (each.code.turns, each.direct.turns),
        ]
        figures = [
            f"{f'**{code:,}**' if code > direct else f'{code:,}'} | {direct:,}" for code, direct in pairs
        ]
        rows.append(f"| {each.task} | {each.tools} | {' | '.join(figures)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    measured = compared()
    print(table([line for each in measured for line in _lines(each)]), document(measured), sep="\n\n")
