"""Who may open the page: a browser that came with a one-time code, which only this user can make.

`subagent page` writes a code into a directory of this user alone and opens the page with the code in the
fragment of the address, which reaches neither a server nor a log. The page sends the code to the server for a
session. A server writes into the directory where it listens, and by which process. A code is for that process
alone: another one that has taken the port can do nothing with it, there or elsewhere.

Sessions live in the memory of the server and end with it, so their secrets are useless to whoever takes
the port afterwards. Before a page sends anything again to a server that it has lost, the server has to answer
the session's `knock` with the session's `proof`, which only the process that made the session can.
"""

import hmac
import json
import os
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from subagent_server.run import durable, locks, processes
from subagent_server.run.errors import HostError, StorageFailed, shorten
from subagent_server.run.files import PrivateDirectory, read_plain
from subagent_server.run.processes import Identity
from subagent_server.verbs.access import new_token

CODE_SECONDS = 300
"""How long a code can be used, once."""
MAX_SESSIONS = 64
"""How many browsers a server knows; the oldest is forgotten."""
MAX_SERVERS = 256
_RECORD_BYTES = 8 << 10
_CODE, _NEW, _SERVER = "code-", "new-", "server-"


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
    """The codes and the servers, in `directory`, and the browsers that this process knows.

    Raises:
        PageNotUsable: there is no directory.
    """

    def __init__(self, directory: Path | None) -> None:
        if directory is None:
            raise PageNotUsable("HOME names no directory for the codes of the page: set it.")
        self._path = directory
        self._sessions: deque[PageSession] = deque(maxlen=MAX_SESSIONS)

    def new_code(self, server: PageServer) -> str:
        """Return a code that opens the page of a server once, within 5 minutes. Raises PageNotUsable."""
        code = new_token()
        with self._open() as directory:
            _forget_old_codes(directory)
            directory.entry(_code_file(code, server.process)).touch()
        return code

    def redeem(self, code: str) -> PageSession | None:
        """Return a new session for a code, or None if it is wrong, used, too old or of another server.

        Raises:
            PageNotUsable.
        """
        with self._open() as directory:
            _forget_old_codes(directory)
            try:
                # if two use it at once, one gets it
                os.unlink(_code_file(code, processes.this_process()), dir_fd=directory.descriptor)
            except FileNotFoundError:
                return None
        session = PageSession(new_token(), new_token(), new_token())
        self._sessions.append(session)
        return session

    def knows(self, secret: bytes) -> bool:
        """Whether this is the secret of a session."""
        return any(hmac.compare_digest(each.secret.encode(), secret) for each in list(self._sessions))

    def proof(self, knock: bytes) -> str | None:
        """Return what the browser with this knock awaits of its server, or None if no session here has it."""
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
                    directory.entry(name).unlink()
            new = directory.entry(f"{_NEW}{process.pid}")  # half a file looks like that of a server gone
            new.write(json.dumps(facts).encode())
            new.rename(directory.entry(f"{_SERVER}{process.pid}"))

    def servers(self) -> list[PageServer]:
        """Return the servers that live. Raises PageNotUsable."""
        with self._open() as directory:
            found = [_server(directory, name) for name in _records(directory)]
        return [server for server in found if server is not None]

    @contextmanager
    def _open(self) -> Iterator[PrivateDirectory]:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            yield PrivateDirectory(self._path)
        except OSError as error:
            path, why = shorten(str(self._path), 200), error.strerror or error
            raise PageNotUsable(f"{path} cannot be used ({why}): fix that, then try again.") from error


def _code_file(code: str, process: Identity) -> str:
    """Return the name of the file of a code: a hash, so that reading the directory opens nothing."""
    of = json.dumps([code, process.to_json()])
    return _CODE + sha256(of.encode("utf-8", "replace")).hexdigest()


def _forget_old_codes(directory: PrivateDirectory) -> None:
    for name in directory.names():
        with suppress(FileNotFoundError, IsADirectoryError):
            if not name.startswith(_SERVER):
                made = directory.stat(name).st_mtime
                if time.time() - made > CODE_SECONDS:
                    directory.entry(name).unlink()


def _records(directory: PrivateDirectory) -> list[str]:
    return [name for name in directory.names() if name.startswith(_SERVER)][:MAX_SERVERS]


def _server(directory: PrivateDirectory, name: str) -> PageServer | None:
    """Return the server of a record, or None if it has gone."""
    try:
        facts = json.loads(directory.entry(name).read(_RECORD_BYTES))
        process = Identity.from_json(facts)
        if process is None or not processes.is_alive(process):
            return None
        return PageServer(str(facts["address"]), str(facts["root"]), process)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


# -- The tokens of the parents that come over HTTP: a file with a name and a token on each line.
#
# The file is this user's alone. It is read for each request, so a line that is added or removed counts at
# once. Tokens are compared in constant time.


DEFAULT_PARENT = "default"
"""The parent of a line with a token alone, and of the token that the first start makes."""
LEAST_CHARACTERS = 16
MAX_BYTES = 64 << 10
MAX_PARENTS = 256
_LOCK = "http-tokens.lock"
_HEAD = (
    "# The parents that may come over HTTP, each with its token. A running server reads changes at once.\n"
)
_LINE = re.compile(r"(?:(?P<name>[\w.@-]{1,64})[ \t]+)?(?P<token>[A-Za-z0-9._~+/=-]+)", re.ASCII)


class TokensNotUsable(HostError):
    """The file of tokens cannot be used."""

    code = "tokens_not_usable"


def parent_by_token(file: Path, token: bytes) -> str | None:
    """Return the name of the parent whose token this is, by the file as it is now, or None.

    Raises:
        TokensNotUsable.
    """
    found, digest = None, sha256(token).digest()
    for name, known in read_tokens(file).items():  # all: the time must not show which one fits
        if hmac.compare_digest(sha256(known.encode()).digest(), digest):
            found = name
    return found


def read_tokens(file: Path) -> dict[str, str]:
    """Return the tokens of a file by the names of their parents.

    Raises:
        TokensNotUsable.
    """
    try:
        return _parsed(_content(file), file)
    except OSError as error:
        raise _not_usable(file, error.strerror or str(error)) from error


def token_of(file: Path | None, parent: str) -> str:
    """Return the token of a parent, made together with the file if it is not there.

    Raises:
        TokensNotUsable.
    """
    if file is None:
        raise TokensNotUsable("No token can be kept, because HOME names no directory: set it.")
    try:
        file.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = PrivateDirectory(file.parent)
        with locks.exclusive(directory.entry(_LOCK)):
            return _kept_or_made(directory, file, parent)
    except OSError as error:
        raise _not_usable(file, error.strerror or str(error)) from error
    except StorageFailed as error:
        raise _not_usable(file, str(error.__cause__ or error)) from error


def _kept_or_made(directory: PrivateDirectory, file: Path, parent: str) -> str:
    try:
        text = _content(Path(directory.address(file.name)))
    except FileNotFoundError:
        text = _HEAD
    known = _parsed(text, file)
    if parent in known:
        return known[parent]
    token = new_token()
    line = "" if text.endswith("\n") else "\n"
    durable.write_durably(directory.entry(file.name), f"{text}{line}{parent} {token}\n".encode())
    return token


def _content(file: Path) -> str:
    """Return the text of a file that is this user's alone. Raises OSError, TokensNotUsable."""
    data, facts = read_plain(file, MAX_BYTES)
    if facts.st_uid not in (os.getuid(), 0) or facts.st_mode & 0o077:
        raise _not_usable(file, "it is another user's, or others may read it; `chmod 600` it")
    return data.decode("utf-8", "replace")


def _parsed(text: str, file: Path) -> dict[str, str]:
    tokens: dict[str, str] = {}
    taken: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        found = _LINE.fullmatch(words)
        if found is None:
            raise _not_usable(file, f"line {number} is not a name and a token, with a blank between them")
        name, token = found["name"] or DEFAULT_PARENT, found["token"]
        if len(token) < LEAST_CHARACTERS:
            raise _not_usable(file, f"line {number}: the token has fewer than {LEAST_CHARACTERS} characters")
        if name in tokens or token in taken:
            raise _not_usable(file, f"line {number} repeats a name or a token")
        tokens[name] = token
        taken.add(token)
    if len(tokens) > MAX_PARENTS:
        raise _not_usable(file, f"it names more than {MAX_PARENTS} parents")
    return tokens


def _not_usable(file: Path, why: str) -> TokensNotUsable:
    return TokensNotUsable(
        f"The token file {shorten(str(file), 200)} cannot be used ({why}): fix that, then try again."
    )
