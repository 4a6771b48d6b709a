"""The next call of a view helps in the state that the run is in."""

import pytest

from subagent_server.run.records import Failure
from subagent_server.run.schemas import FAILURE_CODES
from subagent_server.run.states import MessageStatus, Status
from subagent_server.verbs.views import NextCalls, for_asker, for_parent
from tests.helpers.runs import RUN_ID, T0, make_message, make_meta

TOOLS = NextCalls(1500)
COMMANDS = NextCalls(command=lambda *words: " ".join(["subagent", *words]))
NOTHING_TO_CARRY_ON = {"config", "launch_failed"}
"""A continuation meets the same fault again, or has nothing to go on with.

`agent_error` is not among them: the death of a program has this code.
"""


@pytest.mark.parametrize("code", FAILURE_CODES)
def test_after_a_failure_the_next_call_fits_its_code(code: str) -> None:
    failed = make_meta(status=Status.FAILED, completed_at=T0, error=Failure(code=code, message="No."))
    assert failed.error is not None
    assert ("continue it" in (failed.error.hint or "")) == (code not in NOTHING_TO_CARRY_ON)
    words = for_parent(failed, TOOLS)
    assert (f'continue_run(runId="{RUN_ID}"' in words) == (code not in NOTHING_TO_CARRY_ON)
    assert ("Fix what the error names" in words) == (
        code in {"config", "launch_failed", "storage", "model_error"}
    )
    assert ("limits of its agent file" in words) == (code in {"max_turns", "timeout", "budget"})
    assert "final_answer" not in words, "a program that carries out a run has no such tool"
    said = for_parent(failed, COMMANDS)
    assert (f"`subagent continue {RUN_ID}" in said) == (code not in NOTHING_TO_CARRY_ON)
    assert "continue_run" not in said and "get_logs" not in said


def test_a_parent_that_stopped_a_run_is_not_asked_to_carry_it_on() -> None:
    words = for_parent(make_meta(status=Status.STOPPED, stopped_at=T0), TOOLS)
    assert words.startswith("Stopped: nothing is left to do.")


@pytest.mark.parametrize(
    "closed", [MessageStatus.CANCELLED, MessageStatus.EXPIRED, MessageStatus.ACKNOWLEDGED]
)
def test_who_asked_a_question_does_not_work_on_when_its_run_has_ended(closed: MessageStatus) -> None:
    asked = make_message("q1", closed)
    words = for_asker(make_meta(status=Status.STOPPED, stopped_at=T0), asked, TOOLS)
    assert words == "Your run is stopped: nothing more can be done in it."
    assert "continue with" in for_asker(make_meta(status=Status.RUNNING), asked, TOOLS)


def test_a_failure_with_a_code_of_a_later_version_has_a_next_call_too() -> None:
    failed = make_meta(status=Status.FAILED, completed_at=T0, error=Failure(code="{on}", message="No."))
    assert "get_logs" in for_parent(failed, TOOLS)
