"""The zygote serves every starter, and exits when it is not wanted."""

import os
import shutil
from pathlib import Path

import pytest

from subagent_server.process.zygote_client import PATIENT_SECONDS
from subagent_server.run import processes, stderr
from tests.helpers.processes import REPOSITORY, run_python
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND
from tests.process.zygote.tiny import TinyPlace


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


LOADING = """
    import signal, sys
    from pathlib import Path
    from subagent_server.process.zygote_server import Zygote

    assert Zygote(Path(sys.argv[1]), sys.argv[2], 600).listen_alone()
    print(signal.alarm(0))
"""


def test_a_zygote_may_load_as_long_as_shims_wait_for_it(place: TinyPlace) -> None:
    assert float(run_python(LOADING, place.directory, place.name).stdout) >= PATIENT_SECONDS


@pytest.mark.parametrize("point", ["zygote.asked", "zygote.forked"])
def test_a_program_is_started_once_or_not_at_all_wherever_the_zygote_dies(
    tmp_path: Path, place: TinyPlace, point: str
) -> None:
    zygote = place.start(more={stderr.VARIABLE: point})
    lines = tmp_path / "lines"
    has_begun = place.start_program("append", lines)
    wait_for(lambda: not processes.is_alive(zygote), BOUND, "its death")
    assert point == "zygote.forked" or not has_begun  # on a busy machine a starter finds it dead then, too
    if has_begun:
        wait_for(lambda: lines.exists() and lines.read_text(encoding="utf-8") == "once\n", BOUND, "one line")
    assert not place.start_program("append", lines)
    assert lines.exists() is has_begun


COPIED = """
    import sys
    from pathlib import Path
    import subagent_server
    from tests.process.zygote.tiny import BOUND, processes, tiny_place, wait_for

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
