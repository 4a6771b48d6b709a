"""The zygote rehearses a whole run, which leaves nothing but loaded code."""

from pathlib import Path

import pytest

from subagent_server.run.paths import CHANGES
from subagent_server.sandbox.box import SYSTEM_PROGRAM, VARIABLE
from tests.helpers import bubblewrap
from tests.helpers.processes import run_python
from tests.helpers.turns import asks, shell
from tests.helpers.wait import wait_for
from tests.helpers.warm_place import warm_place
from tests.helpers.world import BOUND, World

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


def test_a_bubblewrap_that_a_variable_names_is_tried_once_and_not_by_each_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, starts = world.home / "bin" / "bwrap", world.home / "starts"
    program.parent.mkdir()
    real = bubblewrap.settings().get(VARIABLE, SYSTEM_PROGRAM)
    program.write_text(f'#!/bin/sh\necho one >> {starts}\nexec {real} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv(VARIABLE, str(program))
    world.environment[VARIABLE] = str(program)
    world.agent(sandbox="auto")
    world.play(shell("true"), asks("Go on?"))
    with warm_place(world) as place:
        place.start()
        assert starts.read_text(encoding="utf-8") == "one\n", "by the zygote"
        run_id = world.start()
        world.asking(run_id)
        assert starts.read_text(encoding="utf-8") == "one\none\n", "the box of the shell"
        world.stop(run_id)
        wait_for(lambda: not world.look(run_id).live, BOUND, "the end of the run")
