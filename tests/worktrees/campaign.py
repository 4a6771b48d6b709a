"""Runs of one repository at once: some are killed, or a person works in it meanwhile."""

import json
import shutil

from subagent_server.run.stderr import VARIABLE
from tests.helpers.turns import asks, says, shell
from tests.helpers.world import World, kill
from tests.worktrees.repository import WORK, Repository


def runs_and_kills(world: World, repository: Repository, runs: int, killed: int) -> None:
    """Start runs, kill some in turn (worker, worker and shim, stop), and look at all that is left."""
    head, listing = repository.head, sorted(path.name for path in repository.top.iterdir())
    world.play(shell(f"{WORK}; echo $SUBAGENT_RUN_ID >> shared.txt"), asks("Go on?"), says("Done."))
    started = [world.start() for _ in range(runs)]
    for run_id in started:
        world.asking(run_id)
    for number, run_id in enumerate(started[:killed]):
        if number % 3 == 2:
            world.stop(run_id)
            continue
        if number % 3 == 1:
            kill(world.shim(run_id))
        kill(world.worker(run_id))
    for run_id in started[killed:]:
        world.reply(run_id, "Yes.")
    half_made = _killed_while_it_is_made(world)
    for run_id in [*started, half_made]:
        repository.gone(run_id)
    assert repository.head == head and repository.git("status", "--porcelain") == ""
    assert sorted(path.name for path in repository.top.iterdir()) == listing
    assert repository.shown(half_made)["state"] == "removed" and not repository.place(half_made).exists()
    for run_id in started:
        shown = repository.shown(run_id)
        assert (shown["state"], shown["commits"], shown["files"]) == ("kept", 1, 2), shown
        assert repository.git("show", f"{shown['branch']}:shared.txt").endswith(f"mine\n{run_id}")
    _merge_and_prune(world, repository, started)


def _killed_while_it_is_made(world: World) -> str:
    """Return a run whose worker died when its worktree was there, and nothing of it on record."""
    world.environment[VARIABLE] = "worktree.made"
    try:
        run_id = world.start()
    finally:
        del world.environment[VARIABLE]
    world.ended(run_id)
    return run_id


def _merge_and_prune(world: World, repository: Repository, started: list[str]) -> None:
    first, *others = started
    repository.merge(first)
    after = repository.head
    for run_id in others:
        assert "conflicts with" in repository.merge(run_id, code=2)
        assert repository.head == after and repository.git("status", "--porcelain") == ""
    pruned = json.loads(world.cli("prune", "--keep", "0", "--json").stdout)
    assert first in pruned["removed"] and sorted(one["runId"] for one in pruned["left"]) == sorted(others)
    assert len(repository.worktrees()) == len(others) == len(repository.branches())
    assert repository.git("worktree", "prune", "--dry-run", "--verbose") == ""
    assert repository.git("fsck", "--no-dangling") == ""
    assert world.cli("rm", "--drop-unmerged", *others).returncode == 0
    assert repository.worktrees() == [] == repository.branches()


def runs_side_by_side(world: World, repository: Repository, worktrees: int, plain: int) -> None:
    """Run so many at once in boxes, with worktrees and without, and set up a client meanwhile."""
    top = repository.top
    before = repository.git("status", "--porcelain"), sorted(path.name for path in top.iterdir())
    world.agent("fixer", isolation="worktree", sandbox="bwrap")
    world.agent("worker", sandbox="bwrap")
    world.play(
        shell("cat shared.txt; git log --oneline; ls -A; sleep 1"), shell("ls -A; sleep 1"), says("Done.")
    )
    agents = [*["fixer", "worker", "worker"] * worktrees, *["worker"] * plain]
    started = [world.start(agent=agent) for agent in agents[: worktrees + plain]]
    done = world.cli("init", "claude", "--yes")
    assert done.returncode == 0, done.stderr
    settings = top / ".claude" / "settings.local.json"
    written = settings.read_text(encoding="utf-8")
    for run_id in started:
        assert world.completed(run_id) == "Done."
    for run_id in started:
        repository.gone(run_id)
        named = {path for event in world.events(run_id, "warning") for path in event.get("canRunCode", ["?"])}
        mine = all(path.startswith((".mcp.json", ".claude/")) for path in named)
        assert mine, world.events(run_id, "warning")
    assert settings.read_text(encoding="utf-8") == written and (top / ".mcp.json").exists()
    (top / ".mcp.json").unlink()
    shutil.rmtree(settings.parent)
    assert before == (
        repository.git("status", "--porcelain"),
        sorted(path.name for path in top.iterdir()),
    )
    assert repository.worktrees() == [] == repository.branches()
