"""Submodules, filters, a detached head, bare and linked repositories, and files that are brought along."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from subagent_server.run.store import read_worktree, write_worktree
from tests.helpers.files import write_program
from tests.helpers.repositories import git, make_repository
from tests.helpers.world import World
from tests.worktrees.repository import WORK, Repository

AS_LOCAL = ("-c", "protocol.file.allow=always")
POINTER = "version https://git-lfs.github.com/spec/v1\n"


def a_bit_of_everything(repository: Repository) -> None:
    """Add submodules (one with its files, one without), a file of a filter, and files to bring along."""
    top, module = repository.top, repository.world.home / "module"
    make_repository(module)
    (module / "inner.txt").write_text("of the module\n", encoding="utf-8")
    git("-C", module, "add", "--all")
    git("-C", module, "commit", "--quiet", "-m", "inner")
    for name in ("present", "absent"):
        repository.git(*AS_LOCAL, "submodule", "--quiet", "add", module, name)
    repository.git("submodule", "--quiet", "deinit", "--force", "absent")
    (top / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n", encoding="utf-8")
    (top / "large.bin").write_text(POINTER, encoding="utf-8")
    (top / ".gitignore").write_text(".env\nbuild/\n", encoding="utf-8")
    (top / ".worktreeinclude").write_text(
        "# kept\n.env\nbuild/keep/*\n!build/keep/not.txt\n", encoding="utf-8"
    )
    repository.commit("everything")
    for name in ("smudge", "clean"):
        repository.git("config", f"filter.lfs.{name}", f"touch {repository.world.home}/filtered; cat")
    repository.git("config", "filter.lfs.required", "true")
    (top / "build" / "keep" / "deep").mkdir(parents=True)
    for name in (".env", "build/other.txt", "build/keep/deep/yes.txt", "build/keep/not.txt"):
        (top / name).write_text(f"{name}\n", encoding="utf-8")


def test_what_a_repository_has_beside_plain_files_is_there_or_said_to_be_missing(
    world: World, repository: Repository
) -> None:
    a_bit_of_everything(repository)
    changed = "echo changed > large.bin; mkdir present/own; echo x > present/own/file"
    look = "ls present absent; cat large.bin; find .env build -type f | sort"
    run_id = repository.ran(f"{look}; {changed}; {WORK}")
    told = world.events(run_id, "tool_result")[0]["text"].splitlines()
    assert told == [
        *("absent:", "", "present:", POINTER.strip()),
        *(".env", "build/keep/deep/yes.txt"),
    ]
    shown = repository.shown(run_id)
    assert any("submodules are empty" in note for note in shown["notes"])
    assert any("Git LFS" in note for note in shown["notes"]) and shown["included"] == 2
    patch = world.cli("show", run_id, "--diff").stdout
    assert "+changed" in patch and "present" not in patch and ".env" not in patch and "keep" not in patch
    assert any("no commit has: present" in note for note in shown["notes"])
    assert "a filter of git makes (large.bin)" in repository.merge(run_id, code=2)
    assert (repository.top / "present" / "inner.txt").exists() and not (world.home / "filtered").exists()
    assert repository.shown(repository.ran("true"))["state"] == "removed"
    only_there = repository.ran("echo x > absent/file")
    assert repository.shown(only_there)["state"] == "kept", "git would not have seen it"
    refused = world.cli("rm", only_there)
    assert refused.returncode == 2 and (repository.place(only_there) / "absent" / "file").exists()
    assert world.cli("rm", "--drop-unmerged", only_there).returncode == 0


def test_a_file_in_the_place_of_a_submodule_is_not_merged_over_files_of_the_user(
    repository: Repository,
) -> None:
    a_bit_of_everything(repository)
    loose = repository.top / "present" / "loose.txt"
    loose.write_text("not committed\n", encoding="utf-8")
    run_id = repository.left("rmdir present absent; echo a > present; echo b > absent")
    assert not any("no commit has" in note for note in repository.shown(run_id)["notes"])
    assert "submodules that hold files (present)" in repository.merge(run_id, code=2) and loose.exists()
    repository.git("submodule", "--quiet", "deinit", "--force", "present")
    assert "merged" in repository.merge(run_id)
    assert (repository.top / "present").read_text("utf-8") == "a\n"


def test_files_directories_and_links_in_the_places_of_each_other_are_kept_and_merged(
    world: World, repository: Repository
) -> None:
    top = repository.top
    for name in ("also/kept.txt", "other/file", "own"):
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text("one\n", encoding="utf-8")
    (top / "link").symlink_to("shared.txt")
    repository.commit("more")
    world.agent(isolation="worktree", sandbox="bwrap")
    run_id = repository.ran(
        "rm shared.txt link own; mkdir shared.txt link; echo a > shared.txt/in; echo b > link/in; "
        "rm -r deep other; ln -s also deep; echo c > other; mkdir -p shut/in; chmod 000 shut/in; "
        "git init -q own; git -C own -c user.name=A -c user.email=a@b commit -q --allow-empty -m own; "
        'mkfifo waits; chmod 000 "$(git rev-parse --absolute-git-dir)" .'
    )
    assert "merged" in repository.merge(run_id)
    assert repository.git("ls-files").split() == [
        "also/kept.txt",
        "deep",
        "link/in",
        "other",
        "shared.txt/in",
    ]
    for missing in ("shut/in/", "own/"):
        assert any(f"no commit has: {missing}" in note for note in repository.shown(run_id)["notes"])
    assert "it holds work that its branch has not" in world.cli("rm", run_id).stderr


def test_runs_begin_inside_a_submodule_and_at_a_detached_head_of_a_linked_worktree(
    world: World, repository: Repository
) -> None:
    a_bit_of_everything(repository)
    linked = world.home / "linked"
    repository.git("worktree", "add", "--quiet", "--detach", linked, "HEAD~1")
    inside = Path("present")
    for place in (repository.top / inside, linked, linked / "deep"):
        before = git("-C", place, "rev-parse", "HEAD")
        run_id = repository.left("echo new > made.txt", cwd=place)
        shown = repository.shown(run_id)
        assert (shown["commits"], shown["base"]) == (1, before.strip())
        assert "merged" in repository.merge(run_id) and (place / "made.txt").read_text("utf-8") == "new\n"
    assert git("-C", linked, "status", "--porcelain") == ""
    assert repository.git("fsck", "--no-dangling") == ""


def made_as(world: World, kind: str) -> Path:
    """Return a repository of a kind that git has beside the usual one, with the files of the world's."""
    place, url = world.home / kind, f"file://{world.work}"
    match kind:
        case "sha256":
            git("init", "--quiet", "--object-format=sha256", place)
            (place / "shared.txt").write_text("first\n", encoding="utf-8")
            git("-C", place, "add", "--all")
            git("-C", place, "commit", "--quiet", "-m", "first")
        case "shallow":
            git("-C", world.work, "commit", "--quiet", "--allow-empty", "-m", "second")
            git("clone", "--quiet", "--depth=1", url, place)
        case "borrowing":
            git("clone", "--quiet", "--shared", world.work, place)
        case "sparse":
            git("clone", "--quiet", "--sparse", url, place)
        case "partial, with all files of HEAD":
            git("-C", world.work, "config", "uploadpack.allowFilter", "true")
            git("clone", "--quiet", "--filter=blob:none", url, place)
        case "packed":
            git("clone", "--quiet", url, place)
            git("-C", place, "gc", "--quiet")
    return place


@pytest.mark.parametrize(
    ("kind", "sandbox"),
    [
        *(("sha256", "bwrap"), ("shallow", "bwrap"), ("borrowing", "bwrap")),
        *(("partial, with all files of HEAD", "bwrap"), ("packed", "none"), ("sparse", "bwrap")),
    ],
)
def test_a_repository_of_another_kind_is_worked_on_and_merged(
    world: World, repository: Repository, kind: str, sandbox: str
) -> None:
    place = made_as(world, kind)
    world.agent(isolation="worktree", sandbox=sandbox)
    commits = "git -c user.name=A -c user.email=a@b commit -qam mine; git log --format=%s | head -1"
    run_id = repository.ran(f"{WORK}; {commits}; echo more >> shared.txt", cwd=str(place))
    assert world.events(run_id, "tool_result")[0]["text"] == "mine"
    assert repository.shown(run_id)["commits"] == 2
    assert "+more" in world.cli("show", run_id, "--diff").stdout
    assert "merged" in repository.merge(run_id)
    assert (place / "shared.txt").read_text("utf-8") == "first\nmine\nmore\n"
    assert git("-C", place, "fsck", "--no-dangling") == "" == git("-C", place, "status", "--porcelain")


@pytest.mark.parametrize("sandbox", ["none", "bwrap"])
def test_commits_are_signed_as_the_user_signs_them_where_the_key_is(
    world: World, repository: Repository, sandbox: str
) -> None:
    key, trap = world.home / "key", world.home / "trapped"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    settings = {"commit.gpgSign": "true", "gpg.format": "ssh", "user.signingKey": f"{key}.pub"}
    for name, value in {**settings, "gpg.ssh.program": f"touch {trap}; false"}.items():
        repository.git("config", name, value)
    world.agent(isolation="worktree", sandbox=sandbox)
    run_id = repository.ran(f"{WORK}; git add -A; git -c user.name=A -c user.email=a@b commit -qm own")
    branch = repository.shown(run_id)["branch"]
    assert ("gpgsig" in repository.git("cat-file", "commit", branch)) is (sandbox == "none")
    for way in ("--merge", "--squash", "--rebase"):
        repository.git("checkout", "--quiet", "-B", f"by{way}", "main")
        repository.git("-c", "commit.gpgSign=false", "commit", "--quiet", "--allow-empty", "-m", "further")
        repository.merge(run_id, way)
        assert "-----BEGIN SSH SIGNATURE-----" in repository.git("cat-file", "commit", "HEAD"), way
        state = read_worktree(world.paths(run_id))
        assert state is not None
        write_worktree(world.paths(run_id), state.model_copy(update={"merged_tip": None}))
    assert not trap.exists()


def test_a_partial_clone_without_all_files_and_a_format_that_git_does_not_know_are_refused(
    world: World, repository: Repository
) -> None:
    git("-C", world.work, "config", "uploadpack.allowFilter", "true")
    partial, newer = world.home / "partial", world.home / "newer"
    git("clone", "--quiet", "--filter=blob:none", "--sparse", f"file://{world.work}", partial)
    make_repository(newer)
    git("-C", newer, "config", "core.repositoryFormatVersion", "1")
    git("-C", newer, "config", "extensions.refStorage", "unknown")
    for place, words in ((partial, "partial clone lacks files"), (newer, "refstorage")):
        code, message = world.failed(world.start(cwd=str(place)))
        assert code == "config" and words in message and "isolation" in message
    repository.git("branch", "subagent")
    code, message = world.failed(world.start())
    assert code == "config" and "a branch is called subagent" in message


@pytest.mark.parametrize("lack", ["unset GIT_CONFIG_COUNT", 'case "$*" in *--show-scope*) exit 129; esac'])
def test_a_git_that_knows_no_overrides_of_programs_is_refused_by_its_version(
    world: World, repository: Repository, monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    (world.home / "bin").mkdir()
    old = write_program(world.home / "bin" / "git", f'#!/bin/sh\n{lack}\nexec /usr/bin/git "$@"\n')
    monkeypatch.setattr("subagent_server.run.host_programs.SYSTEM_DIRECTORIES", ())
    monkeypatch.setitem(world.environment, "PATH", f"{old.parent}:{world.environment['PATH']}")
    code, message = world.failed(world.start())
    assert code == "config" and "git 2.31 or later" in message


def test_a_refusal_of_a_merge_has_no_advice_of_git(repository: Repository) -> None:
    run_id = repository.left()
    repository.git("checkout", "--quiet", "-b", "side")
    for branch in ("side", "main"):
        repository.git("checkout", "--quiet", branch)
        (repository.top / "deep" / "kept.txt").write_text(branch, encoding="utf-8")
        repository.commit(branch)
    with suppress(subprocess.CalledProcessError):
        repository.git("merge", "--quiet", "side")
    refusal = repository.merge(run_id, code=2)
    assert "you have unmerged files. Exiting because" in refusal and "hint:" not in refusal


def test_a_state_directory_that_no_record_can_hold_has_no_worktrees(
    world: World, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(world.environment, "XDG_STATE_HOME", os.fsdecode(os.fsencode(world.home) + b"/\xff"))
    code, message = world.failed(world.start())
    assert code == "config" and "is not UTF-8: set XDG_STATE_HOME" in message
    assert not list(world.home.glob("[?]*")), "the record would have named this place"


def test_an_order_of_files_that_the_repository_names_is_not_looked_for(repository: Repository) -> None:
    (repository.top / "order").write_text("*.txt\n", encoding="utf-8")
    repository.commit("order")
    repository.git("config", "diff.orderFile", "order")
    run_id = repository.left()
    assert repository.shown(run_id)["files"] == 2 and "merged" in repository.merge(run_id)


def test_a_file_that_git_refuses_is_named_and_keeps_no_other_back(repository: Repository) -> None:
    (repository.top / ".gitattributes").write_text("*.rc working-tree-encoding=UTF-16\n", encoding="utf-8")
    repository.commit("encoding")
    repository.git("config", "core.autocrlf", "input")
    repository.git("config", "core.safecrlf", "true")
    run_id = repository.left(rf"printf 'a\r\nb\n' > mixed.txt; echo plain > a.rc; {WORK}")
    (note,) = repository.shown(run_id)["notes"]
    assert "cannot read or add, which no commit has: a.rc, mixed.txt" in note
    repository.merge(run_id)
    assert (repository.top / "new.txt").exists()


def test_names_of_what_cannot_be_read_in_any_number_keep_no_other_work_back(
    world: World, repository: Repository
) -> None:
    world.agent(isolation="worktree", sandbox="bwrap")
    long = "x" * 200
    run_id = repository.ran(f"{WORK}; mkdir closed; touch closed/{long}{{1..5500}}; chmod -R 000 closed/*")
    shown = repository.shown(run_id)
    assert shown["files"] == 2 and shown["notes"][0].endswith("and many more."), shown
