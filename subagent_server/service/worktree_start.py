"""The place where a new run works: the directory as it is, or a worktree that is made for the run.

Here it is only decided, in a few milliseconds; the worker makes it (`worker/own_worktree.py`).
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from subagent_server.domain.records import RunMeta, RunRequest, Worktree
from subagent_server.service.check_agent import CheckedAgent, Refusal
from subagent_server.service.context import Service
from subagent_server.service.worktree_end import check_not_handed_over, worktree_of
from subagent_server.store.run_files import read_worktree
from subagent_server.worktrees.git import GitFailed
from subagent_server.worktrees.reading import Reader
from subagent_server.worktrees.repository import NoWorktree, find_repository
from subagent_server.worktrees.store import BRANCHES, repository_of, store_of


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
    within: Path | None,
) -> Workplace:
    """Return where a run works whose caller named `cwd`; `before` is the run that it continues.

    `within` is the directory of the run that starts it, which could have written what is there.
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
            worktree = _planned(service, checked, cwd, run_id, within)
        except (NoWorktree, GitFailed) as error:
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


def _planned(
    service: Service, checked: CheckedAgent, cwd: Path, run_id: str, within: Path | None
) -> Worktree:
    """Return the worktree that a run is to have. Raises NoWorktree, GitFailed."""
    settings = service.settings
    if settings.state_directory is None:
        raise NoWorktree("isolation: worktree cannot be kept, because there is no home: set HOME.")
    real = Path(os.path.realpath(cwd))
    places = Path(os.path.realpath(settings.state_directory)) / "worktrees"
    names = {
        "path": str(places / run_id),
        "branch": f"{BRANCHES}/{checked.agent.tool_name.removeprefix('run_')}-{run_id.rpartition('-')[2]}",
    }
    if real.is_relative_to(places):
        return _of_run(service, real, places, names)
    found = find_repository(settings.environment, real, within=within)
    if places.is_relative_to(found.top):
        raise NoWorktree(
            f"isolation: worktree cannot be kept, because worktrees are made in {places}, which lies "
            f"in the repository {found.top} itself: set XDG_STATE_HOME to another place."
        )
    common, prefix = str(found.common), found.prefix
    return Worktree(**names, base=found.head, origin=str(found.top), prefix=prefix, repository=common)


def _of_run(service: Service, real: Path, places: Path, names: dict[str, str]) -> Worktree:
    """Return the worktree of a run that begins where another run is: in the worktree of that one."""
    owner, *parts = real.relative_to(places).parts or ("",)
    above, state = worktree_of(service.store, owner)
    if above is None or state is None or above.path != str(places / owner):
        raise NoWorktree(
            f"isolation: worktree cannot be kept in {real}, which is no worktree of a run of this root."
        )
    git = repository_of(above, os.environ)
    if not store_of(above).is_dir():
        raise NoWorktree(
            f"isolation: worktree cannot be kept in {real}: it is of an earlier version, so merge it first."
        )
    head = Reader(git, above, state, os.environ).head().tip
    prefix = "/".join(parts)
    return Worktree(**names, base=head, origin=above.path, prefix=prefix, repository=above.repository)
