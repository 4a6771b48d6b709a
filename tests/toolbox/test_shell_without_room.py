"""A shell for which there is no room: nothing of the attempt is left."""

import sys

import pytest

from tests.helpers.processes import run_python

pytestmark = pytest.mark.process

ATTEMPTS = """
    import os, resource, subprocess, sys
    from pathlib import Path
    from subagent_server.run.files import Directory
    from subagent_server.toolbox.outputs import OutputCapture
    from subagent_server.toolbox.shell import Shell

    new_capture = lambda: OutputCapture(Directory(Path(sys.argv[1])))
    start = lambda: Shell.start(cwd=Path("/"), environment=dict(os.environ), new_capture=new_capture)
    opened = lambda: len(os.listdir("/proc/self/fd"))
    before, hard = opened(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for room in range(30):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + room, hard))
        try:
            shell = start()
        except OSError:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            assert opened() == before, room
        else:
            shell.close(0)
            assert opened() == before, room
            print(room)
            break
    assert not Path("/proc/self/task", str(os.getpid()), "children").read_text()
"""


@pytest.mark.skipif(sys.version_info < (3, 11, 4), reason="its subprocess leaks some (cpython issue 87474)")
def test_a_shell_that_cannot_be_started_for_want_of_descriptors_leaves_none_open_and_no_process() -> None:
    done = run_python(ATTEMPTS, "/tmp")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 7, "it was refused at each of its steps"
