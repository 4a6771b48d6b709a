"""File systems of a test's own: small ones, read-only ones, and one whose power can be cut."""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_EXT4_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2


@contextmanager
def memory_disk(place: Path, size: str) -> Iterator[Path]:
    """Mount an empty file system of this size at `place`, which is made; skips where that is not allowed."""
    place.mkdir(exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={size}", "none", str(place))
    try:
        yield place
    finally:
        _unmount(place)


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """Let nothing be written below `place`, but by who has a file open already; skips where not allowed.

    The directory is mounted once more on top of itself: another mount may be read-only though files are open.
    """
    _mount("--bind", str(place), str(place))
    try:
        _mount("-o", "remount,bind,ro", str(place))
        yield
    finally:
        _unmount(place)


def fill(place: Path, *, leave: int = 0, name: str = ".filler") -> Path:
    """Fill the file system at `place` but for `leave` bytes, and return the file that does it."""
    filler = place / name
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        free = os.statvfs(place)
        with suppress(OSError):
            os.posix_fallocate(descriptor, 0, max(1, free.f_bavail * free.f_bsize - leave))
    finally:
        os.close(descriptor)
    return filler


class PowerCut:
    """An ext4 file system in an image file. After `cut` takes its power, only what was synced is there."""

    def __init__(self, home: Path, size: int = 24 << 20) -> None:
        self._image, self.place = home / "disk.img", home / "disk"
        self.place.mkdir()
        with self._image.open("wb") as file:
            file.truncate(size)
        try:
            subprocess.run(["mkfs.ext4", "-q", "-F", str(self._image)], check=True, capture_output=True)
        except FileNotFoundError:
            pytest.skip("mkfs.ext4 is not installed: it makes the disk whose power is cut")

    @contextmanager
    def powered(self) -> Iterator[Path]:
        """Mount it; skips where that is not allowed."""
        _mount("-o", "loop", str(self._image), str(self.place))
        try:
            yield self.place
        finally:
            _unmount(self.place)

    def cut(self) -> None:
        """Take the power: nothing that is still in memory reaches the disk, not even the journal.

        What is mounted next is a copy. Programs with mounts of their own may keep the old file system for as
        long as they run, and a mount of the same image then gives that one again, without power.
        """
        descriptor = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)
        before, after = self._image, self._image.with_name(f"{self._image.name}.copy")
        shutil.copyfile(before, after)
        before.unlink()  # who has it mounted still keeps it
        self._image = after


def _mount(*words: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount the file system that this needs")
    done = subprocess.run(["mount", *words], capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        pytest.skip(f"the file system that this needs cannot be mounted here: {done.stderr.strip()}")


def _unmount(place: Path) -> None:
    subprocess.run(["umount", "--lazy", str(place)], check=True, capture_output=True)
