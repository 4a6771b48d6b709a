"""The verb `check_nodes`: whether runs can work on the nodes of a launcher. Each node looks for itself.

It executes `python -m subagent_server.verbs.check_nodes DIRECTORY NODE` and answers in a file of that
directory, which lies in the runs root. So an answer proves that the root is the same.
"""

import json
import os
import platform
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from subagent_server import __version__
from subagent_server.process.remote import NoAnswer, RemoteLauncher
from subagent_server.run import durable, locks, processes
from subagent_server.run.errors import BadArgument, HostError, storing, visible
from subagent_server.run.files import Directory, remove_tree
from subagent_server.run.paths import RECORD_BYTES, RootPaths
from subagent_server.sandbox.verify import outlook
from subagent_server.settings import state_directory_of
from subagent_server.verbs.live_runs import written_by_live_runs
from subagent_server.verbs.own_settings import launcher_for
from subagent_server.verbs.service import Service

ANSWER_SECONDS = 60.0
_LONGEST = 500


@dataclass(frozen=True)
class NodeReport:
    """What a node is like, in words, and what keeps runs from working there."""

    node: str
    words: str = ""
    faults: list[str] = field(default_factory=list)


def check_nodes(service: Service) -> Iterator[NodeReport]:
    """Yield a report of each node that runs may be put on, as it comes.

    Raises:
        BadArgument: the runs of `service` work here, or its launcher does not know where.
        BadSlurmSettings, ForeignRoot, StorageFailed, OSError.
    """
    launcher = launcher_for(service.settings, None, service.launcher)
    if not isinstance(launcher, RemoteLauncher):
        raise BadArgument("Runs work on this machine: give --launcher slurm or --launcher ssh:HOST, too.")
    service.store.make_root()
    root = service.store.paths.open()
    meeting = root.below(f".check-{secrets.token_hex(8)}")
    with storing(meeting.path):
        meeting.make_new()
    lock = locks.open_lock(meeting.entry("lock"))
    locks.lock(lock)
    try:
        directories = [service.settings.cwd, state_directory_of(service.settings.environment)]
        shared = {str(each): _inode(each) for each in directories if each is not None and each.is_dir()}
        durable.write_new(meeting.entry("shared"), json.dumps(shared).encode())
        yield from _asked(launcher, meeting)
    except NoAnswer as error:
        raise BadArgument(f"The nodes are not known: {error}") from error
    finally:
        launcher.withdraw()
        os.close(lock)
        remove_tree(root.entry(meeting.path.name))


def _asked(launcher: RemoteLauncher, meeting: Directory) -> Iterator[NodeReport]:
    waiting: set[str] = set()
    for node in launcher.nodes():  # names that have been checked, also as those of files
        try:
            launcher.execute(node, launcher.module("verbs.check_nodes", str(meeting.path), node))
            waiting.add(node)
        except NoAnswer as error:
            yield NodeReport(node, faults=[str(error)])
    deadline = time.monotonic() + ANSWER_SECONDS
    while waiting and time.monotonic() < deadline:
        for node in [each for each in sorted(waiting) if meeting.entry(f"{each}.json").exists()]:
            waiting.remove(node)
            yield _report(node, durable.read_object(meeting.entry(f"{node}.json"), RECORD_BYTES))
        signal.sigtimedwait((), 0.1)
    for node in sorted(waiting):
        why = f"no answer in {ANSWER_SECONDS:g} s: it is down or busy, or does not share the runs root"
        yield NodeReport(node, faults=[why])


def _report(node: str, answer: dict[str, Any]) -> NodeReport:
    """Return what a node answered: data, so it is bounded and made visible."""
    faults = answer.get("faults")
    words = visible(str(answer.get("words", "")))[:_LONGEST]
    found = [visible(str(each))[:_LONGEST] for each in faults] if isinstance(faults, list) else ["no answer"]
    if answer.get("version") != __version__:
        found.append(f"it has another version of this package than {__version__}")
    return NodeReport(node, words, found)


# -- On the node.


def main(directory: str, node: str) -> None:
    """Look at this host, and answer. Raises OSError: the directory is not here."""
    meeting = RootPaths(Path(directory).parent).below(Path(directory).name)
    probe = meeting.entry(f"{node}.clock")
    probe.touch()
    clock = time.time() - probe.stat().st_mtime
    words = f"{os.uname().nodename}: Python {platform.python_version()}, clock {clock:+.1f} s"
    faults = list(_faults(meeting, clock))
    try:
        processes.check_system()
        words += f", sandbox {outlook(os.environ, written_by_live_runs(state_directory_of(os.environ)))}"
    except HostError as error:
        faults.append(error.sentence)
    answer = {"version": __version__, "words": words, "faults": faults}
    durable.write_durably(meeting.entry(f"{node}.json"), json.dumps(answer).encode())


def _faults(meeting: Directory, clock: float) -> Iterator[str]:
    if abs(clock) > 1.0:
        yield f"its clock is {clock:+.1f} s off, and questions expire by it"
    if not locks.is_held(meeting.entry("lock")):
        yield "it does not see locks of other hosts (`local_lock` of NFS keeps them back)"
    for path, inode in durable.read_object(meeting.entry("shared"), RECORD_BYTES).items():
        if _inode(Path(path)) != inode:
            yield f"{path} is not there, or another one: agents that work there, or worktrees, cannot"


def _inode(path: Path) -> int | None:
    return path.stat().st_ino if path.is_dir() else None


if __name__ == "__main__":
    processes.become_node()  # another node of this machine would remove its temporary file as a dead one's
    main(*sys.argv[1:])
