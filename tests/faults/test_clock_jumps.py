"""Clocks jump by a suspend or are set back, all but the one by which work is measured."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.turns import asks, says, shell
from tests.helpers.world import World

COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler is installed: it makes the clock")
JUMPING = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *moment) {
    int failed = syscall(SYS_clock_gettime, clock, moment);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_BOOTTIME)) {
        FILE *file = fopen(OFFSET, "r");
        long seconds = 0;
        if (file) { if (fscanf(file, "%ld", &seconds) != 1) seconds = 0; fclose(file); }
        moment->tv_sec += seconds;
    }
    return failed;
}
"""


class Clock:
    """The clock of all that is started in a world from now on, but not of this process."""

    def __init__(self, world: World) -> None:
        self._file = world.home / "offset"
        source, library = world.home / "clock.c", world.home / "clock.so"
        source.write_text(JUMPING, encoding="ascii")
        words: list[str | Path] = [
            str(COMPILER),
            "-shared",
            "-fPIC",
            f'-DOFFSET="{self._file}"',
            "-o",
            library,
            source,
        ]
        subprocess.run(words, check=True)
        world.environment |= {"LD_PRELOAD": str(library), "SUBAGENT_WARM": "0"}

    def jump(self, hours: float) -> None:
        """Let it be off by so many hours."""
        self._file.write_text(f"{hours * 3600:.0f}\n", encoding="ascii")


def works_until_it_may_go_on(world: World, ask_seconds: float) -> str:
    """Start a run that asks as soon as the file `go` is there, and says at its end if it was answered."""
    world.agent(limits={"timeoutSeconds": 3600, "askTimeoutSeconds": ask_seconds})
    run_id = world.start()
    world.until(run_id, lambda _: world.events(run_id, "tool_call"))
    return run_id


@pytest.fixture
def clock(world: World) -> Clock:
    """The clock of runs that ask, and say how that ended."""
    world.play(
        shell("until [ -e go ]; do sleep 0.1; done"),
        asks("Which colour?"),
        says("${last}", capture={"last": "(blue|[Nn]o answer)"}),
    )
    return Clock(world)


def test_after_a_suspend_of_a_day_a_run_works_on_and_its_question_has_expired(
    world: World, clock: Clock
) -> None:
    run_id = works_until_it_may_go_on(world, 3600)
    clock.jump(24)
    assert "running" in world.cli("ls").stdout
    assert world.cli("doctor", "--runs", run_id).returncode == 0
    (world.work / "go").touch()
    world.asking(run_id)
    clock.jump(48)
    assert world.completed(run_id).lower() == "no answer"
    assert not world.cli("inbox").stdout


def test_with_a_clock_set_back_an_answer_counts_until_the_time_is_over(world: World, clock: Clock) -> None:
    answered, expired = works_until_it_may_go_on(world, 3600), works_until_it_may_go_on(world, 10)
    (world.work / "go").touch()
    for run_id in (answered, expired):
        world.asking(run_id)
    clock.jump(-24)
    assert world.cli("reply", answered, "blue").returncode == 0
    assert world.completed(answered) == "blue"
    assert world.completed(expired).lower() == "no answer"
