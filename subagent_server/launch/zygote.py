"""One warm process per user: everything is imported, and a fork of it is a started program.

Started as `python -E -P -m subagent_server.launch.zygote DIRECTORY KEY IDLE_SECONDS FILLER` by the first who
would have had use for it. It has one thread, no event loop, and no descriptor but its socket, its lock,
its output and the way to the process that it has forked for whoever comes next; it reads nothing of what is
asked of it, because the fork does. It is never needed: where it is missing, dead, hung or another version,
the plain start does the same. Killing it harms no run.
"""

import gc
import importlib
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from subagent_server.host import dumpable, failpoints, gaps, huge_pages, locks, pristine
from subagent_server.host.directory import Entry
from subagent_server.host.failpoints import failpoint
from subagent_server.host.hot_pages import HotRun
from subagent_server.host.private_directory import beneath, open_private, write_secret
from subagent_server.host.shown import Shown
from subagent_server.host.stderr import log
from subagent_server.launch.image_key import image_key
from subagent_server.launch.newborn import (
    ORDER_SECONDS,
    Body,
    Newborn,
    Program,
    as_command,
    as_shim,
    as_worker,
    peer,
)
from subagent_server.launch.spare import Spare, SpareWorker, fork_spare

TICK_SECONDS = 5.0
"""How often it looks whether it is still wanted."""
STUCK_SECONDS = 60
"""If it has not come round for so long it is stuck, and the alarm ends it."""
BREATH_SECONDS = 0.012
"""How long after a start no other process is made ready, unless somebody comes.

For so long the starter and its fork work side by side, and a machine with two cores has none to spare. Who
comes sooner is served by a fork made then, which takes some milliseconds longer.
"""
SECRET_BYTES = 32
_WARM_UP = "subagent_server.warm.warm_up"
_REHEARSAL = "subagent_server.warm.rehearsal"
_WORKER = "subagent_server.worker.__main__"
_COMMAND = "subagent_server.cli.console.entry"
_NICENESS = 10
_PRACTICE = ".practice"
_KEPT = ("SSL_CERT_FILE", "SSL_CERT_DIR", failpoints.VARIABLE)


class Zygote:
    """Listens in a private directory. Whoever holds the lock of a key is the one zygote of that key."""

    def __init__(self, directory: Path, key: str, idle_seconds: float) -> None:
        self._folder = open_private(str(directory), make=False)
        self.place = directory / f"{key}{_PRACTICE}"
        """Where it practises. Nothing is there before and after."""
        self._key = key
        self._idle = idle_seconds
        self._name = beneath(self._folder, f"{key}.sock")
        self._secret = os.urandom(SECRET_BYTES)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._inode = 0
        self._shown = Shown()
        self._spare: Spare | None = None
        self._hot = HotRun()
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._shown.clear()
        self._shown.environment(kept)
        self._shown.command(sys.orig_argv[:-1])

    def take_place(self) -> bool:
        """Become the zygote of this key; False where there is one."""
        lock = locks.take(Entry.at(Path(beneath(self._folder, f"{self._key}.lock"))))
        if lock is None or not os.fstat(lock).st_nlink:  # held, or just removed as a dead one's
            return False
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._remove_dead()
        self.clear_place()
        self.place.mkdir(mode=0o700, exist_ok=True)  # what a killed one has started may still write there
        return True

    def clear_place(self) -> None:
        """Remove all that was practised with."""
        shutil.rmtree(self.place, ignore_errors=True)

    def _remove_dead(self) -> None:
        """Remove what zygotes of other versions have left."""
        for entry in os.scandir(self._folder):
            lock = Path(beneath(self._folder, entry.name))
            if lock.suffix != ".lock" or lock.stem == self._key:
                continue
            held = locks.take(Entry.at(lock))
            if held is not None:
                shutil.rmtree(lock.with_suffix(_PRACTICE), ignore_errors=True)
                for suffix in (".sock", ".secret", ".log", ".lock"):
                    lock.with_suffix(suffix).unlink(missing_ok=True)
                os.close(held)

    def listen(self) -> None:
        """Open for orders."""
        with suppress(FileNotFoundError):
            os.unlink(self._name)  # noqa: PTH108 - the name of a descriptor, not of a path
        write_secret(self._folder, f"{self._key}.secret", self._secret)
        before = os.umask(0o177)
        self._listener.bind(self._name)
        os.umask(before)
        self._inode = os.stat(self._name).st_ino  # noqa: PTH116
        self._listener.listen(1024)

    def serve(self, programs: Mapping[str, Program]) -> None:
        """Fork for whoever comes, until nobody has come for long or this is no longer what is installed."""
        last = time.monotonic()
        patience = 0.0
        while True:
            signal.alarm(STUCK_SECONDS)
            self._listener.settimeout(patience)
            try:
                connection, _ = self._listener.accept()
            except (TimeoutError, BlockingIOError):
                if time.monotonic() - last >= self._idle or not self._is_current():
                    return
                self._spare = self._spare or self._forked(programs)
                patience = min(TICK_SECONDS, self._idle / 2)
                continue
            last, patience = time.monotonic(), BREATH_SECONDS
            with connection:
                if peer(connection)[1] == os.getuid():
                    self._serve(connection, programs)

    def leave(self) -> None:
        """Let nobody come any more."""
        with suppress(OSError):
            if os.stat(self._name).st_ino == self._inode:  # noqa: PTH116
                os.unlink(self._name)  # noqa: PTH108

    def _is_current(self) -> bool:
        try:
            return os.stat(self._name).st_ino == self._inode and image_key() == self._key  # noqa: PTH116
        except OSError:
            return False

    def practise(self, programs: Mapping[str, Program]) -> None:
        """Find out what memory a run uses: its processes have that ready before they have a run."""
        with suppress(OSError):  # no room for one process more: runs will be a little slower
            self._watch_a_run(programs)

    def _watch_a_run(self, programs: Mapping[str, Program]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            spare = self._forked(programs)
            if spare is not None and spare.take(theirs):
                theirs.close()
                ours.send(self._secret)
                self._hot = importlib.import_module(_REHEARSAL).pages_of_a_run(ours, self.place)

    def _live(self, line: socket.socket, worker: SpareWorker, programs: Mapping[str, Program]) -> NoReturn:
        Newborn(line, Body(self._shown, worker), ORDER_SECONDS, self._secret).live(programs)

    def _work(self, line: socket.socket, programs: Mapping[str, Program]) -> NoReturn:
        self._hot.worker.make_ready()
        Newborn(line, Body(self._shown), None).live(programs)

    def _serve(self, connection: socket.socket, programs: Mapping[str, Program]) -> None:
        """Leave a connection to the process that is ready for it, or to a fresh one where that was killed."""
        failpoint("zygote.asked")
        spare, self._spare = self._spare, None
        if spare is None or not spare.take(connection):
            spare = self._forked(programs)
            if spare is not None:
                spare.take(connection)
        failpoint("zygote.forked")

    def _forked(self, programs: Mapping[str, Program]) -> Spare | None:
        if threading.active_count() != 1:
            log("The zygote leaves: a thread has been started in it.")
            os._exit(1)
        try:
            return fork_spare(
                self._shown,
                self._hot.keeper.make_ready,
                lambda line, worker: self._live(line, worker, programs),
                lambda line: self._work(line, programs),
            )
        except OSError as error:  # no room for a process: the starter will find out for itself
            log(f"No process could be forked: {error}")
            return None


def warmed_up(place: Path) -> dict[str, Program]:
    """Load everything, and return what a fork can be; `place` is a directory to practise in."""
    gc.disable()
    gaps.keep_to_one_heap()
    _load_niced()
    worker = importlib.import_module(_WORKER).main
    programs = {
        "shim": as_shim(worker),
        "worker": as_worker(worker),
        "command": as_command(importlib.import_module(_COMMAND).main),
    }
    importlib.import_module(_WARM_UP).practise(place)
    gc.enable()
    gc.collect()
    pristine.mark_objects()
    gaps.fill()
    gc.freeze()
    try:
        pristine.keep()
    except OSError:  # then forks have to be cheap in another way
        huge_pages.gather()
    return programs


def _load_niced() -> None:
    """Import in a thread that gives way to others; niceness could not be taken back from the process."""
    failed: list[BaseException] = []

    def load() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            importlib.import_module(_WARM_UP).load()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            failed.append(error)

    thread = threading.Thread(target=load, name="import")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def main(arguments: list[str]) -> None:
    """Be the zygote, unless there is one."""
    dumpable.keep_others_out()
    directory, key, idle = Path(arguments[0]), arguments[1], float(arguments[2])
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    if image_key() != key:
        return  # the files have changed since: who comes next finds them as they are now
    if os.fork():
        os._exit(0)  # so that it is nobody's child
    zygote = Zygote(directory, key, idle)
    if not zygote.take_place():
        return
    try:
        programs = warmed_up(zygote.place)
        if image_key() != key:
            return
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects what it has forked
        zygote.practise(programs)
    finally:
        zygote.clear_place()
    zygote.listen()
    zygote.serve(programs)
    zygote.leave()


if __name__ == "__main__":
    main(sys.argv[1:])
