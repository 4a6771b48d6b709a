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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.helpers.world import World

UID = 12345
"""Nobody has this number, nor those after it."""
REPOSITORY = Path(__file__).resolve().parents[2]
BOUND = 120.0
"""How long a program may take, in seconds, on a machine that has much else to do."""
_SPACE_OF_ITS_OWN = ("unshare", "--mount", "--propagation", "private")
_MS_BIND, _MS_REC = 4096, 16384


@dataclass(frozen=True)
class User:
    """A user with a directory `home` that only this user may enter (and root)."""

    uid: int
    home: Path

    def command(self, argv: Sequence[str], *, umask: int = 0o022) -> list[str]:
        """Return the command that executes `argv` as this user, in the home directory."""
        enter = [sys.executable, "-I", __file__, str(self.uid), f"{umask:o}", str(self.home), *argv]
        return [*_SPACE_OF_ITS_OWN, *enter] if os.getuid() == 0 and _closed(_needed()) else enter

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables of this user, with nothing of the ones of this process but PATH."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(REPOSITORY),
            "SUBAGENT_RUNTIME_DIR": str(self.home / "warm"),
            "SUBAGENT_WARM_IDLE": "120",
            **(more or {}),
        }

    def run(
        self,
        program: str | Sequence[str],
        *,
        umask: int = 0o022,
        env: Mapping[str, str] | None = None,
        seconds: float = BOUND,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command, or Python code if it is a text, to its end; return what it said and how it ended."""
        argv = [sys.executable, "-c", textwrap.dedent(program)] if isinstance(program, str) else program
        return subprocess.run(
            self.command(argv, umask=umask),
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=seconds,
            check=False,
        )

    def play(self, *scenarios: "Callable[[World], None]") -> None:
        """Let this user call functions of modules, each with a world that is checked at its end.

        The runs of several are forked from a zygote of this user. For one it would cost more than it saves.

        Raises:
            AssertionError: one failed; with what it said.
        """
        is_warm = len(scenarios) > 1
        lines = ["from tests.helpers.ordinary_user import play_here"]
        lines += ["from tests.helpers import warm", "warm.await_zygote()"] if is_warm else []
        for each in scenarios:
            lines += [f"from {each.__module__} import {each.__qualname__}", f"play_here({each.__qualname__})"]
        seconds = BOUND * len(scenarios)
        done = self.run("\n".join(lines), env={"SUBAGENT_WARM": str(int(is_warm))}, seconds=seconds)
        assert done.returncode == 0, f"as user {self.uid}: {done.stderr}"

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
    someone = User(uid if os.getuid() == 0 else os.getuid(), home)
    try:
        os.chown(home, someone.uid, -1)
        yield someone
    finally:
        _end_warm_processes(home / "warm")
        shutil.rmtree(home, ignore_errors=True)


def play_here(scenario: "Callable[[World], None]") -> None:
    """Call `scenario` with a world in the home directory of this process's user."""
    from tests.helpers.world import World

    world = World(Path(tempfile.mkdtemp(prefix="world-", dir=os.environ["HOME"])))
    try:
        scenario(world)
    finally:
        world.close()


def _end_warm_processes(directory: Path) -> None:
    from tests.helpers import warm

    if directory.is_dir():
        warm.end(directory)


# -- in the program that becomes the user's


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


def _open_ways() -> None:
    """Put an empty directory, with nothing but what is needed, over each that is closed."""
    mount = ctypes.CDLL(None, use_errno=True).mount
    for closed, needed in _closed(_needed()).items():
        handles = {each: os.open(each, os.O_PATH) for each in needed}
        _check(mount(b"none", os.fsencode(closed), b"tmpfs", 0, b"mode=755"))
        for each, handle in handles.items():
            each.mkdir(parents=True, exist_ok=True)
            source = f"/proc/self/fd/{handle}".encode()
            _check(mount(source, os.fsencode(each), None, _MS_BIND | _MS_REC, None))
            os.close(handle)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _become(uid: int, umask: int, home: str, argv: list[str]) -> None:
    if os.getuid() == 0:
        _open_ways()
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.umask(umask)
    os.chdir(home)
    with suppress(FileNotFoundError):
        os.execvp(argv[0], argv)
    sys.exit(f"There is no program {argv[0]}.")


if __name__ == "__main__":
    _become(int(sys.argv[1]), int(sys.argv[2], 8), sys.argv[3], sys.argv[4:])
