"""Speaks for a host of PyPI: JSON lines on stdin are calls, JSON lines on stdout their answers.

It runs in the host's own environment, so it imports nothing of ours but the adapter beside it. An adapter has
`connected(command, args, env, timeout)`, an asynchronous context that gives the names of the tools and a
function that calls one; `timeout` is None if the host shall keep its own.
"""

import asyncio
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


def words_of(result: Any) -> str:
    """Return the text of whatever a host gives for the result of a tool."""
    if isinstance(result, str):
        return result
    if isinstance(result, (list, tuple)):
        return "\n".join(words_of(item) for item in result)
    if isinstance(result, dict):
        return json.dumps(result, default=str)
    for name in ("content", "result", "text", "value"):
        if (inner := getattr(result, name, None)) is not None:
            return words_of(inner)
    return str(result)


async def main() -> None:
    order = json.loads(sys.argv[2])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # hosts print

    def tell(**facts: Any) -> None:
        out.write(json.dumps(facts) + "\n")
        out.flush()

    adapter = importlib.import_module(sys.argv[1])
    async with adapter.connected(order["command"], order["args"], order["env"], order["timeout"]) as (
        names,
        call,
    ):
        tell(names=names)
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            try:
                answer = call(asked["tool"], asked["arguments"])
                tell(text=words_of(await asyncio.wait_for(answer, asked["bound"])))
            except BaseException as error:  # noqa: BLE001
                tell(raised=f"{type(error).__name__}: {error}")


asyncio.run(main())
