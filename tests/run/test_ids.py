"""Run ids sort by time, and nothing that is no run id ever becomes part of a path."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from subagent_server.run.errors import InvalidRunId
from subagent_server.run.states import MAX_LENGTH, check_run_id, make_run_id
from tests.helpers.scale import times

ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
QUICK = settings(max_examples=times(100, 300), deadline=None, database=None)
MOMENTS = st.datetimes(
    min_value=datetime(1970, 1, 1), max_value=datetime(9999, 12, 31), timezones=st.just(UTC)
)


@QUICK
@given(MOMENTS, st.binary(min_size=6, max_size=16))
def test_a_made_id_is_a_run_id_of_at_most_32_characters(moment: datetime, entropy: bytes) -> None:
    made = make_run_id(moment, entropy)
    assert check_run_id(made) == made
    assert len(made) <= MAX_LENGTH == 32


@QUICK
@given(MOMENTS, MOMENTS, st.binary(min_size=6, max_size=6), st.binary(min_size=6, max_size=6))
def test_ids_sort_by_the_millisecond_in_which_they_were_made(
    one: datetime, other: datetime, first: bytes, second: bytes
) -> None:
    earlier, later = sorted((one, other))
    if later - earlier >= timedelta(milliseconds=1):
        assert make_run_id(earlier, first) < make_run_id(later, second)


def test_an_id_is_made_of_utc_whatever_the_zone_of_its_moment() -> None:
    moment = datetime(2026, 11, 22, 11, 30, 15, 417_999, tzinfo=timezone(timedelta(hours=2)))
    assert make_run_id(moment, bytes(6)) == "20261122-093015-417-aaaaaa"


def test_two_ids_of_one_millisecond_differ_by_their_entropy() -> None:
    moment = datetime(2026, 11, 22, tzinfo=UTC)
    assert make_run_id(moment, b"\0\1\2\3\4\5") != make_run_id(moment, b"\0\1\2\3\4\6")


@QUICK
@given(st.text(max_size=40) | st.text(alphabet=sorted(ALPHABET), max_size=40))
@example("a" * 32)
@example("a" * 33)
@example("")
@example("0-")
def test_nothing_but_1_to_32_of_the_alphabet_passes(text: str) -> None:
    good = 1 <= len(text) <= 32 and set(text) <= ALPHABET and not text.startswith("-")
    if good:
        assert check_run_id(text) == text
    else:
        with pytest.raises(InvalidRunId):
            check_run_id(text)


@pytest.mark.parametrize(
    "text",
    [
        *["", ".", "..", "../etc", "a/b", "a\\b", "/etc/passwd", ".changes", ".slots", "a.b", "~", "-rf"],
        *["a\0", "\0", "a\0/../b", "a\n", "\na", "a\r", "a ", " a", "a\t", "A", "Run", "a_b", "a:b"],
        *["٣٤٥", "\uff11\uff12", "²", "é", "\uff41", "a\u200b", "\u202ea", "\ud800", "İ", "ß"],
        *["a" * 33, "a" * 5000],
    ],
    ids=ascii,
)
def test_what_could_leave_the_runs_root_or_hide_in_it_is_no_run_id(text: str) -> None:
    with pytest.raises(InvalidRunId) as refused:
        check_run_id(text)
    sentence = refused.value.sentence
    assert "is not a run id" in sentence
    assert sentence.isprintable()
    assert len(sentence) < 300
