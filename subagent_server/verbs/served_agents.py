"""Agents that an agent file names as MCP servers: entries that start `subagent serve --config FILE`.

No process is started for such an entry. Its agent becomes one that the run may start: depth, budget,
directory and trust are those of every child, and neither a box nor the variables of a process are in the way.
The program has to be this installation, by its inode; of another program, nothing is assumed.
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from subagent_server.agents.formats import load_config
from subagent_server.agents.yaml_reader import AgentFileError
from subagent_server.run.agent_definition import AgentDefinition, ServedAgent, ServerDefinition
from subagent_server.run.errors import BadArgument, shorten

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
    return list(server.args) if _is_one_of(found, [f"{place}/{_NAME}" for place in directories]) else []


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


def served_agent(name: str, server: ServerDefinition, source: Path | None, cwd: Path) -> ServedAgent:
    """Return the agent of an entry that `serves_config`, as its file is now.

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
    agent = load_config(_config(words[1], source, cwd))
    return ServedAgent(entry=server, agent=agent.model_copy(update={"env": {**server.env, **agent.env}}))


def _split(word: str) -> list[str]:
    return ["--config", word.removeprefix("--config=")] if word.startswith("--config=") else [word]


def _config(text: str, source: Path | None, cwd: Path) -> Path:
    """Return the file that an entry names. Raises AgentFileError: no file can have such a name."""
    try:
        named = Path(text).expanduser()
        beside = cwd if source is None else source.parent
        return Path(os.path.realpath(beside / named if (beside / named).exists() else cwd / named))
    except (RuntimeError, ValueError) as error:  # the home of nobody, a NUL
        raise AgentFileError(Path(shorten(text)), "no file can be found under this name") from error


def served_below(
    agents: Mapping[str, AgentDefinition], path: str | None, cwd: Path
) -> Iterator[AgentDefinition]:
    """Yield the agents that the files of these name as MCP servers, and those that they name, each once."""
    pending, seen = list(agents.values()), set[Path | None]()
    while pending:
        above = pending.pop()
        for name, server in above.mcp_servers.items():
            with suppress(AgentFileError, BadArgument):
                if not serves_config(server, path):
                    continue
                agent = served_agent(name, server, above.source, cwd).agent
                if agent.source not in seen:
                    seen.add(agent.source)
                    pending.append(agent)
                    yield agent
