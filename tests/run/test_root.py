"""Whose a runs root is: what we have made, and nothing that came with a repository, an archive or a copy."""

import errno
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from subagent_server.run import paths as roots
from subagent_server.run.errors import ForeignRoot, StorageFailed, UnsafeRoot
from subagent_server.run.paths import ATTRIBUTE, RootDirectory, RootPaths, make_root
from subagent_server.run.store import RunStore
from tests.helpers.runs import RUN_ID, STARTED, T0, make_meta, make_request, start_run

PLACES = ["attribute", "file"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a root can be made, on a file system with attributes and on one without."""
    if request.param == "file":
        monkeypatch.setattr(os, "getxattr", refuse)
        monkeypatch.setattr(os, "setxattr", refuse)
    return tmp_path / "runs"


def refuse(*_: object) -> bytes:
    """Say what a file system without attributes says."""
    raise OSError(95, "Operation not supported")


def refuse_changes(store: RunStore) -> None:
    """Check that nothing in a root changes."""
    before = {path: path.lstat().st_mtime_ns for path in store.paths.root.rglob("*")}
    with pytest.raises(ForeignRoot, match=r"subagent trust --runs|name another with --runs"):
        store.create(make_request("20261122-093016-000-zzzzzz"))
    if store.paths.run(RUN_ID).meta.exists():
        with pytest.raises(ForeignRoot):
            store.update(RUN_ID, STARTED, T0)
    assert before == {path: path.lstat().st_mtime_ns for path in store.paths.root.rglob("*")}


def test_a_root_that_is_made_is_ours_and_closed_to_others_whatever_the_umask(place: Path) -> None:
    before = os.umask(0)
    try:
        RunStore(place).make_root()
    finally:
        os.umask(before)
    assert RootPaths(place).is_ours
    for made in (place, place / ".changes", place / ".slots"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


@pytest.mark.process
def test_a_copy_and_what_an_archive_brings_are_not_ours(place: Path, tmp_path: Path) -> None:
    store = RunStore(place)
    store.make_root()
    start_run(store)
    shutil.copytree(place, tmp_path / "copy")  # with its attributes
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "-C", place, "-cf", tmp_path / "a.tar", "."], check=True)
    subprocess.run(["tar", "-C", tmp_path / "unpacked", "-xf", tmp_path / "a.tar"], check=True)
    for name in ("copy", "unpacked"):
        foreign = RunStore(tmp_path / name)
        assert foreign.paths.foreign() is not None and foreign.read(RUN_ID) == store.read(RUN_ID)
        assert foreign.live_ids() == [], "who lives in another root is not known here"
        refuse_changes(foreign)


def test_a_root_is_ours_again_once_it_is_adopted(place: Path, tmp_path: Path) -> None:
    store = RunStore(place)
    store.make_root()
    start_run(store)
    shutil.copytree(place, tmp_path / "copy")
    copy = RunStore(tmp_path / "copy")
    RootDirectory(copy.paths.root).adopt()
    assert copy.paths.is_ours and copy.live_ids() == [RUN_ID]
    assert copy.update(RUN_ID, STARTED, T0).status.value == "running"


def test_a_folder_with_anything_else_in_it_does_not_become_a_root(place: Path) -> None:
    (place / "results").mkdir(parents=True)
    refuse_changes(RunStore(place))
    assert [path.name for path in place.iterdir()] == ["results"]


def test_a_root_that_others_can_write_is_closed_to_them_and_used(place: Path) -> None:
    store = RunStore(place)
    store.make_root()
    place.chmod(0o777)
    start_run(store)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_root_that_cannot_be_closed_to_others_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore(place)
    store.make_root()
    start_run(store)
    place.chmod(0o770)
    monkeypatch.setattr(os, "fchmod", lambda *_: None)  # a file system that keeps no modes
    refuse_changes(store)
    with pytest.raises(UnsafeRoot):
        RootDirectory(place).adopt()


@pytest.mark.parametrize("content", [b"", b"x", b"x 1", b"x " + b"9" * 5_000, b"\xff\xfe 3"], ids=repr)
def test_a_mark_that_does_not_name_the_directory_is_none(place: Path, content: bytes) -> None:
    make_root(place)
    (place / "mine").touch()
    if (place / ".root").exists():
        (place / ".root").write_bytes(content)
    else:
        os.setxattr(place, ATTRIBUTE, content[:200])
    refuse_changes(RunStore(place))


def test_a_disk_that_does_not_say_whose_a_root_is_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error", 3)

    monkeypatch.setattr(os, "getxattr", fail)
    with pytest.raises(OSError, match=re.escape(str(tmp_path))):
        RunStore(tmp_path).live_ids()


def test_a_mark_that_is_a_link_or_a_fifo_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getxattr", refuse)

    def link(path: Path) -> None:
        path.symlink_to(tmp_path / "mark")

    for number, plant in enumerate((os.mkfifo, link)):
        place = tmp_path / str(number)
        (place / "mine").mkdir(parents=True)
        (tmp_path / "mark").write_text(f"x {place.stat().st_ino}\n", encoding="utf-8")
        plant(place / roots.MARK_FILE)
        assert RootPaths(place).foreign() is not None


def test_what_stands_in_the_way_of_a_root_is_said(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file", encoding="utf-8")
    with pytest.raises(StorageFailed, match=r"Not a directory|File exists"):
        make_root(tmp_path / "runs")


@pytest.mark.race
def test_two_processes_that_make_a_root_at_once_both_have_it(place: Path) -> None:
    first, second = RootDirectory(place), RootDirectory(place)
    place.mkdir()
    assert second.exists() and isinstance(second.forbidden, ForeignRoot), "the first has not marked it yet"
    first.claim()
    RunStore(place).make_root()
    second.claim()
    assert RootPaths(place).is_ours
    store = RunStore(place)
    store.create(make_request())
    store.publish(make_meta())
    assert store.read(RUN_ID).run_id == RUN_ID


def test_a_root_of_ours_stays_open_until_its_path_leads_elsewhere(tmp_path: Path) -> None:
    make_root(tmp_path / "runs")
    paths = RootPaths(tmp_path / "runs")
    opened = paths.open()
    assert opened.exists() and paths.open() is opened
    (tmp_path / "runs").rename(tmp_path / "away")
    make_root(tmp_path / "runs")
    assert paths.open() is not opened and paths.is_ours
