"""A configuration of git as a box may show it: without the credentials that people and CI leave in it."""

import re
from pathlib import Path

from subagent_server.domain.secrets import is_secret_name, without_shapes

_LARGEST = 1 << 20
_SETTING = re.compile(r"(\s*(?:\[[^\]\n]*\]\s*)?)([A-Za-z][\w-]*)(\s*=\s*)(.*)", re.DOTALL)
_ALWAYS = frozenset({"extraheader", "smtppass", "sslkeypassword"})


def config_without_credentials(path: Path) -> bytes | None:
    """Return the file without its credentials, for a box; None if there is nothing to hide in it.

    Passwords in addresses become `***`; a header, and a setting whose name says that it is a secret, is left
    out. What is larger than 1 MiB is hidden whole.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        return b""
    text = content.decode("utf-8", "surrogateescape")
    shown = without_shapes("".join(map(_shown, _logical_lines(text))))
    return None if shown == text else shown.encode("utf-8", "surrogateescape")


def _logical_lines(text: str) -> list[str]:
    """Return the lines, each with those that a backslash at its end joins to it."""
    return re.findall(r"(?:[^\n\\]|\\\n|\\[^\n])*+(?:\n|\\?\Z)", text)


def _shown(line: str) -> str:
    setting = _SETTING.fullmatch(line)
    if setting is None:
        return line
    name = setting[2]
    return setting[1].rstrip("\n") + "\n" if name.lower() in _ALWAYS or is_secret_name(name) else line
