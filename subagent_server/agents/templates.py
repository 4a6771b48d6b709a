"""The agents that come with the product, and the text of a new one.

`subagent new` copies them and `subagent demo` shows one. They are never listed or run from here: an agent is
listed or run only from a file in a directory of the user.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from subagent_server.agents.agent_file import NAME_LISTS
from subagent_server.agents.discover import Catalog, discover
from subagent_server.agents.formats import MARKDOWN, read_markdown, split
from subagent_server.agents.yaml_reader import (
    AGENT_FIELDS,
    LIMIT_FIELDS,
    PARTS,
    Notes,
    Unreadable,
    camel,
    canonical,
    read_text,
    shown,
)
from subagent_server.run.agent_definition import ACP_PROGRAMS, AgentDefinition, Limits, RunnerName
from subagent_server.run.errors import BadArgument
from subagent_server.run.schemas import DIALECT

EXAMPLE_AGENTS = Path(__file__).parents[1] / "example_agents"
"""In the repository a link to `agents/`, which is the only copy; in an installation a directory."""
TEMPLATE = Path(__file__).with_name("template.md")
_NAME_LINE = re.compile(r"^name[ \t]*:.*\n", re.MULTILINE)


def examples() -> Catalog:
    """Return the agents that come with the product."""
    return discover([EXAMPLE_AGENTS])


def template(name: str) -> str:
    """Return the text of a new agent, with a comment at each key that its author may want to change."""
    return _renamed(TEMPLATE, TEMPLATE.read_text(encoding="utf-8"), name)


def copied(agent: AgentDefinition, name: str) -> str:
    """Return the text of an agent's file under another name.

    Raises:
        BadArgument: the file cannot be copied so.
        AgentFileError: it has changed, and is not understood any more.
    """
    source = agent.source
    if source is None or source.suffix.lower() not in MARKDOWN:
        raise BadArgument(f"Agent {agent.name} is not a Markdown file, and only those are copied.")
    try:
        return _renamed(source, read_text(source), name)
    except Unreadable as error:
        raise BadArgument(f"{shown(source)} cannot be copied: {error.reason}.") from error


def _renamed(path: Path, text: str, name: str) -> str:
    """Return the text of a Markdown agent with this name instead of its own, and everything else in it.

    Raises:
        BadArgument, AgentFileError: as `copied`.
    """
    parts = split(path, text)
    line = f"name: {name}\n"
    keys, times = _NAME_LINE.subn(line, parts.text, count=1)
    renamed = f"---\n{'' if times else line}{keys}---\n\n{parts.body}\n"
    if read_markdown(path, renamed, Notes()).name != name:
        raise BadArgument(f"The name in {shown(path)} is not on one line: copy the file by hand.")
    return renamed


# -- JSON Schemas of agent files, for completion and checks in an editor.
#
# The keys and their types follow from `run/agent_definition.py`, so a new key appears by itself. They are
# a little stricter than the loader: one spelling of each key, no dialects of other tools.


Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NAMES: Schema = {"anyOf": [{"type": "array", "items": _TEXT}, {"type": ["string", "null"]}]}
_JSON_SCHEMA: Schema = {"type": ["object", "boolean", "string"]}

MEANINGS: Mapping[str, str] = {
    "name": "The name of the agent; without it, the name of the file.",
    "description": "When to use the agent. The parent reads it.",
    "system_prompt": "The system prompt, instead of the body of the file.",
    "system_prompt_path": "A file with the system prompt, relative to this one.",
    "runner": "How the agent works: by the built-in loop (messages) or by an external program.",
    "model": "The id of a model, or an alias such as sonnet, opus or haiku; or a list, tried in order.",
    "base_url": "The address of the Messages API.",
    "api_key_env": "The environment variable that holds the key of the API.",
    "max_tokens": "The most tokens of one answer of the model.",
    "effort": "How much the model thinks.",
    "tools": "The tools that a run may use; without the key, all of them.",
    "disallowed_tools": "Tools that a run may not use.",
    "ask": "Tools that need a yes each time: the call becomes a question.",
    "hooks": "Commands of Claude Code around its tools, for runner: claude.",
    "agents": "The agents that a run may start.",
    "mcp_servers": "The MCP servers that a run connects to: by name, or defined here.",
    "code_mode": "Whether MCP tools are offered as functions of one program.",
    "sandbox": "Where programs of a run work: auto, bwrap (refuse where it is missing) or none.",
    "network": "Whether programs of a run reach the network.",
    "sandbox_limits": "Bounds of the programs of a run: bytes of memory, processes, bytes of one file.",
    "placement": "Where a run works (local, slurm, ssh:HOST), and what it asks of Slurm.",
    "sandbox_read": "More files and directories that a sandbox shows, for reading.",
    "sandbox_write": "Protected paths below cwd, and places elsewhere, that may be written.",
    "web_search": "Bounds of WebSearch in a run: how many searches, and in which domains.",
    "web_fetch": "Bounds of WebFetch in a run: how many pages, how long, and from which domains.",
    "output_schema": "JSON Schema 2020-12 of the result.",
    "output_schema_path": "A JSON file with the schema of the result, relative to this one.",
    "limits": "What ends a run.",
    "max_concurrent": "How many runs of this agent work at once.",
    "isolation": "none, or worktree: a git worktree for each run.",
    "env": "Environment variables added to those that a run inherits; ${VAR} is expanded.",
    "cwd": "The working directory of a run; ${VAR} is expanded.",
    "command": "The program of runner: command or acp; of others, where it is.",
    "args": "The arguments of the program.",
    "fail_if": "What of a program means that the run has failed: a pattern in its output, exit codes.",
    "max_turns": "The most turns of the model.",
    "timeout_seconds": "Seconds of working time after which a run ends.",
    "budget_usd": "US dollars after which a run ends.",
    "ask_timeout_seconds": "Seconds that a question waits for its answer.",
    "on_ask_timeout": "Whether a run without an answer continues or fails.",
    "idle_timeout_seconds": "Seconds that an external program may be silent.",
}
"""One line a key, by the name of its field."""


def agent_schema() -> Schema:
    """Return the schema of the front matter of `agents/<name>.md`."""
    return {
        "$schema": DIALECT,
        "title": "Front matter of an agent file (agents/<name>.md)",
        "type": "object",
        "properties": _agent_keys(),
        "anyOf": [{"required": ["name"]}, {"required": ["description"]}],
    }


def config_schema() -> Schema:
    """Return the schema of a CPE configuration, `agents/<name>.yaml`."""
    keys = _agent_keys() | {"model": {**_TEXT, "description": "The ref of one of the models."}}
    model = {
        "type": "object",
        "required": ["ref", "id"],
        "properties": {
            "ref": {**_TEXT, "description": "The name by which defaults.model means this model."},
            "display_name": _TEXT,
            "id": {**_TEXT, "description": "The id of the model at the API."},
            "type": {"const": "anthropic"},
            "api_key_env": keys["apiKeyEnv"],
            "base_url": keys["baseUrl"],
            "max_output": keys["maxTokens"],
            "codeMode": keys["codeMode"],
        },
    }
    return {
        "$schema": DIALECT,
        "title": "CPE configuration of an agent (agents/<name>.yaml)",
        "type": "object",
        "required": ["subagent"],
        "properties": {
            "version": {"type": ["string", "number"], "description": "1.0"},
            "models": {"type": "array", "items": model},
            "subagent": {"type": "object", "required": ["name", "description"], "properties": keys},
            "defaults": {"type": "object", "properties": keys},
            **{key: schema for key, schema in keys.items() if key not in ("name", "description")},
        },
    }


def _agent_keys() -> dict[str, Schema]:
    fields = [*AGENT_FIELDS.values(), *LIMIT_FIELDS.values()]
    parts = {field: _part(kind) for field, kind in PARTS.items()}
    types = {**_types(AgentDefinition), **_types(Limits), **parts}
    types |= {
        "system_prompt_path": _TEXT,
        "output_schema_path": _TEXT,
        "model": _NAMES,
        "output_schema": _JSON_SCHEMA,
        "runner": {"type": "string", "enum": [*get_args(RunnerName), *ACP_PROGRAMS]},
        "code_mode": {"anyOf": [{"type": "boolean"}, parts["code_mode"]]},
        "mcp_servers": _servers(parts["mcp_servers"]),
        "env": {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
        "cwd": _TEXT,
    }
    return {camel(field): {**types[field], "description": MEANINGS[field]} for field in fields}


def _servers(server: Schema) -> Schema:
    by_name = {"type": "object", "additionalProperties": {"anyOf": [server, {"type": "null"}]}}
    listed = {"type": "array", "items": {"anyOf": [_TEXT, by_name, server]}}
    return {"anyOf": [by_name, listed, _TEXT]}


def _part(kind: type[BaseModel]) -> Schema:
    return {"type": "object", "properties": {camel(field): type_ for field, type_ in _types(kind).items()}}


def _types(kind: type[BaseModel]) -> dict[str, Schema]:
    """Return the type of each field as it is written in a file."""
    schema = kind.model_json_schema(by_alias=True)
    # an agent contains agents, so its schema is a reference to one of its definitions
    properties = schema.get("$defs", {}).get(kind.__name__, schema)["properties"]
    by_key = {canonical(key): content for key, content in properties.items()}
    return {field: _as_written(field, by_key[canonical(field)]) for field in kind.model_fields}


def _as_written(field: str, content: Schema) -> Schema:
    if field in NAME_LISTS or field in ("sandbox_read", "sandbox_write"):
        return _NAMES
    kept = [branch for branch in content.get("anyOf", [content]) if branch.get("type") != "null"]
    if field == "budget_usd":
        return {"type": ["number", "string"]}
    return {key: value for key, value in kept[0].items() if key not in ("title", "default", "description")}
