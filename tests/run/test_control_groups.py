"""The control group of a run: how a command line enters it, and what is done where there can be none."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from subagent_server.run.control_groups import GROUPS, ControlGroups
from tests.helpers.files import write_program

BOUNDS = {"memory": 4 << 30, "processes": 256}
SCOPE = """#!/bin/sh
echo "$XDG_RUNTIME_DIR" "$@" >> {log}
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


def systemd(place: Path, script: str) -> ControlGroups:
    program = write_program(place / "systemd-run", script)
    return ControlGroups(program=program, systemd=place)


@pytest.mark.process
def test_a_command_line_begins_with_a_scope_whose_bounds_cover_swap_and_processes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    groups = systemd(tmp_path, SCOPE.format(log=log))
    words = groups.words("x", **BOUNDS)
    assert groups.kind() == "scope"
    with subprocess.Popen(
        [*words, "sh", "-c", "echo $$"], env=groups.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.communicate()[0].strip() == str(process.pid), "systemd-run becomes the command"
    session = [] if os.geteuid() == 0 else ["--user"]
    expected = [
        *(f"/run/user/{os.getuid()}", *session, "--quiet", "--collect", "--no-ask-password", "--scope"),
        *("--property=MemoryMax=4294967296", "--property=MemorySwapMax=0", "--property=TasksMax=272", "--"),
    ]
    assert log.read_text(encoding="utf-8").splitlines() == [
        " ".join([*expected, "true"]),
        " ".join([*expected, "sh", "-c", "echo $$"]),
    ]


@pytest.mark.process
@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\nexec sleep 600\n", "no program"])
def test_a_systemd_that_fails_or_hangs_is_asked_once_and_costs_seconds(tmp_path: Path, script: str) -> None:
    groups = systemd(tmp_path, script)
    began = time.monotonic()
    assert groups.words("x", **BOUNDS) == () and groups.has_failed
    (tmp_path / "systemd-run").write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    assert groups.words("x", **BOUNDS) == () and groups.kind() is None
    assert time.monotonic() - began < 60, "less than what hangs"


def delegated(place: Path, *, enabled: str = "memory pids") -> ControlGroups:
    """Return the groups of a machine whose tree of groups is a directory of plain files."""
    tree = place / "tree"
    for group in (tree, tree / "user", tree / "user" / "me"):
        group.mkdir()
        for name in ("cgroup.procs", "cgroup.controllers", "cgroup.subtree_control"):
            (group / name).touch()
    (tree / "user" / "cgroup.subtree_control").write_text(enabled, encoding="ascii")
    (place / "own").write_text("4:memory:/old\n0::/user/me\n", encoding="ascii")
    odd = "29 20 8:1 / /media/\udce4\x0b\u2028 rw - ext4 /dev/sda1 rw"
    mounts = f"{odd}\n30 20 0:26 / {tree} rw,nosuid - cgroup2 cgroup2 rw\n"
    (place / "mounts").write_bytes(os.fsencode(mounts))
    return ControlGroups(systemd=place / "none", own_group=place / "own", mounts=place / "mounts")


@pytest.mark.process
def test_a_directory_is_made_in_the_nearest_group_that_hands_its_controllers_on(tmp_path: Path) -> None:
    groups = delegated(tmp_path)
    *_, directory = words = groups.words("x", **BOUNDS)
    group = Path(directory)
    assert group == tmp_path / "tree" / "user" / "subagent-x" and groups.kind() == "directory"
    read = {file.name: file.read_text(encoding="ascii") for file in group.iterdir()}
    assert read == {"memory.max": "4294967296", "memory.swap.max": "0", "pids.max": "272"}
    entered = subprocess.run([*words, "sh", "-c", "echo $$"], stdout=subprocess.PIPE, check=True)
    assert entered.stdout.strip().isdigit()
    assert (group / "cgroup.procs").read_text(encoding="ascii") == "0\n", "the kernel reads it as the writer"


def test_there_is_no_group_where_none_hands_its_controllers_on_or_none_is_mounted(tmp_path: Path) -> None:
    groups = delegated(tmp_path, enabled="cpu")
    assert groups.kind() is None and groups.words("x", **BOUNDS) == ()
    (tmp_path / "mounts").write_text("30 20 0:26 / /x rw - tmpfs tmpfs rw\n", encoding="ascii")
    assert groups.kind() is None
    groups.remove("x")


HOGS = {
    "shared memory": "import mmap; m = mmap.mmap(-1, 9 << 24); [m.write(b'x' * 4096) for _ in range(36864)]",
    "files in memory": "import os; [os.write(os.memfd_create('x'), b'x' * (8 << 20)) for _ in range(18)]",
}
FORKS = """
import os, time
for number in range(60):
    try:
        if os.fork() == 0:
            os.close(1)
            time.sleep(600)
    except OSError:
        print(number)
        break
"""


@pytest.mark.skipif(GROUPS.kind() != "directory", reason="no control group can be made here")
@pytest.mark.parametrize("hog", HOGS.values(), ids=HOGS)
def test_memory_of_any_kind_and_processes_are_bounded_and_the_group_is_removed(hog: str) -> None:
    words = GROUPS.words("test", memory=64 << 20, processes=16)
    killed = subprocess.run([*words, "python3", "-c", hog], check=False)
    assert killed.returncode == -9
    forked = subprocess.run([*words, "python3", "-c", FORKS], check=True, stdout=subprocess.PIPE)
    assert int(forked.stdout) < 32
    assert Path(words[-1], "cgroup.procs").read_text(encoding="ascii"), "its processes are left"
    GROUPS.remove("test")
    assert not Path(words[-1]).exists()
