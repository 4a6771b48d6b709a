"""What a run in a sandbox may do to the repository of its worktree (SPEC section 13)."""

from tests.helpers.turns import says, shell, tool_results
from tests.helpers.world import World
from tests.worktrees.repository import Repository

AS_A = "git -c user.name=A -c user.email=a@example.com"
COMMITS = f"echo in >> shared.txt; {AS_A} commit -qam 'By the run' && git log -1 --format=%s"
ESCAPES = """
echo / > .git; rm -f .git
cd "$(git rev-parse --git-dir)" && pwd
echo x > hooks/post-checkout; echo x >> config; echo / > objects/info/alternates; echo x > commondir
echo x > info/exclude; git config core.hooksPath /tmp
cd "$(cat objects/info/alternates)" && rm -rf * 2>&1 | grep -c "Read-only file system"
ls ../HEAD ../config
"""


def test_a_run_in_a_box_commits_on_its_branch_and_changes_nothing_else_of_the_repository(
    world: World, repository: Repository
) -> None:
    world.agent(isolation="worktree", sandbox="bwrap")
    head, before = repository.head, (repository.top / ".git" / "config").read_text("utf-8")
    simulator = world.play(shell(COMMITS), shell(ESCAPES), says("Done."))
    run_id = world.start()
    assert world.completed(run_id) == "Done."
    repository.gone(run_id)
    committed, escaped = (tool_results(simulator.requests[at].body)[-1] for at in (1, 2))
    assert committed == "By the run"
    where, *refusals = escaped.splitlines()
    assert "Read-only" in where
    place = f"{repository.place(run_id)}.git"
    assert place in escaped.splitlines()
    assert sum("Read-only file system" in line for line in refusals) >= 5, escaped
    assert "cannot access '../HEAD'" in escaped and "cannot access '../config'" in escaped
    assert repository.head == head and (repository.top / ".git" / "config").read_text("utf-8") == before
    assert repository.git("status", "--porcelain") == "" and repository.git("branch", "--list", "other") == ""
    assert repository.shown(run_id)["commits"] == 1
    assert "merged" in repository.merge(run_id) and repository.git("show", "HEAD:shared.txt").endswith("in")
