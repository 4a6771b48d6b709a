"""The zygote rehearses a whole run, which leaves nothing but loaded code."""

from pathlib import Path

from subagent_server.run.paths import CHANGES
from tests.helpers.processes import run_python

REHEARSE = """
    import os, sys, threading
    from pathlib import Path
    from subagent_server.worker import rehearsal
    descriptors = lambda: len(os.listdir("/proc/self/fd"))
    home, began = Path(sys.argv[1]), os.getcwd()
    rehearsal.rehearse(home)
    before = descriptors()
    rehearsal.rehearse(home)
    print(descriptors() - before, threading.active_count(), os.getcwd() == began)
"""


def test_a_rehearsal_leaves_no_file_thread_or_descriptor_behind(tmp_path: Path) -> None:
    place, others = tmp_path / "place", tmp_path / "runs" / CHANGES
    place.mkdir()
    others.mkdir(parents=True)  # runs of a project in which it happens to be
    done = run_python(REHEARSE, place)
    assert done.stdout.splitlines() == ["0 1 True"], done.stderr
    assert list(place.iterdir()) == [] and list(others.parent.rglob("*")) == [others]
    assert done.stderr == ""
