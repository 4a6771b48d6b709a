"""Who may open the page: a browser that came with a one-time code, which only this user can make.

`subagent page` writes a code into a directory of this user alone and opens the page with the code in the
fragment of the address, which reaches neither a server nor a log. The page gives the code to the server for a
session. A server says in the directory where it listens, and by which process, and a code is for that process
alone: another one that has taken the port can do nothing with it, there or elsewhere.

Sessions live in the memory of the server and end with it, so their secrets are worth nothing to who takes the
port afterwards. Before a page sends anything again to a server that it has lost, the server has to answer the
session's `knock` with the session's `proof`, which only the process that made the session can.
"""

import hmac
import json
import os
import time
from collections import deque
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
MAX_SESSIONS = 64
"""How many browsers a server knows; the oldest is forgotten."""
MAX_SERVERS = 256
_RECORD_BYTES = 8 << 10
_CODE, _SERVER = "code-", "server-"


class PageNotUsable(HostError):
    """The directory with the codes of the page cannot be used."""

    code = "page_not_usable"


@dataclass(frozen=True)
class PageServer:
    """A living server with a page: its address, and the runs root whose runs it shows."""

    address: str
    root: str
    process: Identity


@dataclass(frozen=True)
class PageSession:
    """A known browser: the secret that it shows, and the question and answer that prove the server to it."""

    secret: str
    knock: str
    proof: str


class PageAccess:
    """The codes and the servers, in `directory`, and the browsers that this process knows."""

    def __init__(self, directory: Path) -> None:
        self._path = directory
        self._sessions: deque[PageSession] = deque(maxlen=MAX_SESSIONS)

    def new_code(self, server: PageServer) -> str:
        """Return a code that opens the page of a server once, within 5 minutes. Raises PageNotUsable."""
        code = new_token()
        with self._open() as directory:
            _forget_old_codes(directory)
            write_secret(directory, _code_file(code, server.process), b"")
        return code

    def redeem(self, code: str) -> PageSession | None:
        """Return a new session for a code, or None if it is wrong, used, too old or of another server.

        Raises:
            PageNotUsable.
        """
        with self._open() as directory:
            _forget_old_codes(directory)
            try:
                # of two that use it, one has it
                os.unlink(_code_file(code, processes.this_process()), dir_fd=directory)
            except FileNotFoundError:
                return None
        session = PageSession(new_token(), new_token(), new_token())
        self._sessions.append(session)
        return session

    def knows(self, secret: bytes) -> bool:
        """Whether this is the secret of a session."""
        return any(hmac.compare_digest(each.secret.encode(), secret) for each in list(self._sessions))

    def proof(self, knock: bytes) -> str | None:
        """Return what the browser with this knock awaits of its server, or None if it is none of this one."""
        for session in list(self._sessions):
            if hmac.compare_digest(session.knock.encode(), knock):
                return session.proof
        return None

    def announce(self, address: str, root: str) -> None:
        """Note that this process serves the page there. Raises PageNotUsable."""
        process = processes.this_process()
        facts = {**process.to_json(), "address": address, "root": root}
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


def _code_file(code: str, process: Identity) -> str:
    """Return the name of the file of a code: a hash, so that reading the directory opens nothing."""
    of = json.dumps([code, process.to_json()])
    return _CODE + sha256(of.encode("utf-8", "replace")).hexdigest()


def _forget_old_codes(directory: int) -> None:
    for name in os.listdir(directory):
        with suppress(FileNotFoundError, IsADirectoryError):
            if not name.startswith(_SERVER):
                made = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime
                if time.time() - made > CODE_SECONDS:
                    os.unlink(name, dir_fd=directory)


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
        if process is None or not processes.is_alive(process):
            return None
        return PageServer(str(facts["address"]), str(facts["root"]), process)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
