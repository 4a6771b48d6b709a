"""A worktree from its start to its removal (SPEC sections 3, 6 and 13)."""

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from subagent_server.run.errors import CallerError, UnknownRun
from subagent_server.run.records import RunMeta, WorktreeState
from subagent_server.run.stderr import VARIABLE
from subagent_server.verbs import run_worktree
from subagent_server.verbs.access import USER
from subagent_server.verbs.continue_run import ContinueOrder, continue_run
from subagent_server.verbs.remove import remove
from tests.helpers.turns import asks, says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World
from tests.worktrees.repository import WORK, Repository


def test_changes_are_kept_on_a_branch_and_merged_and_the_working_copy_is_not_touched_before(
    world: World, repository: Repository
) -> None:
    base, place = repository.head, repository.top
    (place / "shared.txt").write_text("not committed\n", encoding="utf-8")
    (place / "loose.txt").write_text("not known\n", encoding="utf-8")
    run_id = repository.ran(f"pwd; cat shared.txt; ls; {WORK}")
    assert repository.head == base and (place / "shared.txt").read_text("utf-8") == "not committed\n"
    assert not (place / "new.txt").exists()
    (told,) = (event["text"] for event in world.events(run_id, "tool_result"))
    where, first, *names = told.split()
    spot = repository.place(run_id)
    assert where == str(spot) and first == "first" and "loose.txt" not in names
    assert str(world.home / ".local/state/subagent/worktrees") in where
    shown = repository.shown(run_id)
    assert shown["branch"] == f"subagent/worker-{run_id[-6:]}" and shown["base"] == base
    assert (shown["commits"], shown["files"], shown["insertions"]) == (1, 2, 2)
    left = f"uncommitted files of {repository.top} are not in it: 1 changed, 1 untracked"
    assert shown["leftBehind"] == left and shown["next"] == f"`subagent merge {run_id}`"
    assert world.result(run_id).worktree is not None
    patch = world.cli("show", run_id, "--diff").stdout
    assert "+mine" in patch and "new file mode" in patch
    assert "shared.txt" in repository.merge(run_id, code=2), "an uncommitted change is in the way"
    assert (place / "shared.txt").read_text("utf-8") == "not committed\n" and repository.head == base
    repository.git("checkout", "--quiet", "shared.txt")
    assert "merged" in repository.merge(run_id)
    assert (place / "shared.txt").read_text("utf-8") == "first\nmine\n"
    assert (place / "loose.txt").exists() and repository.shown(run_id)["merged"] is True
    after = repository.head
    assert "already" in repository.merge(run_id) and repository.head == after
    assert f"Subagent-Run: {run_id}" in repository.git("log", "-1", "--format=%B")
    assert world.cli("rm", run_id).returncode == 0
    assert repository.branches() == [] and repository.worktrees() == []
    assert not spot.exists()


def test_a_merge_that_was_undone_is_done_again_as_the_command_says(
    world: World, repository: Repository
) -> None:
    run_id, base, ignored = repository.left(), repository.head, repository.top / "new.txt"
    (repository.top / ".git" / "info" / "exclude").write_text("new.txt\n", encoding="utf-8")
    ignored.write_text("of the user\n", encoding="utf-8")
    assert "new.txt" in repository.merge(run_id, code=2) and ignored.read_text("utf-8") == "of the user\n"
    ignored.unlink()
    for options in ("", "--squash", "-s ours"):
        repository.git("config", "branch.main.mergeOptions", options)
        assert "2 files, +2 -0), now at" in repository.merge(run_id)
        assert repository.git("show", "HEAD:new.txt") == "new" and repository.git("status", "--short") == ""
        assert "already" in repository.merge(run_id)
        repository.git("reset", "--quiet", "--hard", base)
    repository.git("checkout", "--quiet", "--orphan", "other")
    repository.commit("other")
    assert "have no commit in common" in repository.merge(run_id, code=2)
    repository.git("checkout", "--quiet", "main")
    (branch,) = repository.branches()
    repository.git("branch", "-m", branch, "mine")
    assert f"`git branch {branch} " in repository.merge(run_id, code=2)
    (repository.top / ".git").rename(world.home / "moved")
    assert "/.git is gone: put it back" in repository.merge(run_id, code=6)


def test_a_run_that_a_hook_of_git_starts_commits_without_an_identity(
    world: World, repository: Repository
) -> None:
    world.agent(isolation="worktree", sandbox="none")
    own = "git add -A; git commit -qm own; git rev-parse --git-dir"
    world.play(shell(f"{WORK}; {own}"), says("Done."))
    of_hooks = {
        "GIT_DIR": str(repository.top / ".git"),
        "GIT_INDEX_FILE": str(repository.top / ".git" / "index"),
    }
    before = repository.head
    run_id = world.cli("run", "worker", "Do it.", "--detach", env=of_hooks).stdout.strip()
    assert world.completed(run_id) == "Done."
    repository.gone(run_id)
    assert str(repository.store(run_id)) in world.events(run_id, "tool_result")[0]["text"]
    assert repository.head == before and repository.git("status", "--short") == ""
    assert repository.git("log", "-1", "--format=%ae %s", *repository.branches()) == "subagent@localhost own"


def test_a_rebase_leaves_out_nothing_that_a_merge_commit_alone_has(repository: Repository) -> None:
    run_id = repository.left(
        "g() { git -c user.name=A -c user.email=a@b $@; }; g checkout -qb side; echo x > x; g add x; "
        "g commit -qm x; g checkout -q -; echo y > y; g add y; g commit -qm y; g merge -q --no-commit side; "
        "echo more >> shared.txt; g add shared.txt; g commit -qm both"
    )
    assert "Take --merge or --squash" in repository.merge(run_id, "--rebase", code=2)
    assert "merged" in repository.merge(run_id, "--squash")
    assert (repository.top / "shared.txt").read_text("utf-8") == "first\nmore\n"


def test_commits_on_other_branches_stashed_changes_and_conflicts_are_named(
    world: World, repository: Repository
) -> None:
    run_id = repository.left(
        "g() { git -c user.name=A -c user.email=a@b $@; }; g checkout -qb other; echo x > x; g add x; "
        "g commit -qm x; g checkout -q -; echo y > y; g add y; g stash -q; g branch same"
    )
    (note,) = repository.shown(run_id)["notes"]
    assert "not merged: other, stash. They are in" in note and repository.store(run_id).is_dir()
    assert "it holds work that its branch has not" in world.cli("rm", run_id).stderr
    run_id = repository.left(
        "g() { git -c user.name=A -c user.email=a@b $@; }; g checkout -qb x; echo x >> shared.txt; "
        "g commit -qam x; g checkout -q -; echo y >> shared.txt; g commit -qam y; g merge x"
    )
    assert any("A merge has not ended in shared.txt" in note for note in repository.shown(run_id)["notes"])
    run_id = repository.left(
        "g() { git -c user.name=A -c user.email=a@b $@; }; g checkout -qb x; echo x >> shared.txt; "
        "g commit -qam x; echo y >> shared.txt; g commit -qam y; g checkout -q -; g cherry-pick x; "
        "g checkout -q --ours shared.txt; g branch -qD x"
    )
    assert any("A merge has not ended in shared.txt" in note for note in repository.shown(run_id)["notes"])
    run_id = repository.left(
        "g() { git -c user.name=A -c user.email=a@b $@; }; g checkout -qb packed; echo x > x; g add x; "
        "g commit -qm x; g checkout -q -; g repack -adq; g branch same"
    )
    (note,) = repository.shown(run_id)["notes"]
    assert "not merged: packed. They are in" in note
    run_id = repository.left(f"{WORK}; git -c user.name=A -c user.email=a@b commit -qa --amend -m anew")
    assert repository.shown(run_id)["files"] == 2 and "notes" not in repository.shown(run_id)


def test_without_changes_the_worktree_and_its_branch_are_gone_with_the_run(
    world: World, repository: Repository
) -> None:
    run_id = repository.ran("cat shared.txt", cwd="deep")
    assert repository.shown(run_id)["state"] == "removed" and not repository.place(run_id).exists()
    assert repository.branches() == [] and repository.worktrees() == []
    assert "no changes" in repository.merge(run_id, code=2)
    assert repository.place(run_id).name == run_id and world.cli("rm", run_id).returncode == 0


def test_unmerged_work_is_dropped_only_if_asked_and_never_pruned(
    world: World, repository: Repository
) -> None:
    kept = repository.left()
    done = json.loads(world.cli("prune", "--keep", "0", "--json").stdout)
    assert done["removed"] == [] and "1 commit of it is not merged" in done["left"][0]["why"]
    refused = world.cli("rm", kept)
    assert refused.returncode == 2 and f"subagent merge {kept}" in refused.stderr
    assert repository.place(kept).is_dir() and len(repository.branches()) == 1
    assert world.cli("rm", "--drop-unmerged", kept).returncode == 0
    assert repository.branches() == [] and repository.worktrees() == []
    merged = repository.left()
    repository.merge(merged, "--squash")
    assert json.loads(world.cli("prune", "--keep", "0", "--json").stdout)["removed"] == [merged]
    assert repository.branches() == repository.worktrees() == []
    assert repository.git("fsck", "--no-dangling") == ""


def test_a_run_of_a_later_version_is_not_merged(world: World, repository: Repository) -> None:
    run_id = repository.left(WORK)
    meta = world.paths(run_id).meta.path
    meta.write_text(json.dumps({**json.loads(meta.read_text("utf-8")), "schemaVersion": 9}), encoding="utf-8")
    assert "written by a later version" in repository.merge(run_id, code=2)


def test_a_rebased_commit_has_its_words_whatever_encoding_the_repository_names(
    repository: Repository,
) -> None:
    repository.git("config", "i18n.commitEncoding", "ISO-8859-1")
    commit = "git add -A; git -c user.name=Jörg -c user.email=a@b commit -qm Größe"
    run_id = repository.left(f"{WORK}; {commit}")
    repository.merge(run_id, "--rebase")
    shown = repository.git("log", "-1", "--encoding=UTF-8", "--format=%an %s")
    assert shown == "Jörg Größe"


def test_a_rerun_begins_where_the_first_run_began(world: World, repository: Repository) -> None:
    for first in (repository.ran(), repository.ran("true")):
        world.play(shell(WORK), says("Again."))
        second = world.cli("rerun", first, "--detach").stdout.split()[0]
        assert world.completed(second) == "Again."
        repository.gone(second)
        assert repository.shown(second)["base"] == repository.head
        worktree = world.meta(second).worktree
        assert worktree is not None and worktree.origin == str(repository.top)


def test_a_continued_run_takes_the_worktree_over_and_only_one_may(
    world: World, repository: Repository
) -> None:
    first = repository.ran()
    world.play(shell(WORK), says("Done."), shell("cat new.txt; echo more >> new.txt"), says("Again."))
    second = world.continued(first, "Go on.")
    assert world.completed(second) == "Again."
    repository.gone(second)
    assert repository.place(second) == repository.place(first)
    assert repository.shown(first)["takenOverBy"] == second
    assert (repository.shown(second)["commits"], repository.shown(second)["insertions"]) == (2, 3)
    third = world.cli("continue", first, "Once more.")
    assert third.returncode == 2 and second in third.stderr
    assert second in repository.merge(first, code=2)
    assert "merged" in repository.merge(second, "--rebase")
    assert (repository.top / "new.txt").read_text("utf-8") == "new\nmore\n"
    assert repository.git("rev-list", "--count", "HEAD") == "3"
    assert not repository.git("log", "-1", "--format=%B.").endswith("\n\n."), "its message is as it was"
    assert world.cli("rm", first).returncode == 0 and repository.place(second).is_dir()
    unchanged = repository.ran("true")
    world.play(shell("true"), says("Done."), shell(WORK), says("Now."))
    later = world.continued(unchanged, "Change it.")
    assert world.completed(later) == "Now."
    repository.gone(later)
    assert repository.place(later) == repository.place(unchanged) and repository.shown(later)["commits"] == 1


def test_of_continuations_at_once_one_starts_and_the_others_leave_no_run(
    world: World, repository: Repository
) -> None:
    first = repository.ran()
    world.play(shell(WORK), says("Done."), says("Again."))

    def started(number: int) -> str:
        try:
            return continue_run(world.service, ContinueOrder(first, f"Go on {number}."), USER).run_id
        except CallerError as error:
            assert "was taken over by run" in error.sentence
            return ""

    with ThreadPoolExecutor(4) as callers:
        (second,) = filter(None, callers.map(started, range(4)))
    assert world.completed(second) == "Again."
    assert sorted(world.store.run_ids()) == [first, second]


def test_a_worktree_that_is_taken_over_while_its_first_run_is_removed_stays(
    world: World, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = repository.left()
    repository.merge(first)
    looked = run_worktree.unmerged

    def taken_over_after(meta: RunMeta, state: WorktreeState | None) -> str | None:
        why = looked(meta, state)
        run_worktree.hand_over(world.store, first, "20260101-000000-worker-aaaaaa")
        return why

    monkeypatch.setattr(run_worktree, "unmerged", taken_over_after)
    with pytest.raises(CallerError, match="was taken over by run 20260101-000000-worker-aaaaaa"):
        remove(world.store, first)
    assert repository.place(first).is_dir() and len(repository.branches()) == 1


def test_a_directory_of_which_nothing_is_committed_can_have_no_worktree(
    world: World, repository: Repository
) -> None:
    (repository.top / "later").mkdir()
    run_id = world.start(cwd="later")
    code, message = world.failed(run_id)
    where = f"'{repository.top}/later'"
    assert code == "config" and f"cannot be kept in {where}, because nothing of it is committed" in message
    repository.gone(run_id)
    assert not repository.branches() and not repository.worktrees()


def test_of_two_removals_of_a_worktree_the_later_finds_no_run(
    world: World, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = repository.left()

    def removed_after(meta: RunMeta, state: WorktreeState | None) -> str | None:
        monkeypatch.undo()
        remove(world.store, run_id, drop_unmerged=True)
        return None

    monkeypatch.setattr(run_worktree, "unmerged", removed_after)
    with pytest.raises(UnknownRun):
        remove(world.store, run_id)
    assert not repository.branches()


def test_a_copy_of_a_run_leaves_the_worktree_to_the_run_that_works_in_it(
    world: World, repository: Repository
) -> None:
    world.play(asks("Go on?"), shell(WORK), says("Done."), says("Again."))
    run_id = world.start_asking()
    copy = world.home / "copy"
    shutil.copytree(world.paths(run_id).directory, copy / run_id, ignore=shutil.ignore_patterns("wake.*"))
    named = ["--runs", str(copy)]
    assert world.cli("trust", *named).returncode == 0
    for verb in ("merge", "rm --yes", "continue"):
        assert "still works in the worktree" in world.cli(*named, *verb.split(), run_id).stderr, verb
    world.cli(*named, "ls")
    world.reply(run_id, "yes")
    assert world.completed(run_id) == "Done." and repository.shown(run_id)["commits"] == 1


def test_what_a_continued_run_has_cleared_away_is_named_no_more(world: World, repository: Repository) -> None:
    first = repository.ran(f"{WORK}; git init -q inner; echo x > inner/x")
    (note,) = repository.shown(first)["notes"]
    assert "repositories" in note and "inner/" in note
    world.play(shell(WORK), says("Done."), shell("rm -rf inner"), says("Again."))
    second = world.continued(first, "Go on.")
    assert world.completed(second) == "Again."
    repository.gone(second)
    assert "notes" not in repository.shown(second)


@pytest.mark.parametrize("command", ["true", WORK])
def test_a_run_that_never_began_is_continued_in_the_worktree_of_the_one_before(
    world: World, repository: Repository, command: str
) -> None:
    first = repository.ran(command)
    world.environment["SUBAGENT_MAX_RUNS"] = "1"
    world.agent("holder")
    holding = {"when": {"prompt": "Hold"}, "turns": [shell("sleep 600")]}
    world.play(shell(WORK), says("Done."), shell(WORK), says("Now."), conversations=[holding])
    holder = world.start("Hold the slot.", "holder")
    wait_for(lambda: world.events(holder, "tool_call"), BOUND, "the slot to be taken")
    cut = never_begun(world, repository, "continue", first, "Go on.", env={VARIABLE: "starter.launched"})
    last = never_begun(world, repository, "continue", cut, "Go on.")
    alone = never_begun(world, repository, "run", "worker", "Do it.")
    world.stop(holder)
    for run_id, text, commits in ((last, "Now.", 2 if command == WORK else 1), (alone, "Done.", 1)):
        continued = world.continued(run_id, "Go on.")
        assert world.completed_and_gone(continued) == text
        repository.gone(continued)
        assert repository.shown(continued)["commits"] == commits
    if command == WORK:
        assert repository.shown(first)["takenOverBy"] == last


def never_begun(
    world: World, repository: Repository, *words: str, env: Mapping[str, str] | None = None
) -> str:
    """Return a run that a command has started, and that was stopped while it waited for a slot."""
    before = set(world.store.run_ids())
    world.cli(*words, "--detach", env=env)
    (run_id,) = set(world.store.run_ids()) - before
    world.stop(run_id)
    repository.gone(run_id)
    assert world.meta(run_id).started_at is None
    return run_id
