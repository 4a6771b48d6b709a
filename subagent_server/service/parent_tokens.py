"""The tokens of the parents that come over HTTP: a file with a name and a token on each line.

The file is this user's alone. It is read again when it has changed, so a line that is added or removed counts
at once. Tokens are compared in constant time.
"""

import hmac
import os
import re
import stat
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from subagent_server.domain.errors import HostError, StorageFailed, shorten
from subagent_server.host import atomic, locks
from subagent_server.host.directory import Entry
from subagent_server.host.private_directory import beneath, open_private
from subagent_server.service.access import new_token

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


class ParentTokens:
    """Says whose a token is, by the file as it is now."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._seen: tuple[int, int, int] | None = None
        self._names: Mapping[bytes, str] = {}

    def parent_of(self, token: bytes) -> str | None:
        """Return the name of the parent whose token this is, or None. Looks at the file.

        Raises:
            TokensNotUsable.
        """
        seen = _signature(self.file)
        if seen != self._seen:
            names = {sha256(known.encode()).digest(): name for name, known in read_tokens(self.file).items()}
            self._names, self._seen = names, seen
        found, offered = None, sha256(token).digest()
        for known, name in self._names.items():  # all of them: the time says nothing of which one fits
            if hmac.compare_digest(known, offered):
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
        directory = open_private(str(file.parent))
    except OSError as error:
        raise _not_usable(file, error.strerror or str(error)) from error
    try:
        lock = locks.open_lock(Entry.at(Path(beneath(directory, _LOCK))))
        try:
            locks.lock(lock)
            return _kept_or_made(Path(beneath(directory, file.name)), file, parent)
        finally:
            os.close(lock)
    except OSError as error:
        raise _not_usable(file, error.strerror or str(error)) from error
    except StorageFailed as error:
        raise _not_usable(file, str(error.__cause__ or error)) from error
    finally:
        os.close(directory)


def _kept_or_made(path: Path, file: Path, parent: str) -> str:
    try:
        text = _content(path)
    except FileNotFoundError:
        text = _HEAD
    known = _parsed(text, file)
    if parent in known:
        return known[parent]
    token = new_token()
    line = "" if text.endswith("\n") else "\n"
    atomic.write_durably(Entry.at(path), f"{text}{line}{parent} {token}\n".encode())
    return token


def _content(file: Path) -> str:
    """Return the text of a file that is this user's alone. Raises OSError, TokensNotUsable."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as opened:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise _not_usable(file, "it is not a regular file")
        if facts.st_uid not in (os.getuid(), 0) or facts.st_mode & 0o077:
            raise _not_usable(file, "it is another user's, or others may read it; `chmod 600` it")
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _not_usable(file, f"it is larger than {MAX_BYTES >> 10} KiB")
    return data.decode("utf-8", "replace")


def _parsed(text: str, file: Path) -> dict[str, str]:
    tokens: dict[str, str] = {}
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
        if name in tokens or token in tokens.values():
            raise _not_usable(file, f"line {number} repeats a name or a token")
        tokens[name] = token
    if len(tokens) > MAX_PARENTS:
        raise _not_usable(file, f"it names more than {MAX_PARENTS} parents")
    return tokens


def _signature(file: Path) -> tuple[int, int, int] | None:
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_ctime_ns, facts.st_size


def _not_usable(file: Path, why: str) -> TokensNotUsable:
    return TokensNotUsable(
        f"The token file {shorten(str(file), 200)} cannot be used ({why}): mend that, then try again."
    )
