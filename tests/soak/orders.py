"""What the runs of a soak are told to do, and the model that leads them through it.

An order is a list of steps, and it travels in the prompt, so that the model needs no memory: what was done is
read from the conversation itself. A kind of step is one entry of `_TURNS` and one of `_CHECKS`.
"""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.turns import Turn, call, calls, says, shell, use
from tests.soak.audit import Audit

_MARK = "soak order: "
_NEST_SECONDS = 60
_SIMPLE = ("append", "edit", "daemon", "wait")
"""What a nested run does: nobody answers it but its parent, who has other things to do."""
KINDS: dict[str, tuple[str, ...]] = {
    "free": ("append", "append", "edit", "daemon", "wait", "think", "ask", "nest", "abandon"),
    "pair": _SIMPLE,
    "boxed": (*_SIMPLE, "think", "ask"),
    "coder": ("program", "program", "append", "think"),
    "tree": ("commit", "commit", "leave", "think"),
    "boxed-tree": ("commit", "leave", "think"),
    "program": ("append", "wait"),
}
"""Each agent that is started from outside, with what its runs are told to do."""


@dataclass(frozen=True)
class Order:
    """The work of one run. A step has its kind and what that needs, such as a nested order."""

    order_id: str
    agent: str
    steps: list[dict[str, Any]] = field(default_factory=list)

    def prompt(self) -> str:
        """Return the prompt of the run."""
        return _MARK + json.dumps({"order_id": self.order_id, "agent": self.agent, "steps": self.steps})

    @classmethod
    def of(cls, prompt: str) -> "Order":
        """Return the order that a prompt holds."""
        return cls(**json.loads(prompt.removeprefix(_MARK)))


class OrderBook:
    """Makes orders, each with an id of its own, from a seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._count = 0

    def next(self) -> Order:
        """Return a new order."""
        with self._lock:
            agent = self._random.choice(["free", *KINDS])
            return self._order(agent, KINDS[agent])

    def _order(self, agent: str, kinds: tuple[str, ...]) -> Order:
        self._count += 1
        order_id = f"o{self._count:04d}"
        steps = [self._step(self._random.choice(kinds)) for _ in range(self._random.randint(1, 4))]
        return Order(order_id, agent, steps)

    def _step(self, kind: str) -> dict[str, Any]:
        step: dict[str, Any] = {"kind": kind, "seconds": round(self._random.uniform(0.05, 0.8), 2)}
        if kind == "ask":
            step["questions"] = self._random.randint(1, 3)
        if kind in ("nest", "abandon"):
            step["order"] = self._order("helper", _SIMPLE).__dict__
        return step


def answer_to(question: str) -> str:
    """Return the one right answer to a question."""
    return f"the answer to {question}"


class Leader:
    """The model: leads each run through its order, and notes what it was asked and what went wrong.

    `asked` counts the requests for each turn of each order. The last words of a run name the steps that it
    was told are done.
    """

    def __init__(self, effects: Path, audit: Audit) -> None:
        self.asked: Counter[tuple[str, int]] = Counter()
        self._effects = effects
        self._audit = audit

    def __call__(self, body: dict[str, Any]) -> Turn:
        """Answer one request of the Messages API."""
        messages = body["messages"]
        order = Order.of(messages[0]["content"][-1]["text"])
        turn = sum(message["role"] == "assistant" for message in messages)
        self.asked[order.order_id, turn] += 1
        if turn < len(order.steps):
            return _TURNS[order.steps[turn]["kind"]](self._place(order, turn), order.steps[turn])
        done = [n for n in range(turn) if self._is_done(order, n, _results(messages[2 * n + 2]))]
        return says(json.dumps({"order": order.order_id, "done": done}))

    def _place(self, order: Order, number: int) -> Path:
        return self._effects / f"{order.order_id}.{number}"

    def _is_done(self, order: Order, number: int, results: list[str]) -> bool:
        step = order.steps[number]
        place = self._place(order, number)
        if step["kind"] == "ask":
            expected = [answer_to(question) for question in _questions(place, step)]
            if results != expected:
                self._audit.write("wrong answers", order=order.order_id, given=results, expected=expected)
            return results == expected
        return _CHECKS[step["kind"]](place, results[0])


def _results(message: dict[str, Any]) -> list[str]:
    blocks = [block for block in message["content"] if block["type"] == "tool_result"]
    return ["".join(part.get("text", "") for part in block["content"]) for block in blocks]


# -- the kinds of steps: what the model calls, and how it knows that it was done


def _append(place: Path, step: dict[str, Any]) -> Turn:
    return shell(f"echo done >> {place}; sleep {step['seconds']}; echo appended {place.name}")


def _edit(place: Path, step: dict[str, Any]) -> Turn:
    return call("str_replace_based_edit_tool", command="create", path=str(place), file_text="done\n")


def _program(place: Path, step: dict[str, Any]) -> Turn:
    code = (
        f"import time\nwith open({str(place)!r}, 'a') as file:\n    file.write('done\\n')\n"
        f"time.sleep({step['seconds']})\nprint('programmed {place.name}')\n"
    )
    return call("execute_python_code", code=code, executionTimeout=60)


def _commit(place: Path, step: dict[str, Any]) -> Turn:
    """Commit a file that no other step writes: to merge it never conflicts."""
    name = place.name
    return shell(
        f"echo done >> {name} && git add {name} && git commit -qm {name} && sleep {step['seconds']} "
        f"&& echo committed {name}"
    )


def _leave(place: Path, step: dict[str, Any]) -> Turn:
    """Leave a file uncommitted: the end of the run commits it."""
    return shell(f"echo done >> {place.name}; sleep {step['seconds']}; echo left {place.name}")


def _daemon(place: Path, step: dict[str, Any]) -> Turn:
    """Start what ignores TERM, left its session and its parent, and holds the output open."""
    stubborn = "trap '' TERM HUP INT; exec sleep 1000"
    return shell(f'(setsid bash -c "{stubborn}" &) ; echo done >> {place}; echo started {place.name}')


def _wait(place: Path, step: dict[str, Any]) -> Turn:
    return shell(f"sleep {step['seconds']}; echo waited {place.name}")


def _think(place: Path, step: dict[str, Any]) -> Turn:
    return {**shell(f"echo thought {place.name}"), "latency": step["seconds"]}


def _ask(place: Path, step: dict[str, Any]) -> Turn:
    return calls(*(use("ask_parent", question=question) for question in _questions(place, step)))


def _nest(place: Path, step: dict[str, Any], seconds: float = _NEST_SECONDS) -> Turn:
    order = Order(**step["order"])
    return call(f"run_{order.agent}", prompt=order.prompt(), waitSeconds=seconds)


def _abandon(place: Path, step: dict[str, Any]) -> Turn:
    return _nest(place, step, seconds=0)


def _questions(place: Path, step: dict[str, Any]) -> list[str]:
    return [f"{place.name}/{number}" for number in range(step["questions"])]


_TURNS: dict[str, Callable[[Path, dict[str, Any]], Turn]] = {
    "append": _append,
    "edit": _edit,
    "program": _program,
    "commit": _commit,
    "leave": _leave,
    "daemon": _daemon,
    "wait": _wait,
    "think": _think,
    "ask": _ask,
    "nest": _nest,
    "abandon": _abandon,
}
_CHECKS: dict[str, Callable[[Path, str], bool]] = {
    "append": lambda place, said: f"appended {place.name}" in said,
    "edit": lambda place, said: "created" in said,
    "program": lambda place, said: f"programmed {place.name}" in said,
    "commit": lambda place, said: f"committed {place.name}" in said,
    "leave": lambda place, said: f"left {place.name}" in said,
    "daemon": lambda place, said: f"started {place.name}" in said,
    "wait": lambda place, said: f"waited {place.name}" in said,
    "think": lambda place, said: f"thought {place.name}" in said,
    "nest": lambda place, said: '"status":"completed"' in said,
    "abandon": lambda place, said: '"runId"' in said,
}
LEAVES_A_MARK = frozenset({"append", "edit", "daemon", "program"})
"""The kinds of steps whose doing is a line in a file."""

PROGRAM = '''
"""An order carried out without a model: by a program that is no agent of ours."""

import json, pathlib, sys, time

order = json.loads(sys.stdin.read().removeprefix("soak order: "))
done = []
for number, step in enumerate(order["steps"]):
    if step["kind"] == "append":
        with pathlib.Path(sys.argv[1], f"{order['order_id']}.{number}").open("a") as file:
            file.write("done\\n")
    time.sleep(step["seconds"])
    done.append(number)
print(json.dumps({"order": order["order_id"], "done": done}))
'''
