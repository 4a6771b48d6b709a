"""What a worker prints stands in a file of its run, so it is masked like all others."""

import sys
import traceback

import pytest

from subagent_server.run.secrets import MASK, Masker
from subagent_server.run.stderr import MaskedText, flush, log, log_exception

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
