"""The names that other programs execute, each with a mount of its own in a box, also while it is missing."""

import os
import subprocess
from pathlib import Path

import pytest

from subagent_server.sandbox.placeholders import Placeholders
from subagent_server.sandbox.protected_names import ProtectedNames, protect, remove_left_placeholders
from tests.helpers.processes import Child
from tests.helpers.repositories import git, make_repository

PROTECT_FOR_EVER = """
    import sys, signal
    from pathlib import Path
    from subagent_server.sandbox.placeholders import Placeholders
    from subagent_server.sandbox.protected_names import protect
    placeholders = Placeholders()
    protect(Path(sys.argv[1]), placeholders)
    print("protected", flush=True)
    signal.pause()
"""
HOOKS_ELSEWHERE = ("core.hooksPath", "tools/hooks")


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    """A working directory, empty, by its real path."""
    directory = tmp_path.resolve() / "project"
    directory.mkdir()
    return directory


def names(directory: Path) -> set[str]:
    """Return the names in a directory."""
    return {path.name for path in directory.iterdir()}


def mounts(protected: ProtectedNames, cwd: Path) -> dict[str, str]:
    """Return how each place below `cwd` is mounted."""
    return {os.path.relpath(path, cwd): how for how, path in protected.mounts}


def test_missing_names_are_held_while_a_box_may_live_and_are_gone_afterwards(cwd: Path) -> None:
    placeholders = Placeholders()
    found = mounts(protect(cwd, placeholders), cwd)
    for name in (".git", ".mcp.json", ".claude", ".envrc", ".vscode", "commondir"):
        assert found[name] == "--ro-bind"
        assert names(cwd / name) == set()
    placeholders.release()
    assert names(cwd) == set()


def test_git_is_a_mount_of_its_own_whose_executed_parts_are_read_only(cwd: Path) -> None:
    make_repository(cwd)
    before = names(cwd / ".git")
    placeholders = Placeholders()
    found = mounts(protect(cwd, placeholders), cwd)
    assert found[".git"] == "--bind"
    assert {name for name in found if name.startswith(".git/")} == {
        *(".git/hooks", ".git/config", ".git/info", ".git/commondir")
    }
    assert git("-C", cwd, "status", "--porcelain") == ""
    git("-C", cwd, "commit", "--quiet", "--allow-empty", "-m", "beside a box")
    placeholders.release()
    assert names(cwd / ".git") == before


def test_git_names_its_commits_as_ever_beside_what_holds_the_names(cwd: Path) -> None:
    make_repository(cwd)
    placeholders = Placeholders()
    protect(cwd, placeholders)
    assert git("-C", cwd, "diff", "HEAD") == "" and git("-C", cwd, "log", "HEAD", "--format=%H")
    placeholders.release()


def test_git_refuses_a_repository_that_was_planted_in_the_directory_also_afterwards(cwd: Path) -> None:
    placeholders = Placeholders()
    protect(cwd, placeholders)
    (cwd / "HEAD").write_text("ref: refs/heads/x\n", encoding="utf-8")
    for name in ("objects", "refs"):
        (cwd / name).mkdir()
    config = "[core]\nrepositoryformatversion = 0\nfsmonitor = touch planted\n"
    (cwd / "config").write_text(config, encoding="utf-8")
    for _ in ("held", "released"):
        with pytest.raises(subprocess.CalledProcessError):
            git("-C", cwd, "rev-parse", "--git-dir")
        placeholders.release()
    assert "planted" not in names(cwd)
    (cwd / "HEAD").unlink()
    remove_left_placeholders(cwd)
    assert names(cwd) == {"objects", "refs", "config"}


def test_hooks_and_included_files_that_the_configuration_names_are_read_only(cwd: Path) -> None:
    make_repository(cwd)
    (cwd / "shared.cfg").touch()
    (cwd / "tools").mkdir()
    git("-C", cwd, "config", *HOOKS_ELSEWHERE)
    git("-C", cwd, "config", "include.path", "../shared.cfg")
    git("-C", cwd, "config", "--add", "include.path", "../missing.cfg")
    placeholders = Placeholders()
    protected = protect(cwd, placeholders)
    found = mounts(protected, cwd)
    assert (found["tools"], found["tools/hooks"]) == ("--bind", "--ro-bind")
    assert found["shared.cfg"] == "--ro-bind"
    assert [line.partition(":")[0] for line in protected.open] == ["missing.cfg"]
    placeholders.release()
    assert names(cwd / "tools") == set()


def test_what_cannot_be_held_is_said(cwd: Path) -> None:
    (cwd / "elsewhere").mkdir()
    (cwd / ".claude").symlink_to("elsewhere")
    (cwd / ".mcp\n.json").touch()
    placeholders = Placeholders()
    protected = protect(cwd, placeholders)
    placeholders.release()
    assert ".claude" not in mounts(protected, cwd)
    assert protected.open == [".claude: it is a symbolic link, which cannot be kept from being replaced"]


def test_a_lifted_name_stays_free_and_a_lifted_part_of_one_is_writable_in_it(cwd: Path) -> None:
    (cwd / ".claude" / "agents").mkdir(parents=True)
    placeholders = Placeholders()
    protected = protect(cwd, placeholders, [".claude/agents", ".envrc"])
    placeholders.release()
    found = mounts(protected, cwd)
    assert ".envrc" not in found
    assert (found[".claude"], found[".claude/agents"]) == ("--ro-bind", "--bind")
    assert list(found).index(".claude") < list(found).index(".claude/agents")


def test_a_linked_worktree_shows_its_repository_and_writes_only_data_there(cwd: Path) -> None:
    make_repository(cwd)
    worktree = cwd.parent / "worktree"
    git("-C", cwd, "worktree", "add", "--quiet", worktree)
    placeholders = Placeholders()
    found = {str(path): how for how, path in protect(worktree, placeholders).mounts}
    placeholders.release()
    common = f"{cwd}/.git"
    written = {path for path, how in found.items() if how == "--bind"}
    assert written == {f"{common}/{name}" for name in ("objects", "refs", "logs", "worktrees/worktree")}
    for path in (common, f"{common}/worktrees/worktree/commondir", f"{worktree}/.git"):
        assert found[path] == "--ro-bind"


def test_a_missing_configuration_of_a_linked_worktree_alone_is_said(cwd: Path) -> None:
    make_repository(cwd)
    worktree = cwd.parent / "worktree"
    git("-C", cwd, "worktree", "add", "--quiet", worktree)
    git("-C", cwd, "config", "extensions.worktreeConfig", "true")
    own = cwd / ".git" / "worktrees" / "worktree" / "config.worktree"
    placeholders = Placeholders()
    opened = protect(worktree, placeholders).open
    own.touch()
    protected = protect(worktree, placeholders)
    placeholders.release()
    assert [line.partition(":")[0] for line in opened] == [str(own)]
    assert protected.open == [] and ("--ro-bind", own) in protected.mounts


def test_a_file_that_claims_to_be_a_worktree_shows_no_other_directory(cwd: Path) -> None:
    other = cwd.parent / "other"
    make_repository(other)
    own = cwd / "fake" / "worktrees" / "mine"
    own.mkdir(parents=True)
    (own / "gitdir").write_text(f"{cwd}/.git\n", encoding="utf-8")
    (own / "commondir").write_text(f"{other}/.git\n", encoding="utf-8")
    for target in (other / ".git", other / ".git" / "worktrees" / "x", own, "/", "\0", ""):
        (cwd / ".git").write_text(f"gitdir: {target}\n", encoding="utf-8")
        placeholders = Placeholders()
        protected = protect(cwd, placeholders)
        placeholders.release()
        assert all(path.is_relative_to(cwd) for _, path in protected.mounts), target


def test_placeholders_of_killed_processes_are_found_again(cwd: Path) -> None:
    make_repository(cwd)
    git("-C", cwd, "config", *HOOKS_ELSEWHERE)
    (cwd / ".vscode").mkdir()
    before = names(cwd) | names(cwd / ".git")
    with Child(PROTECT_FOR_EVER, cwd) as process:
        assert process.hear() == "protected"
        remove_left_placeholders(cwd)
        assert {".envrc", "tools", ".vscode", "commondir"} <= names(cwd) | names(cwd / ".git")
    remove_left_placeholders(cwd)
    assert names(cwd) | names(cwd / ".git") == before
