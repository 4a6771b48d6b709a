"""Every error is one sentence that can be shown anywhere, and crosses a process boundary whole."""

from pathlib import Path

import pytest

from subagent_server.run import errors
from subagent_server.run.errors import CallerError, HostError, RunError, SubagentError

ROOT = Path("/data/runs")
NASTY = "\x1b[31mred\n\0" + "x" * 500
SAMPLES: list[SubagentError] = [
    errors.BadArgument("lines is 0: give 1 to 1000."),
    errors.InvalidRunId(NASTY),
    errors.UnknownRun(NASTY, ROOT),
    errors.AmbiguousRun("2026", ["20261122-a", "20261122-b"]),
    errors.UnknownAgent(NASTY, ["writer", "reviewer"], "a.md: no front matter"),
    errors.UnknownAgent("x", []),
    errors.IllegalTransition("r1", "ready", "complete", ["begin", "fail", "be stopped"]),
    errors.UnknownMessage("r1", NASTY, ["q1"]),
    errors.MessageClosed("Question q1 of run r1 expired."),
    errors.NewerSchema("r1", 9, 2),
    errors.RunRefused("config", "The agent asks for codeMode.", "Remove it."),
    errors.UnreadableMeta("r1", ROOT / "r1/run.meta.json", "empty"),
    errors.StorageFailed(ROOT / "r1", "No space left on device"),
    errors.LockTimeout(ROOT / "r1/run.meta.lock", 10),
    errors.LaunchFailed("The process of run r1 could not be started."),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda e: type(e).__name__)
def test_an_error_is_one_sentence_that_no_terminal_minds(error: SubagentError) -> None:
    assert str(error) == error.sentence
    assert error.sentence.isprintable()
    assert error.sentence.endswith(".")
    assert len(error.sentence) < 400


def test_every_kind_of_error_belongs_to_one_family_and_has_a_code_of_its_own() -> None:
    kinds = [kind for family in (CallerError, RunError, HostError) for kind in _below(family)]
    assert {type(error) for error in SAMPLES} <= set(kinds)
    shared = {errors.RunRefused, errors.NotDurable}  # these are told by the code of what they are
    ours = [kind for kind in kinds if kind.__module__ == errors.__name__ and kind not in shared]
    assert len({kind.code for kind in ours}) == len(ours)


def test_an_error_that_quotes_a_long_text_is_cut() -> None:
    sentence = errors.UnknownMessage("r1", "q9", ["q" * 1_000_000]).sentence
    assert len(sentence) == errors.MAX_SENTENCE_CHARACTERS and sentence.endswith("….")


def test_an_ambiguous_prefix_is_refused_with_all_that_fit_or_the_first_few() -> None:
    assert "(a1, a2)" in errors.AmbiguousRun("a", ["a1", "a2"]).sentence
    assert "(a1, a2, a3, a4, ...)" in errors.AmbiguousRun("a", ["a1", "a2", "a3", "a4", "a5"]).sentence


def test_where_there_are_no_agents_it_says_where_they_were_looked_for() -> None:
    assert "directories above are not searched" in errors.UnknownAgent("reviewr", []).sentence


def _below(kind: type[SubagentError]) -> list[type[SubagentError]]:
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in _below(child))]
