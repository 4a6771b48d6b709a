"""What must be true when a soak is over, whatever was killed."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from subagent_server.run import durable, stderr
from subagent_server.run.errors import SubagentError
from subagent_server.run.records import RunMeta
from subagent_server.run.states import Event, MessageStatus, Status
from tests.helpers.truth import examine_all
from tests.soak import worktrees
from tests.soak.excuses import BY_POINTS, CAUSES, Excuses
from tests.soak.field import Field
from tests.soak.orders import LEAVES_A_MARK, Leader, Order
from tests.soak.upgrades import Upgrades

_FAULTS = ("wrong answers", "silent server", "fault of the soak", "refused by the machine")


@dataclass
class Evidence:
    """What was done to whom."""

    hit: dict[str, Counter[str]] = field(default_factory=dict)
    """Run id to what was killed of it: kinds of processes from outside, and points."""
    own: Counter[str] = field(default_factory=Counter)
    """How often a process died at each point."""
    dead: set[int] = field(default_factory=set)
    """The pids of the starters that were killed."""
    stopped: set[str] = field(default_factory=set)
    starter: dict[str, int] = field(default_factory=dict)
    """Order to the pid of the process that was told to start it."""


def gather(soak: Field) -> Evidence:
    """Return what the audit and the last words of processes tell."""
    told = Evidence()
    told.dead = {line["pid"] for line in soak.audit.lines("died")}
    for line in soak.audit.lines("kill"):
        if line["run"] is not None:
            told.hit.setdefault(line["run"], Counter())[line["kind"]] += 1
    told.stopped = {line["run"] for line in soak.audit.lines("stop")}
    told.starter = {line["order"]: line["starter"] for line in soak.audit.lines("order")}
    for words in _last_words(soak.errors.iterdir()):
        told.own[words] += 1
    for run_id in soak.store.run_ids():
        for words in _last_words([soak.store.paths.run(run_id).worker_out.path]):
            told.own[words] += 1
            told.hit.setdefault(run_id, Counter())[words] += 1
    return told


def _last_words(files: Any) -> Iterator[str]:
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        for line in text.splitlines():
            if line.startswith(stderr.LAST_WORDS):
                yield line.removeprefix(stderr.LAST_WORDS).strip()


class Judge:
    """Looks at everything that a soak has left."""

    def __init__(self, soak: Field, leader: Leader, excuses: Excuses) -> None:
        self._soak = soak
        self._leader = leader
        self._told = gather(soak)
        self._upgrades = Upgrades(soak.audit)
        self.excuses = excuses
        self.metas: dict[str, RunMeta] = {}
        self.counts: Counter[str] = Counter()
        for run_id in soak.store.run_ids():
            try:
                self.metas[run_id] = soak.store.read(run_id)
            except SubagentError:
                continue  # the doctor tells, where it was a run

    @property
    def deaths_at_points(self) -> Counter[str]:
        """How often a process died at each point."""
        return self._told.own

    def findings(self) -> Iterator[str]:
        """Yield what should not be."""
        for finding in examine_all(self._soak.store, self._soak.environment):
            yield f"doctor: {finding.run_id}: {finding.what}"
        for run_id, meta in self.metas.items():
            for what in self._of_run(meta):
                yield f"{run_id} ({meta.status}): {what}"
        yield from self._of_the_audit()
        yield from self._tracebacks()
        yield from (f"worktree: {what}" for what in worktrees.findings(self._soak))

    def _of_the_audit(self) -> Iterator[str]:
        for word in _FAULTS:
            yield from (f"{word}: {line}" for line in self._soak.audit.lines(word))
        for line in self._soak.audit.lines("accepted"):
            if line["run"] not in self.metas:
                yield f"run {line['run']} was accepted (order {line['order']}) and is not there"
        installed = self._soak.installation
        for line in self._soak.audit.lines("greeted"):
            if not installed.is_since(line["version"], line["before"]):
                yield f"server {line['pid']} is of {line['version']}, but {line['before']} was there before"
        for (order, turn), times in self._leader.asked.items():
            if times > 1:
                yield f"the model was asked {times} times for turn {turn} of order {order}"

    def _of_run(self, meta: RunMeta) -> Iterator[str]:
        order = Order.of(self._soak.store.read_request(meta.run_id).prompt)
        self.counts[f"{meta.status}{f'/{meta.error.code}' if meta.error else ''}"] += 1
        yield from self._done_twice(meta, order)
        if meta.status is Status.COMPLETED:
            yield from self._completed(meta, order)
        elif meta.status is Status.STOPPED:
            if meta.run_id not in self._told.stopped and not self.excuses.take(
                "its parent has ended", self._parent_ended(meta)
            ):
                yield "nobody stopped it"
        elif meta.status is Status.FAILED:
            yield from self._failed(meta, order)
        else:
            yield "it has not ended"

    def _done_twice(self, meta: RunMeta, order: Order) -> Iterator[str]:
        begun = sum(step.event is Event.WORKER_STARTED for step in meta.transitions)
        asked = self._leader.asked[order.order_id, 0]
        if begun > 1 or asked > 1 or asked > begun:
            yield f"its worker started {begun} times, and the model was asked {asked} times to begin"
        for number, step in enumerate(order.steps):
            times = self._marks(order, number)
            if step["kind"] in LEAVES_A_MARK and times > 1:
                yield f"step {number} was done {times} times"

    def _marks(self, order: Order, number: int) -> int:
        path = self._soak.effects / f"{order.order_id}.{number}"
        return path.read_text(encoding="ascii").count("done") if path.exists() else 0

    def _completed(self, meta: RunMeta, order: Order) -> Iterator[str]:
        result = self._soak.store.read_result(meta.run_id)
        if result is None:
            return  # the doctor tells
        said = json.loads(result.text)
        if said["order"] != order.order_id:
            yield f"it has the result of {said['order']}"
        for number in said["done"]:
            if order.steps[number]["kind"] in LEAVES_A_MARK:
                self.counts["side effects"] += 1
                if self._marks(order, number) != 1:
                    yield f"step {number} is said to be done and has left {self._marks(order, number)} marks"
        yield from self._undone(meta, order, said["done"])
        for message in meta.messages:
            self.counts["answers"] += 1
            if message.message_status is not MessageStatus.ACKNOWLEDGED:
                yield f"{message.message_id} is {message.message_status}"

    def _undone(self, meta: RunMeta, order: Order, done: list[int]) -> Iterator[str]:
        undone = [n for n in range(len(order.steps)) if n not in done]
        hit = self._told.hit.get(meta.run_id, Counter())
        for number in undone:
            kind = order.steps[number]["kind"]
            if self.excuses.take("a nested run did not complete", kind == "nest"):
                continue
            programs = {"grandchild", "box", "git"} & set(hit)
            upgraded = kind == "program" and self._upgrades.met(
                meta.created_at, meta.ended_at or meta.created_at
            )
            if not (
                self.excuses.take("a program of the run was killed", bool(programs))
                or self.excuses.take("it began half-way through an upgrade", upgraded)
            ):
                yield f"step {number} ({kind}) was not done, and nothing hit it"

    def _failed(self, meta: RunMeta, order: Order) -> Iterator[str]:
        """Nothing fails by itself here: whatever failed was hit, and in the way that its code says."""
        assert meta.error is not None
        code = meta.error.code
        hit = self._told.hit.get(meta.run_id, Counter())
        if code not in CAUSES:
            yield f"it failed with {code}: {meta.error.message}"
            return
        causes, excuse = CAUSES[code]
        died = code in BY_POINTS and any("." in kind for kind in hit)
        upgraded = code in BY_POINTS and self._upgrades.met(*self._start_of(meta))
        starter = code == "launch_failed" and self._starter_died(meta, order)
        if not (
            self.excuses.take(excuse, bool(causes & set(hit)) or died)
            or self.excuses.take("it began half-way through an upgrade", upgraded)
            or self.excuses.take("its starter was killed", starter)
        ):
            hits = sorted(hit) or "nothing"
            yield f"it failed with {code} ({meta.error.message}), and only {hits} of it was hit"

    def _start_of(self, meta: RunMeta) -> tuple[datetime, datetime]:
        """Return when a run was accepted, and when it had everything to begin with, or had ended."""
        first = next(durable.records(self._soak.store.paths.run(meta.run_id).events), {})
        begun = datetime.fromisoformat(first["at"]) if "at" in first else meta.ended_at
        return meta.created_at, begun or meta.created_at

    def _starter_died(self, meta: RunMeta, order: Order) -> bool:
        if meta.parent_run_id is not None:
            return self._parent_ended(meta)
        return self._told.starter.get(order.order_id, -1) in self._told.dead

    def _parent_ended(self, meta: RunMeta) -> bool:
        parent = self.metas.get(meta.parent_run_id or "")
        return parent is not None and parent.status.is_terminal

    def _tracebacks(self) -> Iterator[str]:
        """No process may end in a traceback, or complain of a fault of its own."""
        runs = [self._soak.store.paths.run(run_id) for run_id in self.metas]
        for path in (*(run.worker_out.path for run in runs), *self._soak.errors.iterdir()):
            if "Traceback" in _read(path) and not self.excuses.take(
                "a complaint of an upgrade", self._upgrades.excuse(path)
            ):
                yield f"{path} holds a traceback: ...{_read(path)[-600:]!r}"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
