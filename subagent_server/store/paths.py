"""The paths of all files of a run. No other module names a file below the runs root.

What is given out are entries of open directories (`host/directory.py`), never paths to open. Standard library
only: the shim imports this module.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from subagent_server.domain.errors import ForeignRoot
from subagent_server.domain.ids import check_run_id, is_run_id
from subagent_server.host import journal
from subagent_server.host.directory import Directory, Entry
from subagent_server.store.root import CHANGES, RootDirectory

STATE_BYTES = 32 << 20
"""How much of a state, a request or a result is read: no run writes more."""
RECORD_BYTES = 64 << 10
"""The same of the records of a shim."""
_TEMPORARY = re.compile(r"\..+\.tmp|wake\.[0-9]+")
_MANY_MARKS = 1_000
_MOST_SLEEPERS = 1_000


class _File:
    """A file of a run, by its name: an entry of the run's directory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: "RunPaths", owner: object = None) -> Entry:
        return run.files.entry(self.name)


class _Folder:
    """A directory of a run, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: "RunPaths", owner: object = None) -> Directory:
        return run.files.below(self.name)


class RunPaths:
    """The files of one run. `files` is its directory, opened at the first use and closed with this object."""

    request = _File("request.json")
    """The task; immutable."""
    inputs = _Folder("inputs")
    """Copies of the input files."""
    meta = _File("run.meta.json")
    """The state."""
    meta_lock = _File("run.meta.lock")
    """Held around every change of the state; never removed."""
    spare = _File("run.meta.spare")
    """Room on the disk, reserved for the end of the run until the run has ended."""
    result = _File("result.json")
    """How it ended, in the agent's words; written once."""
    payload = _File("payload.gz")
    """The payload of `update_status(completed)`, gzip-compressed."""
    events = _File("events.jsonl")
    """The journal, one event a line."""
    log = _File("run.log")
    """The journal for people."""
    transcript = _File("transcript.jsonl")
    """The conversation with the model."""
    live_lock = _File("live.lock")
    """Held by the starter, then by the shim, as long as the run's tree may live."""
    shim_claim = _File("shim.claim")
    """Made by the one shim of the run."""
    shim = _File("shim.json")
    """The identities of shim and worker."""
    exit = _File("exit.json")
    """How the worker ended, and whether its tree is gone."""
    worker_out = _File("worker.out")
    """The output of shim and worker outside the journal."""
    worktree = _File("worktree.json")
    """How the worktree of the run stands."""
    worktree_lock = _File("worktree.lock")
    """Held while the worktree is settled, merged, handed over or removed."""
    children = _Folder("children")
    """A mark for each run started by this run."""
    tree_lock = _File("tree.lock")
    """Of a run without a parent: held while another run of its tree is counted and published."""
    calls_lock = _File("calls.lock")
    """Of a run without a parent: held while a model call in its tree is admitted by its budget."""
    call_lock = _File("call.lock")
    """Held by the worker of a run with a budget, or below one, while its model is called."""
    outputs = _Folder("outputs")
    """Tool outputs that are too long for the model."""
    server_logs = _Folder("mcp")
    """The output of its MCP servers, a file each."""
    code = _Folder("code")
    """The programs that it has run, a directory each."""
    quarantine = _Folder("quarantine")
    """What came in its working directory during a command and is executed by other programs."""
    before = _File("before.json")
    """The names of that kind that were there before the command that just runs; else empty."""
    git_config = _File("git-config")
    """The configuration of the repository as programs in a box see it: without credentials."""
    program = _Folder("program")
    """The directory of the program that carries out the run: its state, its result file."""

    def __init__(self, root: "RootPaths", run_id: str) -> None:
        self.root = root
        self.run_id = run_id
        self.files = root.below(run_id)

    @property
    def directory(self) -> Path:
        """The path of the directory: for messages, and for the processes of the run."""
        return self.files.path

    @property
    def program_home(self) -> Directory:
        """The state that the program keeps below its home directory, if it works in a sandbox."""
        return self.program.below("home")

    def other_names(self) -> list[str]:
        """The names in its directory that no run has. A directory with such a name may be the user's."""
        return [name for name in self.files.names() if name not in _NAMES and not _TEMPORARY.fullmatch(name)]

    def journal_has_ended(self) -> bool:
        """Whether the journal says how the run ended."""
        try:
            return "run_ended" in journal.latest(self.events, frozenset({"run_ended"}), within=50)
        except OSError:
            return False

    def sync_journal(self) -> None:
        """Make the journal and the log durable: appending to them syncs nothing. Raises OSError."""
        self.events.sync()
        self.log.sync()
        self.files.sync()

    def wake(self, pid: int) -> Entry:
        """The FIFO on which process `pid` waits for changes of this run."""
        return self.files.entry(f"wake.{pid}")

    def sleepers(self) -> list[Entry]:
        """The FIFOs of all who wait for changes of this run, a thousand at most."""
        names = sorted(name for name in self.files.names() if name.startswith("wake."))
        return [self.files.entry(name) for name in names[:_MOST_SLEEPERS]]


_NAMES = {each.name for each in vars(RunPaths).values() if isinstance(each, _File | _Folder)}


class RootPaths:
    """The runs root: run directories, and a few other folders whose names no run id can have."""

    def __init__(self, root: Path, held: RootDirectory | None = None) -> None:
        """With `held`, that directory is the root, wherever its path leads meanwhile."""
        self.root = root
        self._held = held
        self._seen: tuple[tuple[int, ...], RootDirectory] | None = None

    def open(self) -> RootDirectory:
        """Return the directory. One that is ours stays open for as long as its path leads to it unchanged.

        It may be removed and made again, or adopted, at any time. And a process that was forked may have
        closed the descriptor and opened another of that number.
        """
        if self._held is not None:
            return self._held
        try:
            status = self.root.stat()
        except OSError:
            return RootDirectory(self.root)
        state = (os.getpid(), status.st_dev, status.st_ino, status.st_ctime_ns)
        seen = self._seen
        if seen is None or seen[0] != state or seen[1].forbidden is not None:
            self._seen = seen = (state, RootDirectory(self.root))
        return seen[1]

    def below(self, name: str) -> Directory:
        """Return a directory in it."""
        return self.open().below(name)

    @property
    def is_ours(self) -> bool:
        """Whether it is there and ours by proof."""
        root = self.open()
        return root.exists() and root.forbidden is None

    def foreign(self) -> ForeignRoot | None:
        """Return why nothing in the root is changed: the root exists, but is not ours by proof."""
        root = self.open()
        return root.forbidden if root.exists() else None

    @property
    def is_foreign(self) -> bool:
        """Whether the root exists, but is not ours by proof: then nothing inside is changed."""
        return self.foreign() is not None

    def check_ours(self) -> None:
        """Refuse a root that is there and not ours by proof.

        Raises:
            ForeignRoot.
        """
        if (foreign := self.foreign()) is not None:
            raise foreign

    @property
    def changes(self) -> Directory:
        """A file for each run that may be live, touched at each of its changes."""
        return self.below(CHANGES)

    @property
    def unseen(self) -> Directory:
        """A file for each run whose end no parent was shown."""
        return self.below(".unseen")

    @property
    def slots(self) -> Directory:
        """Lock files of the slots."""
        return self.below(".slots")

    @property
    def removed(self) -> Directory:
        """Run directories that are being deleted."""
        return self.below(".removed")

    @property
    def backoff(self) -> Directory:
        """For each API and key that runs call: until when calls pause."""
        return self.below(".backoff")

    def run(self, run_id: str) -> RunPaths:
        """Return the paths of a run.

        Raises:
            InvalidRunId: checked here, before any path is built.
        """
        return RunPaths(self, check_run_id(run_id))

    def change_mark(self, run_id: str) -> Entry:
        """The file that is touched at each change of this run, for watchers."""
        return self.changes.entry(check_run_id(run_id))

    def marks(self) -> list[str]:
        """The names among the marks of possibly live runs, of any kind; empty in a foreign root.

        Raises:
            NotADirectoryError: the root is not a directory.
        """
        root = self.open()
        try:
            if root.descriptor >= 0 and root.forbidden is not None:
                return []
        except FileNotFoundError:
            return []
        with suppress(OSError):
            return sorted(root.below(CHANGES).names())
        return []

    def live_marks(self) -> Iterator[str]:
        """The ids of the possibly live runs. Of very many marks, only marks with a directory count."""
        marks = self.marks()
        there = None if len(marks) < _MANY_MARKS else set(self.open().names())
        return (name for name in marks if is_run_id(name) and (there is None or name in there))


def run_at(directory: Path) -> RunPaths:
    """Return the run of a directory, for a process that was started with its path.

    The root stays open, so the process goes on in a root that is renamed meanwhile.
    """
    root = RootDirectory(directory.parent)
    return RunPaths(RootPaths(directory.parent, root if root.exists() else None), directory.name)
