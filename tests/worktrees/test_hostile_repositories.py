"""Nothing that a repository or a run says is executed, followed or moved (SPEC section 13)."""

import os
import threading
from pathlib import Path

import pytest

from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import RunRefused
from subagent_server.run.files import Directory, remove_tree
from subagent_server.run.processes import this_process
from subagent_server.run.records import Worktree
from subagent_server.verbs.live_runs import LiveRun, enter
from subagent_server.verbs.run_worktree import prepare_worktree
from subagent_server.worker.protected_paths import protected_paths
from subagent_server.worktrees import making, store_of_run
from subagent_server.worktrees.git import GitFailed, harmless_git
from subagent_server.worktrees.making import make_worktree
from subagent_server.worktrees.store_of_run import (
    NoWorktree,
    find_repository,
    repository_of,
    store_of,
    worktree_mounts,
)
from tests.helpers.files import write_program
from tests.helpers.repositories import git, make_repository
from tests.helpers.turns import asks, says, shell, tool_results
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
        write_program(hooks / name, f"#!/bin/sh\ntouch {marks}/hook-{name}\n")
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
        "hook.bad.command": trap["hook"],  # git before 2.54 does not know it
        "hook.bad.event": "reference-transaction",
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
    signed = repository.merge(run_id, code=6)  # nobody has a key to sign with here, or not even the program
    assert "could not make a commit" in signed or "gpg cannot be used: it is not in PATH" in signed
    repository.git("config", "commit.gpgSign", "false")
    repository.merge(run_id)
    assert world.cli("rm", "--drop-unmerged", run_id).returncode == 0
    assert [path.name for path in marks.iterdir()] == []


def test_hooks_that_a_setting_names_are_switched_off_by_their_names(repository: Repository) -> None:
    set_traps(repository)
    harmless = harmless_git(os.environ, repository.top)
    assert harmless.line("ask", "config", "hook.bad.enabled") == "false"


def test_a_repository_that_a_live_run_can_write_gives_no_worktree(repository: Repository) -> None:
    """By what such a repository borrows, or names, a run would show another one to its child."""
    top, inner, linked = repository.top, repository.top / "sub", repository.world.home / "linked"
    for copy in (linked, top / "inside"):
        repository.git("worktree", "add", "--quiet", copy)
    git("clone", "--quiet", top, inner)
    for directory, written in (
        (top, [top, top / ".git"]),  # `.git` came when the run was at work
        (top / "deep", [top, top / ".git"]),
        (inner, [top]),
        (linked, [top, top / ".git"]),
        (top / "inside", [top]),  # its `.git` can be replaced
    ):
        with pytest.raises(NoWorktree, match="a run that is at work can write its repository"):
            find_repository(os.environ, directory, written=written)
    for directory, written in ((top, [top]), (top / "deep", [top / "deep"]), (linked, [top, linked])):
        found = find_repository(os.environ, directory, written=written)
        assert found.common == top / ".git", "it is held read-only"


def test_the_settings_of_a_repository_are_its_own_whatever_lies_in_it(repository: Repository) -> None:
    repository.git("config", "merge.bad.driver", "true")
    git("init", "--quiet", repository.top / ".git")  # a repository in the repository
    harmless = repository_of(planned(repository), os.environ)
    assert harmless.line("ask", "config", "merge.bad.driver") == "false"


def test_git_executes_no_setting_that_a_run_adds_between_two_commands(repository: Repository) -> None:
    """What it adds when git has been asked for the settings is overridden by nothing."""
    world = repository.world
    run_id, head = repository.left(), repository.head
    enter(world.home / ".local/state/subagent", LiveRun(this_process(), world.runs, writes=[world.home]))
    assert "a run that is at work can write its repository" in repository.merge(run_id, code=2)
    assert repository.head == head
    for before in (None, run_id):
        worktree = planned(repository).model_copy(update={"taken_from": before})
        waited = world.meta(run_id).model_copy(update={"worktree": worktree})
        with pytest.raises(RunRefused, match="a run that is at work can write its repository"):
            prepare_worktree(world.store, waited, {}, {})


def test_a_repository_in_the_place_of_that_of_a_run_gets_nothing(
    world: World, repository: Repository
) -> None:
    """A run in a directory above can have put a link there, which leads to any repository of the user."""
    world.play(shell(WORK), asks("Go on?"))
    run_id = world.start()
    world.asking(run_id)
    found, other = repository.top / ".git", world.home / "other"
    git("clone", "--quiet", repository.top, other)
    found.rename(world.home / "away")
    found.symlink_to(other / ".git")
    world.stop(run_id)
    repository.gone(run_id)
    assert "is not the repository in which it was made" in world.cli("show", run_id).stdout
    assert world.cli("rm", run_id).returncode == 6
    assert world.cli("rm", "--drop-unmerged", run_id).returncode == 0
    assert "subagent" not in git("-C", other, "for-each-ref")


def test_a_merge_writes_nowhere_but_in_the_working_copy_that_its_run_began_in(repository: Repository) -> None:
    """A run in a directory above can write what leads git from there."""
    linked, elsewhere = repository.world.home / "linked", repository.world.home / "elsewhere"
    elsewhere.mkdir()
    repository.git("worktree", "add", "--quiet", linked)
    run_id, of_linked, head = repository.left(), repository.left(cwd=linked), repository.head
    repository.git("config", "core.worktree", elsewhere)
    assert "is no working copy of" in repository.merge(run_id, code=2)
    assert list(elsewhere.iterdir()) == []
    repository.git("config", "--unset", "core.worktree")
    (linked / ".git").write_text(f"gitdir: {repository.top}/.git\n", encoding="utf-8")
    assert "is no working copy of" in repository.merge(of_linked, code=2)
    assert repository.head == head


@pytest.mark.parametrize("kind", ["list", "link"])
def test_a_box_shows_no_objects_that_were_not_borrowed_at_first(repository: Repository, kind: str) -> None:
    """A run in a directory above can change what the repository borrows while another one works."""
    worktree, objects = planned(repository), repository.top / ".git" / "objects"
    private = repository.world.home / "private"
    make_repository(private)
    make_worktree(worktree, os.environ, boxed=True)
    assert ("--ro-bind", objects) in worktree_mounts(worktree)
    if kind == "list":
        (objects / "info" / "alternates").write_text(f"{private}/.git/objects\n", encoding="utf-8")
    else:
        objects.rename(objects.with_name("moved"))
        objects.symlink_to(private)
    shown = [path for _, path in worktree_mounts(worktree)]
    assert not [path for path in shown if path.is_relative_to(private)]


@pytest.mark.parametrize("lifted", [(), (".git",)])
def test_a_run_notes_a_repository_that_it_could_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lifted: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cwd, elsewhere = tmp_path / "work", tmp_path / "cache"
    cwd.mkdir()
    agent = AgentDefinition(name="worker", sandbox_write=[*lifted, str(elsewhere)])

    def noted(state: str) -> list[Path]:
        environment = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / state)}
        found = protected_paths(agent, environment, tmp_path / "runs", cwd)
        return [place for place in found.written if place.name == ".git"]

    assert noted("first") == [cwd / ".git", elsewhere / ".git"]
    (cwd / ".git").mkdir()
    assert (cwd / ".git" in noted("second")) is bool(lifted)


def planned(repository: Repository) -> Worktree:
    """Return a worktree of a repository that is to be made."""
    return Worktree(
        path=str(repository.world.home / "subagent" / "worktrees" / "one"),
        branch="subagent/one",
        base=repository.head,
        origin=str(repository.top),
        repository=str(repository.top / ".git"),
    )


def test_no_file_of_the_user_reaches_a_store_by_what_a_repository_names(repository: Repository) -> None:
    home, info = repository.world.home, repository.top / ".git" / "info"
    for name in ("key", "exclude"):
        (home / name).write_text(f"SECRET {name}\n", encoding="utf-8")
    repository.git("config", "core.excludesFile", str(home / "key"))
    (info / "exclude").unlink(missing_ok=True)
    (info / "exclude").symlink_to(home / "exclude")
    worktree = planned(repository)
    make_worktree(worktree, os.environ)
    made = [path for path in store_of(worktree).rglob("*") if path.is_file()]
    assert made and not [path for path in made if b"SECRET" in path.read_bytes()]


def test_a_repository_borrows_no_directory_that_is_not_of_a_repository(
    world: World, repository: Repository
) -> None:
    world.agent(isolation="worktree", sandbox="bwrap")
    private, shared = world.home / "private", world.home / "shared"
    private.mkdir()
    (private / "key").write_text("SECRET\n", encoding="utf-8")
    (world.home / "link").symlink_to(private)
    git("clone", "--quiet", "--bare", repository.top, shared)
    alternates = repository.top / ".git/objects/info/alternates"
    alternates.write_text(f"{private}\n../../../link\n{shared}/objects\n", encoding="utf-8")
    simulator = world.play(shell(f"cat {private}/key; ls {shared}/objects"), says("Done."))
    assert world.completed(world.start()) == "Done."
    (result,) = tool_results(simulator.requests[1].body)
    assert "SECRET" not in result and "pack" in result


def test_a_repository_within_whose_head_never_ends_costs_the_copies_alone(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "_LOOK_SECONDS", 0.5)
    (repository.top / making.INCLUDE_FILE).write_text("*.env\n", encoding="utf-8")
    repository.commit("patterns")
    worktree = planned(repository)
    path = Path(worktree.path)
    other = path.with_name("two")
    of_run = worktree.model_copy(update={"path": str(other), "origin": str(path), "branch": "subagent/two"})
    for each, origin, note in (
        (worktree, repository.top, "was not seen, nor copied (it took more than 0.5 s)"),
        (of_run, path, "What .worktreeinclude names was not copied (it took more than 0.5 s)"),
    ):
        for name in ("refs", "objects"):
            (origin / "sub/.git" / name).mkdir(parents=True)
        os.mkfifo(origin / "sub/.git/HEAD")
        state = make_worktree(each, os.environ)
        assert any(note in found for found in state.notes), state.notes
        assert Path(each.path, "shared.txt").exists()


def test_files_that_grow_while_they_are_copied_keep_to_the_bound(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "MAX_INCLUDED_BYTES", 1_000)
    (repository.top / making.INCLUDE_FILE).write_text("*.env\n", encoding="utf-8")
    names = [repository.top / f"{number}.env" for number in range(100)]
    for name in names:
        name.touch()
    has_ended = threading.Event()

    def grow() -> None:
        while not has_ended.is_set():
            for size in (50_000, 0):
                for name in names:
                    os.truncate(name, size)

    growing = threading.Thread(target=grow)
    worktree = planned(repository)
    growing.start()
    try:
        state = make_worktree(worktree, os.environ)
    finally:
        has_ended.set()
        growing.join()
    copied = list(Path(worktree.path).glob("*.env"))
    assert sum(file.stat().st_size for file in copied) <= 1_000
    assert sorted(state.included) == sorted(file.name for file in copied)


def test_a_worktree_with_thousands_of_directories_in_each_other_is_removed(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    inner = os.open(tmp_path / "closed", os.O_RDONLY)
    for _ in range(3_000):
        os.mkdir("d", dir_fd=inner)
        above, inner = inner, os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(above)
    os.symlink("/etc/passwd", "link", dir_fd=inner)
    os.close(inner)
    (tmp_path / "closed").chmod(0o500)
    remove_tree(Directory(tmp_path).entry("closed"))
    assert list(tmp_path.iterdir()) == [] and Path("/etc/passwd").exists()


def test_a_repository_whose_head_never_ends_is_refused_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_of_run, "_LOOK_SECONDS", 0.3)
    git("init", "--quiet", tmp_path)
    (tmp_path / ".git" / "HEAD").unlink()
    os.mkfifo(tmp_path / ".git" / "HEAD")
    with pytest.raises(NoWorktree, match=r"more than 0\.3 s"):
        find_repository(os.environ, tmp_path)


@pytest.mark.parametrize("named_by", ["setting", "file", "link"])
def test_a_repository_and_files_that_do_not_name_each_other_give_no_worktree(
    repository: Repository, named_by: str
) -> None:
    private = repository.top / ".git"
    top = repository.world.home if named_by == "setting" else repository.world.home / "unpacked"
    if named_by == "setting":
        repository.git("config", "core.worktree", top)
        top = repository.top
    else:
        top.mkdir()
        if named_by == "link":
            (top / ".git").symlink_to(private)
        else:
            (top / ".git").write_text(f"gitdir: {private}\n", encoding="utf-8")
    with pytest.raises(NoWorktree, match=r"do not name each other"):
        find_repository(os.environ, top)
    if named_by == "file":
        repository.git("config", "core.worktree", top)
        assert find_repository(os.environ, top).common == private


def test_a_configuration_that_never_ends_is_given_up_in_time(repository: Repository) -> None:
    os.mkfifo(repository.top / "endless")
    repository.git("config", "include.path", str(repository.top / "endless"))
    with pytest.raises(GitFailed, match=r"took more than 0\.2 s"):
        harmless_git(os.environ, repository.top, seconds=0.2)


def test_the_branch_of_the_user_does_not_move_wherever_a_run_points_its_head(repository: Repository) -> None:
    head, own = repository.head, "$(git rev-parse --git-dir)"
    run_id = repository.left(f"echo 'ref: refs/heads/main' > {own}/HEAD; {WORK}")
    assert repository.head == head and repository.git("status", "--porcelain") == ""
    assert repository.shown(run_id)["commits"] == 1
    assert repository.branches() == [repository.shown(run_id)["branch"]]
    run_id = repository.left(
        f"cd {own}/../../refs/heads/subagent; for f in *; do echo 'ref: refs/heads/main' > $f; done; "
        f"cd - >/dev/null; cd {repository.world.home}/.local/state/subagent/worktrees/*{'[0-9]'}*; {WORK}"
    )
    assert repository.head == head and repository.git("status", "--porcelain") == ""
    assert repository.shown(run_id)["commits"] == 1


def test_files_that_other_programs_execute_are_not_merged_even_from_a_made_up_commit(
    repository: Repository,
) -> None:
    made_up = (
        "b=$(echo evil | git hash-object -w --stdin); git update-index --add --cacheinfo 100755,$b,.envrc; "
        "git -c user.name=A -c user.email=a@b commit -qm evil; git update-index --skip-worktree .envrc; ls -a"
    )
    run_id = repository.left(made_up)
    head = repository.head
    assert ".envrc" in repository.merge(run_id, code=2) and repository.head == head
    assert not (repository.top / ".envrc").exists()


def test_a_link_that_stands_for_files_that_other_programs_execute_is_not_merged(
    repository: Repository,
) -> None:
    run_id = repository.left(f"mkdir deep/c; echo evil > deep/c/config.toml; ln -s c deep/.cargo; {WORK}")
    assert "(deep/.cargo)" in repository.merge(run_id, code=2)
    assert not (repository.top / "deep/c").exists()


@pytest.mark.parametrize(
    ("key", "value", "act", "file"),
    [
        ("core.hooksPath", "tools/hooks", "mkdir -p tools/hooks", "tools/hooks/pre-commit"),
        ("core.hooksPath", "tools/hooks", "mkdir deep/hooks; ln -s deep tools", "deep/hooks/pre-commit"),
        ("core.hooksPath", "way/hooks", "mkdir deep/hooks", "deep/hooks/pre-commit"),
        ("core.hooksPath", "way/hooks", "mkdir -p a/hooks; ln -sfn a way", "a/hooks/pre-commit"),
        ("include.path", "../settings", "true", "settings"),
        ("core.fsmonitor", "sh deep/kept.txt", "true", "deep/kept.txt"),
        ("core.fsmonitor", "sh way/kept.txt", "true", "deep/kept.txt"),
    ],
    ids=[
        "hooks",
        "a link to hooks",
        "hooks by a link",
        "another link",
        "settings",
        "a file",
        "a file by a link",
    ],
)
def test_files_that_settings_of_git_name_are_not_merged(
    repository: Repository, key: str, value: str, act: str, file: str
) -> None:
    (repository.top / "way").symlink_to("deep")
    repository.commit("a link on the way")
    repository.git("-c", "core.hooksPath=/dev/null", "config", key, value)
    run_id = repository.left(f"{act}; echo evil >> {file}; {WORK}")
    shown = repository.merge(run_id, code=2)
    assert any(f"({name})" in shown for name in (file, "tools", "way")), shown
    assert (repository.top / "shared.txt").read_text(encoding="utf-8") == "first\n"


def test_a_socket_in_the_place_of_a_file_keeps_no_work_back(repository: Repository) -> None:
    bind = "import socket; socket.socket(socket.AF_UNIX).bind('deep/kept.txt')"
    run_id = repository.left(f'rm deep/kept.txt; python3 -c "{bind}"; {WORK}')
    repository.merge(run_id)
    assert (repository.top / "new.txt").exists() and not (repository.top / "deep").exists()


def test_a_change_in_the_second_of_a_git_add_is_a_change(repository: Repository) -> None:
    run_id = repository.left("echo one > a; git add a; echo two > a; sleep 1.1")
    repository.merge(run_id)
    assert (repository.top / "a").read_text(encoding="utf-8") == "two\n"


@pytest.mark.parametrize("mark", ["--assume-unchanged", "--skip-worktree"])
def test_a_mark_in_the_index_hides_no_change(repository: Repository, mark: str) -> None:
    run_id = repository.left(f"git update-index {mark} shared.txt; echo mine >> shared.txt")
    assert repository.shown(run_id)["files"] == 1
    repository.merge(run_id)
    assert (repository.top / "shared.txt").read_text(encoding="utf-8") == "first\nmine\n"


def test_what_a_file_of_patterns_names_is_copied_and_never_committed_nor_out_of_the_repository(
    world: World, repository: Repository
) -> None:
    (world.home / "secret").write_text("far away", encoding="utf-8")
    (repository.top / ".env").write_text("KEY=1\n", encoding="utf-8")
    (repository.top / "link.env").symlink_to(world.home / "secret")
    (repository.top / "odd.env\nmade.env").touch()
    (repository.top / ".worktreeinclude").write_text("*.env\n.env\n", encoding="utf-8")
    run_id = repository.ran(f"cat .env; ls; touch made.env; {WORK}")
    told = world.events(run_id, "tool_result")[0]["text"]
    assert told.startswith("KEY=1") and "link.env" not in told
    shown = repository.shown(run_id)
    assert (shown["files"], shown["included"]) == (3, 2) and "link.env" in shown["notes"][0]
    patch = world.cli("show", run_id, "--diff").stdout
    assert "b/made.env" in patch and "odd.env" not in patch


def test_a_place_without_a_commit_is_refused_in_a_sentence_and_nothing_is_made(
    world: World, repository: Repository
) -> None:
    plain, empty, bare, lost = (world.home / name for name in ("plain", "empty", "bare.git", "lost"))
    plain.mkdir()
    git("init", "--quiet", empty)
    git("init", "--quiet", lost)
    git("-C", lost, "commit", "--quiet", "--allow-empty", "--message", "Lost.")
    (tip,) = (lost / ".git/objects").glob(f"{(git('-C', lost, 'rev-parse', 'HEAD'))[:2]}/*")
    tip.unlink()
    git("clone", "--quiet", "--bare", repository.top, bare)
    refused = {plain: "not a git repository", empty: "has no commit yet", lost: "or has lost it (`git fsck`)"}
    for place, words in refused.items():
        code, message = world.failed(world.start(cwd=str(place)))
        assert code == "config" and words in message and "isolation" in message
    repository.git("checkout", "--quiet", "--detach")
    linked = world.home / "linked"
    repository.git("worktree", "add", "--quiet", linked, "-b", "side")
    for place in (bare, repository.top, linked):
        assert "merged" in repository.merge(repository.left(cwd=place))
        assert git("-C", place, "show", "HEAD:new.txt") == "new\n"
    assert len(list(repository.places.glob("*.git"))) == 3
