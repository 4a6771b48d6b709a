"""MCP servers named but not defined by an agent file: looked up in the files of Claude Code.

The order is: the `.mcp.json` nearest upwards from the start directory of the server or command, then the
`.mcp.json` nearest upwards from the agent file, then `mcpServers` of `~/.claude.json`. The working directory
of a run never counts: a repository that an agent works in must not choose the programs behind a name.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from subagent_server.agents.agent_file import Reading, read_servers
from subagent_server.agents.yaml_reader import (
    AgentFileError,
    Block,
    Notes,
    NotYaml,
    Plain,
    Unreadable,
    Value,
    parse,
    read_text,
)
from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition
from subagent_server.run.errors import CallerError, shorten

PROJECT_FILE = ".mcp.json"
USER_FILE = ".claude.json"
_MOST_COMPARED = 80


class UnknownServer(CallerError):
    """A server that is named and defined nowhere."""

    code = "unknown_server"

    def __init__(self, name: str, looked_in: list[Path], near: str | None = None) -> None:
        places = " nor in ".join(str(path) for path in looked_in) or f"any {PROJECT_FILE} from here upwards"
        meant = f" (nearest: {shorten(near)})" if near else ""
        super().__init__(
            f"mcpServers names {shorten(name)}{meant}, which is defined neither in the agent file nor in "
            f"{places}: define it in one of them."
        )
        self.name = name


@dataclass(frozen=True)
class FoundServer:
    """A server named by an agent, and its defining file: a project's, or the user's own."""

    name: str
    definition: ServerDefinition
    path: Path
    is_users: bool


class ServerFiles:
    """Files that define servers, each read once, however many agents name servers in it."""

    def __init__(self) -> None:
        self._read: dict[Path, Value | AgentFileError] = {}

    def server(self, path: Path, name: str) -> ServerDefinition | None:
        """Return the server of this name, if the file has it; faults of other servers do not matter.

        Raises:
            AgentFileError: the file cannot be read, or the server breaks a rule.
        """
        servers = self._servers(path)
        if isinstance(servers, Block):
            alone = Block()
            if name in servers:
                alone.put(name, servers[name], servers.lines[name])
            servers = alone
        return _checked(path, servers).get(name)

    def names(self, path: Path) -> list[str]:
        """Return the names of the servers in a file. Raises as `server`."""
        servers = self._servers(path)
        return list(servers) if isinstance(servers, Block) else []

    def _servers(self, path: Path) -> Value:
        if path not in self._read:
            try:
                self._read[path] = _servers_in(path)
            except AgentFileError as error:
                self._read[path] = error
        read = self._read[path]
        if isinstance(read, AgentFileError):
            raise read
        return read


def find_named_servers(
    definition: AgentDefinition,
    directory: Path,
    environment: Mapping[str, str],
    files: ServerFiles | None = None,
) -> list[FoundServer]:
    """Return the servers named by `definition`; `directory` is the start directory of this process.

    A process of a run (`SUBAGENT_RUN_ID`) starts in the run's directory, which does not count. `files` are
    those that were read for other agents already.

    Raises:
        UnknownServer: a named server is defined nowhere.
        AgentFileError: the defining file cannot be read, or breaks a rule there.
    """
    if not definition.named_servers:
        return []
    started = None if environment.get("SUBAGENT_RUN_ID") else directory
    own = definition.source.parent if definition.source else None
    home = environment.get("HOME")
    users = Path(home) / USER_FILE if home else None
    paths = list(dict.fromkeys(_files([started, own], users)))
    files = files or ServerFiles()
    return [_look_up(name, paths, users, files) for name in definition.named_servers]


def with_named_servers(
    definition: AgentDefinition, directory: Path, environment: Mapping[str, str]
) -> AgentDefinition:
    """Return `definition` with its named servers, to be looked at. Raises as `find_named_servers`."""
    return with_servers(definition, find_named_servers(definition, directory, environment))


def with_servers(definition: AgentDefinition, found: Iterable[FoundServer]) -> AgentDefinition:
    """Return `definition` with its named servers beside the servers defined by itself."""
    if not definition.named_servers:
        return definition
    servers = {**definition.mcp_servers, **{server.name: server.definition for server in found}}
    return definition.model_copy(update={"mcp_servers": servers, "named_servers": []})


def read_server_file(path: Path) -> dict[str, ServerDefinition]:
    """Return the servers under `mcpServers` of a JSON or YAML file, which need not be an agent's.

    Raises:
        AgentFileError: the file cannot be read, or breaks a rule.
    """
    return _checked(path, _servers_in(path))


def usable_servers(path: Path) -> dict[str, ServerDefinition]:
    """Return the servers of a file that break no rule; mistakes of the file or of others are no error."""
    files, found = ServerFiles(), dict[str, ServerDefinition]()
    with suppress(AgentFileError):
        for name in files.names(path):
            with suppress(AgentFileError):
                server = files.server(path, name)
                found |= {name: server} if server is not None else {}
    return found


def _checked(path: Path, servers: Value) -> dict[str, ServerDefinition]:
    reading = Reading(Notes())
    found = read_servers(servers, None, reading)
    fault = next((note for note in reading.notes.found if note.kind == "fault"), None)
    if fault is not None:
        raise AgentFileError(path, fault.reason, fault.line)
    return found


def _files(directories: list[Path | None], users: Path | None) -> Iterator[Path]:
    for directory in filter(None, directories):
        upwards = (place / PROJECT_FILE for place in (directory, *directory.parents))
        yield from [path for path in upwards if path.is_file()][:1]
    if users is not None and users.is_file():
        yield users


def _look_up(name: str, paths: list[Path], users: Path | None, files: ServerFiles) -> FoundServer:
    for path in paths:
        if (server := files.server(path, name)) is not None:
            return FoundServer(name, server, path, is_users=path == users)
    known = [known for path in paths for known in files.names(path)[:_MOST_COMPARED]]
    near = get_close_matches(name[:_MOST_COMPARED], known, 1)
    raise UnknownServer(name, paths, near[0] if near else None)


def _servers_in(path: Path) -> Value:
    try:
        text = read_text(path)
        content = _from_json(json.loads(text)) if path.suffix == ".json" else parse(text)
    except Unreadable as error:
        raise AgentFileError(path, error.reason, error.line) from error
    except NotYaml as error:
        raise AgentFileError(path, f"it is not YAML ({error.reason})", error.line) from error
    except (ValueError, RecursionError) as error:
        raise AgentFileError(path, f"it is not JSON ({error})", getattr(error, "lineno", None)) from error
    if not isinstance(content, Block):
        raise AgentFileError(path, "it must be a mapping of keys")
    return content.get("mcpServers", Block())


def _from_json(value: Any) -> Value:
    """Return JSON data as the YAML reader would give it."""
    # Not read by the YAML reader: clients indent with tabs, which YAML forbids.
    if isinstance(value, dict):
        block = Block()
        for key, item in value.items():
            block.put(key, _from_json(item), 1)
        return block
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return value if isinstance(value, str) else Plain(json.dumps(value))
