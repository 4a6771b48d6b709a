"""The warm process does whole runs by itself, which leave nothing but what is loaded."""

from pathlib import Path

from subagent_server.store.root import CHANGES
from tests.helpers.processes import run_python

REHEARSE = """
    import os, sys, threading
    from pathlib import Path
    from subagent_server.warm import rehearsal
    descriptors = lambda: len(os.listdir("/proc/self/fd"))
    home = Path(sys.argv[1])
    rehearsal.rehearse(1, home)
    before = descriptors()
    rehearsal.rehearse(2, home)
    print(descriptors() - before, threading.active_count(), os.getcwd())
"""

WATCH = """
    import os, signal, socket, sys, threading
    from pathlib import Path
    from subagent_server.host.shown import Shown
    from subagent_server.launch.newborn import Body, Newborn, as_shim, as_worker
    from subagent_server.launch.spare import fork_spare
    from subagent_server.warm import rehearsal
    from subagent_server.worker.__main__ import main

    programs, shown = {"shim": as_shim(main), "worker": as_worker(main)}, Shown()
    live = lambda line, worker: Newborn(line, Body(shown, worker), 10).live(programs)
    work = lambda line: Newborn(line, Body(shown), 10).live(programs)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    before = len(os.listdir("/proc/self/fd"))

    def hot(comes):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            if comes:
                fork_spare(shown, lambda: None, live, work).take(theirs)
            theirs.close()
            found = rehearsal.pages_of_a_run(ours, Path(sys.argv[1]))
        rows = (found.keeper.own, found.keeper.used, found.worker.own, found.worker.used)
        return [sum(row[1::2]) - sum(row[::2]) for row in rows]

    print([size > 1_000_000 for size in hot(True)], hot(False))
    print(threading.active_count(), len(os.listdir("/proc/self/fd")) - before)

    def names_the_place(process):
        try:
            return sys.argv[1].encode() in (process / "cmdline").read_bytes()
        except OSError:
            return False

    there = [process.name for process in Path("/proc").glob("[0-9]*") if names_the_place(process)]
    print(there == [str(os.getpid())])
"""


def test_a_rehearsal_leaves_no_file_thread_or_descriptor_behind(tmp_path: Path) -> None:
    place, others = tmp_path / "place", tmp_path / "runs" / CHANGES
    place.mkdir()
    others.mkdir(parents=True)  # runs of a project in which it happens to be
    done = run_python(REHEARSE, place)
    assert done.stdout.splitlines() == ["0 1 /"], done.stderr
    assert list(place.iterdir()) == [] and list(others.parent.rglob("*")) == [others]
    assert done.stderr == ""


def test_a_run_is_watched_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    done = run_python(WATCH, tmp_path, seconds=60)
    assert done.stdout.splitlines() == ["[True, True, True, True] [0, 0, 0, 0]", "1 0", "True"], done.stderr
    assert list(tmp_path.iterdir()) == []
