"""MCP servers that an agent file names and does not define: looked up where Claude Code keeps them.

That is the `.mcp.json` nearest upwards from where the server or command was started, then the one nearest
upwards from the agent file, then `mcpServers` of `~/.claude.json`. Never the working directory of a run: a
repository that an agent is sent into must not choose the programs that a name stands for.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from subagent_server.catalog.files import Unreadable, read_text
from subagent_server.catalog.parts import Reading
from subagent_server.catalog.problems import AgentFileError, Notes
from subagent_server.catalog.servers import read_servers
from subagent_server.catalog.strict_yaml import NotYaml, parse
from subagent_server.catalog.values import Block, Plain, Value
from subagent_server.domain.definitions import AgentDefinition, ServerDefinition
from subagent_server.domain.errors import CallerError, shorten

PROJECT_FILE = ".mcp.json"
USER_FILE = ".claude.json"


class UnknownServer(CallerError):
    """A server that is named and defined nowhere."""

    code = "unknown_server"

    def __init__(self, name: str, looked_in: list[Path]) -> None:
        places = " nor in ".join(str(path) for path in looked_in) or f"any {PROJECT_FILE} from here upwards"
        super().__init__(
            f"mcpServers names {shorten(name)}, which is defined neither in the agent file nor in {places}: "
            "define it in one of them."
        )


def with_named_servers(
    definition: AgentDefinition, directory: Path, environment: Mapping[str, str]
) -> AgentDefinition:
    """Return `definition` with the servers that it names; `directory` is where this process was started.

    A process that belongs to a run (`SUBAGENT_RUN_ID`) stands in that run's directory, which does not count.

    Raises:
        UnknownServer: one of them is defined nowhere.
        AgentFileError: the file that defines it cannot be read, or breaks a rule there.
    """
    if not definition.named_servers:
        return definition
    started = None if environment.get("SUBAGENT_RUN_ID") else directory
    own = definition.source.parent if definition.source else None
    files = list(dict.fromkeys(_files([started, own], environment)))
    found = {name: _look_up(name, files) for name in definition.named_servers}
    servers = {**definition.mcp_servers, **found}
    return definition.model_copy(update={"mcp_servers": servers, "named_servers": []})


def read_server_file(path: Path, *, only: str | None = None) -> dict[str, ServerDefinition]:
    """Return the servers under `mcpServers` of a JSON or YAML file, which need not be an agent's.

    With `only`, nothing but that server is read, so that what is wrong with others does not matter.

    Raises:
        AgentFileError: the file cannot be read, or breaks a rule.
    """
    servers = _block_of(path).get("mcpServers", Block())
    if only is not None and isinstance(servers, Block):
        chosen = Block()
        if only in servers:
            chosen.put(only, servers[only], servers.lines[only])
        servers = chosen
    reading = Reading(Notes())
    found = read_servers(servers, None, reading)
    faults = [note for note in reading.notes.found if note.kind == "fault"]
    if faults:
        raise AgentFileError(path, faults[0].reason, faults[0].line)
    return found


def _files(directories: list[Path | None], environment: Mapping[str, str]) -> Iterator[Path]:
    for directory in filter(None, directories):
        upwards = (place / PROJECT_FILE for place in (directory, *directory.parents))
        yield from [path for path in upwards if path.is_file()][:1]
    home = environment.get("HOME")
    if home and (user := Path(home) / USER_FILE).is_file():
        yield user


def _look_up(name: str, files: list[Path]) -> ServerDefinition:
    for path in files:
        if (server := read_server_file(path, only=name).get(name)) is not None:
            return server
    raise UnknownServer(name, files)


def _block_of(path: Path) -> Block:
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
    return content


def _from_json(value: Any) -> Value:
    """Return JSON data as what the YAML reader would give."""
    if isinstance(value, dict):
        block = Block()
        for key, item in value.items():
            block.put(key, _from_json(item), 1)
        return block
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return value if isinstance(value, str) else Plain(json.dumps(value))
