"""Names and words of servers as text of a Python program. Pure.

The world's names are in any script and of any length. One that Python or a program already uses gets an
underscore at its end.
"""

import builtins
import json
import keyword
import re
import sys
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from textwrap import indent
from typing import Any

from subagent_server.run.agent_definition import CODE_TOOL_NAME, AgentDefinition
from subagent_server.run.errors import RunRefused, shorten, visible
from subagent_server.run.states import cut

PROGRAM_NAMES = frozenset({"Text", "ToolError", "ask_parent", "gather", "help", "run", "search_tools"})
"""The names that every program has, besides those of its tools."""
MODULE_NAMES = frozenset({"RunFailed", "agents", "ask", "log", "merge", "now", "phase", "random"})
"""The names that the module `subagent` has besides: they would hide a server of the same name."""
STUB_NAMES = frozenset(
    {"Any", "Literal", "NotRequired", "Text", "TypeAlias", "TypedDict"}
    | {"bool", "dict", "float", "int", "list", "str", "tuple"}
)
"""The names that stubs use, so nothing in a stub may be called so."""
RESERVED = (
    PROGRAM_NAMES | STUB_NAMES | {CODE_TOOL_NAME, *dir(builtins), *keyword.kwlist, *sys.stdlib_module_names}
)
"""The names that mean something else in a program, so no tool has one without its namespace."""

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


def function_name(agent: AgentDefinition) -> str:
    """Return the name of an agent as a function of programs."""
    return python_name(agent.tool_name.removeprefix("run_"), "agent")


def namespaces_of(servers: Iterable[str]) -> dict[str, str]:
    """Return the namespace of each server. Raises RunRefused: two would have the same."""
    by_namespace: dict[str, str] = {}
    for server in dict.fromkeys(servers):
        namespace = python_name(server, "server", RESERVED | MODULE_NAMES)
        other = by_namespace.setdefault(namespace, server)
        if other != server:
            raise RunRefused(
                "config",
                f"In code mode the servers {shorten(other)} and {shorten(server)} both become {namespace}.",
                "Rename one of them in mcpServers.",
            )
    return {server: namespace for namespace, server in by_namespace.items()}


def refusals(agent: AgentDefinition) -> Iterator[str]:
    """Yield why a start would refuse an agent in code mode for the names of its servers.

    Where it names tools, only their list shows whether two such servers have functions.
    """
    code_mode = agent.enabled_code_mode
    if agent.tools is not None or agent.disallowed_tools or code_mode is None or code_mode.excluded_tools:
        return
    try:
        namespaces_of(agent.mcp_servers)
    except RunRefused as error:
        yield f"{error} {error.hint}"


def type_name(*words: str) -> str:
    """Return the words as one name in the form of a class; in a program it hides no other."""
    parts = (part for word in words for part in re.split(r"[\W_]+", python_name(word, "Type")) if part)
    return python_name("".join(part[:1].upper() + part[1:] for part in parts), "Type", RESERVED)


def _digest(name: str) -> str:
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]


# -- words, which a comment or docstring cannot break out of


MAX_COMMENT_CHARACTERS = 2_000
MAX_DOCSTRING_CHARACTERS = 10_000
_MAX_DEFAULT_CHARACTERS = 200
_FACTS = (
    *("format", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum"),
    *("exclusiveMaximum", "multipleOf", "minItems", "maxItems"),
)
"""Keywords that no type expresses and that a caller should know."""


def as_comment(words: Iterable[str]) -> str:
    """Return the words as a comment at the end of a line, or nothing if there are none."""
    text = "; ".join(filter(None, (" ".join(cut(each, MAX_COMMENT_CHARACTERS).split()) for each in words)))
    if re.match(r"type\s*:", text):  # type checkers would read it as code
        text = f"({text})"
    return f"  # {visible(text)}" if text else ""


def as_docstring(text: str) -> str:
    """Return the body of a function: a docstring of `text`."""
    lines = [line.rstrip() for line in cut(text, MAX_DOCSTRING_CHARACTERS).strip().splitlines()]
    if not any(lines):
        return "    ...\n"
    plain = indent("\n".join(lines), "    ").lstrip().replace("\\", "\\\\")
    if plain.endswith('"'):  # first, or the last of three would be escaped twice
        plain = f'{plain[:-1]}\\"'
    plain = plain.replace('"""', '\\"\\"\\"')
    return f'    """{visible(plain, chr(10))}"""\n'


def facts_of(schema: Mapping[str, Any]) -> list[str]:
    """Return the description of a value and the bounds that its type does not express."""
    described = [str(schema.get("description") or "")]
    described += [f"{key} {_json(schema[key])}" for key in _FACTS if key in schema]
    items = schema.get("items")
    if isinstance(items, dict) and (inner := "; ".join(filter(None, facts_of(items)))):
        described.append(f"each: {inner}")
    choice = schema.get("anyOf")
    branches = [each for each in choice if isinstance(each, dict)] if isinstance(choice, list) else []
    if len(bounded := [each for each in branches if each.get("type") != "null"]) == 1:
        described += facts_of(bounded[0])
    return described


def default_of(schema: Mapping[str, Any]) -> list[str]:
    """Return the default of a value in words, if it has one."""
    return [f"default {_json(schema['default'])}"] if schema.get("default") is not None else []


def _json(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return cut(text, _MAX_DEFAULT_CHARACTERS)
