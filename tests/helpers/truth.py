"""What must be true of every run on disk, however it ended."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from subagent_server.process import marks
from subagent_server.run import processes
from subagent_server.run.paths import RunPaths
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from subagent_server.verbs.access import USER
from subagent_server.verbs.examine import Defect, examine
from subagent_server.verbs.reconcile import observe
from subagent_server.verbs.service import Service
from subagent_server.verbs.views import AS_TOOLS, RunView, view_for


def check_status(service: Service, run_id: str, message_id: str | None = None) -> RunView:
    """Return the view that the tool `check_status` answers to a parent."""
    return view_for(service, observe(service.store, run_id, USER), AS_TOOLS, message_id, USER)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines; none where there is no file.

    A line that its writer has not ended yet is none: a reader may see it up to the border of a page.
    """
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]


def examine_all(store: RunStore, environment: Mapping[str, str]) -> Iterator[Defect]:
    """Reconcile and check every run under the root. `environment` holds the secrets to look for."""
    return examine(store, reversed(store.run_ids()), environment)


def processes_of(run: RunPaths) -> list[processes.Identity]:
    """Return what lives of a run: its shim, its worker, and all that carries its mark."""
    shim = marks.recorded_shim(run)
    return [*([] if shim is None else [shim]), *marks.processes_of(run.run_id)]


def check_ended(store: RunStore, run_id: str, environment: Mapping[str, str]) -> None:
    """Check a run that has ended: nothing of it lives, its files are whole, and the doctor finds nothing.

    `environment` holds the secrets that must not be in its files.
    """
    run = store.paths.run(run_id)
    assert not processes_of(run), f"run {run_id} has left processes behind"
    status = json.loads(run.meta.path.read_bytes())["status"]
    assert Status(status).is_terminal, f"run {run_id} is {status}, and nobody keeps it"
    findings = [finding.what for finding in examine(store, [run_id], environment)]
    assert not findings, f"run {run_id}: {findings}"
    assert read_lines(run.events.path)[-1]["type"] == "run_ended"
    parts = list(run.directory.glob(".*.tmp"))
    assert not parts, f"run {run_id} has left {parts[0].name}"
