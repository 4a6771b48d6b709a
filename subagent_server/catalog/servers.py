"""The MCP servers of an agent, and the rules of the seed's validation table (SPEC section 8)."""

from collections.abc import Iterator
from typing import TypeAlias
from urllib.parse import urlsplit

from subagent_server.catalog.keys import canonical, fields_of
from subagent_server.catalog.parts import Draft, Reading, fill, validated
from subagent_server.catalog.values import Block, Value, WrongValue, as_names, is_null
from subagent_server.domain.definitions import ServerDefinition

_FIELDS = fields_of(ServerDefinition)
_OTHER_NAMES = {"local": "stdio", "remote": "http", "streamable-http": "http", "streamablehttp": "http"}
"""Types of a server as other tools write them."""
_OF_BOX = ("sandbox", "network", "sandbox_read", "sandbox_write")
_SECONDS = ("timeout", "call_timeout_seconds")
_Named: TypeAlias = "tuple[str, Value | None, int | None]"


def read_servers(value: Value, line: int | None, reading: Reading) -> dict[str, ServerDefinition]:
    """Return the servers of `mcpServers`: a mapping by name, a list of mappings, or names.

    A name alone refers to a server that is defined elsewhere: it is kept in `reading.named_servers`. A broken
    rule is a fault; a server that cannot be read at all is left out.
    """
    servers: dict[str, ServerDefinition] = {}
    for name, content, at in _named(value, line, reading):
        if at is not None:
            reading.lines.setdefault(f"mcpServers.{name}", at)
        if name in servers or name in reading.named_servers:
            reading.notes.fault(f"mcpServers.{name} is given twice, so say it once", at)
        elif content is None or is_null(content):
            reading.named_servers.append(name)
        elif isinstance(content, Block):
            servers[name] = _server(name, content, at, reading)
        else:
            reading.notes.fault(f"mcpServers.{name} must be a mapping of keys", at)
    return servers


def _named(value: Value, line: int | None, reading: Reading) -> Iterator[_Named]:
    if isinstance(value, Block):
        yield from ((name, item, value.lines.get(name, line)) for name, item in value.items())
        return
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, Block):
            yield from _listed(item, line, reading)
            continue
        try:
            yield from ((name, None, line) for name in as_names(item))
        except WrongValue as error:
            reading.notes.fault(f"mcpServers {error}", line)


def _listed(item: Block, line: int | None, reading: Reading) -> Iterator[_Named]:
    """Read one mapping of a list: `{github: {...}}`, or `{name: github, ...}`."""
    at = next(iter(item.lines.values()), line)
    name = item.get("name")
    if isinstance(name, str):
        content = Block()
        for key in (key for key in item if key != "name"):
            content.put(key, item[key], item.lines[key])
        yield name, content, at
    elif any(canonical(key) in _FIELDS for key in item):
        reading.notes.fault("a server in the list of mcpServers has no name", at)
    else:
        yield from ((key, content, item.lines[key]) for key, content in item.items())


def _server(name: str, block: Block, line: int | None, reading: Reading) -> ServerDefinition:
    draft = Draft(f"mcpServers.{name}")
    fill(draft, block, _FIELDS, reading)
    given = draft.values.get("type")
    if isinstance(given, str):
        draft.values["type"] = _OTHER_NAMES.get(given, given)
    kind = draft.values.get("type")
    if kind is None and "command" not in draft.values:
        url = "url" in draft.values
        rule = "needs a type, http or sse, with its url" if url else "needs a command, or a type and a url"
        reading.notes.fault(f"{draft.where} {rule}", line)
        return validated(ServerDefinition, draft, reading.notes, line)
    server = validated(ServerDefinition, draft, reading.notes, line)
    if "type" in draft.values or kind is None:
        for field, rule in _broken_rules(server, draft.values):
            reading.notes.fault(f"{draft.name(field)} {rule}", draft.lines.get(field, line))
        _warn_of_idle_keys(server, draft, reading)
    defaults = {name: ServerDefinition.model_fields[name].default for name in _SECONDS}
    zeros = {name: default for name, default in defaults.items() if getattr(server, name) == 0}
    return server.model_copy(update=zeros) if zeros else server


def _broken_rules(server: ServerDefinition, given: dict[str, object]) -> Iterator[tuple[str, str]]:
    if server.type == "stdio":
        yield from _broken_stdio_rules(server)
    else:
        yield from _broken_network_rules(server, given)
    for field in ("enabled_tools", "disabled_tools"):
        if given.get(field) == []:
            yield field, "must name at least one tool, or be left out"
    if server.enabled_tools is not None and server.disabled_tools is not None:
        yield "disabled_tools", "cannot stand beside enabledTools: keep one of the two"


def _broken_stdio_rules(server: ServerDefinition) -> Iterator[tuple[str, str]]:
    if not (server.command or "").strip():
        yield "command", "is missing, and a stdio server is started by one"
    if server.url:
        yield "url", "is for http and sse, and this is a stdio server"
    if server.headers:
        yield "headers", "are for http and sse, and this is a stdio server"
    if server.sandbox is False and (server.network is False or server.sandbox_read or server.sandbox_write):
        yield (
            "sandbox",
            "cannot be false beside network, sandboxRead or sandboxWrite, which are those of its box",
        )


def _broken_network_rules(server: ServerDefinition, given: dict[str, object]) -> Iterator[tuple[str, str]]:
    if not server.url:
        yield "url", f"is missing, and {server.type} needs one"
    elif not is_http_url(server.url):
        yield "url", "must begin with http:// or https:// and name a host"
    for field in _OF_BOX:
        if given.get(field) is not None:
            yield field, f"is for stdio, and this is a server by {server.type}"
    if server.env:
        yield "env", f"is for stdio, and this is a server by {server.type}: use headers"


def _warn_of_idle_keys(server: ServerDefinition, draft: Draft, reading: Reading) -> None:
    for field in ("command", "args"):
        if server.type != "stdio" and field in draft.values:
            reading.notes.warn(f"{draft.name(field)} is not used by {server.type}", draft.lines.get(field))


def is_http_url(text: str) -> bool:
    """Whether `text` is a URL of HTTP with a host; one that begins with `${VAR}` may become one."""
    if text.startswith("${"):
        return True
    try:
        parts = urlsplit(text)
        _ = parts.port  # read only to be checked
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc) and not any(c.isspace() for c in text)
