"""A process dies at a failpoint only if the environment lists it."""

import signal

import pytest

from subagent_server.run.stderr import VARIABLE, failpoint
from tests.helpers.processes import run_python

REACH = """
    from subagent_server.run.stderr import failpoint
    for point in ("first", "second"):
        failpoint(point)
        print(point, flush=True)
"""


@pytest.mark.process
def test_a_process_dies_at_the_point_that_is_named() -> None:
    done = run_python(REACH, environment={VARIABLE: "first:0, other:1, second:1.0"})
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "first\n")
    assert done.stderr == "dies here on purpose: second\n"


@pytest.mark.parametrize("wanted", ["", "other", "seco:1", "second:0"])
def test_no_other_point_is_deadly(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, wanted)
    failpoint("second")
