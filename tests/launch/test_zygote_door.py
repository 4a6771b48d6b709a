"""Who the warm process serves: starters that may read what lies beside its socket, and nobody else."""

import ctypes
import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from subagent_server.launch import handover
from tests.helpers import warm
from tests.helpers.processes import REPOSITORY, run_python
from tests.helpers.world import BOUND, World
from tests.launch.warm_place import WarmPlace

_ABI_OF_LANDLOCK = (444, None, 0, 1)

CONFINED = """
    import ctypes, os, struct, sys
    from pathlib import Path
    from subagent_server.launch.asking import Wanted
    from subagent_server.launch.warm import WarmStart

    directory, how = Path(sys.argv[1]), sys.argv[2]
    warm = WarmStart(directory, 600)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS: an ordinary user may not use Landlock without it

    def confine():
        read_file = struct.pack("Q", 4)
        rules = libc.syscall(444, read_file, len(read_file), 0)
        for readable in ("/proc", "/dev"):
            rule = struct.pack("=Qi", 4, os.open(readable, os.O_PATH))
            assert libc.syscall(445, rules, 1, rule, 0) == 0
        assert libc.syscall(446, rules, 0) == 0

    def ask():
        nothing = open("/dev/null", "r+")
        wanted = Wanted("command", ["subagent"], ["subagent", "--version"], {})
        called = warm.connect()
        given = {number: nothing.fileno() for number in (0, 1, 2)}
        return called is not None and called.order(wanted, given) and called.go()

    if how == "start":
        warm.spawn().wait()
    elif how == "ask":
        free = ask()
        confine()
        print(free, ask())
"""

REUSED = """
    import os, signal, sys
    from pathlib import Path
    from subagent_server.launch.asking import FAILURES, Wanted, connected, give_order, tell_to_go
    from subagent_server.launch.image_key import image_key
    from subagent_server.launch.warm import WarmStart
    from tests.helpers.wait import wait_for

    place = Path(sys.argv[1])
    warm = WarmStart(place, 600)
    warm.spawn().wait()
    wait_for(lambda: list(place.glob("*.sock")), 60, "the warm process")
    zygote = warm.zygote().pid

    def children(pid):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    wait_for(lambda: [each for spare in children(zygote) for each in children(spare)], 60, "all of its forks")
    os.kill(zygote, signal.SIGSTOP)

    kept, given = os.pipe()
    over, going_on = os.pipe()
    first = os.fork()
    if first == 0:
        connection = connected(str(place), image_key())
        if os.fork() == 0:  # the one that goes on with the connection of another
            os.read(kept, 1)
            order = Wanted("command", ["x"], ["x"], {}).order([], leashed=False)
            try:
                give_order(connection, order, [], cwd="/")
                tell_to_go(connection)
                print("served", flush=True)
            except FAILURES as refusal:
                print(refusal, flush=True)
        os._exit(0)
    os.close(going_on)
    os.waitpid(first, 0)
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(first - 1))
    second = os.fork()
    if second == 0:
        signal.pause()
    assert second == first
    os.kill(zygote, signal.SIGCONT)
    os.write(given, b"!")
    os.read(over, 1)  # until the one that goes on has ended
"""


def test_a_program_that_reaches_the_socket_and_may_not_read_the_secret_gets_nothing(place: WarmPlace) -> None:
    if ctypes.CDLL(None).syscall(*_ABI_OF_LANDLOCK) < 1:
        pytest.skip("this kernel has no Landlock")
    assert run_python(CONFINED, place.directory, "start").returncode == 0
    place.zygote()
    asked = run_python(CONFINED, place.directory, "ask")
    assert asked.stdout == "True False\n", asked.stderr


def test_a_connection_that_does_not_begin_with_the_secret_is_refused(place: WarmPlace) -> None:
    place.start()
    for said in (b"\0", b"x" * 32, b"x" * 5000):
        with closing(handover.new_connection()) as connection:
            connection.settimeout(BOUND)
            connection.connect(str(next(place.directory.glob("*.sock"))))
            connection.send(said)
            with pytest.raises(handover.Refused, match="does not know the secret"):
                handover.expect(connection, handover.HERE)
    (secret,) = place.directory.glob("*.secret")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_who_goes_on_with_the_connection_of_a_process_that_has_ended_is_not_taken_for_it(
    tmp_path: Path,
) -> None:
    if os.getuid() or shutil.which("unshare") is None:
        pytest.skip("only root can have a pid come again")
    place = tmp_path / "warm"
    own_pids = ("unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", textwrap.dedent(REUSED))
    done = subprocess.run([*own_pids, place], cwd=REPOSITORY, capture_output=True, timeout=BOUND, check=False)
    assert b"a starter that has left" in done.stdout, done


def test_its_directory_lies_where_no_other_user_can_take_the_name_first(world: World) -> None:
    session, cache, home = (world.home / name for name in ("session", "cache", "home"))
    session.mkdir(mode=0o700)
    for each in (cache, home):
        each.mkdir(mode=0o755)
    usual, node = Path(f"/run/user/{os.getuid()}"), f"subagent-{os.uname().nodename}"

    def place(**environment: Path) -> Path:
        named = {name: str(path) for name, path in environment.items()}
        told = world.cli("doctor", "--json", env={**named, warm.PLACE: ""})
        return Path(json.loads(told.stdout)["warmStart"].partition(": ")[0])

    assert place(XDG_RUNTIME_DIR=session) == session / "subagent"
    session.chmod(0o755)
    if usual.is_dir():
        assert place(XDG_RUNTIME_DIR=session) == usual / "subagent"
        return
    assert place(XDG_RUNTIME_DIR=session, XDG_CACHE_HOME=cache) == cache / node
    assert place(HOME=home) == home / ".cache" / node
    assert not (home / ".cache").exists(), "looking makes nothing"
    home.chmod(0o777)
    assert place(HOME=home) == Path(f"/tmp/subagent-{os.getuid()}")
