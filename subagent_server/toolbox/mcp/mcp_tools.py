"""A tool of an MCP server, as the loop sees it."""

import asyncio
import base64
import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)
from mcp_types import Tool as ListedTool

from subagent_server.run.agent_definition import ServerDefinition
from subagent_server.run.durable import with_texts
from subagent_server.run.errors import BadArgument, RunRefused, choices, shorten
from subagent_server.run.images import media_type
from subagent_server.sandbox.file_watch import watching
from subagent_server.toolbox.editor import image_block
from subagent_server.toolbox.mcp.input_schemas import free_name, input_schema
from subagent_server.toolbox.mcp.server_connection import (
    CallAnswer,
    NoBox,
    ServerConnection,
    ServerContext,
    ServerTrouble,
)
from subagent_server.toolbox.outputs import KeptOutputs
from subagent_server.toolbox.tool import Tool, ToolResult
from subagent_server.toolbox.workspace import entered_off_loop

# -- The result of an MCP tool in the best form that the Messages API takes (SPEC section 8).
#
# Text, images and PDF go to the model as such. Content that it cannot see (audio, other files, images that
# the API refuses) is kept in a file of the run, and a line names the file.


Block = dict[str, Any]


def converted(result: CallToolResult, attachments: KeptOutputs) -> ToolResult:
    """Return a result in the form of the Messages API, which takes only text in an error."""
    blocks = [block for content in result.content for block in _blocks(content, attachments)]
    plain = [content.text for content in result.content if isinstance(content, TextContent)]
    if result.structured_content is not None and not _says(plain, result.structured_content):
        blocks.append(_text(json.dumps(result.structured_content, ensure_ascii=False)))
    blocks = [block for block in blocks if block["type"] != "text" or block["text"].strip()]
    if not result.is_error:
        return ToolResult(blocks)
    texts = [block if block["type"] == "text" else _text(f"[{block['type']}]") for block in blocks]
    return ToolResult(texts or [_text("The tool failed and did not say why.")], is_error=True)


def _says(texts: list[str], structured: Any) -> bool:
    """Whether a text already holds the structured content: as JSON, or as the one value it wraps."""
    known = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        known += structured.values()
    for text in texts:
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            content = text
        if content in known or text in known:
            return True
    return False


def _text(text: str) -> Block:
    return {"type": "text", "text": _writable(text)}


def _writable(text: str) -> str:
    """Return a text without characters that UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode()


# -- one block of a result


def _blocks(content: ContentBlock, attachments: KeptOutputs) -> Iterator[Block]:
    match content:
        case TextContent():
            yield _text(content.text)
        case ImageContent() | AudioContent():
            yield _media(content.data, content.mime_type, content.type, attachments)
        case ResourceLink():
            yield _text(_link(content))
        case EmbeddedResource():
            yield from _resource(content, attachments)


def _media(data: str, media: str | None, what: str, attachments: KeptOutputs) -> Block:
    try:
        raw = base64.b64decode(re.sub(r"\s", "", data), validate=True)
    except ValueError:
        return _text(f"[{what} that is no valid base64, so it cannot be shown]")
    why = ""
    if media_type(raw) is not None:
        try:
            return image_block(what, raw)
        except BadArgument as error:
            why = f"; {error.sentence.rstrip('.')}"
    if (media or "").startswith("text/") and (text := _decoded(raw)) is not None:
        return _text(f"[{what}]\n{text}")
    if raw.startswith(b"%PDF-"):
        source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(raw).decode()}
        return {"type": "document", "source": source}
    facts = f"{media or 'of an unknown kind'}, {len(raw):,} bytes, {attachments.keep(raw, media)}"
    return _text(f"[{what}, {facts}{why}]")


def _decoded(raw: bytes) -> str | None:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _link(link: ResourceLink) -> str:
    facts = [link.mime_type, f"{link.size:,} bytes" if link.size is not None else None]
    known = ", ".join(fact for fact in facts if fact)
    about = " — ".join(part for part in (link.title or link.name, link.description) if part)
    return f"[resource {link.uri}{f' ({known})' if known else ''}{f': {about}' if about else ''}]"


def _resource(content: EmbeddedResource, attachments: KeptOutputs) -> Iterator[Block]:
    resource = content.resource
    if isinstance(resource, BlobResourceContents):
        block = _media(resource.blob, resource.mime_type, f"resource {resource.uri}", attachments)
        if block["type"] != "text":
            yield _text(f"[resource {resource.uri}]")
        yield block
    else:
        yield _text(f"[resource {resource.uri}]\n{resource.text}")


# -- Names of tools: as the Messages API takes them, and as agent files write them. Pure.


MOST_CHARACTERS = 128
_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")
_DIGEST = 8


def acceptable(name: str) -> str:
    """Return `name` in the characters and the length that the API takes."""
    safe = _REFUSED.sub("_", name) or "tool"
    if len(safe) <= MOST_CHARACTERS:
        return safe
    return f"{safe[: MOST_CHARACTERS - _DIGEST - 1]}_{sha256(name.encode()).hexdigest()[:_DIGEST]}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9_*-]", "_", name.lower())


# -- Which tools of which servers a run shows its model, under which names (SPEC section 8). Pure.


_MOST_NAMED = 5


@dataclass(frozen=True)
class NamedTool:
    """A tool of a server, and the name that the model calls it by."""

    server: str
    tool: ListedTool
    name: str

    def is_named(self, patterns: Iterable[str]) -> bool:
        """Whether names of an agent file mean this tool.

        `mcp__<server>` means all of a server, `mcp__<server>__<tool>` one, `*` in it anything, and the name
        that the model sees means it too. Upper and lower case do not matter, nor what becomes `_` in names.
        """
        whole, shown = f"mcp__{_plain(self.server)}", _plain(self.name)
        names = {f"{whole}__{_plain(self.tool.name)}", f"{whole}__{shown}", shown}
        wanted = [_plain(pattern) for pattern in patterns]
        return any(each == whole or any(fnmatchcase(name, each) for name in names) for each in wanted)


@dataclass(frozen=True)
class ToolChoice:
    """The keys `tools` (None: everything) and `disallowedTools` of an agent file, as written.

    `excluded` is `codeMode.excludedTools`, None without code mode.
    """

    tools: Collection[str] | None = None
    disallowed: Collection[str] = ()
    excluded: Collection[str] | None = None

    def includes(self, tool: NamedTool) -> bool:
        """Whether the run may use this tool."""
        allowed = self.tools is None or tool.is_named(self.tools)
        return allowed and not tool.is_named(self.disallowed)

    def is_function(self, tool: NamedTool) -> bool:
        """Whether programs call this tool, by its server, so that its name alone need not be unique."""
        return self.excluded is not None and not tool.is_named(self.excluded)


def passes(definition: ServerDefinition, tool: str) -> bool:
    """Whether `enabledTools` or `disabledTools` of a server let a tool through."""
    if definition.enabled_tools is not None:
        return tool in definition.enabled_tools
    return tool not in (definition.disabled_tools or ())


def unknown_names(server: ServerConnection) -> list[str]:
    """Return a warning for each name in `enabledTools` or `disabledTools` that the server does not have."""
    known = [tool.name for tool in server.tools]
    filters = {
        "enabledTools": server.definition.enabled_tools,
        "disabledTools": server.definition.disabled_tools,
    }
    return [
        f"mcpServers.{server.name}.{key} names {shorten(name)}, which the server does not offer: "
        f"{choices('tools', name, known)}."
        for key, names in filters.items()
        for name in names or ()
        if name not in known
    ]


def _named(server: ServerConnection, warnings: list[str]) -> list[NamedTool]:
    """Return the tools of one server that its filter lets through, each under its name."""
    prefix = _prefix(server)
    chosen: dict[str, NamedTool] = {}
    seen: set[str] = set()
    # A tool keeps its own name, whatever others before it in the list would become.
    exact = {acceptable(prefix + tool.name) for tool in server.tools if acceptable(tool.name) == tool.name}
    for tool in server.tools:
        if tool.name in seen:
            warnings.append(f"Server {server.name} lists {shorten(tool.name)} twice; the first is used.")
            continue
        seen.add(tool.name)
        if not passes(server.definition, tool.name):
            continue
        name = acceptable(prefix + tool.name)
        if acceptable(tool.name) != tool.name or name in chosen:
            name = free_name(name, chosen.keys() | exact, MOST_CHARACTERS - 4)
        chosen[name] = NamedTool(server.name, tool, name)
    return list(chosen.values())


def _prefix(server: ServerConnection) -> str:
    return f"{server.name}__" if server.definition.prefix else ""


def _renamed(server: ServerConnection, tool: NamedTool) -> str:
    whole = shorten(_prefix(server) + tool.tool.name)
    return (
        f"The tool {whole} of server {server.name} is called {tool.name} here: "
        "the model's API does not take its name."
    )


def _check_unique(tools: Sequence[NamedTool], own: Collection[str]) -> None:
    owners: dict[str, list[str]] = {}
    for each in tools:
        owners.setdefault(each.name, []).append(each.server)
    clashes = {name: servers for name, servers in owners.items() if len(servers) > 1 or name in own}
    if clashes:
        more = f"; and {len(clashes) - _MOST_NAMED} more" if len(clashes) > _MOST_NAMED else ""
        first = [_clash(*each) for each in list(clashes.items())[:_MOST_NAMED]]
        server = next(iter(clashes.values()))[-1]
        raise RunRefused(
            "config",
            f"mcpServers: {'; '.join(first)}{more}.",
            f"Set `prefix: true` on one of the servers (the tools of {server} become {server}__<tool>), "
            "or leave the tool out with disabledTools.",
        )


def _clash(name: str, servers: Sequence[str]) -> str:
    if len(servers) > 1:
        return f"the servers {' and '.join(servers)} both offer a tool {name}"
    return f"the server {servers[0]} offers a tool {name}, and so does the agent itself"


class McpTool(Tool):
    """Calls one tool of one server. `named.tool` is the server's description of it."""

    def __init__(self, named: NamedTool, connection: ServerConnection, attachments: KeptOutputs) -> None:
        self.name = named.name
        self.named = named
        self.connection = connection
        self._input = input_schema(named.tool.input_schema)
        self._attachments = attachments

    def definition(self) -> dict[str, Any]:
        """Return the tool as the model sees it."""
        return {
            "name": self.name,
            "description": self._description(),
            "input_schema": self._input.schema,
        }

    def _description(self) -> str:
        tool = self.named.tool
        parts = [tool.description or tool.title or f"A tool of the server {self.named.server}."]
        if self._input.rule:
            parts.append(f"The arguments must also satisfy this JSON Schema: {self._input.rule}")
        if self._input.names:
            parts.append(f"Arguments called otherwise by the server: {json.dumps(self._input.names)}")
        return _writable("\n\n".join(parts))

    def answers_to(self, pattern: str) -> bool:
        """Whether a name in an agent file's `tools` means this tool."""
        return self.named.is_named([pattern])

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Call the tool; every failure is a result for the model."""
        try:
            sent = self._input.for_server(_sendable(arguments))
            watched = watching(self.connection.watch, f"{self.named.server}: {self.named.tool.name}")
            async with entered_off_loop(watched) as came:
                answer = await self.connection.call(self.named.tool.name, sent)
        except ServerTrouble as trouble:
            return ToolResult.failure(str(trouble)).with_remark(came.remark)
        result = converted(answer.result, self._attachments)
        remarks = [{"type": "text", "text": f"[{remark}]"} for remark in answer.remarks]
        return ToolResult([*remarks, *result.content], result.is_error).with_remark(came.remark)

    async def answer(self, arguments: dict[str, Any]) -> CallAnswer:
        """Call the tool with arguments in the server's own names, and return the whole result.

        Raises:
            ServerTrouble: the call failed.
        """
        return await self.connection.call(self.named.tool.name, _sendable(arguments))


def _sendable(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments without half surrogate pairs: models write such, and no server takes them."""
    sendable: dict[str, Any] = with_texts(arguments, _writable)
    return sendable


# -- All MCP servers of a run: connected side by side, left side by side.


@dataclass
class Servers:
    """Servers that are connected, and the `tools` of these servers that the run may use, once chosen."""

    connections: list[ServerConnection] = field(default_factory=list)
    tools: list[McpTool] = field(default_factory=list)

    def choose(self, wanted: ToolChoice, own: Collection[str], attachments: KeptOutputs) -> list[str]:
        """Choose the tools, and return warnings for the author of the agent; `own` are its other tools.

        Raises:
            RunRefused: `config`; two tools have the same name.
        """
        warnings = [warning for each in self.connections for warning in each.warnings]
        for server in self.connections:
            warnings += unknown_names(server)
            named = [each for each in _named(server, warnings) if wanted.includes(each)]
            warnings += [
                _renamed(server, each)
                for each in named
                if each.name != _prefix(server) + each.tool.name and not wanted.is_function(each)
            ]
            self.tools += [McpTool(each, server, attachments) for each in named]
        _check_unique([each.named for each in self.tools if not wanted.is_function(each.named)], own)
        return warnings

    def know(self, name: str) -> bool:
        """Whether a name in the agent file's `tools` means one of these tools."""
        return any(tool.answers_to(name) for tool in self.tools)

    async def aclose(self, *, hurry: bool = False) -> None:
        """Leave all of them at once."""
        await asyncio.gather(*(each.aclose(hurry=hurry) for each in self.connections))


_MOMENT_SECONDS = 0.2


async def connect(definitions: Mapping[str, ServerDefinition], around: ServerContext, agent: str) -> Servers:
    """Connect to all servers of an agent at once and list their tools, each within its own `timeout`.

    Raises:
        RunRefused: `config`; at least one did not connect; the sentence has its name and its error. The
            others have been left.
    """
    servers = Servers(
        [ServerConnection(name, definition, around) for name, definition in definitions.items()]
    )
    opening = {asyncio.create_task(each.open()): each.name for each in servers.connections}
    try:
        if opening:
            done, others = await asyncio.wait(opening, return_when=asyncio.FIRST_EXCEPTION)
            if others and any(task.exception() for task in done):
                # Programs are started in threads: two that are not there fail a moment apart.
                await asyncio.wait(others, timeout=_MOMENT_SECONDS)
        failed = {name: task for task, name in opening.items() if task.done() and task.exception()}
        if failed:
            raise _refusal(failed, agent)
    except BaseException:
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        await servers.aclose(hurry=True)
        raise
    return servers


def _refusal(failed: Mapping[str, "asyncio.Task[None]"], agent: str) -> RunRefused:
    reasons: list[str] = []
    for name, task in failed.items():
        error = task.exception()
        if not isinstance(error, ServerTrouble):
            assert error is not None
            raise error
        reasons.append(f"The MCP server {name} {error}.")
    attempt = shlex.join(["subagent", "mcp", "info", next(iter(failed)), "--agent", agent])
    passes = all(isinstance(task.exception(), NoBox) for task in failed.values())
    return RunRefused(
        "storage" if passes else "config",
        " ".join(reasons),
        f"Try it with `{attempt}`, or fix it in mcpServers.",
    )
