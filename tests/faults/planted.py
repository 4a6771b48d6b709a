"""Run directories as an attacker plants them: whole and plausible, but for one thing.

Written by plain files, so that nothing here depends on how the store writes. `plant(root, kind, outside)`
plants one kind; `FILE_KINDS` are all that put something else in the place of one file.
"""

import gzip
import json
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from subagent_server.run import processes
from subagent_server.run.processes import now
from subagent_server.run.states import timestamp
from tests.faults.canaries import WORDS, Outside, with_secret
from tests.helpers.scale import sampled

FIFO = f"wake.{processes.host_tag()}.1"
"""On which a process of this host waits, as its name says."""
BASES = ("completed", "unsettled", "running", "waiting")
"""What the rest of a planted run is like: settled, ended with nobody who says that its tree is gone, at work
as far as its files tell, and at work with a question open."""
AGENT = "worker"
_T0, _T1 = "2026-01-01T00:00:00.000Z", "2026-01-01T00:01:00.000Z"
_FAR = "2099-01-01T00:00:00.000Z"
_USAGE = dict.fromkeys(("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens"), 0)
_OTHER_USER = 65_534
_TERABYTE = 1 << 40

Json = dict[str, Any]


# -- a run with nothing wrong


def write_run(root: Path, run_id: str, base: str, work: Path, **facts: Any) -> Path:
    """Write a run that is as valid as those of the store; `facts` are put into its state."""
    run = root / run_id
    run.mkdir(mode=0o700)
    for name in ("children", "inputs", "outputs", "mcp", "code"):
        (run / name).mkdir(mode=0o700)
    for name, content in _contents(run_id, base, work, facts).items():
        (run / name).write_bytes(content)
        (run / name).chmod(0o600)
    if base != "completed":
        os.mkfifo(run / f"{FIFO}7", 0o600)
        (root / ".changes" / run_id).touch()
    return run


def _contents(run_id: str, base: str, work: Path, facts: Json) -> dict[str, bytes]:
    """Return the files of a run by name; those that are empty are locks."""
    over = base in ("completed", "unsettled")
    events = [{"type": "run_started", "agent": AGENT, "prompt": WORDS, "cwd": str(work)}]
    events += [{"type": "text", "text": WORDS}]
    events += [{"type": "run_ended", "status": "completed"}] if base == "completed" else []
    lines = [{"seq": number, "at": _T0, **event} for number, event in enumerate(events, 1)]
    process = ended_process()
    files = {
        "request.json": to_json(request(run_id, work)),
        "run.meta.json": to_json(state(run_id, base) | facts),
        "shim.json": to_json({"shim": process, "worker": process, "note": WORDS}),
        "events.jsonl": b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines),
        "run.log": f"00:00:00 run started\n00:00:01 {WORDS}\n".encode(),
        "transcript.jsonl": b"".join(
            to_json({"role": role, "content": WORDS}, indent=None) for role in ("user", "assistant")
        ),
        "worker.out": f"{WORDS}\n".encode(),
        "inputs/01-note.txt": f"{WORDS}\n".encode(),
        "outputs/001-bash.txt": f"{WORDS}\n".encode(),
        "mcp/files.log": f"{WORDS}\n".encode(),
        **dict.fromkeys(("live.lock", "run.meta.lock", "shim.claim"), b""),
    }
    if over:
        files["result.json"] = to_json({"outcome": "completed", "text": WORDS, "summary": WORDS})
        files["payload.gz"] = gzip.compress(f"{WORDS}\n".encode())
    if base == "completed":
        exit_code = {"workerStarted": True, "exitCode": 0, "at": _T1, "treeGone": True, "note": WORDS}
        files["exit.json"] = to_json(exit_code)
    else:
        files["run.meta.spare"] = bytes(16 << 10)
    return files


def request(run_id: str, work: Path, **facts: Any) -> Json:
    """Return what `request.json` holds."""
    agent = {"name": AGENT, "description": "Does the work.", "systemPrompt": WORDS}
    asked = {"prompt": WORDS, "inputs": [], "cwd": str(work), "rootRunId": run_id, "depth": 0}
    return {"runId": run_id, "agent": agent, **asked, "createdAt": _T0, "warnings": [], **facts}


def state(run_id: str, base: str) -> Json:
    """Return what `run.meta.json` holds."""
    steps = [("worker_started", "ready", "running")]
    steps += {"running": [], "waiting": [("question_asked", "running", "waiting_parent_reply")]}.get(
        base, [("finished", "running", "completed")]
    )
    question = {
        "messageId": "q1",
        "questionContent": f"{WORDS}?",
        "questionTimestamp": _T0,
        "askedRevision": 2,
        "expiresAt": _FAR,
        "messageStatus": "pending_parent_reply",
    }
    known = {
        "schemaVersion": 2,
        "revision": len(steps),
        "runId": run_id,
        "agentName": AGENT,
        "status": steps[-1][2],
        "pendingQuestions": int(base == "waiting"),
        "rootRunId": run_id,
        "depth": 0,
        "createdAt": _T0,
        "startedAt": _T0,
        "summary": WORDS,
        "usage": {**_USAGE, "turns": 0, "toolCalls": 0},
        "withDescendants": {**_USAGE, "turns": 0, "toolCalls": 0},
        "messages": [question] if base == "waiting" else [],
        "transitions": [{"event": e, "from": a, "to": b, "at": _T0} for e, a, b in steps],
        "launch": {"kind": "local", "host": processes.host_name(), "bootId": processes.boot_id()},
        "worker": ended_process(),
    }
    if base in ("completed", "unsettled"):
        known |= {"completedAt": timestamp(now()) if base == "unsettled" else _T1}
        known |= {"payload": {"size": len(WORDS) + 1, "path": "payload.gz"}}
    return known


@cache
def ended_process() -> Json:
    """Return a process of this boot that is not there, as files name it: it has not begun for ages."""
    return processes.Identity(processes.host_name(), 4711, 1 << 62, processes.boot_id()).to_json()


def to_json(value: Any, indent: int | None = 1) -> bytes:
    """Return a value as the files hold it."""
    return json.dumps(value, indent=indent).encode() + b"\n"


# -- what is put into the place of a file


def _link(path: Path, outside: Outside) -> None:
    content = _content(path)
    clear(path)
    path.symlink_to(outside.file(content))


def _directory_link(path: Path, outside: Outside) -> None:
    clear(path)
    path.symlink_to(outside.directory("01-note.txt", "20260101-000000-000-zzzzzz"))


def _dangling(path: Path, outside: Outside) -> None:
    clear(path)
    path.symlink_to(outside.absent())


def _endless_link(path: Path, outside: Outside) -> None:
    clear(path)
    path.symlink_to("/dev/zero")


def _fifo(path: Path, outside: Outside) -> None:
    clear(path)
    os.mkfifo(path, 0o600)


def _device(path: Path, outside: Outside) -> None:
    clear(path)
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero by another name


def _socket(path: Path, outside: Outside) -> None:
    clear(path)
    directory = os.open(path.parent, os.O_PATH)  # the name of a socket has 107 bytes at most
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
    os.close(directory)


def _content(path: Path) -> bytes:
    """Return what is in a file, or nothing if there is none, or one that has been planted without an end."""
    return path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 30 else b""


def _other_kind(path: Path, outside: Outside) -> None:
    was_directory = path.is_dir()
    clear(path)
    path.write_bytes(b"{}\n") if was_directory else path.mkdir(mode=0o700)


def _hard_link(path: Path, outside: Outside) -> None:
    content = _content(path)
    clear(path)
    path.hardlink_to(outside.file(content))


def _foreign_owner(path: Path, outside: Outside) -> None:
    if not path.exists():
        path.write_bytes(b"")
    os.chown(path, _OTHER_USER, _OTHER_USER)


def _sparse(path: Path, outside: Outside) -> None:
    clear(path)
    with path.open("wb") as file:
        file.truncate(_TERABYTE)


def _bomb(path: Path, outside: Outside) -> None:
    clear(path)
    path.write_bytes(_packed_zeros())


@cache
def _packed_zeros() -> bytes:
    """Return half a megabyte that unpacks to half a gigabyte."""
    return gzip.compress(bytes(16 << 20)) * 32


def clear(path: Path) -> None:
    """Remove whatever is at a path, but not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        for each in path.iterdir():
            clear(each)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


Shape = Callable[[Path, Outside], None]
SHAPES: dict[str, Shape] = {
    "link": _link,
    "dirlink": _directory_link,
    "dangling": _dangling,
    "zerolink": _endless_link,
    "fifo": _fifo,
    "socket": _socket,
    "kind": _other_kind,
    "hardlink": _hard_link,
    "sparse": _sparse,
    **({"device": _device, "owner": _foreign_owner} if os.geteuid() == 0 else {}),
}

FILES: dict[str, tuple[str, ...]] = {
    "request.json": ("completed",),
    "run.meta.json": ("completed",),
    "run.meta.lock": ("running",),
    "run.meta.spare": ("running",),
    "result.json": ("completed", "running"),
    "payload.gz": ("completed",),
    "events.jsonl": ("completed", "running"),
    "run.log": ("completed", "unsettled"),
    "transcript.jsonl": ("completed",),
    "live.lock": ("unsettled", "waiting"),
    "shim.claim": ("running",),
    "shim.json": ("running",),
    "exit.json": ("completed", "running"),
    "worker.out": ("running",),
    "children": ("completed", "running"),
    "inputs": ("completed",),
    "outputs": ("completed",),
    "mcp": ("completed",),
    "code": ("completed",),
    "inputs/01-note.txt": ("completed",),
    "outputs/001-bash.txt": ("completed",),
    FIFO: ("waiting",),
    "tree.lock": ("running",),
    "calls.lock": ("running",),
    "merge.lock": ("running",),
    "call.lock": ("waiting",),
}
"""Every name in a run directory, with the runs in which it is planted: those in which it is used."""


@dataclass(frozen=True)
class Kind:
    """Something planted: `shape` in the place of `file`, in a run that is like `base` for the rest."""

    file: str
    shape: str
    base: str

    @property
    def run_id(self) -> str:
        """An id that tells which it is: of digits alone no two would be told apart in a failure."""
        name = "".join(c for c in self.file if c.isalnum())[:9].lower()
        return f"20260101-{FILE_KINDS.index(self):03d}-{name or 'run'}-{self.shape}"

    def __str__(self) -> str:
        return f"{self.file} {self.shape} ({self.base})"


FILE_KINDS = [
    *(Kind(file, shape, base) for file, bases in FILES.items() for base in bases for shape in SHAPES),
    Kind("payload.gz", "bomb", "completed"),
    *(Kind("", shape, "completed") for shape in SHAPES if shape not in ("hardlink", "owner")),
]
"""With an empty name: the run directory itself."""
_WITH_ITS_OWN_CANARY = (("", "link"), ("payload.gz", "link"))
"""What leads to a whole run outside, and to a packed text: nothing else does."""
SAMPLED_KINDS = sampled(
    FILE_KINDS,
    60,
    *(lambda kind: kind.file, lambda kind: kind.shape, lambda kind: kind.base),
    lambda kind: (kind.file, kind.shape) if (kind.file, kind.shape) in _WITH_ITS_OWN_CANARY else None,
)


def plant(root: Path, kind: Kind, outside: Outside, work: Path) -> None:
    """Plant one kind below a root, under its id."""
    run_id = kind.run_id
    if kind.file:
        run = write_run(root, run_id, kind.base, work)
        (SHAPES | {"bomb": _bomb})[kind.shape](run / kind.file, outside)
    elif kind.shape == "link":  # to a whole run, which lies outside and says the secret in every file
        elsewhere = outside.directory()
        (elsewhere / ".changes").mkdir()
        run = write_run(elsewhere, run_id, "unsettled", work)
        for path in (each for each in run.rglob("*") if each.is_file() and each.stat().st_size):
            path.write_bytes(with_secret(path.read_bytes()))
        (root / run_id).symlink_to(run)
        (root / ".changes" / run_id).touch()
    else:
        SHAPES[kind.shape](root / run_id, outside)
        (root / ".changes" / run_id).touch()
