"""From an answer to its effects: the next request to the model, and the delivery of each of eight answers.

`python -m benchmarks.replies [RUNS]`
"""

import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.scale import Scale
from benchmarks.table import Bar, Line, table
from subagent_server.run import durable
from subagent_server.run.files import Entry
from subagent_server.run.records import Message, RunMeta
from subagent_server.run.states import MessageStatus
from subagent_server.verbs.questions import reply
from subagent_server.verbs.start import StartOrder, start

TITLE = "From an answer to its effects"
BASELINE = "synced file, then a FIFO"
TIMES = 50
OPEN = 8
_BOUND = 60.0
_LOOK = 0.0005


def measure(scale: Scale) -> list[Line]:
    """Return both lines."""
    times = scale.times(TIMES)
    gc.freeze()  # the one that replies is this process, full of what the benchmarks import
    floor = _floor(times)
    return [
        Line("reply to the next model request", _next_requests(times), BASELINE, floor, (Bar("p50", 18),)),
        Line(
            f"reply to its delivery, {OPEN} questions open",
            _deliveries(max(2, times // OPEN)),
            BASELINE,
            floor,
            (Bar("worst", 100),),
        ),
    ]


def _next_requests(times: int) -> list[float]:
    script = {"turns": [_asking(1) for _ in range(times + 1)]}
    taken: list[float] = []
    with bench_world(script, ["asker"]) as world:
        run_id = start(world.service, StartOrder("asker", "Ask.")).run_id
        for number in range(times):
            taken.append(_next_request(world, run_id, number + 1))
    return taken


def _next_request(world: BenchWorld, run_id: str, before: int) -> float:
    """Answer a run's question; return when its next request comes, which is the one after so many, in ms."""
    (question,) = _until(world, run_id, lambda meta: len(meta.pending) == 1).pending
    began = time.monotonic()
    reply(world.service, run_id, "Left.", question.message_id)
    request = world.simulator.wait_for_requests(before + 1, _BOUND)[before]
    return (request.arrived - began) * 1000


def _deliveries(rounds: int) -> list[float]:
    script = {"turns": [_asking(OPEN) for _ in range(rounds + 1)]}
    taken: list[float] = []
    with bench_world(script, ["asker"]) as world:
        service = world.service
        run_id = start(service, StartOrder("asker", "Ask.")).run_id
        for _ in range(rounds):
            for question in _until(world, run_id, lambda meta: len(meta.pending) == OPEN).pending:
                began = time.monotonic()
                reply(service, run_id, "Left.", question.message_id)
                _until(world, run_id, partial(_is_delivered, question))
                taken.append((time.monotonic() - began) * 1000)
    return taken


def _floor(times: int) -> list[float]:
    """Return how long it takes until a reader of a FIFO hears of a file that was written durably before."""
    taken: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        fifo, file = Path(name, "fifo"), Path(name, "file")
        os.mkfifo(fifo)
        heard: list[float] = []
        gate = threading.Event()

        def listen() -> None:
            with fifo.open("rb", buffering=0) as pipe:
                while pipe.read(1):
                    heard.append(time.monotonic())
                    gate.set()

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        with fifo.open("wb", buffering=0) as pipe:
            for _ in range(times):
                gate.clear()
                began = time.monotonic()
                durable.write_durably(Entry.at(file), b"Left.")
                pipe.write(b".")
                gate.wait(_BOUND)
                taken.append((heard[-1] - began) * 1000)
        listener.join(_BOUND)
    return taken


def _asking(number: int) -> dict[str, Any]:
    asks = [{"name": "ask_parent", "input": {"question": f"Which way, {one}?"}} for one in range(number)]
    return {"tool_use": asks}


def _is_delivered(asked: Message, meta: RunMeta) -> bool:
    message = meta.message(asked.message_id)
    return message is not None and message.message_status is MessageStatus.ACKNOWLEDGED


def _until(world: BenchWorld, run_id: str, holds: Callable[[RunMeta], bool]) -> RunMeta:
    store = world.service.store
    _until_true(lambda: holds(store.read(run_id)))
    return store.read(run_id)


def _until_true(condition: Callable[[], object]) -> None:
    deadline, pause = time.monotonic() + _BOUND, threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the benchmark did not come so far within {_BOUND:g} s")
        pause.wait(_LOOK)


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
