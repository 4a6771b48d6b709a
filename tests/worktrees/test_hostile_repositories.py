"""Nothing that a repository or a run says is executed, followed or moved (SPEC section 13)."""

import os
from pathlib import Path

import pytest

from subagent_server.worktrees.git import GitFailed, harmless_git
from tests.helpers.repositories import git
from tests.helpers.turns import says, shell
from tests.helpers.world import World
from tests.worktrees.repository import WORK, Repository

TRAPS = ("smudge", "clean", "process", "driver", "fsmonitor", "hook", "textconv", "submodule", "gpg")


def set_traps(repository: Repository) -> Path:
    """Let the repository name a program wherever git would run one; return where those would leave marks."""
    marks = repository.world.home / "marks"
    marks.mkdir()
    trap = {name: f"touch {marks}/{name}; cat" for name in TRAPS}
    hooks = repository.top / ".git" / "hooks"
    for name in ("post-checkout", "pre-commit", "post-merge", "reference-transaction", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {marks}/hook-{name}\n", encoding="utf-8")
        (hooks / name).chmod(0o755)
    (repository.top / ".gitattributes").write_text("*.txt diff=bad merge=bad\n*.bin filter=bad\n", "utf-8")
    (repository.top / "data.bin").write_text("data\n", encoding="utf-8")
    git("-C", repository.top, "-c", "core.hooksPath=/dev/null", "add", "--all")
    git("-C", repository.top, "-c", "core.hooksPath=/dev/null", "commit", "--quiet", "-m", "attributes")
    settings = {
        **{f"filter.bad.{key}": trap[key] for key in ("smudge", "clean", "process")},
        "filter.bad.required": "true",
        "merge.bad.driver": trap["driver"],
        "gpg.program": trap["gpg"],
        "core.fsmonitor": trap["fsmonitor"],
        "diff.bad.textconv": trap["textconv"],
        "diff.external": trap["textconv"],
        "commit.gpgSign": "true",
    }
    for key, value in settings.items():
        git("-C", repository.top, "-c", "core.hooksPath=/dev/null", "config", key, value)
    return marks


def test_no_program_that_a_repository_names_is_started_from_start_to_removal(
    world: World, repository: Repository
) -> None:
    marks = set_traps(repository)
    inner = "git init -q sub; git -C sub -c user.name=A -c user.email=a@b commit -q --allow-empty -m 1"
    planted = f"git -C sub config core.fsmonitor 'touch {marks}/submodule; false'"
    index = "git -c core.fsmonitor=false -c core.hooksPath=/dev/null add sub 2>/dev/null; echo x >> sub/new"
    by_itself = f"ls {marks}; echo .; {inner}; {planted}; {index}; {WORK}; rm -f {marks}/*"
    run_id = repository.ran(by_itself)
    assert world.events(run_id, "tool_result")[0]["text"].startswith("."), "none before the run begins"
    assert [path.name for path in marks.iterdir()] == []
    assert "+mine" in world.cli("show", run_id, "--diff").stdout
    assert "could not make a commit" in repository.merge(run_id, code=6), "nobody has a key here to sign with"
    repository.git("config", "commit.gpgSign", "false")
    repository.merge(run_id)
    assert world.cli("rm", "--drop-unmerged", run_id).returncode == 0
    assert [path.name for path in marks.iterdir()] == []


def test_a_configuration_that_never_ends_is_given_up_in_time(repository: Repository) -> None:
    os.mkfifo(repository.top / "endless")
    repository.git("config", "include.path", str(repository.top / "endless"))
    with pytest.raises(GitFailed, match=r"took more than 0\.2 s"):
        harmless_git(os.environ, repository.top, seconds=0.2)


def test_the_branch_of_the_user_does_not_move_wherever_a_run_points_its_head(
    world: World, repository: Repository
) -> None:
    head, own = repository.head, "$(git rev-parse --git-dir)"
    run_id = repository.ran(f"echo 'ref: refs/heads/main' > {own}/HEAD; {WORK}")
    assert repository.head == head and repository.git("status", "--porcelain") == ""
    assert repository.shown(run_id)["commits"] == 1
    assert len(repository.branches()) == 1 and repository.branches() == [repository.shown(run_id)["branch"]]
    link = repository.ran(
        f"cd {own}/../../refs/heads/subagent; for f in *; do echo 'ref: refs/heads/main' > $f; done; "
        f"cd - >/dev/null; cd {repository.world.home}/.local/state/subagent/worktrees/*{'[0-9]'}*; {WORK}"
    )
    assert repository.head == head and link


def test_files_that_other_programs_execute_are_not_merged_even_from_a_made_up_commit(
    world: World, repository: Repository
) -> None:
    made_up = (
        "b=$(echo evil | git hash-object -w --stdin); git update-index --add --cacheinfo 100755,$b,.envrc; "
        "git -c user.name=A -c user.email=a@b commit -qm evil; git update-index --skip-worktree .envrc; ls -a"
    )
    run_id = repository.ran(made_up)
    head = repository.head
    assert ".envrc" in repository.merge(run_id, code=2) and repository.head == head
    assert not (repository.top / ".envrc").exists()


def test_what_a_file_of_patterns_names_is_copied_and_never_committed_nor_out_of_the_repository(
    world: World, repository: Repository
) -> None:
    (world.home / "secret").write_text("far away", encoding="utf-8")
    (repository.top / ".env").write_text("KEY=1\n", encoding="utf-8")
    (repository.top / "link.env").symlink_to(world.home / "secret")
    (repository.top / ".worktreeinclude").write_text("*.env\n.env\n", encoding="utf-8")
    run_id = repository.ran(f"cat .env; ls; {WORK}")
    told = world.events(run_id, "tool_result")[0]["text"]
    assert told.startswith("KEY=1") and "link.env" not in told
    shown = repository.shown(run_id)
    assert (shown["files"], shown["included"]) == (2, 1) and "link.env" in shown["notes"][0]


def test_a_place_without_a_commit_is_refused_in_a_sentence_and_nothing_is_made(
    world: World, repository: Repository
) -> None:
    plain, empty, bare = (world.home / name for name in ("plain", "empty", "bare.git"))
    plain.mkdir()
    git("init", "--quiet", empty)
    git("clone", "--quiet", "--bare", repository.top, bare)
    for place, words in ((plain, "not a git repository"), (empty, "has no commit yet")):
        code, message = world.failed(world.start(cwd=str(place)))
        assert code == "config" and words in message and "isolation" in message
    world.play(shell(WORK), says("Done."))
    repository.git("checkout", "--quiet", "--detach")
    linked = world.home / "linked"
    repository.git("worktree", "add", "--quiet", linked, "-b", "side")
    for place in (bare, repository.top, linked):
        run_id = world.start(cwd=str(place))
        assert world.completed(run_id) == "Done."
        repository.gone(run_id)
        assert "merged" in repository.merge(run_id)
        assert git("-C", place, "show", "HEAD:new.txt") == "new\n"
    assert len(list(repository.places.glob("*.git"))) == 3
