"""The heartbeat of a run that other hosts read, and the fence that makes its silence a proof.

A shim on a node of an engine has two helper processes. The **writer** writes `beat` into the run's
directory, `BEATS_A_LEASE` times in a lease. The **watcher** touches no file, so a file server that hangs
cannot stop it: when no beat came through for a lease, it kills every process below the shim. It does so too
when the shim or the writer dies, so a worker never outlives its heartbeat by more than a lease. A reader
elsewhere that waits for two leases therefore knows that nothing of the run acts any more.

An age is the time of a probe file made now minus that of `beat`, both as the file server set them: the clocks
of the hosts do not matter. Standard library only: the shim imports this module.
"""

import errno
import os
import signal
import struct
import time
from contextlib import suppress
from typing import Any, NoReturn

from subagent_server.process import marks
from subagent_server.process.zygote_server import close_all_but
from subagent_server.run import durable, processes
from subagent_server.run.files import Entry, can_be_read, held_open
from subagent_server.run.paths import STATE_BYTES, RunPaths

BEATS_A_LEASE = 12
_TIME = struct.Struct("=d")
_PAUSE_SECONDS = 0.05


class Heart:
    """Watcher and writer of a shim. A run without a living heart must not work."""

    def __init__(self, run: RunPaths) -> None:
        """Write the first beat, and start both processes. Raises OSError: there can be no heartbeat."""
        self._run = run
        state: Any = durable.as_object(run.meta.read(STATE_BYTES))
        try:
            lease = float(state["launch"]["lease"])  # that of every reader
        except (KeyError, TypeError, ValueError) as error:
            raise OSError(errno.EINVAL, "it names no lease", str(run.meta.path)) from error
        _write(run)
        shim = os.getpid()
        self._held, kept = os.pipe()  # the watcher lets go of its end before it kills, or dies
        self._is_over = False
        self.watcher = os.fork()  # the sweep spares it, with what is below it
        if self.watcher == 0:
            os.close(self._held)
            _watch(run, shim, kept, lease)
        os.close(kept)

    @property
    def has_stopped(self) -> bool:
        """Whether the fence has fallen: what was below this process is killed, and nothing may begin.

        This waits until the watcher is done, or it would kill what records the end of the run, too.
        """
        if not self._is_over and can_be_read(self._held):
            with suppress(ChildProcessError):  # it was collected with others
                os.waitpid(self.watcher, 0)
            self._is_over = True
        return self._is_over

    def stop(self) -> None:
        """End both processes, when nothing of the run is left."""
        if not self.has_stopped:
            os.kill(self.watcher, signal.SIGKILL)  # the writer ends with it
            os.waitpid(self.watcher, 0)
        with suppress(OSError):
            self._run.beat.unlink()


def _watch(run: RunPaths, shim: int, kept: int, lease: float) -> NoReturn:
    try:
        processes.restore_defaults()  # TERM stays blocked: an engine sends it to every process of a job
        beats, writing = os.pipe()
        writer = os.fork()
        if writer == 0:
            processes.end_with_parent(signal.SIGKILL)
            os.close(kept)
            os.close(beats)
            _keep_writing(run, writing, lease / BEATS_A_LEASE)
        os.chdir("/")
        close_all_but({kept, beats})
        _wait_for_silence(shim, beats, lease)
        os.close(kept)
        _kill_all(run.run_id, shim, writer)
    finally:
        os._exit(0)


def _keep_writing(run: RunPaths, writing: int, pause: float) -> NoReturn:
    """Write beats for ever; the time before each goes to the watcher once it is on the disk."""
    close_all_but({writing, run.files.descriptor})
    try:
        while True:
            signal.sigtimedwait((), pause)
            before = _clock()
            _write(run)
            os.write(writing, _TIME.pack(before))
    finally:
        os._exit(1)


def _wait_for_silence(shim: int, beats: int, lease: float) -> None:
    """Return when no beat was written for a lease, or when the shim or the writer has died."""
    last = _clock()
    # Short looks: while the machine is suspended, the time of a wait stops and a lease keeps running.
    while os.getppid() == shim and (left := last + lease - _clock()) > 0:
        if can_be_read(beats, min(left, 1.0)):
            record = os.read(beats, _TIME.size)
            if len(record) < _TIME.size:
                return
            if (beat := _TIME.unpack(record)[0]) > last + lease:
                return  # all was suspended, and the writer woke first: a reader may have called the run lost
            last = beat


def _kill_all(run_id: str, shim: int, writer: int) -> None:
    """Kill every process below the shim, nested runs included, until two looks find none; it is subreaper.

    If the shim is gone, kill the processes with the mark of the run. Only `/proc` is read, and no memory of a
    process that may hang on the file server.
    """
    own, quiet = {os.getpid(), writer}, 0
    while quiet < 2:
        left = processes.descendants([shim], spare=lambda each: each.pid in own)
        if processes.stat_of(shim) is None or os.getppid() != shim:
            left = marks.processes_of(run_id)
            left += processes.descendants([each.pid for each in left])
        for each in left:
            processes.send_signal(each, signal.SIGKILL)
        quiet = 0 if left else quiet + 1
        signal.sigtimedwait((), _PAUSE_SECONDS)


def _clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _write(run: RunPaths) -> None:
    """Write a beat: the file server sets its time. Raises OSError."""
    with held_open(run.beat.open(os.O_WRONLY | os.O_CREAT)) as descriptor:
        os.pwrite(descriptor, b"%020d\n" % time.time_ns(), 0)
        os.fsync(descriptor)


# -- Reading: how old something is, by the clock of the file server alone.


_PROBE_SECONDS = 1.0
_probed: dict[int, tuple[float, float]] = {}
"""By device: when a probe was made, on our clock, and its time minus that."""


def age(run: RunPaths, file: Entry) -> float | None:
    """Return the seconds since `file` of a run was written; None without it.

    Raises:
        OSError: it cannot be looked at.
        StorageFailed: no probe can be made.
    """
    try:
        with held_open(file.open()) as descriptor:  # NFS asks the server for the times of an opened file
            facts = os.fstat(descriptor)
    except FileNotFoundError:
        return None
    at, difference = _probed.get(facts.st_dev, (-_PROBE_SECONDS, 0.0))
    if _clock() - at >= _PROBE_SECONDS:
        difference = _server_time(run) - (at := _clock())
        _probed[facts.st_dev] = (at, difference)
    return _clock() + difference - facts.st_mtime


def _server_time(run: RunPaths) -> float:
    probe = durable.prepare(run.beat, b"x")
    try:
        return probe.stat().st_mtime
    finally:
        durable.discard(probe)
