"""The records of a run's worktree: where it is, fixed at the start, and how it stands."""

from typing import Any, Literal

from pydantic import Field

from subagent_server.domain.records import Record, Worktree

MAX_NOTES = 10
MAX_NOTE_CHARACTERS = 500


class WorktreeState(Record):
    """How a worktree stands: the content of `worktree.json`.

    `removing` is written before anything is deleted, so that half a worktree is never taken for changes. The
    figures compare `tip`, the last commit on the branch, with the base. `merged_tip` is the tip that was
    merged last, and `handed_to` the run that has taken the worktree over. `boxed` says that the run works in
    a box, so nothing of it is read outside of one; `trouble`, why its end could not be settled yet.
    """

    phase: Literal["working", "kept", "removing", "removed"]
    boxed: bool = False
    left_changed: int = 0
    left_untracked: int = 0
    included: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    tip: str | None = None
    commits: int = 0
    files: int = 0
    insertions: int = 0
    deletions: int = 0
    merged_tip: str | None = None
    merged_into: str | None = None
    handed_to: str | None = None
    trouble: str | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the worktree is not this run's any more, or is as its run has left it for good."""
        return self.handed_to is not None or self.phase in ("kept", "removed")


def worktree_view(worktree: Worktree, state: WorktreeState | None) -> dict[str, Any]:
    """Return a worktree as views and results show it: its place, its changes, and what it left out."""
    shown: dict[str, Any] = {"branch": worktree.branch, "base": worktree.base, "from": worktree.origin}
    if state is None:
        return shown
    is_there = state.phase in ("working", "kept")
    shown |= {"state": state.phase, **({"path": worktree.path} if is_there else {})}
    if state.phase == "kept":
        figures = ("commits", "files", "insertions", "deletions")
        shown |= {name: getattr(state, name) for name in figures}
        shown["merged"] = state.tip == state.merged_tip
    if state.handed_to is not None:
        shown["takenOverBy"] = state.handed_to
    if state.left_changed or state.left_untracked:
        shown["leftBehind"] = (
            f"uncommitted changes of {state.left_changed:,} files and {state.left_untracked:,} untracked "
            f"entries of {worktree.origin} are not in it"
        )
    if state.included:
        shown["included"] = len(state.included)
    if state.trouble is not None and not state.is_settled:
        shown["trouble"] = state.trouble
    if state.notes:
        shown["notes"] = [note[:MAX_NOTE_CHARACTERS] for note in state.notes[:MAX_NOTES]]
    return shown


def worktree_words(worktree: Worktree | None) -> str:
    """Return the sentence that tells the model of a run of its worktree; empty if it has none."""
    if worktree is None:
        return ""
    return (
        f"Your directory is in a git worktree of your own, on the branch {worktree.branch} from commit "
        f"{worktree.base[:12]}: changes of the original working copy that were not committed are not in it, "
        "and what you leave is committed on this branch when you end."
    )
