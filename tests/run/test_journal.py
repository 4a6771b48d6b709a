"""Lines are appended and read whole, whatever was cut off, at a cost that does not grow with the file."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from subagent_server.run import durable
from subagent_server.run.files import Entry
from tests.helpers.files import longest_file
from tests.helpers.scale import times

RECORDS = st.lists(
    st.dictionaries(st.text(max_size=5), st.text(max_size=30) | st.integers() | st.none(), max_size=3),
    max_size=12,
)
HUGE_BYTES = 3 << 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the journal lies; there is none yet."""
    return tmp_path / "events.jsonl"


@pytest.fixture
def huge(path: Path) -> Path:
    """A file of three sparse gigabytes and five short lines behind them."""
    path.touch()
    os.truncate(path, HUGE_BYTES)
    with path.open("ab") as file:
        file.write(b"\n" + b"".join(b'{"seq":%d,"type":"turn"}\n' % number for number in range(5)))
    return path


def append(path: Path, *numbers: int) -> None:
    for number in numbers:
        durable.append_line(Entry.at(path), {"n": number})


def numbers(lines: list[str]) -> list[int]:
    return [json.loads(line)["n"] for line in lines]


def bytes_read() -> int:
    """Return how many bytes this process has read so far, from wherever (proc(5))."""
    found = re.search(r"^rchar: (\d+)$", Path("/proc/self/io").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_what_is_appended_is_read_back_in_order(path: Path) -> None:
    append(path, 1, 2, 3)
    assert [record["n"] for record in durable.records(Entry.at(path))] == [1, 2, 3]
    assert numbers(durable.tail(Entry.at(path), 2).lines) == [2, 3]
    assert numbers(durable.tail(Entry.at(path), 10).lines) == [1, 2, 3]
    assert durable.tail(Entry.at(path), 0).lines == []


def test_a_line_holds_any_text_on_one_line(path: Path) -> None:
    text = 'line\nbreak\r\u2028\u0085\0 "quoted" ünïcode 🎈 \ud83d'
    durable.append_line(Entry.at(path), {"text": text})
    assert path.read_bytes().count(b"\n") == 1
    (record,) = durable.records(Entry.at(path))
    assert record["text"] == text.replace("\ud83d", "?")
    assert (
        len(durable.tail(Entry.at(path), 5).lines) == len(durable.read_from(Entry.at(path), 0, 5).lines) == 1
    )


def test_pages_follow_each_other_without_gap_or_overlap(path: Path) -> None:
    append(path, *range(7))
    first = durable.read_from(Entry.at(path), 0, 3)
    second = durable.read_from(Entry.at(path), first.cursor, 3)
    third = durable.read_from(Entry.at(path), second.cursor, 3)
    assert [numbers(page.lines) for page in (first, second, third)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [page.at_end for page in (first, second, third)] == [False, False, True]
    append(path, 7)
    assert numbers(durable.read_from(Entry.at(path), third.cursor, 3).lines) == [7]


def test_a_line_that_is_still_being_written_is_read_when_it_is_whole(path: Path) -> None:
    append(path, 1)
    with path.open("ab") as writer:
        writer.write(b'{"n"')
        writer.flush()
        assert numbers(durable.tail(Entry.at(path), 5).lines) == [1]
        page = durable.read_from(Entry.at(path), 0, 5)
        assert (numbers(page.lines), page.at_end) == ([1], True)
        writer.write(b": 2}\n")
    assert numbers(durable.read_from(Entry.at(path), page.cursor, 5).lines) == [2]


@pytest.mark.parametrize("torn", [b"{", b'{"n": 2, "tex', b"\0\0\0", b"[2]"])
def test_a_torn_last_line_is_cut_off_by_the_next_append(path: Path, torn: bytes) -> None:
    append(path, 1)
    with path.open("ab") as writer:
        writer.write(torn)
    append(path, 3)
    assert [json.loads(line)["n"] for line in path.read_text(encoding="utf-8").splitlines()] == [1, 3]


def test_a_record_that_lacks_only_its_newline_is_kept(path: Path) -> None:
    append(path, 1)
    path.write_bytes(path.read_bytes()[:-1])
    append(path, 2)
    assert [record["n"] for record in durable.records(Entry.at(path))] == [1, 2]


def test_what_is_no_object_is_passed_over(path: Path) -> None:
    path.write_bytes(b'{"n": 1}\n\n[1]\n"text"\nnull\n\xff\xfe\n{"n": 2\n\0\0\0\n{"n": 3}\n')
    assert [record["n"] for record in durable.records(Entry.at(path))] == [1, 3]


def test_a_page_is_bounded_in_bytes_but_never_empty_before_the_end(path: Path) -> None:
    for size in (10, 10, 5000, 10):
        durable.append_line(Entry.at(path), {"n": "x" * size})
    page = durable.read_from(Entry.at(path), 0, 100, max_bytes=100)
    assert (len(page.lines), page.at_end) == (2, False)
    page = durable.read_from(Entry.at(path), page.cursor, 100, max_bytes=100)
    assert (len(page.lines), len(page.lines[0]) > 5000, page.at_end) == (1, True, False)
    page = durable.read_from(Entry.at(path), page.cursor, 100, max_bytes=100)
    assert (len(page.lines), page.at_end) == (1, True)


def test_the_last_of_a_kind_is_found(path: Path) -> None:
    assert durable.last_of(Entry.at(path), "text") is None
    for number, kind in enumerate(["text", "text", "turn", "turn"]):
        durable.append_line(Entry.at(path), {"type": kind, "n": number})
    assert durable.last_of(Entry.at(path), "text") == {"type": "text", "n": 1}
    assert durable.last_of(Entry.at(path), "usage") is None


@settings(max_examples=times(20, 60), deadline=None, database=None)
@given(records=RECORDS, count=st.integers(1, 5), cut=st.integers(0, 12))
def test_whatever_was_cut_off_all_whole_lines_are_read_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], count: int, cut: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "events.jsonl"
    path.touch()
    for record in records:
        durable.append_line(Entry.at(path), record)
    os.truncate(path, max(0, path.stat().st_size - cut))
    whole = path.read_bytes().decode("utf-8", "replace").split("\n")[:-1]
    cursor, seen = 0, list[str]()
    while (page := durable.read_from(Entry.at(path), cursor, count)).lines:
        assert len(page.lines) <= count
        cursor, seen = page.cursor, seen + page.lines
    assert seen == whole
    assert page.at_end
    assert durable.tail(Entry.at(path), count).lines == whole[-count:]
    assert durable.tail(Entry.at(path), count).cursor == cursor


def test_the_tail_is_right_where_lines_and_characters_cross_the_blocks_of_reading(path: Path) -> None:
    lines = ["é🎈" * length for length in (1, 20_000, 3, 40_000, 9_999, 1)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for count in range(1, 8):
        assert durable.tail(Entry.at(path), count).lines == lines[-count:]


def test_the_tail_of_a_huge_file_a_page_of_it_and_an_append_to_it_read_little(huge: Path) -> None:
    before = bytes_read()
    assert [json.loads(line)["seq"] for line in durable.tail(Entry.at(huge), 3).lines] == [2, 3, 4]
    assert (durable.last_of(Entry.at(huge), "turn") or {})["seq"] == 4
    page = durable.read_from(Entry.at(huge), HUGE_BYTES + 1, 2)
    assert [json.loads(line)["seq"] for line in page.lines] == [0, 1]
    durable.append_line(Entry.at(huge), {"seq": 5})
    assert json.loads(durable.tail(Entry.at(huge), 1).lines[0]) == {"seq": 5}
    assert bytes_read() - before < 1_000_000


def test_a_line_that_the_disk_takes_in_part_is_taken_back(path: Path) -> None:
    append(path, 1)
    before = path.read_bytes()
    with pytest.raises(OSError, match="File too large"), longest_file(1000):
        durable.append_line(Entry.at(path), {"n": "x" * 5000})
    assert path.read_bytes() == before
