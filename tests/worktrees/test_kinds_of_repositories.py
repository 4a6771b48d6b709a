"""Submodules, filters, a detached head, bare and linked repositories, and files that are brought along."""

from pathlib import Path

from tests.helpers.repositories import git, make_repository
from tests.helpers.turns import says, shell
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


def test_runs_begin_inside_a_submodule_and_at_a_detached_head_of_a_linked_worktree(
    world: World, repository: Repository
) -> None:
    a_bit_of_everything(repository)
    linked = world.home / "linked"
    repository.git("worktree", "add", "--quiet", "--detach", linked, "HEAD~1")
    inside = Path("present")
    world.play(shell("ls; echo new > made.txt"), says("Done."))
    for place in (repository.top / inside, linked, linked / "deep"):
        before = git("-C", place, "rev-parse", "HEAD")
        run_id = world.start(cwd=str(place))
        assert world.completed(run_id) == "Done."
        repository.gone(run_id)
        shown = repository.shown(run_id)
        assert (shown["commits"], shown["base"]) == (1, before.strip())
        assert "merged" in repository.merge(run_id) and (place / "made.txt").read_text("utf-8") == "new\n"
    assert git("-C", linked, "status", "--porcelain") == ""
    assert repository.git("fsck", "--no-dangling") == ""
