"""What lies in a directory that anybody may have filled is opened as what it should be, or not at all."""

import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.run.files import Directory, Entry, NotPlain

SECRET = "outside\n"
BOUND = 60.0


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that no name in the directory may lead to."""
    file = tmp_path / "outside"
    file.write_text(SECRET, encoding="utf-8")
    return file


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def link(file: Path, outside: Path) -> None:
    file.symlink_to(outside)


def dangling(file: Path, outside: Path) -> None:
    """Plant a link to what is not there, which a writer would make."""
    file.symlink_to(outside.with_name("made"))


def zero(file: Path, outside: Path) -> None:
    """Plant a link to what never ends."""
    file.symlink_to("/dev/zero")


def hard_link(file: Path, outside: Path) -> None:
    """Plant a second name of the file."""
    file.hardlink_to(outside)


def fifo(file: Path, outside: Path) -> None:
    """Plant what a reader would wait at for ever."""
    os.mkfifo(file)


def folder(file: Path, outside: Path) -> None:
    """Plant a directory."""
    file.mkdir()


def listener(file: Path, outside: Path) -> None:
    """Plant a socket."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(file))


PLANTED = [link, dangling, zero, hard_link, fifo, folder, listener]


@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT | os.O_APPEND])
def test_what_is_not_a_plain_file_is_neither_read_nor_written(
    place: Path, outside: Path, plant: Callable[[Path, Path], None], flags: int
) -> None:
    plant(place / "file", outside)
    with pytest.raises(NotPlain) as refused:
        Directory(place).open("file", flags)
    assert str(refused.value.strerror).startswith(("it is a", "it has 2 names"))
    assert outside.read_text(encoding="utf-8") == SECRET
    assert sorted(path.name for path in place.parent.iterdir()) == ["outside", "place"]


def test_a_directory_that_is_a_link_is_not_entered(place: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (place / "runs").symlink_to(tmp_path / "elsewhere")
    inner = Directory(place).below("runs")
    assert not inner.exists()
    with pytest.raises(NotPlain, match="it is a link"):
        inner.names()
    with pytest.raises(NotPlain):
        inner.entry("file").touch()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_of_another_user_is_refused_where_owners_count(place: Path) -> None:
    (place / "file").touch()
    directory = Directory(place)
    directory.owners = frozenset({os.getuid() + 1})
    with pytest.raises(NotPlain, match=f"belongs to another user .{os.getuid()}."):
        directory.open("file")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_what_is_made_is_for_its_owner_alone_whatever_the_umask(place: Path, umask: int) -> None:
    directory = Directory(place)
    before = os.umask(umask)
    try:
        directory.below("deep").make()
        directory.entry("file").touch()
        directory.entry("fifo").make_fifo()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()}
    assert modes == {"deep": 0o700, "file": 0o600, "fifo": 0o600}


def test_an_error_of_the_system_names_the_whole_path(place: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        Directory(place).entry("missing").stat()
    assert raised.value.filename == str(place / "missing")


def test_a_directory_stays_the_one_that_was_opened(place: Path, tmp_path: Path) -> None:
    directory = Directory(place)
    directory.entry("file").touch()
    place.rename(tmp_path / "moved")
    place.symlink_to("/")
    assert directory.names() == ["file"]
    directory.entry("other").touch()
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == ["file", "other"]


def test_what_forbids_changes_in_a_directory_forbids_them_below_it(place: Path) -> None:
    class Forbidden(Exception):
        pass

    (place / "deep").mkdir()
    (place / "deep" / "file").write_bytes(b"x")
    outer = Directory(place)
    outer.forbidden = Forbidden()
    inner = outer.below("deep")
    file = inner.entry("file")
    assert file.read(10) == b"x" and file.exists()
    for change in (
        file.touch,
        file.unlink,
        inner.entry("fifo").make_fifo,
        inner.below("deeper").make,
        lambda: file.rename(inner.entry("other")),
        lambda: file.open(os.O_WRONLY),
    ):
        with pytest.raises(Forbidden):
            change()
    assert [path.name for path in (place / "deep").iterdir()] == ["file"]


def test_a_file_that_is_larger_than_what_is_read_of_it_is_refused_at_once(place: Path) -> None:
    with (place / "file").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(NotPlain, match="larger than 1 KiB"):
        Entry.at(place / "file").read(1 << 10)


@pytest.mark.process
def test_two_threads_that_use_a_directory_first_have_one_descriptor(place: Path) -> None:
    used: list[int] = []

    class Overtaken(Directory):
        """While one thread opens it, another wants it too."""

        def _open(self) -> int:
            if not used and not other.is_alive():
                other.start()
                other.join(0.5)  # it waits for this thread, or is done sooner and wrong
            return super()._open()

    directory = Overtaken("below", Directory(place))
    directory.path.mkdir()
    other = threading.Thread(target=lambda: used.append(directory.descriptor))
    mine = directory.descriptor
    other.join(BOUND)
    assert used == [mine] and Path(f"/proc/self/fd/{mine}").readlink() == directory.path


@pytest.mark.process
def test_a_directory_is_closed_with_its_last_user_and_not_by_a_fork_of_its_process(place: Path) -> None:
    directory = Directory(place)
    number = directory.descriptor
    pid = os.fork()
    if pid == 0:
        os.close(number)
        again = os.open("/dev/null", os.O_RDONLY)  # has the same number now
        del directory
        os._exit(0 if again == number and os.fstat(again) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert os.fstat(number)
    del directory
    with pytest.raises(OSError):
        os.fstat(number)
