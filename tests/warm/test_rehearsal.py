"""The warm process does whole runs by itself, which leave nothing but what is loaded."""

from pathlib import Path

from tests.helpers.processes import run_python

REHEARSE = """
    import os, threading
    from subagent_server.warm import rehearsal
    descriptors = lambda: len(os.listdir("/proc/self/fd"))
    rehearsal.rehearse(1)
    before = descriptors()
    rehearsal.rehearse(2)
    print(descriptors() - before, threading.active_count(), os.getcwd())
    pages = rehearsal.pages_of_a_run()
    size = sum(end - begin for begin, end in pages)
    print(size > 1_000_000, threading.active_count(), descriptors() - before)
"""


def test_a_rehearsal_leaves_no_file_thread_or_descriptor_behind(tmp_path: Path) -> None:
    done = run_python(REHEARSE, environment={"TMPDIR": str(tmp_path)})
    assert done.stdout.splitlines() == ["0 1 /", "True 1 0"], done.stderr
    assert list(tmp_path.iterdir()) == []
    assert done.stderr == ""
