"""The module `subagent` of a flow as a stub file: a type checker knows the agents and what they return."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from subagent_server.extensions.code_mode.python_text import function_name, type_name
from subagent_server.extensions.code_mode.stubs import ServerTool, StubWriter
from subagent_server.run.agent_definition import AgentDefinition

_HEAD = Path(__file__).with_name("subagent.pyi")
"""What every program has, whatever agents it may start."""
_COMMON: dict[str, Any] = {
    "inputs": {"type": "array", "items": {"type": "string"}},
    "label": {"type": "string"},
    "cwd": {"type": "string"},
    "key": {"type": "string"},
    "fresh": {"type": "boolean"},
    "on_question": True,
}
_PROMPT: dict[str, Any] = {"properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}


def module_stub(agents: Sequence[AgentDefinition]) -> str:
    """Return the text of `subagent.pyi` for a program that may start these agents."""
    names = {function_name(agent): agent for agent in agents}
    writer = StubWriter([f"_{name}" for name in names])
    parts = [_HEAD.read_text("utf-8")]
    for name, agent in names.items():
        own: Any = agent.input_schema if isinstance(agent.input_schema, dict) else _PROMPT
        schema = {**own, "properties": {**own["properties"], **_COMMON}, "additionalProperties": False}
        tool = ServerTool("agents", type_name("_", name), "", schema, agent.output_schema)
        text = writer.stub(f"_{name}", tool).text.rstrip()
        text = text.replace("on_question: Any", "on_question: _Answer | None")
        parts.append(text.replace(f"def _{name}(", f"@_agent\ndef _{name}(") + "\n")
    attributes = "".join(f"    {name} = _{name}\n" for name in names) or "    pass\n"
    parts.append(f"class _Agents:\n{attributes}\nagents: _Agents\n")
    return "\n".join(parts)
