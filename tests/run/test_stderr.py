"""What a worker prints stands in a file of its run, so it is masked; and points that are not deadly.

That a process dies where it shall is said by `faults/test_lethal_points.py`.
"""

import sys
import traceback

import pytest

from subagent_server.run.secrets import MASK, Masker
from subagent_server.run.stderr import VARIABLE, MaskedText, failpoint, flush, log, log_exception

SECRET = "of-the-environment-4711"


def test_a_sentence_and_a_traceback_are_printed_without_their_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", MaskedText(sys.stderr, Masker([SECRET]).text))
    log(f"It is {SECRET}.")
    try:
        raise ValueError(f"first line\nthen {SECRET}")
    except ValueError:
        log_exception()
        traceback.print_exc()
    flush()
    printed = capsys.readouterr().err
    assert f"It is {MASK}.\n" in printed and printed.count(f"then {MASK}\n") == 2
    assert SECRET not in printed


@pytest.mark.parametrize("wanted", ["", "other", "seco:1", "second:0"])
def test_no_other_point_is_deadly(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, wanted)
    failpoint("second")
