"""Gemini CLI, an agent of the Agent Client Protocol with a system prompt, a policy and a model of its own."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from subagent_server.extensions.programs.acp import AcpDialect, Call
from subagent_server.extensions.programs.program import Launch, name_of
from subagent_server.extensions.programs.program_checks import program_of
from subagent_server.run.agent_definition import AgentDefinition, Selection, select
from subagent_server.run.durable import as_object
from subagent_server.run.errors import RunRefused
from subagent_server.run.executed_files import found_above
from subagent_server.run.files import Directory

_SYSTEM, _POLICY = "system.md", "policy.toml"
_FILLED = ("${AgentSkills}", "${SubAgents}", "${AvailableTools}", "_ToolName}")
"""What Gemini CLI fills in by itself in a system prompt."""
_FOLLOWED = (".gemini", ".env")
"""What Gemini CLI reads from a working directory that it trusts; it may send its key elsewhere."""
_ALLOWED, _OTHERS = 500, 400
"""Priorities of policy rules: those of the user's own files are below."""


class GeminiDialect(AcpDialect):
    """Implements `Dialect` for Gemini CLI."""

    title = "Gemini CLI"

    def launch(self) -> Launch:
        """Return its command line; its policy and its system prompt are written before.

        Raises:
            RunRefused: `config`, if the agent cannot be kept, or the directory could change what it does.
        """
        agent = self._task.agent
        _check_words(agent)
        names = [self._task.child.name, *agent.mcp_servers]
        argv = [program_of(agent) or "", "--acp", "--approval-mode", "default"]
        argv += [f"--allowed-mcp-server-names={name}" for name in names]
        argv += ["--policy", str(self._task.write(_POLICY, policy(agent, self._task.child.name)))]
        if agent.model not in (None, "inherit", "default"):
            argv += ["-m", str(agent.model)]
        is_trusted = _trusts(self._home, self._task.cwd)
        if not is_trusted:
            _check_followed(self._home, self._task.cwd)
        if self._task.boxed or not is_trusted:  # in a box it finds no list of trusted directories
            argv.append("--skip-trust")  # it starts no MCP server in a directory that it does not trust
        environment = {}
        if agent.system_prompt.strip():
            environment["GEMINI_SYSTEM_MD"] = str(self._task.write(_SYSTEM, self._task.system))
        return Launch(argv, environment)

    def first_words(self) -> str:
        """Return the preamble, if there is no system prompt that has it."""
        return "" if self._task.agent.system_prompt.strip() else self._task.preamble

    def login_hint(self) -> str:
        """Return what a person does when it asks for a login."""
        return "Run `gemini` once and log in, or set GEMINI_API_KEY."

    def own_prefixes(self) -> Sequence[str]:
        """Return what it puts before the name of a tool of the child's server."""
        return (f"mcp_{self._task.child.name}_",)

    def tool_of(self, call: Call) -> str:
        """Return the tool of a call, whose name comes before the first `__` of the id."""
        name, mark, _ = call.tool_call_id.partition("__")
        return name_of(name) if mark and name else super().tool_of(call)

    async def _ask_first(self, *_: Any) -> None:
        """Do nothing: its command line and its policy decide what it asks."""

    async def before_resuming(self, session: str) -> None:
        """Wait until the next minute if the session was opened in this one.

        Gemini CLI names the file of a session after the minute: opened again within it, the session is empty.
        """
        while await asyncio.to_thread(_opened_now, self._state, session):
            self._events.progress()
            await asyncio.sleep(1)

    @property
    def _state(self) -> Directory:
        return self._task.kept or Directory(self._home / ".gemini")

    @property
    def _home(self) -> Path:
        environment = self._task.environment
        return Path(environment.get("GEMINI_CLI_HOME") or environment.get("HOME") or Path.home())


def policy(agent: AgentDefinition, child: str) -> str:
    """Return the rules for tools: those of the agent are allowed, every other one is asked for.

    Without `tools` Gemini CLI asks by its own rules, which allow reading.
    """
    rules = [_rule("allow", _ALLOWED, mcpName=name) for name in (child, *agent.mcp_servers)]
    rules += [_rule("deny", _ALLOWED + 1, **names) for names in _named(select(agent.disallowed_tools, []))]
    if agent.tools is not None and "*" not in agent.tools:
        rules += [_rule("allow", _ALLOWED, **names) for names in _named(select(agent.tools, []))]
        rules.append(_rule("ask_user", _OTHERS, toolName="*"))
    return "\n".join(rules)


def _named(selection: Selection) -> Iterator[dict[str, str]]:
    """Yield the names of a selection as rules have them."""
    ours = {
        "bash": ("run_shell_command",),
        "view": ("read_file", "read_many_files"),
        "edit": ("write_file", "replace"),
        "grep": ("grep_search", "search_file_content"),
        "glob": ("glob",),
        "ls": ("list_directory",),
        "web_search": ("google_web_search",),
        "web_fetch": ("web_fetch",),
        "todos": ("write_todos",),
    }
    for capability, names in ours.items():
        if getattr(selection, capability):
            yield from ({"toolName": name} for name in names)
    yield from ({"toolName": name} for name in selection.unknown)  # Gemini CLI's own names
    for name in selection.mcp or []:
        _, server, tool = (*name.split("__", 2), "")[:3]
        yield {"mcpName": server, **({"toolName": tool} if tool else {})}


def _rule(decision: str, priority: int, **names: str) -> str:
    names.setdefault("toolName", "*")
    # TOML has no halves of a character, as JSON in ASCII writes them
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in names.items()]
    return "\n".join(["[[rule]]", *lines, f'decision = "{decision}"', f"priority = {priority}", ""])


def _check_words(agent: AgentDefinition) -> None:
    if any(mark in agent.system_prompt for mark in _FILLED):
        raise RunRefused(
            "config",
            "The system prompt has a placeholder such as ${AvailableTools}, which Gemini CLI fills in.",
            "Write it in another way.",
        )
    if conditional := select(agent.tools, agent.disallowed_tools).restricted:
        raise RunRefused(
            "config",
            f"Gemini CLI cannot keep the condition of {conditional[0]}.",
            "Name the tool without a condition, or leave it out: then each call is a question.",
        )


def _opened_now(state: Directory, session: str) -> bool:
    """Whether there is a file of the session with this minute. In a box there may be links instead."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M")
    names: list[str] = []
    with suppress(OSError):
        projects = state.below("tmp")
        for project in projects.names():
            with suppress(OSError):
                names += projects.below(project).below("chats").names()
    return any(name.startswith(f"session-{now}-{session[:8]}.") for name in names)


def _trusts(home: Path, cwd: Path) -> bool:
    """Whether the user has set Gemini CLI to trust a directory: the nearest rule decides."""
    rules: dict[str, Any] = {}
    with suppress(OSError):
        rules = as_object((home / ".gemini" / "trustedFolders.json").read_bytes()) or {}
    for directory in (cwd, *cwd.parents):
        rule = rules.get(str(directory))
        if rule in ("TRUST_FOLDER", "TRUST_PARENT", "DO_NOT_TRUST"):
            return bool(rule != "DO_NOT_TRUST")
    return False


def _check_followed(home: Path, cwd: Path) -> None:
    if (found := next(found_above(_FOLLOWED, cwd, home), None)) is not None:
        raise RunRefused(
            "config",
            f"Gemini CLI would follow {Path(*found)}, which may have come with the directory.",
            "If it is yours, start `gemini` there once and trust the folder; else remove it.",
        )
