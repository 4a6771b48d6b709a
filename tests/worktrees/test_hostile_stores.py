"""Whatever a run puts into its store, the repository of the user gets the run's commits and nothing else."""

import hashlib
import os
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from subagent_server.run import processes
from subagent_server.run.records import Worktree, WorktreeState
from subagent_server.worktrees.git import GitFailed
from subagent_server.worktrees.reading import Reader
from subagent_server.worktrees.store_of_run import repository_of
from tests.helpers import forked
from tests.helpers.files import write_program
from tests.helpers.repositories import git, make_repository
from tests.helpers.turns import asks, says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World
from tests.worktrees.repository import WORK, Repository

COMMITS = "git -c user.name=A -c user.email=a@b commit -q"


def unchanged(repository: Repository) -> dict[str, bytes]:
    """Return all files of the repository but objects and what is written for runs."""
    top = repository.top / ".git"
    kept = (path for path in sorted(top.rglob("*")) if path.is_file() and "subagent" not in path.parts)
    return {str(path): path.read_bytes() for path in kept if path.relative_to(top).parts[0] != "objects"}


@pytest.mark.parametrize("sandbox", ["none", "bwrap"])
def test_what_a_run_leaves_in_its_store_is_neither_executed_nor_followed(
    world: World, repository: Repository, sandbox: str
) -> None:
    world.agent(isolation="worktree", sandbox=sandbox)
    marks, victim, before = world.home / "marks", world.home / "victim", unchanged(repository)
    marks.mkdir()
    victim.write_text("KEEP\n", encoding="utf-8")
    trap = f"touch {marks}/$0-$$; cat"
    plant = f"""
        s=$(git rev-parse --absolute-git-dir); b=$(git symbolic-ref HEAD)
        {WORK}; git add -A; {COMMITS} -m mine; echo more >> new.txt
        echo 'new.txt filter=bad diff=bad merge=bad' > .gitattributes
        rm -f $s/config; printf '%s\\n' '[core]' repositoryformatversion=0 bare=false \\
          'fsmonitor={trap}' 'pager={trap}' 'editor={trap}' 'sshCommand={trap}' hooksPath={marks} \\
          '[filter "bad"]' 'clean={trap}' 'smudge={trap}' 'process={trap}' '[diff "bad"]' 'textconv={trap}' \\
          '[alias]' 'rev-parse=!{trap}' '[remote "origin"]' 'url=ext::{trap}' promisor=true \\
          '[include]' path={victim} '[extensions]' partialClone=origin > $s/config
        for h in reference-transaction post-index-change post-checkout; do
            rm -f $s/hooks/$h; printf '#!/bin/sh\\ntouch {marks}/hook\\n' > $s/hooks/$h
            chmod +x $s/hooks/$h; done
        rm -rf $s/logs; mkdir -p $s/logs/$(dirname $b); ln -s {victim} $s/logs/HEAD; ln -s {victim} $s/logs/$b
        ln -s {victim} $s/COMMIT_EDITMSG; ln -s {victim} $s/FETCH_HEAD; ln -s {victim} $s/index.lock
        for n in 00 11 aa ff; do rm -rf $s/objects/$n; ln -s {marks} $s/objects/$n; done
        for n in refs objects; do mkdir -p nested/.git/$n; done; mkfifo nested/.git/HEAD nested/.git/config
        rm -f $s/HEAD; mkfifo $s/HEAD $s/refs/heads/other
        rm -f .git; printf 'gitdir: {victim}\\n' > .git; ln -s {victim} link; true
    """
    run_id = repository.ran(plant)
    assert "+more" in world.cli("show", run_id, "--diff").stdout
    assert repository.shown(run_id)["commits"] >= 1
    (repository.top / ".gitattributes").unlink(missing_ok=True)
    repository.merge(run_id)
    assert (repository.top / "new.txt").read_text("utf-8") == "new\nmore\n"
    assert world.cli("rm", "--drop-unmerged", run_id).returncode == 0
    assert [path.name for path in marks.iterdir()] == [] and victim.read_text("utf-8") == "KEEP\n"
    assert {**before, **unchanged(repository)}.keys() - before.keys() <= {
        str(repository.top / ".git" / "ORIG_HEAD")
    }
    assert repository.git("status", "--porcelain") == "" == repository.git("fsck", "--no-dangling")
    assert list(repository.places.iterdir()) == []


def test_a_boxed_run_cannot_bring_objects_of_another_repository_home(
    world: World, repository: Repository
) -> None:
    world.agent(isolation="worktree", sandbox="bwrap")
    private = world.home / "private"
    make_repository(private)
    secret = git("-C", private, "hash-object", "-w", "/etc/hostname").strip()
    borrow = f"""
        {WORK}; s=$(git rev-parse --absolute-git-dir); mv $s/objects $s/o2; mkdir -p $s/objects/info
        (cat $s/o2/info/alternates; echo $s/o2; echo {private}/.git/objects) > $s/objects/info/alternates
        tree=$(printf '100644 blob {secret}\\tstolen\\n' | git mktree --missing)
        git update-ref HEAD $(git -c user.name=A -c user.email=a@b commit-tree -p HEAD -m x $tree); true
    """
    run_id = repository.ran(borrow)
    assert repository.shown(run_id)["state"] == "kept"
    found = subprocess.run(["git", "-C", repository.top, "cat-file", "-e", secret], check=False)
    assert found.returncode != 0 and "stolen" not in world.cli("show", run_id, "--diff").stdout
    assert repository.git("fsck", "--no-dangling") == ""


def test_a_branch_with_a_name_for_a_shell_stays_in_the_store(repository: Repository) -> None:
    before = unchanged(repository)
    name = "'$(touch${IFS}PWNED)'"
    run_id = repository.left(f"{WORK}; git branch -m {name}; git tag {name}; git add -A; {COMMITS} -m mine")
    assert repository.branches() == [repository.shown(run_id)["branch"]]
    assert unchanged(repository) == before


def test_deleted_branches_and_gc_of_the_user_lose_nothing_of_a_live_run(
    world: World, repository: Repository
) -> None:
    repository.git("checkout", "--quiet", "-b", "topic")
    (repository.top / "topic.txt").write_text("only here\n", encoding="utf-8")
    repository.commit("topic")
    world.play(shell(WORK), asks("Go on?"), shell("git log --format=%s; cat topic.txt"), says("Done."))
    run_id = world.start_asking()
    repository.git("checkout", "--quiet", "main")
    repository.git("branch", "--quiet", "-D", "topic")
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "--quiet", "--prune=now")
    world.reply(run_id, "Yes.")
    assert world.completed(run_id) == "Done."
    repository.gone(run_id)
    assert world.events(run_id, "tool_result")[-1]["text"].split() == ["topic", "first", "only", "here"]
    assert repository.shown(run_id)["commits"] == 1
    assert "merged" in repository.merge(run_id) and (repository.top / "topic.txt").exists()
    assert repository.git("fsck", "--no-dangling") == ""
    assert world.cli("rm", run_id).returncode == 0
    assert repository.git("for-each-ref", "refs/subagent", "refs/heads/subagent") == ""


# -- the stream


def pack(*objects: tuple[int, bytes, int | None], count: int | None = None) -> bytes:
    """Return a pack of objects: their type, content, and the size that they say they have."""
    data = b"PACK" + (2).to_bytes(4, "big") + (len(objects) if count is None else count).to_bytes(4, "big")
    for kind, content, stated in objects:
        size = len(content) if stated is None else stated
        head = [kind << 4 | size & 15]
        size >>= 4
        while size:
            head[-1] |= 128
            head.append(size & 127)
            size >>= 7
        data += bytes(head) + zlib.compress(content)
    return data + hashlib.sha1(data, usedforsecurity=False).digest()


def named(kind: str, content: bytes) -> str:
    head = f"{kind} {len(content)}\0".encode()
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest()


WHO = b"author A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n"
BLOB = b"text\n"
EVIL_TREE = b"100644 .git\0" + bytes.fromhex(named("blob", BLOB))


def streams(base: str) -> dict[str, tuple[str, bytes]]:
    """Return shell commands or bytes that pretend to be a pack, with the commit that they promise."""
    lost = f"tree {'1' * 40}\nparent {base}\n".encode() + WHO
    evil = f"tree {named('tree', EVIL_TREE)}\nparent {base}\n".encode() + WHO
    alone = f"tree {named('tree', b'')}\n".encode() + WHO
    return {
        "nothing": ("1" * 40, b""),
        "text": ("1" * 40, b"fatal: no\n" * 1000),
        "too few objects": ("1" * 40, pack((3, BLOB, None), count=2**32 - 1)),
        "an object that says it is endless": ("1" * 40, pack((3, BLOB, 1 << 50))),
        "an object of 8 GiB": ("1" * 40, pack((2, b"\0" * 1000, 8 << 30))),
        "a commit without its tree": (named("commit", lost), pack((1, lost, None))),
        "a tree with a .git": (
            named("commit", evil),
            pack((1, evil, None), (2, EVIL_TREE, None), (3, BLOB, None)),
        ),
        "another history": (named("commit", alone), pack((1, alone, None), (2, b"", None))),
        "another commit": ("1" * 40, pack((1, alone, None), (2, b"", None))),
    }


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """Return a reader of a worktree of a small repository."""
    top = tmp_path / "work"
    make_repository(top)
    places = tmp_path / "subagent" / "worktrees"
    places.mkdir(parents=True)
    worktree = Worktree(
        path=str(places / "run"),
        branch="subagent/x",
        base=git("-C", top, "rev-parse", "HEAD").strip(),
        origin=str(top),
        repository=str(top / ".git"),
    )
    return Reader(repository_of(worktree, os.environ), worktree, WorktreeState(phase="working"), os.environ)


def test_no_program_of_the_callers_path_reads_what_a_run_has_left(reader: Reader, tmp_path: Path) -> None:
    planted, mark, files = tmp_path / "bin", tmp_path / "mark", Path(reader.worktree.path)
    for directory in (planted, files):
        directory.mkdir()
    for name in ("bash", "find", "cp", "head", "ls", "git"):
        write_program(planted / name, f"#!/bin/sh\ntouch {mark}\n")
    (files / "new.txt").write_text("new\n", encoding="utf-8")
    os.mkfifo(files / "HEAD")
    environment = {**os.environ, "PATH": f"{planted}:{os.environ['PATH']}"}
    reads = replace(reader, git=repository_of(reader.worktree, environment), environment=environment)
    left = reads.everything(reader.worktree.base, "What is left", history=True)
    assert left.tip != reader.worktree.base and not mark.exists()
    assert [path.name for path in files.iterdir()] == ["new.txt"]


def test_nothing_that_a_reader_without_a_box_has_started_outlives_it(reader: Reader) -> None:
    files = Path(reader.worktree.path)
    files.mkdir()
    with (files / "endless").open("wb") as sparse:
        sparse.truncate(4 << 40)

    def reads() -> int:
        return len(reader.everything(reader.worktree.base, "What is left", history=True).tip)

    def hashing() -> list[processes.Identity]:
        found = processes.descendants([process.pid])
        return found if any(b"update-index" in processes.command_of(each.pid) for each in found) else []

    with forked.popen(["reader"], os.environ, call=reads) as process:
        started = wait_for(hashing, BOUND, "git at the file")
        process.kill()
    wait_for(lambda: not any(map(processes.is_alive, started)), BOUND, "the end of all")


@pytest.mark.parametrize("name", streams(""))
def test_a_stream_that_is_no_whole_pack_of_the_commit_leaves_nothing(reader: Reader, name: str) -> None:
    objects = Path(reader.worktree.repository) / "objects"
    tip, data = streams(reader.worktree.base)[name]
    before = sorted(objects.rglob("*"))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sender:
        assert sender.stdin is not None and sender.stdout is not None
        sender.stdin.write(data)
        sender.stdin.close()
        with pytest.raises(GitFailed):
            reader.keep(sender.stdout, tip)
    assert sorted(objects.rglob("*")) == before
    assert list(Path(reader.worktree.path).parent.iterdir()) == []


def test_an_endless_stream_is_not_read_to_its_end(reader: Reader) -> None:
    for command in ("cat /dev/zero", "printf 'PACK\\0\\0\\0\\2\\377\\377\\377\\377'; yes"):
        with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE) as sender:
            assert sender.stdout is not None
            with pytest.raises(GitFailed):
                reader.keep(sender.stdout, "1" * 40)
            sender.kill()
