"""The zygote serves every starter, forks ahead of the next one, and exits when it is not wanted."""

import os
import select
import shutil
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from subagent_server.forkserver.client import new_order
from subagent_server.host import failpoints, processes
from tests.forkserver.tiny import TinyPlace
from tests.helpers.processes import REPOSITORY, run_python
from tests.helpers.wait import wait_for
from tests.helpers.warm_place import children_of, is_preforked
from tests.helpers.world import BOUND, kill


def preforked_of(zygote: processes.Identity) -> processes.Identity:
    """Return the child that was forked for the next starter, as soon as it is there."""

    def found() -> list[processes.Identity]:
        with suppress(FileNotFoundError, ProcessLookupError):  # a child has exited just now
            return [child for child in children_of(zygote) if is_preforked(child, zygote)]
        return []

    (child,) = wait_for(found, BOUND, "a pre-forked child")
    return child


def test_a_starter_is_served_although_the_preforked_child_was_killed(
    tmp_path: Path, place: TinyPlace
) -> None:
    zygote = place.start()
    kill(preforked_of(zygote))
    assert place.start_program("append", tmp_path / "lines")
    wait_for((tmp_path / "lines").exists, BOUND, "the program")


def test_the_preforked_child_exits_with_its_zygote(place: TinyPlace) -> None:
    zygote = place.start()
    child = preforked_of(zygote)
    kill(zygote)
    wait_for(lambda: not processes.is_alive(child), BOUND, "the exit of the child")


def test_the_next_child_is_forked_when_no_start_is_on_its_way(place: TinyPlace) -> None:
    zygote = place.start()
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(place.connect())) for _ in range(10)]
        for connection in connections:
            connection.wait_until_here()
        assert len(children_of(zygote)) == len(connections), "one each, and none ahead"

    def only_the_next_is_there() -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):  # a child has exited just now
            return [is_preforked(child, zygote) for child in children_of(zygote)] == [True]
        return False

    wait_for(only_the_next_is_there, BOUND, "the exit of the others, and the next child")


def test_the_next_child_is_forked_while_a_program_runs(place: TinyPlace) -> None:
    zygote = place.start()
    first = preforked_of(zygote)
    streams = {number: os.open(os.devnull, os.O_RDWR) for number in (1, 2)}
    streams[0], held = os.pipe()
    with closing(place.connect()) as connection:
        connection.order(new_order("wait", ["wait"], ["wait"], {}), streams, cwd="/")
        program = connection.go()
    for descriptor in streams.values():
        os.close(descriptor)
    assert preforked_of(zygote) != first
    assert processes.is_alive(first), "it runs the program"
    os.close(held)
    assert select.select([program], [], [], BOUND)[0]
    os.close(program)


@pytest.mark.race
def test_only_one_of_many_zygotes_that_are_started_at_once_stays(place: TinyPlace) -> None:
    for starting in [place.spawned() for _ in range(4)]:
        assert starting.wait(BOUND) == 0
    zygote = place.zygote()

    def is_alone() -> bool:
        return [each for each in processes_of(place) if each != zygote] == []

    wait_for(is_alone, BOUND, "the exit of the others")
    assert processes.is_alive(zygote)


def processes_of(place: TinyPlace) -> list[processes.Identity]:
    """Return every process that was started as the zygote of a place."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just exited
        identity = processes.identify(int(entry.name))
        if bytes(place.directory) in words and identity is not None and processes.is_alive(identity):
            found.append(identity)
    return found


def test_a_zygote_without_work_exits_and_removes_its_socket(place: TinyPlace) -> None:
    zygote = place.start(idle_seconds=0.5)
    wait_for(lambda: not processes.is_alive(zygote), BOUND, "its exit")
    assert list(place.directory.glob("*.sock")) == []


@pytest.mark.parametrize("point", ["zygote.asked", "zygote.forked"])
def test_a_program_is_started_once_or_not_at_all_wherever_the_zygote_dies(
    tmp_path: Path, place: TinyPlace, point: str
) -> None:
    zygote = place.start(more={failpoints.VARIABLE: point})
    lines = tmp_path / "lines"
    has_begun = place.start_program("append", lines)
    wait_for(lambda: not processes.is_alive(zygote), BOUND, "its death")
    assert has_begun is (point == "zygote.forked")
    if has_begun:
        wait_for(lambda: lines.exists() and lines.read_text(encoding="utf-8") == "once\n", BOUND, "one line")
    assert not place.start_program("append", lines)


COPIED = """
    import sys
    from pathlib import Path
    import subagent_server
    from tests.forkserver.tiny import BOUND, processes, tiny_place, wait_for

    place_directory, packages = map(Path, sys.argv[1:])
    assert Path(subagent_server.__file__).is_relative_to(packages)
    settings = packages / "subagent_server" / "settings.py"

    def edit():
        with settings.open("a", encoding="utf-8") as file:
            file.write("# edited")

    with tiny_place(place_directory, packages) as place:
        zygote = place.start()
        lines = place_directory / "lines"
        began = [place.start_program("append", lines)]
        began.append(place.start_program("append", lines, before_go=edit))
        began.append(place.start_program("append", lines))
        print(began)
        wait_for(lambda: not processes.is_alive(zygote), BOUND, "its exit")
        print(list(place.directory.glob("*.sock")))
"""


def test_a_zygote_whose_files_have_changed_starts_nothing_more_and_exits(tmp_path: Path) -> None:
    shutil.copytree(
        REPOSITORY / "subagent_server",
        tmp_path / "subagent_server",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}", "PYTHONSAFEPATH": "1"}
    done = run_python(COPIED, tmp_path / "place", tmp_path, environment=paths, seconds=BOUND)
    assert done.stdout.splitlines() == ["[True, False, False]", "[]"], done.stderr
