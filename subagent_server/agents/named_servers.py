"""MCP servers that an agent file only names, and those that are agents of this installation.

Servers that are named but not defined are looked up in the files of Claude Code. The order is: the
`.mcp.json` nearest upwards from the start directory of the server or command, then the `.mcp.json` nearest
upwards from the agent file, then `~/.claude.json`: for this project, then for all. The working directory of a
run never counts: a repository that an agent works in must not choose the programs behind a name.
"""

import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from subagent_server.agents.agent_file import Reading, read_servers
from subagent_server.agents.formats import load_config
from subagent_server.agents.known_names import nearest
from subagent_server.agents.variables import expand_as_far_as_set
from subagent_server.agents.yaml_reader import (
    MAX_BYTES,
    AgentFileError,
    Block,
    Notes,
    NotYaml,
    Unreadable,
    Value,
    from_json,
    parse,
    read_text,
)
from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition
from subagent_server.run.errors import BadArgument, CallerError, shorten

PROJECT_FILE = ".mcp.json"
USER_FILE = ".claude.json"
MAX_USER_FILE = 16 << 20
"""Bytes. Claude Code keeps pasted texts there, so it grows larger than a file of a project may be."""


class UnknownServer(CallerError):
    """A server that is named and defined nowhere."""

    code = "unknown_server"

    def __init__(self, name: str, looked_in: list[Path], near: str | None) -> None:
        searched = [str(path) for path in looked_in]
        if all(path.name != PROJECT_FILE for path in looked_in):
            searched.insert(0, f"any {PROJECT_FILE} from here upwards")
        meant = f" (nearest: {shorten(near)})" if near else ""
        super().__init__(
            f"mcpServers names {shorten(name)}{meant}, which is defined neither in the agent file nor in "
            f"{' nor in '.join(searched)}: define it in one of them."
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
        self._servers = cache(_servers_in)

    def server(self, path: Path, name: str, directory: Path | None = None) -> ServerDefinition | None:
        """Return the server of this name, if the file has it; faults of other servers do not matter.

        What the file has for the project of `directory` goes before what it has for all.

        Raises:
            AgentFileError: the file cannot be read, or the server breaks a rule.
        """
        servers = self._servers(path, directory)
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
    return [_look_up(name, paths, users, files, started or own) for name in definition.named_servers]


def with_named_servers(
    definition: AgentDefinition, directory: Path, environment: Mapping[str, str]
) -> AgentDefinition:
    """Return `definition` with its named servers, to be looked at. Raises as `find_named_servers`."""
    return with_servers(definition, find_named_servers(definition, directory, environment))


def with_servers(definition: AgentDefinition, found: Iterable[FoundServer]) -> AgentDefinition:
    """Return `definition` with its named servers besides the servers defined by itself."""
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
        upwards = (above / PROJECT_FILE for above in (directory, *directory.parents))
        yield from islice(filter(os.path.isfile, upwards), 1)
    if users is not None and os.path.isfile(users):  # noqa: PTH113 - `Path` raises below a closed directory
        yield users


def _look_up(
    name: str, paths: list[Path], users: Path | None, files: ServerFiles, directory: Path | None
) -> FoundServer:
    for path in paths:
        if (server := files.server(path, name, directory if path == users else None)) is not None:
            return FoundServer(name, server, path, is_users=path == users)
    known = [known for path in paths for known in files.names(path)]
    raise UnknownServer(name, paths, nearest(name, known))


def _servers_in(path: Path, directory: Path | None = None) -> Value:
    try:
        text = read_text(path, MAX_USER_FILE if path.name == USER_FILE else MAX_BYTES)
        # JSON is not read by the YAML reader: clients indent with tabs, which YAML forbids
        content = from_json(json.loads(text)) if path.suffix == ".json" else parse(text)
    except Unreadable as error:
        raise AgentFileError(path, error.reason, error.line) from error
    except NotYaml as error:
        raise AgentFileError(path, f"it is not YAML ({error.reason})", error.line) from error
    except (ValueError, RecursionError) as error:
        raise AgentFileError(path, f"it is not JSON ({error})", getattr(error, "lineno", None)) from error
    if not isinstance(content, Block):
        raise AgentFileError(path, "it must be a mapping of keys")
    servers = content.get("mcpServers", Block())
    own = _of_project(content.get("projects", Block()), directory)
    if own is None or not isinstance(servers, Block):
        return servers
    for name in (name for name in servers if name not in own):
        own.put(name, servers[name], servers.lines[name])
    return own


def _of_project(projects: Value, directory: Path | None) -> Block | None:
    """Return the servers of the project nearest upwards: `claude mcp add` without a scope writes there."""
    if directory is None or not isinstance(projects, Block):
        return None
    above = (projects.get(str(each)) for each in (directory, *directory.parents))
    project = next(filter(None, above), None)
    servers = project.get("mcpServers") if isinstance(project, Block) else None
    return servers if isinstance(servers, Block) else None


# -- Entries that start `subagent serve --config FILE`: agents that an agent file names as MCP servers.
#
# No process is started for such an entry. Its agent becomes one that the run may start: depth, budget,
# directory and trust are those of every child, and neither a box nor the variables of a process are in the
# way. The program has to be this installation, by its inode; of another program, nothing is assumed.


_NAME = "subagent"
_MODULE = ["-m", "subagent_server"]


def serves_config(server: ServerDefinition, path: str | None) -> bool:
    """Whether an entry starts `serve --config` of this installation; `path` is the variable PATH."""
    words = _own_words(server, path)
    return words[:1] == ["serve"] and any(word.partition("=")[0] == "--config" for word in words)


def _own_words(server: ServerDefinition, path: str | None) -> list[str]:
    """Return the arguments for `subagent`; none if the entry starts another program."""
    if server.type != "stdio" or not server.command or "\0" in server.command:
        return []
    found = shutil.which(server.command, path=path)
    if found is None:
        return list(server.args) if server.command == _NAME else []
    if server.args[:2] == _MODULE and _is_one_of(found, [sys.executable]):
        return list(server.args[2:])
    directories = {str(Path(sys.executable).parent), *map(_scripts, ("venv", "posix_user", "posix_prefix"))}
    return list(server.args) if _is_one_of(found, [f"{each}/{_NAME}" for each in directories]) else []


def _scripts(scheme: str) -> str:
    return sysconfig.get_path("scripts", scheme) if scheme in sysconfig.get_scheme_names() else ""


def _is_one_of(found: str, ours: Sequence[str]) -> bool:
    """Whether a program is one of these; the interpreter that a venv links to is not that of the venv."""
    for program in ours:
        with suppress(OSError):
            is_link = Path(program).name != _NAME
            here = Path(found).parent.samefile(Path(program).parent) if is_link else True
            if here and Path(found).samefile(program):
                return True
    return False


def served_agent(name: str, server: ServerDefinition, source: Path | None, cwd: Path) -> AgentDefinition:
    """Return the agent of an entry that `serves_config`, as its file is now, without the `env` of the entry.

    The path is relative to the file that has the entry; what is not there is looked up in `cwd`.

    Raises:
        AgentFileError: the file cannot be used.
        BadArgument: the entry asks for what only a process could keep.
    """
    key = f"mcpServers.{name}"
    words = [part for word in server.args[server.args.index("serve") + 1 :] for part in _split(word)]
    if len(words) != 2 or words[0] != "--config":
        raise BadArgument(f"{key}.args can only be `serve --config FILE`: leave the others out.")
    for field, asked in (
        ("sandbox: true", server.sandbox is True),
        ("network", server.network is not None),
        ("sandboxRead", server.sandbox_read),
        ("sandboxWrite", server.sandbox_write),
    ):
        if asked:
            raise BadArgument(
                f"{key} has {field}, and its agent's own file says where the agent works: leave it out."
            )
    return load_config(_config(words[1], source, cwd))


def _split(word: str) -> list[str]:
    return ["--config", word.removeprefix("--config=")] if word.startswith("--config=") else [word]


def _config(text: str, source: Path | None, cwd: Path) -> Path:
    """Return the file that an entry names. Raises AgentFileError: no file can have such a name."""
    try:
        named = Path(text).expanduser()
        base = cwd if source is None else source.parent
        return Path(os.path.realpath(base / named if os.path.lexists(base / named) else cwd / named))
    except (RuntimeError, ValueError) as error:  # the home of nobody, a NUL
        raise AgentFileError(Path(shorten(text)), "no file can be found under this name") from error


def served_below(
    agents: Mapping[str, AgentDefinition], environment: Mapping[str, str], cwd: Path
) -> Iterator[AgentDefinition]:
    """Yield the agents that the files of these name as MCP servers, and those that they name, each once."""
    pending, seen = list(agents.values()), set[Path | None]()
    while pending:
        above = pending.pop()
        with suppress(UnknownServer, AgentFileError):
            above = with_named_servers(above, cwd, environment)
        above, _ = expand_as_far_as_set(above, environment)
        path = above.env.get("PATH", environment.get("PATH"))
        for name, server in above.mcp_servers.items():
            with suppress(AgentFileError, BadArgument):
                if not serves_config(server, server.env.get("PATH", path)):
                    continue
                agent = served_agent(name, server, above.source, cwd)
                if agent.source not in seen:
                    seen.add(agent.source)
                    pending.append(agent)
                    yield agent
