"""What a start has to know of the programs that carry out runs.

That is how they are called and installed, which keys they cannot keep, and whether one is too old. An agent
never runs without something that its author asked for, so a key that its program cannot take is refused
(SPEC section 3).
"""

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from subagent_server.run.agent_definition import AgentDefinition, FailIf, RunnerName
from subagent_server.run.bounded_command import start
from subagent_server.run.errors import shorten
from subagent_server.run.host_programs import NoHostProgram, user_program, words_to_start


@dataclass(frozen=True)
class KnownProgram:
    """A program with a runner of its own: its command, how it is installed, and the keys that it keeps.

    `state` is the directory below the home directory in which it keeps its sessions. `oldest` is the version
    with which everything was tried: older ones lack options, or do otherwise in silence.
    """

    command: str
    install: str
    state: str
    keeps: frozenset[str]
    oldest: tuple[int, ...]


KNOWN_PROGRAMS: dict[RunnerName, KnownProgram] = {
    "claude": KnownProgram(
        command="claude",
        install="npm install -g @anthropic-ai/claude-code",
        state=".claude",
        keeps=frozenset(
            {
                *("model", "baseUrl", "apiKeyEnv", "maxTokens", "effort", "tools", "disallowedTools", "ask"),
                *("maxTurns", "budgetUsd", "mcpServers", "permissionMode"),
            }
        ),
        oldest=(2, 1, 330),
    ),
    # its own tools have no list: its sandbox and its approvals bound them
    "codex": KnownProgram(
        "codex",
        "npm install -g @openai/codex",
        ".codex",
        frozenset({"model", "effort", "maxTurns", "mcpServers"}),
        (0, 169, 0),
    ),
    "gemini": KnownProgram(
        "gemini",
        "npm install -g @google/gemini-cli",
        ".gemini",
        frozenset({"model", "tools", "disallowedTools", "maxTurns", "mcpServers"}),
        (0, 61, 0),
    ),
}
"""By the name of their runner. The runner `command` has the program that its agent names."""

_ACP_PACKAGES = {
    "opencode": "opencode-ai",
    "qwen": "@qwen-code/qwen-code",
    "copilot": "@github/copilot",
    "claude-agent-acp": "@agentclientprotocol/claude-agent-acp",
    "codex-acp": "@agentclientprotocol/codex-acp",
}
"""Of npm, by the commands of `ACP_PROGRAMS`."""

_FOLLOWED = {
    "opencode": (".opencode", "opencode.json", "opencode.jsonc"),
    "qwen": (".qwen", ".env"),
    "copilot": (".github/hooks",),
    "claude-agent-acp": (".claude", ".mcp.json"),
    "codex-acp": (".codex",),
}
"""What the same follow in their working directory and above it, unasked: hooks, plugins and MCP servers that
they start, and the address that gets the key (tried with each, 2026-11)."""

_ASKED: dict[str, Callable[[AgentDefinition], bool]] = {
    "model": lambda agent: agent.model not in (None, "inherit", "default"),
    "baseUrl": lambda agent: agent.base_url is not None,
    "apiKeyEnv": lambda agent: agent.api_key_env != AgentDefinition.model_fields["api_key_env"].default,
    "maxTokens": lambda agent: agent.max_tokens is not None,
    "effort": lambda agent: agent.effort is not None,
    "tools": lambda agent: agent.tools is not None,
    "ask": lambda agent: bool(agent.ask),
    "disallowedTools": lambda agent: bool(agent.disallowed_tools),
    "maxTurns": lambda agent: bool({"maxTurns", "limits.maxTurns"} & agent.lines.keys()),
    "budgetUsd": lambda agent: agent.limits.budget_usd is not None,
    "mcpServers": lambda agent: bool(agent.mcp_servers or agent.named_servers),
    "codeMode": lambda agent: agent.enabled_code_mode is not None,
    "webSearch": lambda agent: agent.web_search is not None,
    "webFetch": lambda agent: agent.web_fetch is not None,
    "args": lambda agent: bool(agent.args),
    "failIf": lambda agent: agent.fail_if != FailIf(),
    "permissionMode": lambda agent: agent.permission_mode not in (None, "bypassPermissions"),
}
"""Whether an agent file asks for what not every program can take, by the key."""

_FIELDS = {"model": "{model}", "effort": "{effort}"}
"""The keys that reach any program through a field in its arguments."""


def unkept_keys(agent: AgentDefinition) -> dict[str, str]:
    """Return the keys that the program of an agent cannot keep, each with a sentence."""
    keeps = _kept(agent)
    return {
        key: _sentence(agent, key) for key, is_asked in _ASKED.items() if is_asked(agent) and key not in keeps
    }


def program_of(agent: AgentDefinition) -> str | None:
    """Return the command of the program that carries out the runs of an agent; None for the built-in loop."""
    known = KNOWN_PROGRAMS.get(agent.runner)
    return agent.command or (known.command if known is not None else None)


def followed(agent: AgentDefinition) -> Sequence[str]:
    """Return what its program follows in a directory and nobody keeps it from; nothing in a box."""
    if agent.runner != "acp" or agent.sandbox == "bwrap":
        return ()
    return _FOLLOWED.get(Path(agent.command or "").name, ())


def installing(agent: AgentDefinition) -> str:
    """Return how the program of an agent comes here, as the end of a sentence."""
    known = KNOWN_PROGRAMS.get(agent.runner)
    if known is None and agent.runner == "acp" and agent.command in _ACP_PACKAGES:
        return f"install it with `npm install -g {_ACP_PACKAGES[agent.command]}`"
    return "install it, or fix `command`" if known is None else f"install it with `{known.install}`"


def _kept(agent: AgentDefinition) -> frozenset[str]:
    known = KNOWN_PROGRAMS.get(agent.runner)
    if known is not None:
        return known.keeps
    if agent.runner == "acp":
        return frozenset({"args", "maxTurns", "mcpServers"})
    placed = (key for key, field in _FIELDS.items() if any(field in word for word in agent.args))
    return frozenset({"args", "failIf", *placed})


def _sentence(agent: AgentDefinition, key: str) -> str:
    if agent.runner == "command" and key in _FIELDS:
        return f"{key} cannot reach the program: put {_FIELDS[key]} into `args`, or leave {key} out."
    return f"{key} cannot be kept by the runner {agent.runner}: leave it out, or choose another runner."


# -- The version, as the program prints it.
#
# Asking executes the program, so only a start and `doctor` ask, and only for agents that may be used. A
# program is asked once for as long as its file stays as it is; one that is too old is asked again each time,
# because a file that starts another program stays the same when that one is replaced.

VERSION_SECONDS = 10.0
"""How long a program may take to print its version."""
_MOST_BYTES = 4096
_VERSION = re.compile(r"(?<![\d.])(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?!\d)")

Version = tuple[int, ...]
_new_enough: dict[tuple[str, int, int], Version] = {}
"""Of program files by path, size and time of change: the versions that are new enough."""


def too_old(
    agent: AgentDefinition, environment: Mapping[str, str], written: Sequence[Path]
) -> tuple[str | None, str | None]:
    """Return why the program of an agent is too old, and a doubt if it does not print its version.

    Both are sentences, or None. A program that is not there is neither, and one that works in a box, or lies
    in one of the `written` directories, is not asked: the question is put outside of the box.
    """
    if agent.sandbox == "bwrap":
        return None, None
    known, command = KNOWN_PROGRAMS.get(agent.runner), (program_of(agent) or "").strip()
    try:
        file = user_program(command, environment.get("PATH"), written) if command else None
    except NoHostProgram:
        file = None
    if known is None or file is None:
        return None, None
    least = ".".join(map(str, known.oldest))
    version = _version(file, known, environment, written)
    if version is None:
        problem = (
            f"The program {shorten(str(file), 200)} did not tell its version within {VERSION_SECONDS:g} s"
        )
        return None, f"{problem}: the runner {agent.runner} needs {least} or newer."
    if version >= known.oldest:
        return None, None
    mine = ".".join(map(str, version))
    problem = f"The program {shorten(str(file), 200)} is too old for the runner {agent.runner}"
    return f"{problem} ({mine}; {least} is needed): {installing(agent)}.", None


def _version(
    file: Path, known: KnownProgram, environment: Mapping[str, str], written: Sequence[Path]
) -> Version | None:
    """Return the version that a program prints. All its processes are bounded.

    It is asked in `/`: programs of this kind read settings of the directory that they are started in.
    """
    try:
        facts, path = file.stat(), str(file.resolve())
        key = (path, facts.st_size, facts.st_mtime_ns)
        if key in _new_enough:
            return _new_enough[key]
        words = [*words_to_start(file, environment.get("PATH"), written), "--version"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with start(words, VERSION_SECONDS, environment, b"", with_starter=True, cwd="/", **pipes) as asked:
            assert asked.stdout is not None
            printed = asked.stdout.read(_MOST_BYTES)  # it ends with the bound of the command at the latest
            asked.terminate()  # what it has left is ended with it
    except (OSError, ValueError, NoHostProgram):
        return None
    found = _VERSION.search(printed.decode("utf-8", "replace"))
    if found is None:
        return None
    version = tuple(map(int, found.groups()))
    if version >= known.oldest:
        _new_enough[key] = version
    return version
