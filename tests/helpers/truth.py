"""What must be true of every run on disk, however it ended."""

import json
from pathlib import Path
from typing import Any

from subagent_server.domain.states import TRANSITIONS, Event, Status
from subagent_server.host import processes
from subagent_server.store.paths import RunPaths


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def processes_of(run: RunPaths) -> list[processes.Identity]:
    """Return what lives of a run: its shim, its worker, and all that carries its mark."""
    return [
        *processes.marked(f"SUBAGENT_SHIM={run.run_id}"),
        *processes.marked(f"SUBAGENT_RUN_ID={run.run_id}"),
    ]


def check_ended(run: RunPaths) -> None:
    """Check a run that has ended and was looked at: its files agree, and nothing of it lives."""
    meta = json.loads(run.meta.read_bytes())
    name = f"run {run.run_id} ({meta['agentName']}, {meta['status']})"
    assert not processes_of(run), f"{name} has left processes behind"
    assert Status(meta["status"]).is_terminal, f"{name} has not ended and nobody keeps it"
    _check_steps(name, meta)
    assert all(
        m["messageStatus"] not in ("pending_parent_reply", "parent_replied") for m in meta["messages"]
    ), f"{name} has ended with an open question"
    events = read_lines(run.events)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1)), f"{name}: gaps in events"
    ends = [event for event in events if event["type"] == "run_ended"]
    assert len(ends) == 1 and events[-1] == ends[0], f"{name}: {len(ends)} ends in its events"
    assert ends[0]["status"] == meta["status"], f"{name}: its journal says {ends[0]['status']}"
    if run.result.exists():
        outcome = json.loads(run.result.read_bytes())["outcome"]
        assert outcome == meta["status"], f"{name} has the result of a run that {outcome}"
    assert json.loads(run.exit.read_bytes())["treeGone"] is True, name
    assert not list(run.directory.glob("*.tmp*")), f"{name} has left temporary files"


def _check_steps(name: str, meta: dict[str, Any]) -> None:
    """Check that the recorded steps follow each other, are legal, and lead to the status."""
    status = Status.READY
    for step in meta["transitions"]:
        assert step["from"] == status, f"{name}: a step from {step['from']} follows {status}"
        if step["event"] != Event.USAGE_SETTLED:
            assert step["event"] in TRANSITIONS[status], f"{name}: {step['event']} in {status}"
        status = Status(step["to"])
    assert status == meta["status"], f"{name}: its steps lead to {status}"
    assert meta["revision"] == len(meta["transitions"]), name
