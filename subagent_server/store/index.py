"""The index of a large root: facts of its runs, for finding and summing runs without reading each.

The index is never the truth: to show a run, read its state. The index holds a row for each name in the root,
with the final facts of an ended run; an unfinished run is read again at every use. A row belongs to the time
of the last change of its directory, so a run removed, or put back from a copy, is read anew. The file may be
deleted, damaged, of another version, or on a disk that refuses writes: then missing rows are read again, if
need be each time.
"""

import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from subagent_server.domain.ids import is_run_id
from subagent_server.domain.states import Status
from subagent_server.host.directory import Directory
from subagent_server.store.facts import RunFacts, Spent, read_facts
from subagent_server.store.paths import RootPaths
from subagent_server.store.stored import extent_of

VERSION = 1
"""Of the tables; a file of another one is made anew."""
BUSY_SECONDS = 5.0
_FILE = "runs.sqlite3"
_BATCH = 1_000
_LARGEST = 1 << 60  # of what fits into a column; sums of them are made outside
T = TypeVar("T")

_TABLES = """
CREATE TABLE IF NOT EXISTS runs(
    id TEXT PRIMARY KEY, touched INTEGER NOT NULL, status TEXT, agent TEXT, parent TEXT, created REAL,
    seconds REAL, input INTEGER, output INTEGER, cacheRead INTEGER, cacheWrite INTEGER, cost TEXT
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_status ON runs(status, agent);
CREATE TABLE IF NOT EXISTS extent(device INTEGER, inode INTEGER, changed INTEGER);
"""
_INSERT = "REPLACE INTO runs(id, touched) VALUES (?, ?)"
_UPDATE = """
UPDATE runs SET status = ?, agent = ?, parent = ?, created = ?, seconds = ?, input = ?, output = ?,
    cacheRead = ?, cacheWrite = ?, cost = ? WHERE id = ? AND touched = ?
"""
_SELECT = """
SELECT status, agent, created, seconds, input, output, cacheRead, cacheWrite, cost FROM runs
WHERE status IS NOT NULL AND created >= ?
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """The facts of a run that has ended, for sums: `created` in seconds since the epoch, and its duration."""

    status: Status
    agent: str
    created: float
    seconds: float
    spent: Spent


class RunIndex:
    """The index of a root, brought up to date on opening."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def find(
        self,
        statuses: Iterable[Status],
        agent: str | None = None,
        run_id: str | None = None,
        parents: Iterable[str] = (),
    ) -> list[str]:
        """Return the ids of the runs that may fit, newest first, including runs without known facts.

        No status stands for every status. With `run_id`, only this run, and the runs started by this run or
        by any of `parents`.
        """
        names = [status.value for status in statuses]
        family = [] if run_id is None else [run_id, *parents]
        conditions = [f"status IN ({_marks(names)})"] if names else []
        conditions += [] if agent is None else ["agent = ?"]
        conditions += [f"(parent IN ({_marks(family)}) OR id = ?)"] if family else []
        values = [*names, *([] if agent is None else [agent]), *family, *family[:1]]
        fits = " AND ".join(conditions) or "TRUE"
        query = f"SELECT id FROM runs WHERE status IS NULL OR ({fits}) ORDER BY id DESC"
        return [run_id for (run_id,) in self._connection.execute(query, values)]

    def ended(self, since: float = 0.0) -> Iterator[Ended]:
        """Yield the ended runs that began since this time, in seconds since the epoch."""
        for status, agent, created, seconds, *spent in self._connection.execute(_SELECT, [since]):
            yield Ended(Status(status), agent, created, seconds, Spent(*spent))

    def unknown(self) -> list[str]:
        """Return the runs of which nothing is known: they have not ended, or their state is not plain."""
        return [run_id for (run_id,) in self._connection.execute("SELECT id FROM runs WHERE status IS NULL")]


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


@contextmanager
def open_index(root: RootPaths) -> Iterator[RunIndex]:
    """Return the up-to-date index of a root. Reads every new run, which may take long once."""
    connection = _up_to_date(root.kept_open())
    try:
        yield RunIndex(connection)
    finally:
        connection.close()


def _up_to_date(root: RootPaths) -> sqlite3.Connection:
    """Return a connection to the file; to a new file if damaged; to memory if no file can be made."""
    if not root.is_ours:
        return _synced(_in_memory(), root)
    for _ in range(2):
        try:
            return _synced(_open_file(root), root)
        except sqlite3.OperationalError:  # locked for long, or it cannot be written here
            break
        except (sqlite3.DatabaseError, OSError):
            with suppress(OSError):
                root.index.entry(_FILE).unlink()
    return _synced(_copy_in_memory(root), root)


def _open_file(root: RootPaths) -> sqlite3.Connection:
    index = root.index
    index.make()
    return _prepared(sqlite3.connect(_checked(index), timeout=BUSY_SECONDS, isolation_level=None))


def _checked(index: Directory) -> str:
    """Check the files that SQLite will open, and return their path, because SQLite opens by path.

    Raises:
        OSError: the file, or a companion file of SQLite, is not a plain file.
    """
    for name in (_FILE, f"{_FILE}-journal", f"{_FILE}-wal", f"{_FILE}-shm"):
        with suppress(FileNotFoundError):
            os.close(index.open(name))
    return f"/proc/self/fd/{index.descriptor}/{_FILE}"


def _copy_in_memory(root: RootPaths) -> sqlite3.Connection:
    """Return an index in memory with the readable part of the file, which stays as it is."""
    memory = sqlite3.connect(":memory:", isolation_level=None)
    with suppress(sqlite3.Error, OSError):
        index = root.index
        file = sqlite3.connect(f"file:{_checked(index)}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        try:
            file.backup(memory)
            return _prepared(memory)
        finally:
            file.close()
    memory.close()
    return _in_memory()


def _in_memory() -> sqlite3.Connection:
    return _prepared(sqlite3.connect(":memory:", isolation_level=None))


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Make the missing tables.

    Raises:
        sqlite3.DatabaseError: the file is not our index, or is of another version.
    """
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version != VERSION:
            if tables != (0,):
                raise sqlite3.DatabaseError(f"the index is of version {version}")
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


# -- bringing it up to date


def _synced(connection: sqlite3.Connection, root: RootPaths) -> sqlite3.Connection:
    try:
        began, extent = time.time_ns(), extent_of(root)
        seen = None if extent is None else (extent.device, extent.inode, extent.changed_ns)
        if seen is None or connection.execute("SELECT * FROM extent").fetchone() != seen:
            _match_names(connection, root)
        _learn(connection, root)
        if seen is not None and extent is not None and extent.is_settled(began):
            with _writing(connection):
                connection.execute("DELETE FROM extent")
                connection.execute("INSERT INTO extent VALUES (?, ?, ?)", seen)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _match_names(connection: sqlite3.Connection, root: RootPaths) -> None:
    """Give every name in the root its row, and no other."""
    known = dict(connection.execute("SELECT id, touched FROM runs"))
    present = _present(root, known)
    gone = [(run_id,) for run_id in known if run_id not in present]
    new = [item for item in present.items() if known.get(item[0]) != item[1]]
    for some_gone in _batches(gone):
        with _writing(connection):
            connection.executemany("DELETE FROM runs WHERE id = ?", some_gone)
    for some_new in _batches(new):
        with _writing(connection):
            connection.executemany(_INSERT, some_new)


def _present(root: RootPaths, known: Mapping[str, int]) -> dict[str, int]:
    """Return the run ids in the root with the times at which their directories changed last."""
    present: dict[str, int] = {}
    with suppress(FileNotFoundError), os.scandir(root.root) as entries:
        for entry in entries:
            if entry.name in known or (is_run_id(entry.name) and entry.is_dir(follow_symlinks=False)):
                with suppress(FileNotFoundError):
                    present[entry.name] = entry.stat(follow_symlinks=False).st_ctime_ns
    return present


def _learn(connection: sqlite3.Connection, root: RootPaths) -> None:
    """Read the runs missing in the index, and keep the facts of ended runs, which are final."""
    unknown = connection.execute(
        "SELECT id, touched FROM runs WHERE status IS NULL ORDER BY id DESC"
    ).fetchall()
    marked = set(root.live_marks())
    for batch in _batches(unknown):
        found = [(_final_facts(root, run_id, marked), touched) for run_id, touched in batch]
        rows = [(*_values(facts), facts.run_id, touched) for facts, touched in found if facts is not None]
        if rows:
            with _writing(connection):
                connection.executemany(_UPDATE, rows)


def _final_facts(root: RootPaths, run_id: str, marked: Collection[str]) -> RunFacts | None:
    """Return the facts of an ended run without a mark of possibly live runs."""
    try:
        facts = None if run_id in marked else read_facts(root.run(run_id))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return facts if facts is not None and facts.status.is_terminal else None


def _values(facts: RunFacts) -> tuple[object, ...]:
    ended = facts.ended or facts.created
    spent = facts.spent
    return (
        facts.status.value,
        facts.agent,
        facts.parent_run_id,
        facts.created.timestamp(),
        max(0.0, (ended - facts.created).total_seconds()),
        *(
            None if tokens is None else min(tokens, _LARGEST)
            for tokens in (
                spent.input_tokens,
                spent.output_tokens,
                spent.cache_read_tokens,
                spent.cache_write_tokens,
            )
        ),
        spent.cost_usd,
    )


@contextmanager
def _writing(connection: sqlite3.Connection) -> Iterator[None]:
    """Write a batch in one transaction. Short, so that several writers hardly wait for each other."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]
