"""The MCP clients that `subagent init` knows: the file of each, and the entry that it needs.

Nothing here opens a file. A value that a client needs for a special reason has a comment with it;
docs/clients.md lists them all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Scope = Literal["project", "user"]
Syntax = Literal["json", "toml"]
Entry = dict[str, Any]

SERVER = "subagents"
"""The name of the server in every client."""
SERVE_WORDS = ["serve", "--role", "parent"]
"""The words of the command that every client starts; after those that start Python, if there is no script."""
_PASSED_ON_BY_CODEX = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "SUBAGENT_AGENTS", "SUBAGENT_RUNS", "SUBAGENT_MAX_RUNS"),
    *("SUBAGENT_LAUNCHER", "SUBAGENT_LEASE", "SUBAGENT_TOOLS_BUDGET", "SUBAGENT_OTLP", "SUBAGENT_BWRAP"),
    *("SUBAGENT_MAX_DEPTH", "SUBAGENT_MAX_DESCENDANTS"),
    *("SUBAGENT_WARM", "SUBAGENT_WARM_IDLE", "SUBAGENT_RUNTIME_DIR"),
    *("XDG_CONFIG_HOME", "XDG_STATE_HOME"),  # where trust is kept, and what live runs may write
    *("SUBAGENT_RUN_ID", "SUBAGENT_RUN_TOKEN"),  # so that a Codex inside a run is that run's child
)


_SERVER = ("command", "args", "url", "httpUrl", "headers", "http_headers")
"""The keys that identify a server."""


@dataclass(frozen=True)
class ClientDirectories:
    """The directories and variables that a client's paths depend on."""

    cwd: Path
    home: Path
    environment: Mapping[str, str]

    def named(self, variable: str, default: Path) -> Path:
        """Return the directory that a variable names, else `default`."""
        return self.cwd / (self.environment.get(variable) or default)


@dataclass(frozen=True)
class ClientPermissions:
    """A settings file of a client, and the lists in it that let the server be used unasked.

    `lists` maps the path of each list to the text that it has to hold, `texts` other settings that the server
    needs there to their values. A value that a person has set stays.
    """

    file: Callable[[ClientDirectories], Path]
    lists: Mapping[tuple[str, ...], str]
    texts: Mapping[tuple[str, ...], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Client:
    """One client. The first scope of `files` is the default.

    `approval` is the part of the entry, and `permissions` the settings, by which the client calls the tools
    without asking. `over_http` makes the entry for a server at a URL, with a header Authorization; None: the
    client does not come over HTTP. `asks` is what a person is asked without it, `still_asks` what with it.
    With `knows_project` it starts servers in the directory of the project with the environment of a shell.
    For another client the entry names every directory.
    """

    name: str
    title: str
    files: Mapping[Scope, Callable[[ClientDirectories], Path]]
    next_step: str
    syntax: Syntax = "json"
    knows_project: bool = True
    extras: Entry = field(default_factory=dict)
    approval: Entry = field(default_factory=dict)
    over_http: Callable[[str, str], Entry] | None = None
    permissions: Mapping[Scope, ClientPermissions] = field(default_factory=dict)
    asks: str = ""
    still_asks: str = ""

    @property
    def can_be_approved(self) -> bool:
        """Whether a file can allow calls of the tools without asking each time."""
        return bool(self.approval or self.permissions)

    @property
    def scope(self) -> Scope:
        """The usual one of its scopes."""
        return next(iter(self.files))


def completed(entry: Any, wanted: Entry) -> Entry | None:
    """Return an entry with what it lacks, such as one of an earlier version; None for another server's.

    Whatever a person has decided or added there stays.
    """
    if not isinstance(entry, dict) or any(entry.get(key) != wanted.get(key) for key in _SERVER):
        return None
    more = dict(wanted)
    for key, value in wanted.items():
        present = entry.get(key, value)
        if isinstance(present, list) and isinstance(value, list):
            more[key] = [*present, *(each for each in value if each not in present)]
        elif isinstance(present, dict) and isinstance(value, dict):
            more[key] = {**present, **value, **present}  # what is there keeps its order
        else:
            more[key] = present
    return {**entry, **more}


def is_written_by_init(entry: Any) -> bool:
    """Whether an entry starts this server, or connects to one with a token; its other keys do not count."""
    if not isinstance(entry, dict):
        return False
    words = entry.get("args")
    if isinstance(words, list):
        return any(words[start : start + 3] == SERVE_WORDS for start in (0, 2))
    headers = entry.get("headers", entry.get("http_headers"))
    return isinstance(headers, dict) and str(headers.get("Authorization", "")).startswith("Bearer ")


_FIRST_TURN: Mapping[tuple[str, ...], str] = {("env", "MCP_CONNECT_TIMEOUT_MS"): "30000"}
"""How long the first turn of Claude Code waits for tools that are always loaded: 5 s are too few for a start
without a zygote on a machine that has much else to do."""


def _with_headers(key: str, headers: str = "headers", **more: Any) -> Callable[[str, str], Entry]:
    """Return the maker of an entry with the URL and the headers under these keys."""
    return lambda url, authorization: {**more, key: url, headers: {"Authorization": authorization}}


# A turn of Codex does not wait for a server that needs more than a second, and then never sees its tools,
# unless the server is required. The server expects a call to last 300 s at most.
_CODEX: Entry = {"required": True, "startup_timeout_sec": 30, "tool_timeout_sec": 300}


_ALL = (
    Client(
        name="claude",
        title="Claude Code",
        files={
            "project": lambda at: at.cwd / ".mcp.json",
            "user": lambda at: at.named("CLAUDE_CONFIG_DIR", at.home) / ".claude.json",
        },
        # The first turn waits for a server only if its tools are always loaded; else it lacks them.
        extras={"alwaysLoad": True},
        over_http=_with_headers("url", type="http", alwaysLoad=True),
        permissions={
            # The file in which Claude Code itself keeps the answers of a person for a project.
            "project": ClientPermissions(
                lambda at: at.cwd / ".claude" / "settings.local.json",
                {("enabledMcpjsonServers",): SERVER, ("permissions", "allow"): f"mcp__{SERVER}"},
                _FIRST_TURN,
            ),
            "user": ClientPermissions(
                lambda at: at.named("CLAUDE_CONFIG_DIR", at.home / ".claude") / "settings.json",
                {("permissions", "allow"): f"mcp__{SERVER}"},
                _FIRST_TURN,
            ),
        },
        next_step="Start Claude Code anew.",
        asks="It asks once if it may use the servers of a project, and before "
        "the first call of each tool; `claude -p` refuses tools that nobody has allowed.",
        still_asks="In a folder that is new to it, it asks whether you trust it.",
    ),
    Client(
        name="codex",
        title="Codex",
        syntax="toml",
        files={
            "user": lambda at: at.named("CODEX_HOME", at.home / ".codex") / "config.toml",
            "project": lambda at: at.cwd / ".codex" / "config.toml",
        },
        extras={**_CODEX, "env_vars": list(_PASSED_ON_BY_CODEX)},  # it passes on no other variables
        approval={"default_tools_approval_mode": "approve"},
        over_http=_with_headers("url", "http_headers", **_CODEX),
        asks="It asks before each call of a tool that does something; `codex exec` cannot ask, and refuses.",
        next_step="Start Codex anew. It passes over the file of a project that it does not trust, and `codex "
        "exec` does not ask. It keeps other variables than those of env_vars from its servers: add what your "
        "agents need.",
    ),
    Client(
        name="gemini",
        title="Gemini CLI",
        files={
            "user": lambda at: at.named("GEMINI_CLI_HOME", at.home) / ".gemini" / "settings.json",
            "project": lambda at: at.cwd / ".gemini" / "settings.json",
        },
        # Variables with KEY in their name do not reach a server unless its entry names them.
        extras={"env": {"ANTHROPIC_API_KEY": "${ANTHROPIC_API_KEY:-}"}},
        approval={"trust": True},
        over_http=_with_headers("httpUrl"),
        asks="It asks before each call, unless it was started with `--approval-mode yolo`.",
        next_step="Start Gemini CLI anew, in a folder that it trusts. It keeps variables that look like "
        "secrets from its servers: add to env what your agents need.",
    ),
    Client(
        name="cursor",
        title="Cursor",
        files={
            "project": lambda at: at.cwd / ".cursor" / "mcp.json",
            "user": lambda at: at.home / ".cursor" / "mcp.json",
        },
        knows_project=False,
        over_http=_with_headers("url"),
        still_asks="It asks before calls as its own settings say.",
        next_step="Switch the server on in Cursor's settings under MCP. Started from a menu, Cursor has no "
        "ANTHROPIC_API_KEY: start it from a shell, or add the key to env.",
    ),
    Client(
        name="claude-desktop",
        title="Claude Desktop",
        files={
            "user": lambda at: (
                at.named("XDG_CONFIG_HOME", at.home / ".config") / "Claude" / "claude_desktop_config.json"
            )
        },
        knows_project=False,
        still_asks="It asks before the first call of each tool; answer that it may always.",
        next_step="Quit Claude Desktop and start it again. It does not have the environment of your shell: "
        "add ANTHROPIC_API_KEY to env.",
    ),
)

CLIENTS: Mapping[str, Client] = {client.name: client for client in _ALL}
