"""What came or changed beside a run and can run code is found, and what lay there before is not."""

import inspect
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.sandbox import file_watch
from subagent_server.sandbox.file_watch import Fingerprint, Seen, changes, look, new_repositories, own_hooks
from tests.helpers.ordinary_user import user
from tests.helpers.repositories import git, make_repository
from tests.helpers.world import World


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    """A repository with a nested one, and with files of the user that other programs execute."""
    directory = tmp_path.resolve() / "project"
    make_repository(directory)
    make_repository(directory / "libs" / "nested")
    (directory / ".claude").mkdir()
    (directory / ".claude" / "settings.json").write_text("{}", encoding="utf-8")
    shutil.copytree(directory / "libs" / "nested" / ".git", directory / "fixture" / "dotgit")
    (directory / "tools" / "hooks").mkdir(parents=True)
    git("-C", directory, "config", "core.hooksPath", "tools/hooks")
    return directory


def write(path: Path, text: str = "x") -> None:
    """Write a file, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def make_bare(directory: Path) -> None:
    """Make a directory what git takes for a repository."""
    for name in ("objects", "refs"):
        (directory / name).mkdir(parents=True)
    write(directory / "HEAD", "ref: refs/heads/main\n")
    write(directory / "config")


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a hook": (lambda cwd: write(cwd / ".git/hooks/pre-commit"), ".git/hooks/pre-commit"),
    "a hook of one's own directory": (lambda cwd: write(cwd / "tools/hooks/a"), "tools/hooks/a"),
    "the configuration": (lambda cwd: git("-C", cwd, "config", "a.b", "c"), ".git/config"),
    "commondir": (lambda cwd: write(cwd / ".git/commondir", "/tmp/x"), ".git/commondir"),
    "a bare repository": (make_bare, "config"),
    "a deep one": (lambda cwd: make_bare(cwd / "a/b/c"), "a/b/c/"),
    "a new repository": (lambda cwd: git("init", "--quiet", cwd / "libs/new"), "libs/new/.git/"),
    "one that was moved": (
        lambda cwd: (cwd / "fixture/dotgit").rename(cwd / "fixture/.git"),
        "fixture/.git/",
    ),
    "a nested one": (lambda cwd: write(cwd / "libs/nested/.git/hooks/x"), "libs/nested/.git/hooks/x"),
    "what a nested one borrows": (
        lambda cwd: write(cwd / "libs/nested/.git/objects/info/alternates"),
        "libs/nested/.git/objects/info/alternates",
    ),
    "a submodule": (lambda cwd: make_bare(cwd / ".git/modules/lib"), ".git/modules/lib/"),
    "a file of an agent": (lambda cwd: write(cwd / ".claude/settings.json"), ".claude/settings.json"),
    "a file in a directory": (lambda cwd: write(cwd / "libs/.vscode/tasks.json"), "libs/.vscode/"),
    "a file of several parts": (
        lambda cwd: write(cwd / "libs/.cargo/config.toml"),
        "libs/.cargo/config.toml",
    ),
    "a link": (lambda cwd: (cwd / "libs/.envrc").symlink_to("../x"), "libs/.envrc"),
    "a link for several parts": (lambda cwd: (cwd / "libs/.cargo").symlink_to("../x"), "libs/.cargo"),
}


@pytest.mark.parametrize(("change", "path"), CHANGES.values(), ids=CHANGES)
def test_what_can_run_code_after_a_change_is_found(
    cwd: Path, change: Callable[[Path], object], path: str
) -> None:
    before = look(cwd, own_hooks(cwd))
    assert before.whole and not changes(before, look(cwd, before.hooks), time.time())
    change(cwd)
    found = changes(before, look(cwd, before.hooks), time.time())
    assert path in found and set(found) <= {path, "HEAD"}


@pytest.mark.parametrize("kind", ["file", "link", "link to a file", "worktree"])
def test_a_repository_is_seen_by_the_name_that_leads_to_it(cwd: Path, kind: str) -> None:
    before = look(cwd, leave_out=lambda path: path.name == "hidden")
    hidden, leads = cwd / "hidden/one", cwd / "libs/new/.git"
    git("init", "--quiet", "--bare", hidden)
    leads.parent.mkdir()
    if kind == "link":
        leads.symlink_to("../../hidden/one")
    elif kind == "link to a file":
        write(cwd / "hidden/pointer", "gitdir: ../../hidden/one\n")
        leads.symlink_to("../../hidden/pointer")
    elif kind == "worktree":
        write(hidden / "worktrees/two/HEAD", "ref: refs/heads/main\n")
        write(hidden / "worktrees/two/commondir", "../..\n")
        write(leads, "gitdir: ../../hidden/one/worktrees/two\n")
    else:
        write(leads, f"gitdir: {hidden}\n")
    after = look(cwd, leave_out=lambda path: path.name == "hidden")
    assert "hidden/one" in new_repositories(before, after)


def hide_a_repository(world: World) -> None:
    """Let a directory be entered and not be listed."""
    before = look(world.work)
    hidden = world.work / "plain" / "hidden"
    git("init", "--quiet", hidden / "below")
    hidden.chmod(0o300)
    assert changes(before, look(world.work, before.hooks), time.time()) == ["plain/hidden/"]
    git("init", "--quiet", hidden)
    seen = look(world.work, before.hooks)
    hidden.chmod(0o700)
    assert new_repositories(before, seen) == ["plain/hidden/.git"]


def test_a_directory_that_cannot_be_listed_is_said() -> None:
    with user() as somebody:
        somebody.play(hide_a_repository)


def test_without_a_first_look_times_tell_what_is_new(cwd: Path) -> None:
    since = (cwd / ".git" / "config").stat().st_ctime_ns / 1e9 + 0.001
    while time.time() < since + 0.02:  # the clock of files goes in steps
        pass
    write(cwd / ".git" / "hooks" / "pre-push")
    assert changes(None, look(cwd), since) == [".git/hooks/pre-push"]


def test_a_directory_that_is_left_out_is_not_looked_at(cwd: Path) -> None:
    before = look(cwd)
    write(cwd / "deep" / "runs" / "one" / ".envrc")
    after = look(cwd, leave_out=lambda path: path == cwd / "deep" / "runs")
    assert not changes(before, after, time.time())


def test_a_look_at_a_huge_tree_is_bounded_and_sees_the_top_first(
    cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "MAX_NAMES_WITH_LAST", 200)
    for number in range(300):
        (cwd / "node_modules" / f"package{number}").mkdir(parents=True)
    since = time.time() - 0.1  # the clock of files goes in steps
    before = look(cwd)
    write(cwd / ".envrc")
    write(cwd / "libs" / ".envrc")
    write(cwd / "node_modules" / "package1" / ".envrc")
    after = look(cwd, before.hooks)
    assert not before.whole and not after.whole and not after.cut
    assert {".envrc", "libs/.envrc"} <= set(changes(before, after, since))


def test_a_look_into_very_deep_directories_does_not_recurse(cwd: Path) -> None:
    before, limit = look(cwd), sys.getrecursionlimit()
    write(cwd / ".vscode" / "/".join("d" * 150) / "tasks.json")
    sys.setrecursionlimit(len(inspect.stack()) + 100)
    try:
        after = look(cwd)
    finally:
        sys.setrecursionlimit(limit)
    assert changes(before, after, time.time()) == [".vscode/"]


@pytest.mark.timeout(30)
def test_very_many_changes_are_compared_at_once() -> None:
    paths = [f"{number}/.vscode/{name}" for number in range(30_000) for name in ("", "tasks.json")]
    after = Seen(dict.fromkeys(paths, Fingerprint(1, 1)), frozenset(), (), whole=True, cut=False)
    before = Seen({}, frozenset(), (), whole=True, cut=False)
    assert len(changes(before, after, time.time())) == 30_000


def test_a_flood_of_names_that_hides_a_repository_is_seen_as_one(
    cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "MAX_NAMES", 200)
    before = look(cwd)
    make_bare(cwd / "hidden")
    for number in range(300):
        (cwd / f"{number}").touch()
    assert before.whole and look(cwd, before.hooks).cut
