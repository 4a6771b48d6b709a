"""A process dies at a failpoint only if the environment lists it."""

import signal

import pytest

from subagent_server.run.stderr import VARIABLE
from tests.helpers.processes import run_python

pytestmark = pytest.mark.process

REACH = """
    from subagent_server.run.stderr import failpoint
    for point in ("first", "second"):
        failpoint(point)
        print(point, flush=True)
"""


@pytest.mark.parametrize("wanted", ["second", "second:1", "other:1, second:1.0", "first:0,second:1"])
def test_a_process_dies_at_the_point_that_is_named(wanted: str) -> None:
    done = run_python(REACH, environment={VARIABLE: wanted})
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "first\n")
    assert done.stderr == "dies here on purpose: second\n"


@pytest.mark.parametrize("wanted", ["", "other", "seco:1", "second:0"])
def test_no_other_point_is_deadly(wanted: str) -> None:
    done = run_python(REACH, environment={VARIABLE: wanted})
    assert (done.returncode, done.stdout, done.stderr) == (0, "first\nsecond\n", "")
