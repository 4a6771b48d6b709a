"""A file is the old or the new one for every reader, and a refused write leaves nothing behind."""

import errno
import os
from pathlib import Path

import pytest

from subagent_server.run import durable
from subagent_server.run.errors import StorageFailed, storing
from subagent_server.run.files import Entry
from tests.helpers.files import longest_file, names
from tests.helpers.processes import Child

REWRITE = """
    import sys
    from pathlib import Path
    from subagent_server.run.files import Entry
    from subagent_server.run import durable
    print("ready", flush=True)
    number = 0
    while True:
        durable.write_durably(Entry.at(Path(sys.argv[1])), b"%d" % (number % 10) * 20000)
        number += 1
"""


def test_a_new_file_gets_its_content_and_is_its_owner_s_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    durable.write_durably(Entry.at(path), b"one")
    assert path.read_bytes() == b"one"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_reader_who_has_the_old_file_open_reads_it_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    durable.write_durably(Entry.at(path), b"old")
    with path.open("rb") as file:
        durable.write_durably(Entry.at(path), b"new")
        assert file.read() == b"old"


@pytest.mark.process
@pytest.mark.race
def test_a_reader_never_sees_half_a_file_even_where_the_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    durable.write_durably(Entry.at(path), b"0" * 20000)
    with Child(REWRITE, path) as writer:
        writer.hear()
        seen = {path.read_bytes() for _ in range(300)}
        writer.kill()
    assert all(len(content) == 20000 and len(set(content)) == 1 for content in seen | {path.read_bytes()})


def test_a_prepared_file_has_no_name_until_it_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    temporary = durable.prepare(Entry.at(path), b"done")
    assert not path.exists()
    assert temporary.path.parent == tmp_path
    assert temporary.name.startswith(".")
    durable.commit(temporary, Entry.at(path))
    assert path.read_bytes() == b"done"
    assert names(tmp_path) == ["result.json"]


def test_two_prepared_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "file"
    one, other = durable.prepare(Entry.at(path), b"one"), durable.prepare(Entry.at(path), b"other")
    durable.commit(one, Entry.at(path))
    durable.discard(other)
    durable.discard(other)
    assert path.read_bytes() == b"one"
    assert names(tmp_path) == ["file"]


def test_a_directory_in_the_place_of_the_file_is_a_storage_failure(tmp_path: Path) -> None:
    (tmp_path / "file" / "deep").mkdir(parents=True)
    with pytest.raises(StorageFailed):
        durable.write_durably(Entry.at(tmp_path / "file"), b"x")
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("why", "cure"),
    [
        (errno.EACCES, "let yourself write there"),
        (errno.ENOENT, "see whether it was removed meanwhile"),
        (errno.ENOSPC, "free space or fix the disk"),
    ],
)
def test_a_write_that_fails_says_what_helps(tmp_path: Path, why: int, cure: str) -> None:
    with pytest.raises(StorageFailed, match=cure), storing(tmp_path):
        raise OSError(why, os.strerror(why))


def test_a_disk_that_refuses_leaves_the_old_content_and_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    durable.write_durably(Entry.at(path), b"old")
    with pytest.raises(StorageFailed, match=r"\(File too large\).*`ulimit -f`"), longest_file(1000):
        durable.write_durably(Entry.at(path), b"x" * 5000)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_the_content_is_durable_before_its_name_and_the_name_before_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    durable.write_durably(Entry.at(tmp_path / "file"), b"x")
    content, directory = synced
    assert content.startswith(".file.") and directory == tmp_path.name
