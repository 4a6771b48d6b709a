"""Worker and shim are killed while a worktree is made, settled or removed."""

import json

from subagent_server.run import processes
from subagent_server.run.stderr import VARIABLE
from tests.helpers.processes import PATIENCE_SECONDS, Child, identity_of
from tests.helpers.turns import says, shell
from tests.helpers.world import World
from tests.worktrees.repository import WORK, Repository

CHANGES = "When it changes something."
HALF_MADE = ("worktree.added", "worktree.made")
SETTLED = ("worktree.committed", "worktree.moved")
REMOVED = ("worktree.removing", "worktree.dropped")


def test_whatever_was_cut_off_is_finished_by_a_reader_and_git_is_clean_after_prune(
    world: World, repository: Repository
) -> None:
    changing = {"when": {"prompt": CHANGES}, "turns": [shell(WORK), says("Done.")]}
    world.play(says("Nothing to do."), conversations=[changing])
    head, copy = repository.head, (repository.top / "shared.txt").read_text("utf-8")
    started: dict[str, str] = {}
    for point in (*HALF_MADE, *SETTLED, *REMOVED):
        world.environment[VARIABLE] = f"{point},shim.reaped"
        started[point] = world.start(CHANGES if point in SETTLED else "Do it.")
    del world.environment[VARIABLE]
    for point, run_id in started.items():
        world.gone(run_id)
        repository.gone(run_id)
        assert f"dies here on purpose: {point}" in world.paths(run_id).worker_out.path.read_text("utf-8")
        shown = repository.shown(run_id)
        assert shown["state"] == ("kept" if point in SETTLED else "removed"), (point, shown)
    assert repository.head == head and repository.git("status", "--porcelain") == ""
    assert (repository.top / "shared.txt").read_text("utf-8") == copy
    kept = [started[point] for point in SETTLED]
    assert [repository.shown(run_id)["commits"] for run_id in kept] == [1, 1]
    assert "merged" in repository.merge(kept[0])
    pruned = json.loads(world.cli("prune", "--keep", "0", "--json").stdout)
    assert [left["runId"] for left in pruned["left"]] == [kept[1]], pruned
    assert repository.worktrees() == [kept[1]] and len(repository.branches()) == 1
    assert repository.git("worktree", "prune", "--dry-run", "--verbose") == ""
    assert repository.git("fsck", "--no-dangling") == ""
    locks = [path for path in (repository.top / ".git").rglob("*.lock") if path.name != "worktree.lock"]
    assert locks == []


READER = """
    import os
    from pathlib import Path
    from subagent_server.worktrees.git import harmless_git
    git = harmless_git(os.environ, Path.cwd())
    print("ready", flush=True)
    git.run("wait for its input", "hash-object", "--stdin", stdin=0)
"""


def test_a_git_ends_with_the_process_that_has_started_it() -> None:
    with Child(READER) as reader:  # its stdin, which git reads, stays open
        assert reader.hear() == "ready"
        while not (below := processes.descendants([reader.pid])):
            assert processes.is_alive(reader.identity)
        git = identity_of(below[0].pid)
        while not b"".join(processes.command_of(git.pid)[:1]).endswith(b"git"):  # it is being executed
            assert processes.is_alive(git)
        reader.kill()
        processes.wait_for_exit(git, PATIENCE_SECONDS)
        assert not processes.is_alive(git)
