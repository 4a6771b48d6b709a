"""What is open to a run that asks (SPEC sections 5 and 13)."""

from pathlib import Path

import pytest

from subagent_server.run.store import RunStore
from subagent_server.settings import read_settings
from subagent_server.verbs.access import (
    ENDED,
    MAX_SHOWN,
    UNSEEN,
    Caller,
    NotAllowed,
    ShownRuns,
    caller_of,
    check_open,
    read_cursor,
    run_as_caller,
    token_hash,
)
from tests.helpers.runs import start_run


def test_a_run_opens_the_runs_that_it_started_and_those_of_the_runs_that_it_continues(
    store: RunStore,
) -> None:
    facts = {
        "first": {},
        "child-of-first": {"parent_run_id": "first"},
        "another": {"continues_run_id": "first"},
        "third": {"continues_run_id": "another"},
        "child-of-third": {"parent_run_id": "third"},
        "stranger": {"continues_run_id": "gone"},
    }
    for run_id, more in facts.items():
        start_run(store, run_id, **more)
    third = run_as_caller(store, "third")
    assert third.carries_on == ("first", "another"), "in their order, whatever the clock said"
    for run_id in ("third", "child-of-third", "child-of-first"):
        check_open(third, store.read(run_id))
    for caller, run_id in ((third, "first"), (third, "another"), (third, "stranger")):
        with pytest.raises(NotAllowed):
            check_open(caller, store.read(run_id))
    for caller in (run_as_caller(store, "first"), run_as_caller(store, "stranger")):
        with pytest.raises(NotAllowed):
            check_open(caller, store.read("child-of-third"))


@pytest.mark.parametrize(
    ("run_id", "token", "words"),
    [
        ("first", "wrong", "does not open run first"),
        ("first", None, "does not open run first"),
        ("first", "\udcff", "does not open run first"),
        ("odd", "x", "does not open run odd"),
        (None, "alone", "SUBAGENT_RUN_ID names no run"),
        ("../..", "x", "SUBAGENT_RUN_ID names no run"),
    ],
)
def test_a_token_that_is_not_that_of_the_run_opens_nothing(
    store: RunStore, tmp_path: Path, run_id: str | None, token: str | None, words: str
) -> None:
    start_run(store, "first", child_token_hash=token_hash("right"))
    start_run(store, "odd", child_token_hash="é")

    def named(run_id: str | None, token: str | None) -> Caller:
        given = {"SUBAGENT_RUN_ID": run_id, "SUBAGENT_RUN_TOKEN": token}
        environment = {name: value for name, value in given.items() if value is not None}
        return caller_of(read_settings(environment=environment, cwd=tmp_path), store)

    assert named("first", "right").run_id == "first"
    with pytest.raises(NotAllowed, match=words):
        named(run_id, token)


def test_a_cursor_says_what_was_shown_of_each_run_and_nothing_of_a_name_that_fits_several(
    store: RunStore,
) -> None:
    shown = ShownRuns()
    known = ["20260101-000000-001-aaaaaa", "20260101-000000-002-bbbbbb", "20260101-000000-003-cccccc"]
    shown.note(known[0])
    shown.note(known[1], 7)
    shown.note(known[2], ended=True)
    assert shown.cursor() == "aaaaaa,bbbbbb.7,cccccc.e"
    again = read_cursor(shown.cursor(), store, known)
    assert [again.revision(run_id) for run_id in known] == [UNSEEN, 7, ENDED]
    twice = [*known, "20260202-000000-001-cccccc"]
    assert {read_cursor("cccccc.e", store, twice).revision(run_id) for run_id in twice} == {UNSEEN}
    many = [f"20260101-000000-001-{number:06}" for number in range(MAX_SHOWN + 1)]
    assert many[0] not in (last := read_cursor(shown.of(many).cursor(), store, many)) and many[1] in last
