"""A child serves starters that know the secret and have its rights, and runs nothing without `go`."""

import ctypes
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from subagent_server.process import zygote_protocol
from subagent_server.process.zygote_protocol import zygote_name
from subagent_server.run import locks
from subagent_server.run.files import Entry
from tests.helpers.processes import REPOSITORY, run_python
from tests.helpers.world import BOUND
from tests.process.zygote.tiny import ROOM, TinyPlace

_ABI_OF_LANDLOCK = (444, None, 0, 1)

CONFINED = """
    import ctypes, os, struct, sys
    from pathlib import Path
    from subagent_server.process.zygote_client import WarmStart

    directory, how = Path(sys.argv[1]), sys.argv[2]
    warm = WarmStart(directory, 600)
    libc = ctypes.CDLL(None, use_errno=True)

    def confine():
        libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS: an ordinary user may not use Landlock without it
        if how == "no new privileges":
            return
        read_file = struct.pack("Q", 4)
        rules = libc.syscall(444, read_file, len(read_file), 0)
        for readable in ("/proc", "/dev"):
            rule = struct.pack("=Qi", 4, os.open(readable, os.O_PATH))
            assert libc.syscall(445, rules, 1, rule, 0) == 0
        assert libc.syscall(446, rules, 0) == 0

    def start():
        nothing = open("/dev/null", "r+")
        connection = warm.connect()
        if connection is None:
            return False
        given = {number: nothing.fileno() for number in (0, 1, 2)}
        ordered = warm.tried(connection, lambda: connection.order("wait", ["wait"], [], {}, given))
        return ordered and warm.go(connection)

    free = start()
    confine()
    print(free, start())
"""

REUSED = """
    import os, select, signal, sys
    from pathlib import Path
    from subagent_server.process.zygote_client import FAILURES
    from tests.process.zygote.tiny import OLDER_KERNEL, tiny_place

    directory, when, kernel = sys.argv[1:]
    with tiny_place(Path(directory)) as place:
        zygote = place.start(more={OLDER_KERNEL: "1"} if kernel == "older" else {})
        if when == "before":
            os.kill(zygote.pid, signal.SIGSTOP)
        kept, given = os.pipe()
        over, going_on = os.pipe()
        first = os.fork()
        if first == 0:
            connection = place.connect()
            if when == "after":
                select.select([connection._socket], [], [], 60)
            if os.fork() == 0:  # a process that goes on with the connection of another
                os.read(kept, 1)
                select.select([connection._socket], [], [], 60)  # longer than a starter would
                try:
                    connection.order("wait", ["x"], [], {}, {})
                    connection.go()
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
        os.kill(zygote.pid, signal.SIGCONT)
        os.write(given, b"!")
        os.read(over, 1)  # until the process that goes on has ended
"""


@pytest.mark.parametrize("how", ["no new privileges", "landlock"])
def test_a_starter_with_other_rights_or_without_the_secret_gets_nothing(place: TinyPlace, how: str) -> None:
    if how == "landlock" and ctypes.CDLL(None).syscall(*_ABI_OF_LANDLOCK) < 1:
        pytest.skip("this kernel has no Landlock")
    place.start()
    started = run_python(CONFINED, place.directory, how)
    assert started.stdout == "True False\n", started.stderr


def test_a_connection_that_does_not_begin_with_the_secret_is_refused(
    place: TinyPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.start()
    monkeypatch.chdir(place.directory)  # the whole path is too long for a socket
    for first_message in (b"\0", b"x" * 32, b"x" * 5000):
        with closing(zygote_protocol.new_socket()) as connection:
            connection.settimeout(BOUND)
            connection.connect(f"{place.name}.sock")
            connection.send(first_message)
            with pytest.raises(zygote_protocol.OrderRefused, match="does not know the secret"):
                zygote_protocol.expect(connection, zygote_protocol.HERE)
    (secret,) = place.directory.glob("*.secret")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@pytest.mark.parametrize(("when", "kernel"), [("before", "this"), ("after", "this"), ("after", "older")])
def test_a_process_that_goes_on_with_the_connection_of_an_ended_one_is_not_taken_for_it(
    tmp_path: Path, when: str, kernel: str
) -> None:
    if os.getuid() or shutil.which("unshare") is None:
        pytest.skip("only root can have a pid come again")
    own_pids = ("unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", textwrap.dedent(REUSED))
    done = subprocess.run(
        [*own_pids, tmp_path / "place", when, kernel],
        cwd=REPOSITORY,
        capture_output=True,
        timeout=BOUND,
        check=False,
    )
    assert b"the starter has exited" in done.stdout, done


def test_an_order_without_the_word_to_go_comes_to_nothing(tmp_path: Path, place: TinyPlace) -> None:
    place.start()
    held, lines = Entry.at(tmp_path / "lock"), tmp_path / "lines"
    lock = locks.take(held)
    assert lock is not None
    with closing(place.connect()) as connection:
        connection.order("append", ["append"], [str(lines)], {}, {3: lock})
    os.close(lock)
    assert not locks.is_held(held), "closing waits until the child holds nothing"
    assert not lines.exists()


def test_an_order_of_an_unknown_program_is_refused(place: TinyPlace) -> None:
    place.start()
    with closing(place.connect()) as connection:
        connection.order("no such program", ["x"], [], {}, {})
        with pytest.raises(zygote_protocol.OrderRefused, match="no such program"):
            connection.go()
    assert not place.start_program("no such program"), "and a starter knows that it has to start it itself"


def forked(place: TinyPlace, words: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Return the report of a forked process."""
    out, into = os.pipe()
    with closing(place.connect()) as connection, os.fdopen(out, "rb") as output:
        with Path(os.devnull).open("r+b") as nothing, os.fdopen(into, "wb"):
            streams = {0: nothing.fileno(), 1: into, 2: nothing.fileno()}
            connection.order("report", ["report", *words], words, environment, streams)
        connection.go()
        report: dict[str, Any] = json.loads(output.read())
    return report


def executed(words: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Return the report of a process that is started plainly."""
    code = (
        "from tests.process.zygote.tiny import report; import os; import sys; "
        "os.closerange(3, 64); "  # a libffi of today, which comes with ctypes, keeps its own file open
        "sys.exit(report(None, sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); {code}", *words],
        env=environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_a_forked_program_has_the_attributes_of_one_that_its_starter_executes(place: TinyPlace) -> None:
    place.start()
    environment = {"PATH": os.environ["PATH"], "NAME": "grün", "FILLER": ROOM, "LC_CTYPE": "C.UTF-8"}
    before = os.umask(0o027)
    try:
        seen = forked(place, ["ü"], environment)
        assert seen == executed(["ü"], environment)
    finally:
        os.umask(before)
    assert (seen["umask"], seen["environment"]["NAME"], seen["arguments"]) == ("0027", "grün", ["ü"])


def test_a_starter_with_another_limit_has_a_zygote_of_its_own(place: TinyPlace) -> None:
    place.start()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[0] - 1, files[1]))
    try:
        assert zygote_name() != place.name
        with (
            closing(place.connect()) as connection,
            pytest.raises(zygote_protocol.OrderRefused, match="open files"),
        ):
            connection.wait_until_here()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
    assert zygote_name() == place.name
