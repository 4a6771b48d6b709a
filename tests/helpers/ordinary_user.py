"""Users of this machine who are not root, to see what holds for them: `with user() as somebody: ...`.

If the suite runs as root, programs run as another user, who has a home directory and no groups. If the
interpreter or the checkout lies where only root may go, such as below `/root`, the program has mounts of its
own that lead there. If the suite runs as an ordinary user, programs just run, whatever `uid` says.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from tests.helpers import forked, warm
from tests.helpers.world import World

UID = 12345
"""Nobody has this number, nor those after it."""
REPOSITORY = Path(__file__).resolve().parents[2]
BOUND = 120.0
"""How long a program may take, in seconds, on a machine that has much else to do."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE, _PR_SET_DUMPABLE = 0x20000, 4096, 16384, 1 << 18, 4


@dataclass(frozen=True)
class User:
    """A user with a directory `home` that only this user may enter (and root)."""

    uid: int
    home: Path
    mounts: int | None
    """A descriptor of the mounts that lead to the interpreter and the checkout, if these are closed."""

    def enter(self, umask: int = 0o022, cwd: Path | None = None) -> None:
        """Make this process one of the user, in `cwd` or at home: what a fork does before anything else."""
        if os.getuid() == 0:
            if self.mounts is not None:
                _check(_LIBC.setns(self.mounts, _CLONE_NEWNS))
            os.setgroups([])
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)
            # An executed program is shown to others of its user again, but a fork is not.
            _check(_LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))
        os.umask(umask)
        os.chdir(cwd or self.home)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables of this user, with nothing of the ones of this process but PATH."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "SUBAGENT_RUNTIME_DIR": str(self.home / "warm"),
            "SUBAGENT_WARM_IDLE": "120",
            **(more or {}),
        }

    def run(
        self,
        program: str | Sequence[str],
        *,
        umask: int = 0o022,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        seconds: float = BOUND,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command, or Python code if it is a text, to its end; return what it said and how it ended."""
        argv = [sys.executable, "-c", textwrap.dedent(program)] if isinstance(program, str) else program
        environment, enter = self.environment(env), partial(self.enter, umask, cwd)
        if tuple(argv[:3]) != forked.PROGRAM:  # a fork has what is there imported
            environment["PYTHONPATH"] = str(REPOSITORY)
        done = forked.run(argv, environment, stdin=stdin.encode(), seconds=seconds, enter=enter)
        out, err = done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def play(self, *scenarios: Callable[[World], None]) -> None:
        """Let this user call functions of modules, each with a world that is checked at its end.

        The runs of several are forked from a zygote of this user. For one it would cost more than it saves.

        Raises:
            AssertionError: one failed; with what it said.
        """
        is_warm = len(scenarios) > 1

        def play_all() -> int:
            if is_warm:
                warm.await_zygote()
            for each in scenarios:
                play_here(each)
            return 0

        done = forked.run(
            [each.__qualname__ for each in scenarios],
            self.environment({"SUBAGENT_WARM": str(int(is_warm)), "PYTHONPATH": str(REPOSITORY)}),
            seconds=BOUND * len(scenarios),
            enter=self.enter,
            call=play_all,
        )
        assert done.returncode == 0, f"as user {self.uid}: {done.stderr.decode('utf-8')}"

    def run_tests(self, *which: str) -> None:
        """Let this user run tests of this suite: files or node ids, relative to the repository.

        Raises:
            AssertionError: one failed; with what pytest said.
        """
        flags = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={REPOSITORY}"]
        flags += [f"--config-file={REPOSITORY / 'pyproject.toml'}", f"--basetemp={self.home / 'pytest'}"]
        tests = [str(REPOSITORY / each) for each in which]
        done = self.run([sys.executable, "-m", "pytest", *flags, *tests], seconds=5 * BOUND)
        assert done.returncode == 0, f"as user {self.uid}: {done.stdout}{done.stderr}"


@contextmanager
def user(uid: int = UID) -> Iterator[User]:
    """Give a user; what its programs leave running is ended with it, and its home removed."""
    home = Path(tempfile.mkdtemp(prefix="subagent-user-", dir="/tmp"))  # the directory of pytest is closed
    someone = User(uid, home, _mounts()) if os.getuid() == 0 else User(os.getuid(), home, None)
    try:
        os.chown(home, someone.uid, -1)
        yield someone
    finally:
        _end_warm_processes(home / "warm")
        shutil.rmtree(home, ignore_errors=True)


def play_here(scenario: Callable[[World], None]) -> None:
    """Call `scenario` with a world in the home directory of this process's user."""
    world = World(Path(tempfile.mkdtemp(prefix="world-", dir=os.environ["HOME"])))
    try:
        scenario(world)
    finally:
        world.close()


def _end_warm_processes(directory: Path) -> None:
    if directory.is_dir():
        warm.end(directory)


# -- in the process that becomes the user's


def _needed() -> list[Path]:
    """Return the directories that a test needs, without those that lie in another one of them."""
    wanted = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), REPOSITORY}
    return sorted(each for each in wanted if not wanted & set(each.parents))


def _closed(directories: Sequence[Path]) -> dict[Path, list[Path]]:
    """Return the outermost directories that not everybody may enter, each with what is needed below it."""
    found: dict[Path, list[Path]] = {}
    for each in directories:
        for ancestor in reversed(each.parents):
            if not ancestor.stat().st_mode & 0o001:
                found.setdefault(ancestor, []).append(each)
                break
    return found


@cache
def _mounts() -> int | None:
    """Return mounts with an empty directory, but for what is needed, over each that is closed.

    All processes of users are in the same ones: a zygote forks for those alone that are in its own.
    """
    if not _closed(_needed()):
        return None
    with subprocess.Popen(["sleep", "60"], preexec_fn=_open_ways) as sleeping:
        mounts = os.open(f"/proc/{sleeping.pid}/ns/mnt", os.O_RDONLY)
        sleeping.kill()
    return mounts


def _open_ways() -> None:
    _check(_LIBC.unshare(_CLONE_NEWNS))
    _check(_LIBC.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
    for closed, needed in _closed(_needed()).items():
        handles = {each: os.open(each, os.O_PATH) for each in needed}
        _check(_LIBC.mount(b"none", os.fsencode(closed), b"tmpfs", 0, b"mode=755"))
        for each, handle in handles.items():
            each.mkdir(parents=True, exist_ok=True)
            source = f"/proc/self/fd/{handle}".encode()
            _check(_LIBC.mount(source, os.fsencode(each), None, _MS_BIND | _MS_REC, None))
            os.close(handle)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
