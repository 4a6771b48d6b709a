"""A repository that came during a run keeps what it needs to be used, and nothing that git would execute."""

import os
from pathlib import Path

import pytest

from subagent_server.run.files import Directory
from subagent_server.sandbox import quarantine
from subagent_server.sandbox.disarmed_repositories import disarmed, harmless
from subagent_server.sandbox.quarantine import Quarantine, Taken
from tests.helpers.files import write_program
from tests.helpers.repositories import git, make_repository

USUAL = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
[remote "origin"]
\turl = https://example.com/a.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
[branch "main"]
\tremote = origin
\tmerge = refs/heads/main
"""
HARMFUL = (
    "[core]\n\tfsmonitor = ./evil",
    "[core]\n\tsshCommand = ./evil",
    "[core]\n\thooksPath = hooks",
    "[core] hooksPath = hooks",
    "[core]\n\tworktree = /",
    "[core]\n\tbare = \\\nfalse",
    '[core]\n\tbare = "x',
    "[CORE]\n\tEditor=./evil",
    '[filter "lfs"]\n\tclean = ./evil',
    "[include]\n\tpath = evil",
    '[includeIf "gitdir:/"]\n\tpath = evil',
    "[alias]\n\tstatus = !./evil",
    "[init]\n\ttemplateDir = evil",
    "[extensions]\n\tworktreeConfig = true",
    '[remote "origin"]\n\turl = ext::sh -c evil',
    '[remote "origin"]\n\turl = -oProxyCommand=evil',
    '[remote "origin"]\n\turl = ssh://-oProxyCommand=evil/x',
    '[remote "origin"]\n\tuploadpack = ./evil',
    '[branch "main"]\n\tremote = ext::sh -c evil',
    '[submodule "a"]\n\tupdate = !./evil',
    "[remote.origin]\n\tuploadpack = ./evil",
    "[user]\n\tname = a\x0b[core]",
    "[core]\r\n\tfsmonitor = ./evil\r",
    "\ufeff[core]\n\tbare = false",
    "[credential]\n\thelper = !./evil",
)


def test_a_configuration_as_git_makes_it_is_harmless() -> None:
    assert harmless(USUAL) is None


@pytest.mark.parametrize("text", HARMFUL)
def test_what_has_git_start_programs_is_dropped(text: str, tmp_path: Path) -> None:
    kept = harmless(f"{text}\n{USUAL}")
    assert kept is not None and "evil" not in kept
    (tmp_path / "config").write_text(kept, encoding="utf-8")
    (tmp_path / "usual").write_text(USUAL, encoding="utf-8")
    listed = [git("config", "--file", tmp_path / name, "--list").split() for name in ("config", "usual")]
    assert {*listed[0]} == {*listed[1]}, "all that is harmless stays"


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "line", ['a ={}"', "a{}b", "[core{}x", "{}1", "url = {}@", '[remote "x"]\n\turl ={}-']
)
def test_a_line_of_any_length_is_judged_at_once(line: str) -> None:
    for filler in (" ", "a", ":", ".", "::", "a "):
        kept = harmless("[core]\n" + line.format(filler * 50_000))
        assert kept is not None and len(kept) < 100


def take(cwd: Path, path: str = "sub/.git") -> Taken:
    """Disarm one repository."""
    return disarmed(cwd, [path], Quarantine(Directory(cwd.parent / "quarantine")))


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    """A directory with a repository in it."""
    directory = tmp_path.resolve() / "project"
    make_repository(directory / "sub")
    return directory


def hook(directory: Path, effect: Path) -> None:
    """Have a hook of a repository make a file."""
    write_program(directory / "hooks" / "post-checkout", f"#!/bin/sh\ntouch {effect}\n")


def test_an_ordinary_clone_is_left_alone(cwd: Path) -> None:
    git("clone", "--quiet", cwd / "sub", cwd / "clone")
    assert not take(cwd, "clone/.git")
    git("-C", cwd / "clone", "fetch", "--quiet")


def test_hooks_and_configuration_are_taken_and_it_works(cwd: Path, tmp_path: Path) -> None:
    effect = tmp_path / "effect"
    hook(cwd / "sub/.git", effect)
    git("-C", cwd / "sub", "config", "core.fsmonitor", f"touch {effect}")
    (cwd / "sub/.git/config.worktree").write_text("[core]\n", encoding="utf-8")
    moved = {kept.shown(cwd) for kept in take(cwd).moved}
    assert moved == {"sub/.git/hooks", "sub/.git/config", "sub/.git/config.worktree"}
    git("-C", cwd / "sub", "checkout", "--quiet", "-b", "other")
    git("-C", cwd / "sub", "status")
    assert not effect.exists() and git("-C", cwd / "sub", "log", "--oneline")


def test_hooks_that_are_too_many_to_be_moved_are_no_hooks_any_more(
    cwd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "MOST_NAMES", 5)
    hook(cwd / "sub/.git", tmp_path / "effect")
    for number in range(20):
        (cwd / f"sub/.git/hooks/{number}").touch()
    taken = take(cwd)
    assert "sub/.git/hooks, which is hooks." in taken.stuck[0] and len(taken.moved) == 1
    assert not (cwd / "sub/.git/hooks").exists()


def test_submodules_are_disarmed_and_work(cwd: Path, tmp_path: Path) -> None:
    make_repository(tmp_path / "lib")
    allowed = ("-c", "protocol.file.allow=always")
    git("-C", cwd / "sub", *allowed, "submodule", "--quiet", "add", tmp_path / "lib", "libs/lib")
    effect = tmp_path / "effect"
    module = cwd / "sub/.git/modules/libs/lib"
    hook(module, effect)
    moved = {kept.shown(cwd) for kept in take(cwd).moved}
    assert {"sub/.git/modules/libs/lib/hooks", "sub/.git/modules/libs/lib/config"} <= moved
    git("-C", cwd / "sub/libs/lib", "checkout", "--quiet", "-b", "other")
    assert not effect.exists() and not git("-C", cwd / "sub/libs/lib", "status", "--porcelain")


@pytest.mark.parametrize("name", ["config", "hooks", "modules", "commondir"])
@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_odd_files_are_taken_and_nothing_is_followed(cwd: Path, tmp_path: Path, name: str, kind: str) -> None:
    outside = tmp_path / "outside"
    make_repository(outside)
    hook(outside / ".git", tmp_path / "effect")
    path = cwd / "sub/.git" / name
    if path.exists():
        path.rename(tmp_path / "old")
    if kind == "link":
        path.symlink_to(outside / ".git" / name)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
        (path / "x").write_text("[core]\n", encoding="utf-8")
    moved = {kept.shown(cwd) for kept in take(cwd).moved}
    harmless_kind = (name == "modules" and kind != "link") or (name == "hooks" and kind == "fifo")
    assert f"sub/.git/{name}" in moved or harmless_kind
    assert (outside / ".git/hooks/post-checkout").exists() and (outside / ".git/config").is_file()


def test_git_writes_through_no_link_that_a_run_has_left(cwd: Path, tmp_path: Path) -> None:
    outside, repository = tmp_path / "outside", cwd / "sub/.git"
    outside.mkdir()
    links = {"logs/HEAD": "profile", "logs/refs/heads": "", "COMMIT_EDITMSG": "profile", "index": "index"}
    links |= {"refs/tags": "", "objects/info": "", "objects/pack": ""}
    for name, target in links.items():
        path = repository / name
        if os.path.lexists(path):
            path.rename(tmp_path / name.replace("/", "-"))
        path.symlink_to(outside / target)
    moved = {kept.shown(cwd) for kept in take(cwd).moved}
    assert moved == {f"sub/.git/{name}" for name in links}
    git("-C", cwd / "sub", "checkout", "--quiet", "-b", "$(evil)")
    git("-C", cwd / "sub", "commit", "--quiet", "--allow-empty", "-m", "evil")
    assert not [*outside.iterdir()]


def test_a_new_repository_borrows_no_objects(cwd: Path, tmp_path: Path) -> None:
    make_repository(tmp_path / "private")
    git("clone", "--quiet", "--shared", tmp_path / "private", cwd / "clone")
    assert [kept.shown(cwd) for kept in take(cwd, "clone/.git").moved] == [
        "clone/.git/objects/info/alternates"
    ]


def test_a_flood_of_repositories_is_bounded_and_said(cwd: Path) -> None:
    for number in range(300):
        module = cwd / "sub/.git/modules" / str(number)
        module.mkdir(parents=True)
        (module / "HEAD").touch()
    assert take(cwd).stuck == ["sub/.git (it holds too many repositories)"]
    many = disarmed(cwd, ["gone"] * 202, Quarantine(Directory(cwd.parent / "quarantine")))
    assert many.stuck[-1] == "and 2 more repositories"
