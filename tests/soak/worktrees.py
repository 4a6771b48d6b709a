"""The worktrees of a soak, by the product's own words: what a run has done is merged, once and whole."""

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

from subagent_server.run import durable
from subagent_server.run.errors import SubagentError
from subagent_server.run.records import RunMeta
from tests.soak.field import Field

_SETTLED = ("kept", "removed")
_DONE = re.compile(r"^(?:committed|left) (o\d+\.\d+)$", re.MULTILINE)
_SECONDS = 600


def with_worktrees(ground: Field) -> Iterator[RunMeta]:
    """Yield the states on disk of the runs that have ended and had a worktree."""
    for run_id in ground.store.run_ids():
        try:
            meta = ground.store.read(run_id)
        except SubagentError:
            continue
        if meta.worktree is not None and meta.status.is_terminal:
            yield meta


def findings(ground: Field) -> Iterator[str]:
    """Merge what is left, and yield what should not be. Call it when nothing lives any more."""
    merged = {line["run"] for line in ground.audit.lines("merged")}
    yield from _unfit_repository(ground)
    for meta in with_worktrees(ground):
        files = _told_done(ground, meta.run_id)
        if meta.run_id in merged:
            yield from _missing(ground, meta.run_id, files, "a merge was acknowledged")
            continue
        shown = _shown(ground, meta.run_id)
        if "state" not in shown and not files:
            continue  # it ended before it had one
        if shown.get("state") not in _SETTLED:
            yield f"{meta.run_id} ({meta.status}): its worktree is {shown.get('state')} after its last reader"
            continue
        if shown["state"] == "kept":
            done = _command(ground, "merge", meta.run_id)
            if done.returncode != 0:
                yield f"{meta.run_id} ({meta.status}) cannot be merged: {done.stderr.strip()[-300:]}"
                continue
        yield from _missing(ground, meta.run_id, files, f"its worktree was {shown['state']}")
    yield from _unfit_repository(ground)


def _told_done(ground: Field, run_id: str) -> set[str]:
    """Return the files of which a tool has told the run that they are written."""
    events = durable.records(ground.store.paths.run(run_id).events)
    said = (str(event.get("text")) for event in events if event.get("type") == "tool_result")
    return {name for text in said for name in _DONE.findall(text)}


def _missing(ground: Field, run_id: str, files: set[str], why: str) -> Iterator[str]:
    for name in sorted(files):
        content = git(ground, "show", f"HEAD:{name}")
        if content.stdout != "done\n":
            yield f"{run_id}: {name} is {content.stdout or content.stderr!r} after its merge, though {why}"


def _unfit_repository(ground: Field) -> Iterator[str]:
    """Yield what is wrong with the repository of the person."""
    checked = git(ground, "fsck", "--no-dangling")
    if checked.returncode != 0 or checked.stderr.strip():
        yield f"git fsck: {checked.returncode} {checked.stderr.strip()[-300:]}"
    status = git(ground, "status", "--porcelain")
    if status.returncode != 0 or status.stdout:
        yield f"git status: {status.returncode} {(status.stdout + status.stderr).strip()[:300]}"
    locks = [str(path.relative_to(ground.work)) for path in (ground.work / ".git").rglob("*.lock")]
    if locks:
        yield f"locks of git are left: {', '.join(locks)}"


def _shown(ground: Field, run_id: str) -> dict[str, Any]:
    done = _command(ground, "show", run_id, "--json")
    shown: dict[str, Any] = json.loads(done.stdout or "{}").get("worktree") or {}
    return shown


def _command(ground: Field, *words: str) -> "subprocess.CompletedProcess[str]":
    return _ended([*ground.installation.program, *words], ground)


def git(ground: Field, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run git in the working copy, as the person would."""
    return _ended(["git", *words], ground)


def _ended(command: list[str], ground: Field) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=ground.work,
        env=ground.environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
