"""The client finds the private directory of its user, and starts nothing by a zygote that is in trouble."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.process.zygote_client import MOST_ZYGOTES, WarmStart
from subagent_server.process.zygote_protocol import default_directory, zygote_name
from subagent_server.run import locks, processes
from subagent_server.run.files import Entry
from subagent_server.sandbox.box import find_program
from tests.helpers import bubblewrap, warm
from tests.helpers.forked import PROGRAM
from tests.helpers.ordinary_user import user
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, kill
from tests.process.zygote.tiny import TinyPlace


def stopped(zygote: processes.Identity, directory: Path) -> None:
    processes.send_signal(zygote, signal.SIGSTOP)
    wait_for(lambda: processes.is_stopped(zygote), BOUND, "the stop")


def killed(zygote: processes.Identity, directory: Path) -> None:
    """A socket on which no process listens."""
    kill(zygote)


def opened(zygote: processes.Identity, directory: Path) -> None:
    """A directory that others may enter."""
    directory.chmod(0o755)


def replaced(zygote: processes.Identity, directory: Path) -> None:
    """A link in the place of the directory."""
    directory.rename(directory.with_name("elsewhere"))
    directory.symlink_to("elsewhere")


def without_secret(zygote: processes.Identity, directory: Path) -> None:
    next(directory.glob("*.secret")).unlink()


@pytest.mark.parametrize("trouble", [stopped, killed, opened, replaced, without_secret])
def test_nothing_is_started_by_a_zygote_in_trouble(
    tmp_path: Path, place: TinyPlace, trouble: Callable[[processes.Identity, Path], None]
) -> None:
    zygote = place.start()
    trouble(zygote, place.directory)
    assert not place.start_program("append", tmp_path / "lines")
    if trouble in (stopped, killed):
        wait_for(lambda: not processes.is_alive(zygote), BOUND, "the end of a zygote that is in the way")
    else:
        kill(zygote)
    assert not (tmp_path / "lines").exists()


def test_a_zygote_that_still_loads_refuses_nobody(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    loading = Entry.at(tmp_path / f"{zygote_name()}.lock")
    lock = locks.take(loading)
    loading.write(f"{os.getpid()}\n".encode())
    outlook = WarmStart(tmp_path, 0.1).outlook()
    assert lock is not None
    os.close(lock)
    assert outlook == f"starts are plain until the zygote (pid {os.getpid()}) listens"


def test_nothing_is_sent_to_a_program_of_a_box_in_the_place_of_a_zygote(place: TinyPlace) -> None:
    zygote = place.start()
    (socket_file,) = place.directory.glob("*.sock")
    socket_file.unlink()
    program = f"{BOXED_LISTENER}\nlisten({str(socket_file)!r})"
    words = f"--dev-bind / / --unshare-pid --die-with-parent {sys.executable} -c".split()
    box = [str(find_program(bubblewrap.settings())), *words, program]
    with subprocess.Popen(box, stdout=subprocess.PIPE) as boxed:
        try:
            wait_for(socket_file.exists, BOUND, "the listener")
            assert not place.start_program("append", "lines")
            assert boxed.stdout is not None and boxed.stdout.readline() == b"b''\n"
        finally:
            boxed.kill()
            kill(zygote)


BOXED_LISTENER = """
import os, socket
def listen(path):
    os.chdir(os.path.dirname(path))  # the whole path is too long for a socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("listener")
        listener.listen()
        os.rename("listener", path)  # once it is there, it takes connections
        while True:
            print(listener.accept()[0].recv(64), flush=True)
"""


def test_a_directory_with_a_long_path_is_as_good_as_another(tmp_path: Path) -> None:
    place = TinyPlace(tmp_path / ("long" * 50) / "place")
    place.start()
    try:
        assert place.start_program("append", tmp_path / "lines")
        wait_for((tmp_path / "lines").exists, BOUND, "the program")
    finally:
        place.end()


def test_the_private_directory_lies_where_no_other_user_can_take_the_name_first(tmp_path: Path) -> None:
    session, cache, home = (tmp_path / name for name in ("session", "cache", "home"))
    session.mkdir(mode=0o700)
    for each in (cache, home):
        each.mkdir(mode=0o755)
    usual, node = Path(f"/run/user/{os.getuid()}"), f"subagent-{os.uname().nodename}"

    def place(**environment: Path) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
                patch.delenv(name, raising=False)
            for name, path in environment.items():
                patch.setenv(name, str(path))
            return default_directory()

    assert place(XDG_RUNTIME_DIR=session) == session / "subagent"
    session.chmod(0o755)
    if usual.is_dir():
        assert place(XDG_RUNTIME_DIR=session) == usual / "subagent"
        return
    assert place(XDG_RUNTIME_DIR=session, XDG_CACHE_HOME=cache) == cache / node
    assert place(HOME=home) == home / ".cache" / node
    assert not (home / ".cache").exists(), "a look makes nothing"
    home.chmod(0o777)
    assert place(HOME=home) == Path(f"/tmp/subagent-{os.getuid()}")


def test_a_user_whom_nobody_knows_needs_no_home() -> None:
    with user() as somebody:
        command = ["env", "-u", "HOME", "-u", warm.PLACE, *PROGRAM, "doctor", "--json"]
        done = somebody.run(command)
    assert json.loads(done.stdout)["warmStart"].startswith("/"), done.stderr


def test_an_installation_has_at_most_three_zygotes(tmp_path: Path) -> None:
    assert MOST_ZYGOTES == 3
    directory, installation = tmp_path / "place", zygote_name().split("-")[0]
    directory.mkdir(mode=0o700)
    names = [f"{installation}-other{number}" for number in range(MOST_ZYGOTES)]
    held = [locks.take(Entry.at(directory / f"{name}.lock")) for name in names]
    assert WarmStart(directory, 0.1).spawn() is None
    assert held[0] is not None
    os.close(held[0])
    starting = WarmStart(directory, 0.1).spawn()
    assert starting is not None and starting.wait(BOUND) == 0
    try:
        wait_for(lambda: list(warm.zygotes(directory)), BOUND, "the third zygote")
    finally:
        warm.end(directory)
