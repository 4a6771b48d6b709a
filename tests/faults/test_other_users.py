"""Two other users on the machine, whatever the umask: neither reaches anything of a root that the first made.

If the suite does not run as root there is one user, and only what that one makes is looked at.
"""

import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from subagent_server.extensions.simulator import Simulator
from subagent_server.run.store import RunStore
from tests.faults.canaries import Outside, tree
from tests.faults.planted import AGENT, SHAPES, write_run
from tests.faults.planted_lies import LIES, plant_lies
from tests.faults.scene import unchanged
from tests.helpers.forked import PROGRAM
from tests.helpers.ordinary_user import BOUND, UID, User, user
from tests.helpers.scale import sampled
from tests.helpers.turns import calls, says, use
from tests.helpers.wait import wait_for

IS_ROOT = os.geteuid() == 0
SEVERAL = pytest.mark.skipif(not IS_ROOT, reason="only root can be several users")
UMASKS = sampled((0o000, 0o022, 0o077, 0o002), 2)
WARM_UMASK = 0o000
"""With this one the run is forked from a zygote, and with the others it is started plainly."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ATTACKS = """
    import fcntl, json, os, sys
    paths, worked = json.loads(sys.stdin.read()), []
    def attempt(what, act):
        try:
            act()
            worked.append(what)
        except OSError:
            pass
    for path in paths:
        for name, flags in (("read", os.O_RDONLY), ("write", os.O_WRONLY), ("poke", os.O_RDWR)):
            opened = lambda: os.open(path, flags | os.O_NONBLOCK)
            attempt(f"{name} {path}", lambda: fcntl.flock(opened(), fcntl.LOCK_EX | fcntl.LOCK_NB))
        attempt(f"list {path}", lambda: os.listdir(path))
        attempt(f"make in {path}", lambda: os.mkdir(f"{path}/planted"))
        attempt(f"link in {path}", lambda: os.symlink("/etc/passwd", f"{path}/planted"))
        attempt(f"open {path}", lambda: os.chmod(path, 0o777))
        attempt(f"move {path}", lambda: os.rename(path, f"{path}.moved"))
        attempt(f"remove {path}", lambda: os.unlink(path))
    print(json.dumps(worked))
"""


class Users:
    """Up to three users, and a directory that all of them may enter: the first one's is what is attacked."""

    def __init__(self, place: Path, users: list[User]) -> None:
        self.place, self.users = place, users
        self.root = place / "runs"
        for one in users:
            self._write_agents(one)

    def _write_agents(self, one: User) -> None:
        agents = one.home / "agents"
        agents.mkdir()
        text = f"---\nname: {AGENT}\ndescription: Does the work.\n---\nYou do it.\n"
        (agents / f"{AGENT}.md").write_text(text, encoding="utf-8")
        os.chown(agents, one.uid, -1)

    def call(
        self,
        one: User,
        *words: str,
        umask: int = 0o022,
        root: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run the command as a user, on the root of the first; plainly, unless `env` says otherwise."""
        more = {"SUBAGENT_RUNS": str(root or self.root), "ANTHROPIC_API_KEY": "the-key-of-the-tests"}
        more |= {"SUBAGENT_AGENTS": str(one.home / "agents"), "SUBAGENT_WARM": "0", **(env or {})}
        done = one.run([*PROGRAM, *words], umask=umask, env=more)
        assert "Traceback" not in done.stderr, done.stderr
        return done


@pytest.fixture
def users() -> Iterator[Users]:
    """Three users, and a place of the first one that everybody may enter."""
    place = Path(tempfile.mkdtemp(prefix="subagent-shared-", dir="/tmp"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        some = [stack.enter_context(user(UID + number)) for number in range(3 if IS_ROOT else 1)]
        os.chown(place, some[0].uid, -1)
        place.chmod(0o755)
        yield Users(place, some)


@pytest.mark.parametrize("umask", UMASKS, ids=lambda umask: f"{umask:03o}")
def test_whatever_the_umask_nobody_else_reaches_anything_of_a_root(users: Users, umask: int) -> None:
    first, *others = users.users
    note = first.home / "note.txt"
    note.write_text("A note.", encoding="utf-8")
    note.chmod(0o644)
    turns = [calls(use("bash", command="seq 20000")), says("It is done.")]
    with Simulator({"turns": turns}) as simulator:
        env = {"ANTHROPIC_BASE_URL": simulator.base_url, "SUBAGENT_WARM": str(int(umask == WARM_UMASK))}
        if umask == WARM_UMASK:
            wait = "from tests.helpers.warm import await_zygote; await_zygote()"
            assert first.run(wait, umask=umask).returncode == 0
        done = users.call(first, "run", AGENT, "Do it.", "--input", str(note), umask=umask, env=env)
        assert done.stdout == "It is done.\n", done.stderr
        marks = users.root / ".changes"
        wait_for(lambda: not list(marks.iterdir()), BOUND, "the end of all that the run has begun")
        paths = [users.root, *sorted(users.root.rglob("*"))]
        assert [str(path) for path in paths if path.lstat().st_mode & OTHERS] == []
        before = tree(users.root)
        for other in others:
            attacked = [str(path) for path in paths]
            assert _attack(other, attacked, umask) == []
        for words in (["ls"], ["run", AGENT, "Do it."], ["stop", paths[-1].parent.name]):
            assert [users.call(other, *words).stdout for other in others[:1]] in ([""], [])
        unchanged(users.root, before)


@SEVERAL
def test_a_root_that_another_user_planted_is_read_at_most(users: Users) -> None:
    first, second, _ = users.users
    theirs = users.place / "theirs"
    theirs.mkdir()
    (theirs / ".changes").mkdir()
    with Outside(users.place / "outside") as outside:
        os.chown(outside.place, first.uid, -1)
        ids = plant_lies(theirs, LIES, outside, first.home)
        for shape in ("fifo", "link", "device"):
            run = write_run(theirs, f"20260101-{shape}", "unsettled", first.home)
            SHAPES[shape](run / ("run.log" if shape == "link" else "run.meta.json"), outside)
        _give(theirs, second.uid)
        seen, before = outside.snapshot(), tree(theirs)
        assert users.call(first, "ls", "--json", "--all", root=theirs).returncode == 0
        for words in (["doctor", "--runs"], ["stats"], ["show", ids["worker"]], ["logs", ids["worker"]]):
            users.call(first, *words, root=theirs)
        for words in (["run", AGENT, "Do it."], ["stop", ids["worker"]], ["rm", ids["worker"]], ["prune"]):
            refused = users.call(first, *words, root=theirs)
            assert refused.returncode != 0 and "another user" in refused.stderr, refused
        adopted = users.call(first, "trust", "--runs", str(theirs))
        assert adopted.returncode != 0 and "another user" in adopted.stderr, adopted
        assert outside.snapshot() == seen
        unchanged(theirs, before)


@SEVERAL
def test_in_a_directory_that_all_may_write_to_nothing_is_done_in_the_runs_of_another_user(
    users: Users,
) -> None:
    first, second, _ = users.users
    users.place.chmod(0o1777)
    for name in ("runs", ".subagent/runs"):
        (users.place / name / ".changes").mkdir(parents=True)
        write_run(users.place / name, "20260101-theirs", "unsettled", first.home)
    for name in ("runs", ".subagent"):
        _give(users.place / name, second.uid)
    before = tree(users.place)
    for words in (["run", AGENT, "Do it.", "--detach"], ["stop", "20260101-theirs"], ["prune"]):
        env = {"SUBAGENT_AGENTS": str(first.home / "agents"), "SUBAGENT_WARM": "0"}
        done = first.run([*PROGRAM, *words], env=env, cwd=users.place)
        assert done.returncode != 0 and done.stdout == "" and "Traceback" not in done.stderr, done
    unchanged(users.place, before)


@SEVERAL
def test_what_of_a_removed_run_cannot_be_deleted_is_named(users: Users) -> None:
    first, second, _ = users.users
    RunStore(users.root).make_root()
    run = write_run(users.root, "20260101-ended", "completed", first.home)
    (run / "outputs" / "theirs").mkdir()
    (run / "outputs" / "theirs" / "file").touch()
    for path in [users.root, *users.root.rglob("*")]:
        os.chown(path, (second if path.name == "theirs" else first).uid, -1)
    done = users.call(first, "rm", run.name)
    assert (done.returncode, done.stdout, run.exists()) == (6, "", False)
    assert f"Run {run.name} is gone, but not all of its files: " in done.stderr
    assert list((users.root / ".removed").rglob("file"))


@SEVERAL
def test_closed_directories_of_another_user_block_nobody(users: Users) -> None:
    first, second, _ = users.users
    users.place.chmod(0o1777)
    for name in ("runs", ".claude"):
        (users.place / name).mkdir(mode=0o700)
        os.chown(users.place / name, second.uid, -1)
    below = users.place / "below"
    below.mkdir()
    for cwd in (users.place, below):
        done = first.run([*PROGRAM, "ls"], env={"SUBAGENT_WARM": "0"}, cwd=cwd)
        assert done.returncode == 0 and "No runs in" in done.stderr, done
    done = first.run([*PROGRAM, "agents"], env={"SUBAGENT_WARM": "0"}, cwd=users.place)
    assert ".claude/agents: error: the directory cannot be read (permission denied)" in done.stdout, done


@SEVERAL
def test_a_link_of_another_user_in_place_of_zygotes_refuses_no_run(users: Users) -> None:
    first, second, _ = users.users
    zygotes = users.place / "zygotes"
    zygotes.symlink_to(first.home)
    os.lchown(zygotes, second.uid, -1)
    with Simulator({"turns": [says("It is done.")]}) as simulator:
        env = {"ANTHROPIC_BASE_URL": simulator.base_url, "SUBAGENT_RUNTIME_DIR": str(zygotes)}
        done = users.call(first, "run", AGENT, "Do it.", env=env)
    assert done.stdout == "It is done.\n", done.stderr


def _attack(other: User, paths: list[str], umask: int) -> list[str]:
    """Let a user try everything with these paths, and return what worked."""
    done = other.run(_ATTACKS, umask=umask, stdin=json.dumps(paths))
    assert done.returncode == 0, done.stderr
    worked: list[str] = json.loads(done.stdout)
    return worked


def _give(place: Path, uid: int) -> None:
    """Make everything below a directory another user's, for all to read."""
    for path in [place, *place.rglob("*")]:
        os.chown(path, uid, -1, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
