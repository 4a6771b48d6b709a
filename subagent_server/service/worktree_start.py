"""The place where a new run works: the directory as it is, or a worktree that is made for the run.

Here it is only decided, in a few milliseconds; the worker makes it (`worker/own_worktree.py`).
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from subagent_server.domain.records import RunMeta, RunRequest, Worktree
from subagent_server.service.check_agent import CheckedAgent, Refusal
from subagent_server.service.context import Service
from subagent_server.service.worktree_end import check_not_handed_over
from subagent_server.store.run_files import read_worktree
from subagent_server.worktrees.repository import BRANCHES, NoWorktree, find_repository


@dataclass(frozen=True)
class Workplace:
    """The working directory of a run, its worktree if it gets one, and its agent with all refusals."""

    cwd: Path
    worktree: Worktree | None
    checked: CheckedAgent


def workplace(
    service: Service,
    checked: CheckedAgent,
    cwd: Path,
    run_id: str,
    before: RunMeta | None,
    *,
    is_data: bool,
) -> Workplace:
    """Return where a run works whose caller named `cwd`; `before` is the run that it continues.

    `is_data` says that a run could have written what is there.
    """
    worktree = None if before is None else before.worktree
    if before is not None and worktree is not None:
        state = read_worktree(service.store.paths.run(before.run_id))
        is_there = state is None or state.phase not in ("removing", "removed")
        worktree = worktree.model_copy(update={"taken_from": before.run_id if is_there else None})
    elif checked.agent.isolation != "worktree" or checked.refusals:
        return Workplace(cwd, None, checked)
    else:
        try:
            worktree = _planned(service, checked, cwd, run_id, is_data=is_data)
        except NoWorktree as error:
            refusal = Refusal(error.sentence, "isolation", in_file=False)
            return Workplace(cwd, None, replace(checked, refusals=[*checked.refusals, refusal]))
    return Workplace(Path(worktree.path, worktree.prefix), worktree, checked)


def place_of(meta: RunMeta, request: RunRequest) -> str:
    """Return the directory that a run was started for: the origin of its worktree, if it has one."""
    worktree = meta.worktree
    return request.cwd if worktree is None else str(Path(worktree.origin, worktree.prefix))


def check_can_take_over(service: Service, meta: RunMeta) -> None:
    """Refuse to continue a run whose worktree another run has taken over already.

    Raises:
        CallerError, UnreadableMeta.
    """
    if meta.worktree is not None:
        check_not_handed_over(meta.run_id, read_worktree(service.store.paths.run(meta.run_id)))


def _planned(service: Service, checked: CheckedAgent, cwd: Path, run_id: str, *, is_data: bool) -> Worktree:
    """Return the worktree that a run is to have. Raises NoWorktree."""
    settings = service.settings
    if settings.state_directory is None:
        raise NoWorktree("isolation: worktree cannot be kept, because there is no home: set HOME.")
    real = Path(os.path.realpath(cwd))
    found = find_repository(settings.environment, real, is_data=is_data)
    place = Path(os.path.realpath(settings.state_directory)) / "worktrees" / run_id
    if place.is_relative_to(found.top):
        raise NoWorktree(
            f"isolation: worktree cannot be kept, because worktrees are made in {place.parent}, which lies "
            f"in the repository {found.top} itself: set XDG_STATE_HOME to another place."
        )
    return Worktree(
        path=str(place),
        branch=f"{BRANCHES}/{checked.agent.tool_name.removeprefix('run_')}-{run_id.rpartition('-')[2]}",
        base=found.head,
        origin=str(found.top),
        prefix=found.prefix,
        repository=str(found.common),
    )
