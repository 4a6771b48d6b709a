"""Who may open the page: a browser that came with a one-time code, which only this user can make.

`subagent page` writes a code into a directory of this user alone and opens the page with the code in the
fragment of the address, which reaches neither a server nor a log. The page gives the code to the server for a
secret of its own. Only hashes are kept, so reading the directory opens nothing. A server says there where it
listens, and by which process, so a code is never shown to another process that has taken the port.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from subagent_server.domain.errors import HostError, shorten
from subagent_server.host import processes
from subagent_server.host.directory import Entry
from subagent_server.host.private_directory import beneath, open_private, write_secret
from subagent_server.host.processes import Identity
from subagent_server.service.access import new_token

CODE_SECONDS = 300
"""How long a code can be used, once."""
SESSION_SECONDS = 30 * 24 * 3_600
"""How long a browser stays known."""
MAX_SESSIONS = 64
"""How many browsers are known; the oldest is forgotten."""
MAX_SERVERS = 256
_RECORD_BYTES = 8 << 10
_MAX_SECRET_CHARACTERS = 100
_CODE, _SESSION, _SERVER = "code-", "session-", "server-"


class PageNotUsable(HostError):
    """The directory with the codes of the page cannot be used."""

    code = "page_not_usable"


@dataclass(frozen=True)
class PageServer:
    """A living server with a page: its address, and the runs root whose runs it shows."""

    address: str
    root: str


class PageAccess:
    """The codes, the known browsers and the servers, in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory

    def new_code(self) -> str:
        """Return a code that opens the page once, within 5 minutes. Raises PageNotUsable."""
        code = new_token()
        with self._open() as directory:
            _forget_old(directory, _CODE, CODE_SECONDS)
            write_secret(directory, _CODE + _hash(code), b"")
        return code

    def redeem(self, code: str) -> str | None:
        """Return the secret of a new session for a code, or None if the code is wrong, used or too old.

        Raises:
            PageNotUsable.
        """
        with self._open() as directory:
            _forget_old(directory, _CODE, CODE_SECONDS)
            try:
                os.unlink(_CODE + _hash(code), dir_fd=directory)  # of two that use it, one has it
            except FileNotFoundError:
                return None
            _forget_old(directory, _SESSION, SESSION_SECONDS, keep=MAX_SESSIONS - 1)
            secret = new_token()
            write_secret(directory, _SESSION + _hash(secret), b"")
            return secret

    def knows(self, secret: str) -> bool:
        """Whether this is the secret of a session. Raises PageNotUsable."""
        if not 0 < len(secret) <= _MAX_SECRET_CHARACTERS:
            return False
        with self._open() as directory:
            return _age(directory, _SESSION + _hash(secret)) <= SESSION_SECONDS

    def announce(self, server: PageServer) -> None:
        """Note that this process serves the page there. Raises PageNotUsable."""
        process = processes.this_process()
        facts = {**process.to_json(), "address": server.address, "root": server.root}
        with self._open() as directory:
            for name in _records(directory):
                if _server(directory, name) is None:
                    _remove(directory, name)
            write_secret(directory, f"{_SERVER}{process.pid}", json.dumps(facts).encode())

    def servers(self) -> list[PageServer]:
        """Return the servers that live. Raises PageNotUsable."""
        with self._open() as directory:
            found = [_server(directory, name) for name in _records(directory)]
        return [server for server in found if server is not None]

    @contextmanager
    def _open(self) -> Iterator[int]:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory = open_private(str(self._path))
        except OSError as error:
            raise self._not_usable(error) from error
        try:
            yield directory
        except OSError as error:
            raise self._not_usable(error) from error
        finally:
            os.close(directory)

    def _not_usable(self, error: OSError) -> PageNotUsable:
        place, why = shorten(str(self._path), 200), error.strerror or error
        return PageNotUsable(f"{place} cannot be used ({why}): mend that, then try again.")


def _hash(secret: str) -> str:
    return sha256(secret.encode("utf-8", "replace")).hexdigest()


def _age(directory: int, name: str) -> float:
    """Return the age of a file in seconds; infinite if there is none."""
    try:
        return max(0.0, time.time() - os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime)
    except FileNotFoundError:
        return float("inf")


def _forget_old(directory: int, kind: str, seconds: float, keep: int | None = None) -> None:
    """Remove the files of a kind that are too old, and all but the newest `keep`."""
    names = [name for name in os.listdir(directory) if name.startswith(kind)]
    newest = sorted((_age(directory, name), name) for name in names)
    for place, (age, name) in enumerate(newest):
        if age > seconds or (keep is not None and place >= keep):
            _remove(directory, name)


def _remove(directory: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def _records(directory: int) -> list[str]:
    return [name for name in os.listdir(directory) if name.startswith(_SERVER)][:MAX_SERVERS]


def _server(directory: int, name: str) -> PageServer | None:
    """Return the server of a record, or None if it has gone."""
    try:
        facts = json.loads(Entry.at(Path(beneath(directory, name))).read(_RECORD_BYTES))
        process = Identity.from_json(facts)
        server = PageServer(str(facts["address"]), str(facts["root"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return server if process is not None and processes.is_alive(process) else None
