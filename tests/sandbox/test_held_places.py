"""What programs of the host execute is read-only in a box, and held with every directory above it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.sandbox.box import Held, directories_above, hold
from subagent_server.sandbox.file_watch import own_hooks
from subagent_server.sandbox.git_files import git_settings
from subagent_server.sandbox.readable import BoxRefused, PathRefused, named_paths
from tests.helpers.files import write_program
from tests.helpers.repositories import git, make_repository


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    """A working directory, empty, by its real path."""
    directory = tmp_path.resolve() / "project"
    directory.mkdir()
    return directory


def mounts(held: Held, cwd: Path) -> dict[str, str]:
    """Return how each place is mounted, by its path from `cwd`."""
    return {os.path.relpath(path, cwd): how for how, path in held.mounts}


def test_nothing_is_made_in_the_working_directory(cwd: Path) -> None:
    assert hold(cwd, []).mounts == []
    assert list(cwd.iterdir()) == []


def test_names_that_exist_are_read_only_and_git_is_one_mount(cwd: Path) -> None:
    make_repository(cwd)
    (cwd / ".claude").mkdir()
    (cwd / "shop.code-workspace").touch()
    found = mounts(hold(cwd, []), cwd)
    assert found == dict.fromkeys((".git", ".claude", "shop.code-workspace"), "--ro-bind")


def test_files_that_the_configuration_of_git_or_its_links_lead_to_are_read_only(cwd: Path) -> None:
    make_repository(cwd)
    (cwd / "shared.cfg").touch()
    (cwd / "tools/hooks").mkdir(parents=True)
    git("-C", cwd, "config", "core.hooksPath", "tools/hooks")
    git("-C", cwd, "config", "include.path", "../shared.cfg")
    git("-C", cwd, "config", "--add", "include.path", "../missing.cfg")
    git("-C", cwd, "config", "merge.own.driver", "sh 'tools/merge.sh' %O %A %B main")
    (cwd / ".git/hooks/pre-commit").symlink_to("../../tools/check.sh")
    for name in ("tools/merge.sh", "tools/check.sh", "tools/other.sh", "main"):
        (cwd / name).touch()
    executed = git_settings(dict(os.environ), cwd).executed
    found = mounts(hold(cwd, executed), cwd)
    held = {".git", "tools/hooks", "shared.cfg", "tools/merge.sh", "tools/check.sh"}
    assert found == dict.fromkeys(held, "--ro-bind")


def test_settings_and_links_of_git_that_lead_nowhere_stop_nothing(cwd: Path) -> None:
    make_repository(cwd)
    git("-C", cwd, "config", "core.hooksPath", "~nobody-of-this-name/hooks")
    shutil.rmtree(cwd / ".git/hooks")
    (cwd / ".git/hooks").symlink_to(f"/tmp/{'x' * 300}/hooks")
    held = hold(cwd, git_settings(dict(os.environ), cwd).executed)
    assert mounts(held, cwd)[".git"] == "--ro-bind"


@pytest.mark.parametrize("left", [Path.mkdir, lambda file: file.write_text("[odd", encoding="utf-8")])
def test_no_box_is_made_where_git_cannot_read_what_it_executes(
    cwd: Path, left: Callable[[Path], object]
) -> None:
    make_repository(cwd)
    git("-C", cwd, "config", "include.path", "../local.cfg")
    git("-C", cwd, "config", "core.hooksPath", "tools/hooks")
    left(cwd / "local.cfg")
    with pytest.raises(
        BoxRefused, match=r"git cannot read its configuration in .* \(.*bad config"
    ) as refused:
        git_settings(dict(os.environ), cwd)
    assert refused.value.passes, "an agent that can do without a box must not do so for that"
    assert own_hooks(cwd) == ()


def test_where_git_finds_no_repository_it_executes_nothing(cwd: Path) -> None:
    (cwd / ".git").write_text("gitdir: /nowhere/worktrees/one\n", encoding="utf-8")
    assert all(not path.is_relative_to(cwd) for path in git_settings(dict(os.environ), cwd).executed)


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_on_the_way_to_what_git_executes_is_said_and_where_it_leads_is_held(
    cwd: Path, exists: bool
) -> None:
    make_repository(cwd)
    (cwd / "deep/hooks" if exists else cwd / "deep").mkdir(parents=True)
    (cwd / "way").symlink_to("deep")
    git("-C", cwd, "config", "core.hooksPath", "way/hooks")
    held = hold(cwd, git_settings(dict(os.environ), cwd).executed)
    assert held.open == ["way: it is a symbolic link, which cannot be kept from being replaced"]
    assert mounts(held, cwd) == dict.fromkeys([".git", *["deep/hooks"][:exists]], "--ro-bind")


def test_a_symbolic_link_is_not_held_and_said(cwd: Path) -> None:
    (cwd / "elsewhere").mkdir()
    (cwd / ".claude").symlink_to("elsewhere")
    held = hold(cwd, [])
    assert held.mounts == []
    assert held.open == [".claude: it is a symbolic link, which cannot be kept from being replaced"]


def test_a_lifted_name_stays_free_and_a_lifted_part_of_one_is_writable_in_it(cwd: Path) -> None:
    (cwd / ".claude/agents").mkdir(parents=True)
    (cwd / ".envrc").touch()
    found = mounts(hold(cwd, [], [".claude/agents", ".envrc"]), cwd)
    assert found == {".claude": "--ro-bind", ".claude/agents": "--bind", ".envrc": "--bind"}


def test_a_lifted_name_that_has_become_a_link_is_not_mounted_and_said(cwd: Path) -> None:
    (cwd / "notes").symlink_to("/usr")
    held = hold(cwd, [], ["notes", "notes/below"])
    assert held.mounts == [] and len(held.open) == 2


@pytest.mark.parametrize("kind", ["last name", "name above"])
def test_a_place_is_refused_that_a_link_of_the_directory_leads_to(cwd: Path, kind: str) -> None:
    named = cwd / "cache" / ("." if kind == "last name" else "below")
    (cwd.parent / "private/below").mkdir(parents=True)
    (cwd / "cache").symlink_to(cwd.parent / "private")
    assert named_paths("sandboxRead", [str(named)], [cwd.parent / "other"]) == [named.resolve()]
    with pytest.raises(PathRefused, match="leads through the link"):
        named_paths("sandboxRead", [str(named)], [cwd])


def test_a_linked_worktree_shows_its_repository_for_reading(cwd: Path) -> None:
    make_repository(cwd)
    worktree = cwd.parent / "worktree"
    git("-C", cwd, "worktree", "add", "--quiet", worktree)
    assert hold(worktree, []).mounts == [("--ro-bind", worktree / ".git"), ("--ro-bind", cwd / ".git")]


def test_a_file_that_claims_to_be_a_worktree_shows_no_other_directory(cwd: Path) -> None:
    other = cwd.parent / "other"
    make_repository(other)
    own = cwd / "fake" / "worktrees" / "mine"
    own.mkdir(parents=True)
    (own / "gitdir").write_text(f"{cwd}/.git\n", encoding="utf-8")
    (own / "commondir").write_text(f"{other}/.git\n", encoding="utf-8")
    for target in (other / ".git", other / ".git" / "worktrees" / "x", own, "/", "\0", ""):
        (cwd / ".git").write_text(f"gitdir: {target}\n", encoding="utf-8")
        assert all(path.is_relative_to(cwd) for _, path in hold(cwd, []).mounts), target


def test_every_directory_above_a_read_only_place_is_held(cwd: Path) -> None:
    place = cwd / "tools/.venv/lib"
    place.mkdir(parents=True)
    assert directories_above([place], [cwd], [place]) == [cwd / "tools", cwd / "tools/.venv"]


def test_nothing_is_held_above_what_cannot_be_written(cwd: Path) -> None:
    inner = cwd / "a/b/c"
    inner.mkdir(parents=True)
    assert directories_above([inner], [cwd], [cwd / "a", inner]) == []
    assert directories_above([inner], [cwd.parent / "other"], [inner]) == []


def test_settings_of_git_name_the_author_and_the_environment_comes_first(cwd: Path) -> None:
    make_repository(cwd)
    git("-C", cwd, "config", "user.name", "Ada")
    found = git_settings({**os.environ, "GIT_AUTHOR_NAME": "Grace"}, cwd).identity
    assert (found["GIT_AUTHOR_NAME"], found["GIT_COMMITTER_NAME"]) == ("Grace", "Ada")


def test_a_git_below_the_working_directory_is_not_executed(cwd: Path) -> None:
    make_repository(cwd)
    planted = write_program(cwd / ".venv/bin/git", f"#!/bin/sh\ntouch {cwd}/executed\n")
    git_settings({**os.environ, "PATH": f"{planted.parent}:{os.environ['PATH']}"}, cwd)
    assert not (cwd / "executed").exists()


def test_a_place_with_a_name_that_no_file_can_have_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)  # nobody's, as in a container
    assert named_paths("sandboxWrite", ["/" + "a" * 300, "~/cache"], [tmp_path]) == []


def test_a_place_is_found_where_the_working_directory_of_the_server_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert named_paths("sandboxWrite", [str(tmp_path)], []) == [tmp_path]


def test_a_place_is_where_the_system_finds_it(tmp_path: Path) -> None:
    (tmp_path / "far" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "inner")
    assert named_paths("sandboxWrite", [f"{tmp_path}/link/.."], []) == [tmp_path / "far"]
