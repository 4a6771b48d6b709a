"""Names of servers, tools and arguments as names of a Python program. Pure.

The world's names are in any script and of any length. One that Python or a program already uses gets an
underscore at its end.
"""

import builtins
import keyword
import re
import sys
import unicodedata
from collections.abc import Collection
from hashlib import sha256

from subagent_server.domain.code_mode import CODE_TOOL_NAME

TOOL_NAME = CODE_TOOL_NAME
"""The tool that runs a program. In code mode no MCP tool may have this name."""
PROGRAM_NAMES = frozenset({"Text", "ToolError", "ask_parent", "gather", "help", "run", "search_tools"})
"""The names that every program has, besides those of its tools."""
STUB_NAMES = frozenset(
    {"Any", "Literal", "NotRequired", "Text", "TypedDict"}
    | {"bool", "dict", "float", "int", "list", "str", "tuple"}
)
"""The names that stubs use, so nothing in a stub may be called so."""
RESERVED = PROGRAM_NAMES | STUB_NAMES | {TOOL_NAME, *dir(builtins), *keyword.kwlist, *sys.stdlib_module_names}
"""The names that mean something else in a program, so no tool is offered under them without its namespace."""

_LONGEST = 64
_DIGEST = 8


def python_name(name: str, otherwise: str, taken: Collection[str] = ()) -> str:
    """Return a Python name that reads like `name`; `otherwise` begins the name if nothing readable is left.

    A name that is a keyword, or among `taken`, gets an underscore at its end, and a digest if need be.
    """
    normal = unicodedata.normalize("NFKC", name[: 4 * _LONGEST])
    plain = normal
    if not normal.isidentifier():
        plain = "".join(c if f"_{c}".isidentifier() else "_" for c in normal).rstrip("_")
    plain = re.sub(r"^_+", "_", plain) or "_"
    if not any(c.isalnum() for c in plain):
        plain = f"{otherwise}_{_digest(name)}"
    if not plain.isidentifier():
        plain = f"_{plain}"
    if len(plain) > _LONGEST:
        plain = f"{plain[: _LONGEST - _DIGEST - 1]}_{_digest(name)}"
    free, tries = plain, 0
    while keyword.iskeyword(free) or free in taken:
        free = f"{plain}_{_digest(name) if tries else ''}{'_' * (tries - 1)}"
        tries += 1
    return free


def type_name(*words: str) -> str:
    """Return the words as one name in the form of a class; in a program it hides no other."""
    parts = (part for word in words for part in re.split(r"[\W_]+", python_name(word, "Type")) if part)
    return python_name("".join(part[:1].upper() + part[1:] for part in parts), "Type", RESERVED)


def _digest(name: str) -> str:
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
