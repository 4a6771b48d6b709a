"""Secrets of a run: they may pass through its tools and never stay in its directory (SPEC section 13).

A secret is recognised by its value if the process knows the value, and always by the shape of tokens and by
the words before a credential (`://user:...@`, `Authorization: ...`, `DB_PASS=...`). A variable holds a secret
if its name marks one, or if its value looks like one, whatever its name.
"""

import base64
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from subagent_server.run.durable import with_texts

MASK = "***"
SHORTEST = 12
"""A shorter value would mask words that only happen to be the same: unless chance made it, see `is_mixed`."""
_SHORTEST_MIXED = 8
LONGEST_TOKEN = 8 * 1024
"""No token of a known shape is longer, so a stream has to hold back no more than this."""

_SHAPES = (
    r"sk-(?<!\wsk-)[\w-]{6,}+|gh[opusr]_(?<!\wgh._)\w{6,}+|github_pat_(?<!\wgithub_pat_)\w{6,}+"
    r"|sk_live_\w{8,}+|rk_live_\w{8,}+|ya29\.(?<!\wya29.)[\w-]{20,}+|GOCSPX-[\w-]{12,}+"
    r"|glpat-(?<!\wglpat-)[\w-]{6,}+|xox(?<!\wxox)[a-z]-[\w-]{6,}+"
    r"|A(?:KIA|SIA)(?<!\wA.IA)[0-9A-Z]{12,}+|AIza(?<!\wAIza)[\w-]{20,}+"
    r"|hf_(?<!\whf_)\w{12,}+|npm_(?<!\wnpm_)\w{12,}+|pypi-(?<!\wpypi-)[\w-]{12,}+"
    r"|eyJ(?<![\w-]eyJ)[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?>(?:[\w+/=:,.\\\s]++|-(?!----))*)(?:-----END [A-Z ]*+-----)?"
)
"""No part gives back what it took (`+` behind a quantifier), so the time is linear whatever the text. Each
begins with letters and then looks whether a word begins there: that is quicker to search for. A group is
atomic, `(?>...)`: possessive ones match too little before Python 3.11.5 (cpython issue 106052)."""
TOKENS = re.compile(_SHAPES, re.ASCII)
"""What has the shape of a token. A name such as `npm_config_registry` has it too: see `_masked`."""
_MARK_OF_CHANCE = re.compile(r"[0-9A-Z]")

_NOT_IN_ADDRESS = r"""\s/?#@"'`<>\\"""
_ENCODED = r"[\w+/=.~-]{8,}+"
_ASSIGNED = r"""[^\s"'`$(){}<>,;&|\\]{8,}+"""
_IN_CONTEXT = (
    rf"://(?P<user>[^:{_NOT_IN_ADDRESS}]{{0,256}}+)"
    rf"(?::(?P<password>(?>(?:[^{_NOT_IN_ADDRESS}]{{0,4096}}+@)+))|@)",
    r"""(?:authorization|Authorization|AUTHORIZATION)["']?[ \t]{0,4}[:=][ \t]{0,4}["']?"""
    rf"(?>(?:[A-Za-z-]{{3,16}}[ \t]{{1,4}})?)(?P<authorization>{_ENCODED})"
    rf"|(?:basic|Basic|BASIC)(?<!\w.{{5}})[ \t]{{1,4}}(?P<basic>{_ENCODED})"
    rf"|(?:bearer|Bearer|BEARER)(?<!\w.{{6}})[ \t]{{1,4}}(?P<bearer>{_ENCODED})",
    r"(?:PASS(?:WORD|WD|PHRASE)?|SECRET|TOKEN|KEY|CREDENTIALS?|AUTH|PWD|PW|_authToken|_auth|_password)="
    rf"""["']?(?P<assigned>{_ASSIGNED})""",
    r"""(?:password|Password|passwd|secret|api_key|apiKey|token)["']?[ \t]{0,4}[:=][ \t]{0,4}"""
    rf"""["'](?P<quoted>{_ASSIGNED})["']""",
)
"""Credentials that are known by the words before them. The text of a named group may be one."""
_CONTEXTS = [re.compile(shape, re.ASCII) for shape in _IN_CONTEXT]
_BEFORE = re.compile(
    rb"""(?:authorization["']?[ \t]{0,4}[:=]?[ \t]{0,4}["']?(?:[a-z-]{3,16})?|basic|bearer"""
    rb"""|(?:password|passwd|secret|api_?key|token)["']?[ \t]{0,4}[:=]?)[ \t]{1,4}\Z""",
    re.IGNORECASE,
)
"""The words after which a credential may follow behind white space: a stream is not cut there."""
_MOST_BEFORE = 64
_REFERENCE = re.compile(r"\$\{[^}]*\}|\$[A-Z_][A-Z0-9_]*|\{+[\w.]+\}+|%s|%\(\w+\)s|\*+")
"""A reference to a password elsewhere: `${VAR}`, `{password}`, `%s`."""
_NO_SPACE = bytes(sorted(set(range(256)) - set(b" \t\n\r\x0b\x0c")))

_SECRET_NAME = re.compile(
    r"token|secret|passw|passphrase|credential|authori[sz]ation|api_?key|private_?key", re.I
)
_SECRET_WORDS = frozenset(
    {"auth", "bearer", "cookie", "dsn", "jwt", "key", "pass", "pat", "pw", "pwd", "sig", "signature"}
)
_SECRET_ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASS")
_HARMLESS_ENDINGS = frozenset(
    {"count", "dir", "env", "file", "helper", "host", "id", "length", "limit", "method", "mode", "name"}
    | {"path", "port", "size", "sock", "socket", "timeout", "ttl", "type", "url", "user", "version"}
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_DIRECTORIES = frozenset({"PWD", "OLDPWD"})
_HEX = re.compile(r"[0-9a-fA-F-]{28,}")
_ENCODED_VALUE = re.compile(r"[\w+/=.~-]{20,}", re.ASCII)
_PATH = re.compile(r"(~|\.{0,2})/\S*")
_IN_TOKENS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_KEY_BEGINS, _KEY_ENDS = b"-----BEGIN ", b"-----END "
_BASE64 = re.compile(r"[A-Za-z0-9+/]{1024,}={0,2}")
_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")


def secret_values(environment: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that hold secrets: by their names, by their looks, or because `also` names them.

    Of an address with a password (`DATABASE_URL`) the value is the password alone, if it is long enough.
    """
    named, found = set(also), dict[str, str]()
    for name, value in environment.items():
        password = next(_passwords(value), None)
        if name in named and len(value.strip()) >= SHORTEST:
            found[name] = value
        elif password is not None:
            found |= {name: password} if _is_long_enough(password) else {}
        elif _is_secret_variable(name, value.strip()):
            found[name] = value
    return found


def _is_secret_variable(name: str, value: str) -> bool:
    # each name in a path was made up on its own; a key may begin with "/" or contain it
    parts = [value.replace("/", "-")] if is_secret_name(name) else value.split("/")
    if name in _DIRECTORIES or (_PATH.fullmatch(value) and not any(map(looks_random, parts))):
        return False
    if is_secret_name(name):
        return _is_long_enough(value)
    if not _ENCODED_VALUE.fullmatch(value) or _words(name)[-1:] in (["id"], ["sha"], ["ref"]):
        return False
    # three kinds of characters: names of commits, traces and containers have two
    kinds = (value != value.lower(), value != value.upper(), any(map(str.isdigit, value)))
    return all(kinds) and looks_random(value) and _entropy(value) > _RANDOM_BITS


def _is_long_enough(value: str) -> bool:
    return len(value) >= SHORTEST or (len(value) >= _SHORTEST_MIXED and is_mixed(value))


def _passwords(address: str) -> Iterator[str]:
    """Yield the password in an address, as it is written there."""
    for match in _CONTEXTS[0].finditer(address):
        if (password := (match["password"] or "")[:-1]) and not _REFERENCE.fullmatch(password):
            yield password


def is_secret_name(name: str) -> bool:
    """Whether a variable, header, flag or key of this name holds a secret: `GH_TOKEN`, `--api-key`."""
    words = _words(name)
    if words and words[-1] in _HARMLESS_ENDINGS:
        return False
    is_named = _SECRET_NAME.search("_".join(words)) or _SECRET_WORDS.intersection(words)
    return bool(is_named) or (name == name.upper() and name.endswith(_SECRET_ENDINGS))


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def is_mixed(value: str) -> bool:
    """Whether a value has both letters and digits, as few words have that somebody made up."""
    return any(map(str.isdigit, value)) and any(map(str.isalpha, value))


def looks_random(run: str) -> bool:
    """Whether a run of letters and digits is more likely a key than a name that somebody made up."""
    if not is_mixed(run):
        return False
    if _HEX.fullmatch(run) or any(len(part) >= 20 and is_mixed(part) for part in re.split(r"[-_=+]", run)):
        return True
    has_both_cases = run != run.lower() and run != run.upper()
    return has_both_cases and len(run) >= 24 and _entropy(run) > _RANDOM_BITS


_RANDOM_BITS = 4
"""From 20 characters on, random text has more bits per character than this."""


def _entropy(text: str) -> float:
    """Return bits per character."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


def collector_secrets(environment: Mapping[str, str]) -> list[str]:
    """Return the headers that collectors ask for, `name=value,...`, and each value: keys are among them."""
    lists = [value for name in _HEADERS if (value := environment.get(name, ""))]
    values = [entry.partition("=")[2].strip() for value in lists for entry in value.split(",")]
    every = [*lists, *values, *map(unquote, values)]
    return [secret for secret in every if len(secret) >= SHORTEST]


class Masker:
    """Replaces secrets by `***`, in texts, in JSON data, and in a stream of bytes: `values`, and all tokens.

    White space around a value is no part of the secret: a variable that was read from a file may end with a
    line break, which an error quotes as `\\n`.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        stripped = {value.strip() for value in values} - {""}
        self._values = sorted(stripped, key=len, reverse=True)
        self._bytes = [value.encode("utf-8", "surrogateescape") for value in self._values]
        self._carry = max((len(value) for value in self._bytes), default=1) - 1

    @property
    def values(self) -> list[str]:
        """The secrets that are known by value, the longest first."""
        return list(self._values)

    def text(self, text: str) -> str:
        """Return `text` without the secrets."""
        for value in self._values:
            text = text.replace(value, MASK)
        masked = without_shapes(text)
        return text if masked != text and _BASE64.fullmatch(text) else masked

    def data(self, data: Any) -> Any:
        """Return JSON data whose texts and keys are without the secrets."""
        return with_texts(data, self.text)

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message of a conversation without the secrets.

        A thought that held one is left out: the API takes thoughts back only as they came.
        """
        masked: dict[str, Any] = self.data(message)
        content = message.get("content")
        if isinstance(content, list):
            masked["content"] = [
                new
                for old, new in zip(content, masked["content"], strict=True)
                if new == old or not _is_signed(old)
            ]
        return masked

    def stream(self, pending: bytes, *, last: bool = False) -> tuple[bytes, bytes]:
        """Return the part of `pending` that may be written, masked, and the rest, which has to wait."""
        for value in self._bytes:
            pending = pending.replace(value, MASK.encode())
        end = len(pending) if last else self.settled(pending, max(0, len(pending) - self._carry))
        ready = without_shapes(pending[:end].decode("latin-1"))  # every byte is a character of its own
        return ready.encode("latin-1"), pending[end:]

    @staticmethod
    def settled(pending: bytes, end: int) -> int:
        """Return where `pending` can be cut, at `end` or before it, so that no token is cut in two."""
        end = _after_space(pending, end)
        least = max(0, end - LONGEST_TOKEN)
        begins = pending.rfind(_KEY_BEGINS, least, end)
        if begins >= 0 and not _has_key_end(pending, begins, end):
            return begins
        word = least + len(pending[least:end].rstrip(_IN_TOKENS))
        begins = pending.rfind(_KEY_BEGINS, least, word)
        if begins >= 0 and not _has_key_end(pending, begins, word):  # the end of a key looks like a word
            return begins
        if word > least or least == 0:
            return word
        end -= _RECOGNIZED  # no token has so many letters: but one may begin or end among them
        tokens = TOKENS.finditer(pending.decode("latin-1"), least)
        return next((max(least, token.start()) for token in tokens if token.start() < end < token.end()), end)


_RECOGNIZED = 64
"""By so many letters every token is recognized, a JWT apart, which is never in the middle of a word."""


def without_shapes(text: str) -> str:
    """Return `text` without what looks like a credential by itself or by the words before it."""
    masked = TOKENS.sub(_masked, text)
    for context in _CONTEXTS:
        masked = context.sub(_masked_in_context, masked)
    return masked


def _after_space(pending: bytes, end: int) -> int:
    """Return the last position up to `end` behind white space, where no credential follows the words before.

    In a text without white space `end` stays: no credential is so long.
    """
    least, cut = max(0, end - LONGEST_TOKEN), end
    while cut > least:
        cut = least + len(pending[least:cut].rstrip(_NO_SPACE))
        before = _BEFORE.search(pending, max(least, cut - _MOST_BEFORE), cut)
        if before is None or cut <= least:
            break
        cut = before.start()
    return end if cut <= least and least > 0 else cut


def _masked_in_context(match: re.Match[str]) -> str:
    """Mask the credential in the last group of `match`, if it is one."""
    name = match.lastgroup or ""
    value, start = match[name], match.start(name) - match.start()
    if name == "password":
        value = value[:-1]
    if not _CREDENTIAL[name](value):
        return match[0]
    return match[0][:start] + MASK + match[0][start + len(value) :]


def _is_encoded_pair(value: str) -> bool:
    """Whether a value is `user:password` in Base64."""
    try:
        pair = base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except ValueError:
        return False
    return b":" in pair and pair.isascii() and pair.decode("ascii").isprintable()


_CREDENTIAL: Mapping[str, Callable[[str], bool]] = {
    "user": lambda value: len(value) >= 20 and is_mixed(value),
    "password": lambda value: bool(value) and not _REFERENCE.fullmatch(value),
    "authorization": is_mixed,
    "basic": lambda value: is_mixed(value) and (_is_encoded_pair(value) or looks_random(value)),
    "bearer": is_mixed,
    "assigned": lambda value: is_mixed(value) and not _PATH.fullmatch(value) and "://" not in value,
    "quoted": lambda value: is_mixed(value) and not _PATH.fullmatch(value) and "://" not in value,
}
"""Whether the text of such a group is a credential; else it is a word of a text about credentials."""


def _masked(match: re.Match[str]) -> str:
    """Mask what has a digit or a capital letter: made by chance, and no name that somebody gave."""
    return MASK if _MARK_OF_CHANCE.search(match[0]) else match[0]


def _has_key_end(pending: bytes, begins: int, end: int) -> bool:
    ends = pending.find(_KEY_ENDS, begins, end)
    return ends >= 0 and pending.find(b"-----", ends + len(_KEY_ENDS), end) >= 0


def _is_signed(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in ("thinking", "redacted_thinking")
