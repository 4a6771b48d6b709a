"""Planted run directories whose files are files, and say what is not true, or what nobody could bear.

Lies about processes, hostile texts and figures, commands to be carried out, names of the root itself, and
more of everything than anybody has.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.canaries import Outside
from tests.faults.planted import SHAPES, Json, clear, request, state, to_json, write_run
from tests.helpers.scale import sampled

ESCAPES = "\x1b]0;taken over\x07\x1b[31m\x9b31m\u202e\u2028\x00"
"""What would rename, colour and turn a terminal."""
ROOT_NAMES = (".changes", ".unseen", ".slots", ".removed", ".backoff", ".gitignore", ".root")
ROOT_SHAPES = ("link", "dirlink", "dangling", "fifo", "kind")
PLANTED_NAMES = sampled(
    [(name, shape) for name in ROOT_NAMES for shape in ROOT_SHAPES],
    12,
    lambda planted: planted[0],
    lambda planted: planted[1],
)
"""Names of a root, each with the shape of what is put there."""
_HUGE = 20 << 20
_DEEP = 100_000


@dataclass(frozen=True)
class Place:
    """Where a lie is told: in the run `run_id` of a root, planted by whoever has `outside`."""

    root: Path
    run_id: str
    outside: Outside
    work: Path

    def run(self, base: str, **facts: object) -> Path:
        """Write a run that is like `base`, with these facts in its state."""
        return write_run(self.root, self.run_id, base, self.work, **facts)


# -- lies about processes


def _worker(place: Place) -> None:
    run = place.run("running", launch=None)
    (run / "shim.json").write_bytes(to_json({"worker": place.outside.bystander.to_json()}))


def _worker_here(place: Place) -> None:
    bystander = place.outside.bystander.to_json()
    run = place.run("running", worker=bystander)
    said = {"shim": bystander, "worker": bystander, "directory": run.stat().st_ino}
    (run / "shim.json").write_bytes(to_json(said))


def _held(place: Place, base: str, **facts: object) -> None:
    run = place.run(base, **facts)
    said = {"shim": place.outside.bystander.to_json(), "directory": run.stat().st_ino}
    (run / "shim.json").write_bytes(to_json(said))


def _held_shim(place: Place) -> None:
    _held(place, "waiting")


def _overdue_shim(place: Place) -> None:
    _held(place, "unsettled", completedAt="2026-01-01T00:01:00.000Z")


def _everybody(place: Place) -> None:
    run = place.run("running")
    all_of_them = {**place.outside.bystander.to_json(), "pid": -1}
    (run / "shim.json").write_bytes(to_json({"shim": all_of_them, "worker": all_of_them}))


def _endless_pid(place: Place) -> None:
    run = place.run("running")
    said = to_json({"worker": {**place.outside.bystander.to_json(), "pid": 4711}})
    (run / "shim.json").write_bytes(said.replace(b"4711", b"1e999"))


def _own_parent(place: Place) -> None:
    """A run that is its own parent, child, root and predecessor."""
    run = place.run("running", parentRunId=place.run_id, continuesRunId=place.run_id, depth=3)
    (run / "children" / place.run_id).touch()


LIES: dict[str, Callable[[Place], None]] = {
    "worker": _worker,
    "worker-here": _worker_here,
    "held-shim": _held_shim,
    "overdue-shim": _overdue_shim,
    "everybody": _everybody,
    "endless-pid": _endless_pid,
    "own-parent": _own_parent,
}
HELD_LIES = ("held-shim", "overdue-shim")
"""Those whose planter also holds the `live.lock`, so that they seem to be kept."""


# -- texts and figures


def _escapes(place: Place) -> None:
    question = state(place.run_id, "waiting")["messages"][0]
    question |= {"questionContent": ESCAPES, "options": [ESCAPES]}
    run = place.run("waiting", summary=ESCAPES, agentName=ESCAPES, label=ESCAPES, messages=[question])
    asked = request(place.run_id, place.work, prompt=ESCAPES, label=ESCAPES)
    (run / "request.json").write_bytes(to_json(asked))
    for name in ("run.log", "worker.out"):
        (run / name).write_text(f"{ESCAPES}\n", encoding="utf-8")
    lines = [{"seq": 1, "type": "text", "text": ESCAPES}, {"seq": 2, "type": ESCAPES, "at": ESCAPES}]
    (run / "events.jsonl").write_bytes(b"".join(to_json(line, indent=None) for line in lines))


def _escaped_end(place: Place) -> None:
    failure = {"code": ESCAPES, "message": ESCAPES, "hint": ESCAPES}
    run = place.run("completed", status="failed", error=failure, summary=ESCAPES)
    said = {"outcome": "failed", "text": ESCAPES, "error": failure}
    (run / "result.json").write_bytes(to_json(said))
    (run / "exit.json").write_bytes(to_json({"workerStarted": True, "treeGone": True, "exitCode": ESCAPES}))
    for name in (b"\x1b[31m", b"\xff\xfe", b"a\nb"):
        Path(os.fsdecode(bytes(run / "outputs") + b"/" + name)).touch()


def _huge(place: Place) -> None:
    run = place.run("completed", summary="s" * _HUGE)
    (run / "run.log").write_bytes(b"l" * _HUGE + b"\n")
    (run / "events.jsonl").write_bytes(b'{"seq":1,"type":"text","text":"' + b"e" * _HUGE + b'"}\n')


def _deep_state(place: Place) -> None:
    (place.run("completed") / "run.meta.json").write_bytes(b'{"messages":' * _DEEP)


def _deep_rest(place: Place) -> None:
    run = place.run("unsettled")
    for name in ("request.json", "result.json", "exit.json", "shim.json", "events.jsonl"):
        (run / name).write_bytes(b'{"a":' * _DEEP + b"0" + b"}" * _DEEP + b"\n")


def _no_figures(place: Place) -> None:
    run = place.run("completed")
    usage = (
        b'{"inputTokens": NaN, "outputTokens": Infinity, "costUsd": "NaN", "turns": 1e999, "toolCalls": -1}'
    )
    told = to_json(state(place.run_id, "completed") | {"usage": "USAGE", "revision": 10**4000})
    (run / "run.meta.json").write_bytes(told.replace(b'"USAGE"', usage))


def _surrogates(place: Place) -> None:
    half = "\ud800"
    run = place.run("completed", summary=half, agentName=half, label=half)
    (run / "result.json").write_bytes(to_json({"outcome": "completed", "text": half, "output": {half: half}}))
    (run / "run.log").write_bytes(b"\xed\xa0\x80\xff\n")


def _wrong_kinds(place: Place) -> None:
    facts: Json = {
        "status": ["completed"],
        "messages": {},
        "transitions": None,
        "launch": "here",
        "createdAt": 0,
    }
    place.run("completed", **facts)


def _edges_of_time(place: Place) -> None:
    first, last = "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"
    place.run("completed", createdAt=first, startedAt=first, completedAt=last)


def _odd_exit(place: Place) -> None:
    run = place.run("running")
    (run / "exit.json").write_bytes(to_json({"workerStarted": True, "signal": {"a": ESCAPES}}))


def _elsewhere(place: Place) -> None:
    """Paths in the files that lead out of the run."""
    canary = str(place.outside.file())
    run = place.run("completed", payload={"size": 1, "path": canary}, rootRunId="../..", parentRunId="../..")
    (run / "request.json").write_bytes(to_json(request(place.run_id, place.work, inputs=[canary])))


TEXTS: dict[str, Callable[[Place], None]] = {
    "escapes": _escapes,
    "escaped-end": _escaped_end,
    "huge": _huge,
    "deep-state": _deep_state,
    "deep-rest": _deep_rest,
    "no-figures": _no_figures,
    "surrogates": _surrogates,
    "wrong-kinds": _wrong_kinds,
    "edges-of-time": _edges_of_time,
    "odd-exit": _odd_exit,
    "elsewhere": _elsewhere,
}


# -- commands


def _definition(place: Place, **keys: object) -> Json:
    return request(place.run_id, place.work, agent={"name": "departed", "description": "It is gone.", **keys})


def plant_command(place: Place) -> None:
    """Plant a run whose agent has no file any more, and whose stored definition starts a program."""
    run = place.run("completed", agentName="departed")
    agent = _definition(place, mcpServers={"x": place.outside.command})
    (run / "request.json").write_bytes(to_json(agent))


def plant_lies(
    root: Path, builders: dict[str, Callable[[Place], None]], outside: Outside, work: Path
) -> dict[str, str]:
    """Plant a run for each builder and return their ids by name."""
    ids = {name: f"20260102-lie-{name}" for name in builders}
    for name, build in builders.items():
        build(Place(root, ids[name], outside, work))
    return ids


# -- the root itself


def plant_root_name(root: Path, name: str, shape: str, outside: Outside, *inside: str) -> None:
    """Put something else in the place of a name of the root; a directory outside has the names `inside`."""
    if shape == "dirlink":
        marks = outside.directory(*inside)
        clear(root / name)
        (root / name).symlink_to(marks)
    else:
        SHAPES[shape](root / name, outside)


def plant_many(root: Path, marks: int, entries: int) -> None:
    """Make marks of runs that may live and are not there, and entries that never became runs."""
    for number in range(entries):
        os.mkdir(f"{root}/20260103-{number:06d}", 0o700)  # noqa: PTH102 - half the time, for so many
    for number in range(marks):
        descriptor = os.open(f"{root}/.changes/20260104-{number:06d}", os.O_CREAT | os.O_WRONLY, 0o600)
        os.close(descriptor)
