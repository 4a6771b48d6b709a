"""Giving memory back, in processes of their own: a mistake here would be seen as a crash anywhere."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

WARM = """
    import gc, json, os, sys, threading, time
    from subagent_server.host import pristine

    def own_kib():
        text = open("/proc/self/smaps_rollup", encoding="ascii").read()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous:"))

    def volume(number):
        return {"name": f"volume {number}", "tags": [str(number), number * 1.5]}

    library = {number: volume(number) for number in range(20_000)}

    def total():
        return sum(len(each["name"]) + len(each["tags"]) for each in library.values())

    expected = total()

    def in_a_fork(do):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                do()
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
"""

KEPT = """
    gc.collect()
    pristine.mark_objects()
    gc.freeze()
    pristine.keep()
"""


def run(script: str) -> str:
    """Run a script in a process of its own, and return what it has said; it has to end well."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WARM) + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(script: str) -> list[int]:
    """Return the numbers that a script has said in a process that keeps its memory."""
    return [int(word) for word in run(KEPT + script).split()]


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what the kernel does here is Linux's")


def test_a_fork_gives_back_what_it_has_only_looked_at() -> None:
    took, without, again = figures(
        """
    def look():
        before = own_kib()
        assert total() == expected
        looked = own_kib()
        pristine.give_back()
        print(looked - before, own_kib() - before)
        pristine.take_again()
        print(own_kib() - before)

    in_a_fork(look)
"""
    )
    assert took > 1_500, "looking at objects takes memory: it counts references"
    assert without < took / 10
    assert again > took / 2


def test_what_a_fork_has_changed_stays_changed_however_often_it_gives_back() -> None:
    run(
        KEPT
        + """
    def work():
        kept = []
        for turn in range(30):
            for number in range(turn, 20_000, 97):
                library[number]["name"] = f"turn {turn} of {number}"
                library[number]["tags"].append(turn)
            kept.append(json.loads(json.dumps(library[turn])))
            kept.append("x" * turn * 100)
            wanted = total()
            pristine.give_back()
            assert total() == wanted
            if turn % 3 == 0:
                pristine.take_again()
            gc.collect()
        for turn in range(30):
            assert kept[2 * turn]["name"].startswith("turn "), kept[2 * turn]
            assert kept[2 * turn + 1] == "x" * turn * 100
        for number in range(29, 20_000, 97):
            assert library[number]["name"] == f"turn 29 of {number}"
            assert library[number]["tags"][-1] == 29

    in_a_fork(work)
    assert total() == expected
    in_a_fork(work)
"""
    )


def test_objects_that_were_there_before_can_be_let_go_and_new_ones_are_freed() -> None:
    run(
        KEPT
        + """
    import weakref

    class Guest:
        pass

    def work():
        library.clear()
        gone = []
        for _ in range(100):
            guest = Guest()
            weakref.finalize(guest, gone.append, 1)
            del guest
        assert sum(gone) == 100
        pristine.give_back()
        assert not library

    in_a_fork(work)
"""
    )


def test_with_a_second_thread_nothing_is_given_back() -> None:
    took, with_another, without = figures(
        """
    def look():
        before = own_kib()
        assert total() == expected
        took = own_kib() - before
        gate = threading.Event()
        other = threading.Thread(target=gate.wait)
        other.start()
        pristine.give_back()
        with_another = own_kib() - before
        gate.set()
        other.join()
        deadline = time.monotonic() + 30
        while not pristine.is_alone() and time.monotonic() < deadline:  # the kernel takes a moment more
            os.sched_yield()
        pristine.give_back()
        print(took, with_another, own_kib() - before)

    in_a_fork(look)
"""
    )
    assert with_another > took / 2
    assert without < took / 10


def test_a_process_that_was_not_forked_from_one_that_keeps_its_memory_gives_nothing_back() -> None:
    said = run(
        """
    pristine.give_back()
    pristine.take_again()
    print(pristine.is_kept(), total() == expected)
"""
    )
    assert said.split() == ["False", "True"]


def test_where_it_was_not_built_it_says_so_and_nothing_changes(tmp_path: Path) -> None:
    package = tmp_path / "subagent_server"
    original = Path(sys.modules["subagent_server"].__path__[0])
    for name in ("__init__.py", "host/__init__.py", "host/pristine.py", "host/private_memory.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_bytes((original / name).read_bytes())
    script = """
        import sys
        from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
        sys.path.insert(0, sys.argv[1])
        sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]  # an editable installation has more
        from subagent_server.host import pristine
        assert pristine.__file__.startswith(sys.argv[1]), pristine.__file__
        pristine.mark_objects()
        try:
            pristine.keep()
        except OSError as error:
            print(error)
        pristine.give_back()
        print(pristine.is_kept())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "_pristine.c" in done.stdout
    assert done.stdout.endswith("False\n")
