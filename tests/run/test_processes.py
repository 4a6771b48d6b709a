"""Who a process is, whether it lives, and what it left behind. A pid alone names nobody."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from subagent_server.run import processes
from subagent_server.run.errors import HostError
from subagent_server.run.processes import Identity
from tests.helpers import forked
from tests.helpers.ordinary_user import UID, user
from tests.helpers.processes import Child, run_python
from tests.helpers.wait import wait_for

WAIT = """
    import sys
    print("here", flush=True)
    sys.stdin.read()
"""
NODE = textwrap.dedent(
    """
    import json, os, subprocess, sys
    code, name, below = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    for child, more in below.items():
        subprocess.Popen([sys.executable, "-c", code, code, child, json.dumps(more)])
    os.write(1, f"{name} {os.getpid()}\\n".encode())  # in one piece: they all write into one pipe
    sys.stdin.read()
    """
)
"""A process with a family below it, all of whom leave when the test closes their common stdin."""


@pytest.fixture
def child() -> Iterator[Child]:
    """A live process that does nothing."""
    with Child(WAIT) as started:
        started.hear()
        yield started


@pytest.mark.process
def test_a_process_is_its_host_pid_start_time_and_boot(child: Child) -> None:
    identity = child.identity
    assert identity.pid == child.pid
    assert (identity.host, identity.boot_id) == (processes.host_name(), processes.boot_id())
    assert identity.start_time >= processes.this_process().start_time > 0
    assert processes.identify(child.pid) == identity


@pytest.mark.process
def test_a_live_process_lives_and_a_collected_one_does_not(child: Child) -> None:
    identity = child.identity
    assert processes.is_alive(identity)
    child.kill()
    assert not processes.is_alive(identity)
    assert processes.identify(child.pid) is None


@pytest.mark.process
def test_a_zombie_is_dead() -> None:
    with Child("pass") as child:
        identity = child.identity
        wait_for(lambda: not processes.is_alive(identity), 60, "the process to become a zombie")
        assert processes.identify(child.pid) == identity
        assert not processes.send_signal(identity, signal.SIGKILL)


@pytest.mark.process
@pytest.mark.parametrize("wrong", [{"start_time": 1}, {"boot_id": "another boot"}, {"host": "elsewhere"}])
def test_a_pid_that_has_come_again_is_another_process(child: Child, wrong: dict[str, Any]) -> None:
    former = replace(child.identity, **wrong)
    assert not processes.is_alive(former)
    assert not processes.send_signal(former, signal.SIGKILL)
    assert processes.is_alive(child.identity)


@pytest.mark.process
def test_a_signal_reaches_the_process_it_is_for(child: Child) -> None:
    assert processes.send_signal(child.identity, signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM


@pytest.mark.process
@pytest.mark.parametrize("name", ["a) Z 1 (b", ") (", "two words", "(((", "\n) R 0"])
def test_no_name_of_a_process_misleads_about_its_state(name: str) -> None:
    code = """
        import os, sys
        with open("/proc/self/comm", "w", encoding="utf-8") as comm:
            comm.write(sys.argv[1])
        print(os.getppid(), flush=True)
        sys.stdin.read()
    """
    with Child(code, name) as child:
        assert int(child.hear()) == os.getpid()
        assert processes.is_alive(child.identity)
        assert child.identity in processes.descendants([os.getpid()])


@pytest.mark.parametrize(
    "data",
    [None, {}, [], "text", 7, {"pid": 1}, {"host": "h", "pid": "one", "startTime": 1, "bootId": "b"}],
)
def test_what_names_no_process_is_no_identity(data: object) -> None:
    assert Identity.from_json(data) is None


@pytest.mark.process
def test_marked_processes_are_found_by_the_environment_they_were_started_with() -> None:
    name, value = "SUBAGENT_TEST_MARK", uuid.uuid4().hex
    with (
        Child(WAIT, environment={name: value}) as one,
        Child(WAIT, environment={name: value}, new_session=True) as other,
        Child(WAIT, environment={name: value + "0"}) as longer,
        Child(WAIT) as plain,
    ):
        for child in (one, other, longer, plain):
            child.hear()
        mark = f"{name}={value}"
        assert {found.pid for found in processes.marked(mark)} == {one.pid, other.pid}
        one.kill()
        assert processes.marked(mark) == [other.identity]
    assert processes.marked(mark) == []


@pytest.mark.process
def test_a_process_of_another_user_is_not_found_whatever_it_shows() -> None:
    code = """
        import sys
        from subagent_server.process.zygote_server import Title
        Title().show(["python", "the mark"])
        print("here", flush=True)
        sys.stdin.read()
    """
    mark = f"SUBAGENT_TEST_MARK={uuid.uuid4().hex}"

    def shown() -> list[processes.Identity]:
        return processes.marked(mark, or_command=lambda command: b"the mark" in command)

    with user(UID + 1) as somebody:
        command = [sys.executable, "-c", textwrap.dedent(code)]
        environment = somebody.environment(dict([mark.split("=")]))
        pipe = subprocess.PIPE
        with forked.popen(command, environment, enter=somebody.enter, stdin=pipe, stdout=pipe) as other:
            assert other.stdout is not None and other.stdin is not None
            assert other.stdout.readline() == b"here\n"
            expected = [] if os.getuid() == 0 else [other.pid]  # then it is no other user
            assert [found.pid for found in shown()] == expected
            other.stdin.close()


@pytest.mark.process
def test_descendants_are_all_below_but_what_is_spared_and_what_is_below_that() -> None:
    family = {"a": {"a1": {}, "a2": {"a21": {}}}, "foreign": {"below": {}}, "b": {"foreign-too": {}}}
    names = {"root", "a", "a1", "a2", "a21", "b", "foreign", "below", "foreign-too"}
    with Child(NODE, NODE, "root", json.dumps(family)) as root:
        pids = dict(_said(root.hear()) for _ in names)
        assert set(pids) == names
        foreign = {pids["foreign"], pids["foreign-too"]}
        spared = processes.descendants([root.pid], spare=lambda identity: identity.pid in foreign)
        found = [identity.pid for identity in spared]
        assert len(found) == len(set(found))
        assert set(found) == {pids[name] for name in ("a", "a1", "a2", "a21", "b")}
        assert found.index(pids["a"]) < found.index(pids["a2"]) < found.index(pids["a21"])
        all_of_them = processes.descendants([root.pid])
        assert {identity.pid for identity in all_of_them} == set(pids.values()) - {root.pid}
    wait_for(lambda: not any(map(processes.is_alive, all_of_them)), 60, "the family to leave")


@pytest.mark.process
def test_ended_children_are_collected_each_once_and_living_ones_are_left() -> None:
    code = """
        import os, sys
        from subagent_server.run.processes import reap_children
        print(reap_children())
        gate_out, gate_in = os.pipe()
        living = os.fork()
        if living == 0:
            os.close(gate_in)
            os.read(gate_out, 1)
            os._exit(0)
        started = []
        for code in (0, 3):
            started.append(os.fork())
            if started[-1] == 0:
                os._exit(code)
        ended = {}
        while len(ended) < 2:
            ended |= reap_children()
        print([os.waitstatus_to_exitcode(ended[pid]) for pid in started], living in ended)
        os.close(gate_in)
        while living not in ended:
            ended |= reap_children()
        print(len(ended), reap_children())
    """
    done = run_python(code)
    assert (done.stdout.splitlines(), done.stderr) == (["{}", "[0, 3] False", "3 {}"], "")


def _said(line: str) -> tuple[str, int]:
    name, pid = line.split()
    return name, int(pid)


@pytest.mark.parametrize(
    ("module", "call", "number", "words"),
    [
        (os, "memfd_create", None, "a Python with memfd_create"),
        (signal, "pidfd_send_signal", None, "a Python with pidfd_send_signal"),
        (os, "pidfd_open", errno.ENOSYS, "Function not implemented"),
        (os, "memfd_create", errno.EPERM, "Operation not permitted"),
        (os, "pidfd_open", errno.EMFILE, "ulimit -n"),
    ],
)
def test_a_system_that_cannot_have_runs_is_named(
    monkeypatch: pytest.MonkeyPatch, module: Any, call: str, number: int | None, words: str
) -> None:
    processes.check_system()
    if number is None:
        monkeypatch.delattr(module, call)
    else:
        monkeypatch.setattr(module, call, Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(HostError) as refusal:
        processes.check_system()
    assert words in refusal.value.sentence
