"""The paths of all files of a run. No other module names a file below the runs root.

The methods return entries of open directories (`run/files.py`), never paths to open. Standard library
only: the shim imports this module.
"""

import errno
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from subagent_server.run import durable, processes
from subagent_server.run.errors import ForeignRoot, UnsafeRoot, storing
from subagent_server.run.files import DIRECTORY_MODE, Directory, Entry, held_open
from subagent_server.run.states import check_run_id

# -- The owner of a runs root. A root that came with a repository, an archive or another user is not ours.
#
# A root of our making carries a mark that none of these can bring along: an extended attribute with the
# directory's own inode, or, if the file system has no such attributes, a file `.root` with the inode. Our
# root belongs to us, and no other user can write there. Any other root is foreign: a foreign root can be
# read, as a CI job reads the root of an earlier job, but nothing inside is changed (SPEC section 13).


ATTRIBUTE = "user.subagent.root"
MARK_FILE = ".root"
CHANGES = ".changes"
"""A file in it for each run that may be live, touched at each of its changes."""
RUNS, HIDDEN_RUNS = Path("runs"), Path(".subagent", "runs")
_EMPTY_ENOUGH = frozenset({"README.md", ".gitignore", MARK_FILE})
"""Names that a directory may hold and still become a root."""
_NO_ATTRIBUTES = (errno.ENOTSUP, errno.ENOSYS)
_LONGEST_MARK = 200
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class RootDirectory(Directory):
    """A runs root. After opening, `forbidden` says why changes are forbidden: None if ours by proof."""

    forbidden: ForeignRoot | None

    def _open(self) -> int:
        descriptor = super()._open()
        try:
            status = os.fstat(descriptor)
            self.owners = frozenset({os.geteuid(), status.st_uid})
            self.forbidden = self._why_foreign(descriptor, status)
        except OSError as error:
            os.close(descriptor)
            error.filename = str(self.path)  # the system call got a descriptor
            raise
        if self.forbidden is None:
            self.owners = frozenset({os.geteuid()})
        return descriptor

    def _why_foreign(self, descriptor: int, status: os.stat_result) -> ForeignRoot | None:
        if status.st_uid != os.geteuid():
            return UnsafeRoot(self.path, f"belongs to another user ({status.st_uid})")
        if not _has_mark(descriptor, status.st_ino):
            return ForeignRoot(self.path, "is not marked as one that was made here")
        if status.st_mode & _OTHERS_WRITE and _is_open_to_others(descriptor):
            return UnsafeRoot(self.path, "can be written by others")
        return None

    def claim(self) -> None:
        """Mark this existing directory as a runs root of this user, if it may be one.

        Raises:
            ForeignRoot: the directory holds foreign files, or others can write to the directory.
            OSError: the mark cannot be written.
        """
        descriptor = self.descriptor
        if self.forbidden is None:
            return
        if isinstance(self.forbidden, UnsafeRoot) or not set(self.names()) <= _EMPTY_ENOUGH:
            # Between the two looks somebody else may have marked it and begun to fill it.
            self.forbidden = self._why_foreign(descriptor, os.fstat(descriptor))
            if self.forbidden is not None:
                raise self.forbidden
            return
        self.adopt()

    def adopt(self) -> None:
        """Mark this directory as ours, with any content, and close the directory to others.

        Raises:
            UnsafeRoot: the directory belongs to another user, or others can still write to the directory.
            OSError: the mark cannot be written.
        """
        descriptor = self.descriptor
        if isinstance(self.forbidden, UnsafeRoot):
            raise self.forbidden
        if _is_open_to_others(descriptor):
            raise UnsafeRoot(self.path, "can be written by others")
        _mark(descriptor)
        self.forbidden = self._why_foreign(descriptor, os.fstat(descriptor))
        self.owners = frozenset({os.geteuid()})


def make_root(path: Path) -> RootDirectory:
    """Return the root at `path`, made if missing, and marked if empty.

    Raises:
        ForeignRoot: the root is not ours.
        StorageFailed: the root cannot be made or marked.
    """
    # A link may have come with the directory: it would lead runs elsewhere, and no box can hide them there.
    if path.parent.name == HIDDEN_RUNS.parent.name and path.parent.is_symlink():
        raise UnsafeRoot(path, f"lies behind the link {path.parent.name}")
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(DIRECTORY_MODE)
        root = RootDirectory(path)
        root.claim()
    return root


def may_become_root(path: Path) -> bool:
    """Whether `path` is free, or is a directory of this user, empty or with only a README."""
    try:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return False
        return set(os.listdir(path)) <= _EMPTY_ENOUGH  # noqa: PTH208
    except FileNotFoundError:
        return True
    except OSError:
        return False


def is_ours(path: Path) -> bool:
    """Whether the root at `path` is ours by proof; an unreadable root is not."""
    root = RootDirectory(path)
    with suppress(OSError):
        return root.exists() and root.forbidden is None
    return False


def is_marked(path: Path) -> bool:
    """Whether the directory at `path` carries the mark of a root, of whichever user."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError), held_open(os.open(path, flags)) as descriptor:
        return _has_mark(descriptor, os.fstat(descriptor).st_ino)
    return False


@dataclass(frozen=True)
class FoundRoot:
    """The root to use by default. `passed_over` is a `runs/` that a person may have meant."""

    path: Path
    passed_over: Path | None = None


def find_root(cwd: Path) -> FoundRoot:
    """Return the nearest root upwards that is ours by proof, as git looks for its folder.

    Without such a root: `runs` in `cwd`, if this can become a root, else `.subagent/runs` there.
    """
    passed_over: Path | None = None
    for directory in (cwd, *cwd.parents):
        for name in (RUNS, HIDDEN_RUNS):
            if is_ours(directory / name):
                return FoundRoot(directory / name, passed_over)
        with suppress(OSError):  # it may be another user's, and closed
            # of an earlier version, or planted
            if passed_over is None and (directory / RUNS / CHANGES).is_dir():
                passed_over = directory / RUNS
    # looked at once more: somebody may have made it meanwhile, and begun to fill it
    if may_become_root(cwd / RUNS) or is_ours(cwd / RUNS):
        return FoundRoot(cwd / RUNS, passed_over)
    return FoundRoot(cwd / HIDDEN_RUNS, passed_over or cwd / RUNS)


def _has_mark(descriptor: int, inode: int) -> bool:
    try:
        mark = os.getxattr(descriptor, ATTRIBUTE)
    except OSError as error:
        if error.errno == errno.ENODATA:
            return False
        if error.errno not in _NO_ATTRIBUTES:
            raise  # a disk that does not answer proves nothing of whose it is
        mark = _mark_in_file(descriptor)
    return mark.split()[1:] == [str(inode).encode()]


def _mark_in_file(descriptor: int) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(OSError), held_open(os.open(MARK_FILE, flags, dir_fd=descriptor)) as file:
        return os.read(file, _LONGEST_MARK)
    return b""


def _mark(descriptor: int) -> None:
    """Mark a directory by its inode, which some file systems renumber at the first change: hence twice."""
    name = os.urandom(8).hex()
    try:
        for _ in range(2):
            os.setxattr(descriptor, ATTRIBUTE, f"{name} {os.fstat(descriptor).st_ino}".encode())
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTES:
            raise
        with suppress(FileNotFoundError):
            os.unlink(MARK_FILE, dir_fd=descriptor)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with held_open(os.open(MARK_FILE, flags, 0o600, dir_fd=descriptor)) as file:
            os.write(file, f"{name} {os.fstat(descriptor).st_ino}\n".encode())


def _is_open_to_others(descriptor: int) -> bool:
    """Whether others can write to a directory after we have closed it to them: some systems keep no modes."""
    with suppress(OSError):
        os.fchmod(descriptor, DIRECTORY_MODE)
    return bool(os.fstat(descriptor).st_mode & _OTHERS_WRITE)


STATE_BYTES = 32 << 20
"""How much of a state, a request or a result is read: no run writes more."""
RECORD_BYTES = 64 << 10
"""The same of the records of a shim."""
REMOVED_CHILD = ".removed"
"""In `children/`: the name of the mark of a removed run. Its cost still counts in the runs above it."""
_TEMPORARY = re.compile(r"\..+\.tmp|wake\.([A-Za-z0-9_-]+\.)?[0-9]+")
_MOST_SLEEPERS = 1_000


class _File:
    """A file of a run, by its name: an entry of the run's directory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: "RunPaths", owner: object = None) -> Entry:
        return run.files.entry(self.name)


class _Folder:
    """A directory of a run or of a root, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, above: "RunPaths | RootPaths", owner: object = None) -> Directory:
        return above.below(self.name)


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
    beat = _File("beat")
    """Written again and again by the shim of a run on a node, for readers on other hosts."""
    sealed = _File("package.sealed")
    """What the worker of a run on a node needs, sealed; the shim's first step unseals and removes it."""
    exit = _File("exit.json")
    """How the worker ended, and whether its tree is gone."""
    worker_out = _File("worker.out")
    """The output of shim and worker outside the journal."""
    worktree = _File("worktree.json")
    """The state of the run's worktree."""
    worktree_lock = _File("worktree.lock")
    """Held while the worktree is settled, merged, handed over or removed."""
    merge_lock = _File("merge.lock")
    """Held, also by git, while this run merges another one: its last processes are ended after that."""
    children = _Folder("children")
    """A mark for each run started by this run."""
    continued_by = _File("continued-by")
    """The id of the one run that continues this flow."""
    tree_lock = _File("tree.lock")
    """In a run without a parent: held while another run of its tree is counted and published.

    In a flow: held while the one run that continues it is started.
    """
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
    """The names of that kind from before the command that runs now; empty between commands."""
    git_config = _Folder("git-config")
    """Files of configuration of the repository as programs in a box see them: without credentials."""
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

    def below(self, name: str) -> Directory:
        """Return a directory in it."""
        return self.files.below(name)

    def other_names(self) -> list[str]:
        """The names in its directory that no run has. A directory with such a name may be the user's."""
        return [name for name in self.files.names() if name not in _NAMES and not _TEMPORARY.fullmatch(name)]

    def journal_has_ended(self) -> bool:
        """Whether the journal has the end of the run."""
        try:
            return durable.last_of(self.events, "run_ended") is not None
        except OSError:
            return False

    def sync_journal(self) -> None:
        """Make the journal and the log durable: appending to them syncs nothing. Raises OSError."""
        self.events.sync()
        self.log.sync()
        self.files.sync()

    def wake(self, pid: int) -> Entry:
        """The FIFO on which process `pid` of this host waits for changes of this run."""
        return self.files.entry(f"wake.{processes.host_tag()}.{pid}")

    def sleepers(self) -> list[Entry]:
        """The FIFOs of all on this host who wait for changes of this run, a thousand at most.

        That of another host has its reader there: opened here it has none, and looks abandoned.
        """
        prefix = f"wake.{processes.host_tag()}."
        names = sorted(name for name in self.files.names() if name.startswith(prefix))
        return [self.files.entry(name) for name in names[:_MOST_SLEEPERS]]


_NAMES = {each.name for each in vars(RunPaths).values() if isinstance(each, _File | _Folder)}


class RootPaths:
    """The runs root: run directories, and a few other folders whose names no run id can have."""

    changes = _Folder(CHANGES)
    """A file for each run that may be live, touched at each of its changes."""
    unseen = _Folder(".unseen")
    """A file for each run whose end no parent was shown."""
    slots = _Folder(".slots")
    """Lock files of the slots."""
    removed = _Folder(".removed")
    """Run directories that are being deleted."""
    backoff = _Folder(".backoff")
    """For each API and key that runs call: until when calls pause."""

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
        """Return why nothing in the root is changed: the root is not ours by proof, and holds something."""
        root = self.open()
        reason = root.forbidden if root.exists() else None
        if reason is not None and may_become_root(self.root):  # which reads the names of all runs
            return None
        return reason

    def check_ours(self) -> None:
        """Refuse a root that is there and not ours by proof.

        Raises:
            ForeignRoot.
        """
        if (foreign := self.foreign()) is not None:
            raise foreign

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


def run_at(directory: Path) -> RunPaths:
    """Return the run of a directory, for a process that was started with its path.

    The root stays open, so the process keeps working in a root that is renamed meanwhile.
    """
    root = RootDirectory(directory.parent)
    return RunPaths(RootPaths(directory.parent, root if root.exists() else None), directory.name)
