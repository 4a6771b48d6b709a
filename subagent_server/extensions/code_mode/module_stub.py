"""The module `subagent` of a flow as a stub file: a type checker knows the agents and what they return."""

from collections.abc import Sequence
from typing import Any

from subagent_server.extensions.code_mode.python_text import type_name
from subagent_server.extensions.code_mode.stubs import ServerTool, StubWriter
from subagent_server.run.agent_definition import AgentDefinition

_HEAD = '''\
"""What programs of agents import: made by `subagent tools AGENT --stub`."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, Literal, NotRequired, ParamSpec, TypeAlias, TypedDict, TypeVar, overload

_P = ParamSpec("_P")
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_Answer: TypeAlias = Callable[[str, list[str] | None], str]

class ToolError(Exception): ...

class RunFailed(Exception):
    code: str
    view: dict[str, Any]
    run_id: str | None

class Text(str):
    run_id: str | None
    def json(self) -> Any: ...

class Call(Generic[_T_co]):
    run_id: str | None
    @property
    def status(self) -> str: ...
    def start(self) -> Call[_T_co]: ...
    def result(self) -> _T_co: ...
    def stop(self) -> None: ...
    def __call__(self) -> _T_co: ...

class _Agent(Generic[_P, _T]):
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T: ...
    def call(self, *args: _P.args, **kwargs: _P.kwargs) -> Call[_T]: ...
    def start(self, *args: _P.args, **kwargs: _P.kwargs) -> Call[_T]: ...

def _agent(function: Callable[_P, _T]) -> _Agent[_P, _T]: ...
@overload
def gather(*calls: Callable[[], _T], limit: int = 8, return_exceptions: Literal[False] = ...) -> list[_T]: ...
@overload
def gather(
    *calls: Callable[[], _T], limit: int = 8, return_exceptions: Literal[True]
) -> list[_T | RunFailed]: ...
def ask(question: str, options: list[str] | None = None) -> str | None: ...
def log(*words: object) -> None: ...
def phase(name: str) -> None: ...
def merge(run: Call[Any] | Text | str) -> str: ...
def now() -> datetime: ...
def random() -> float: ...
'''
_COMMON: dict[str, Any] = {
    "inputs": {"type": "array", "items": {"type": "string"}},
    "label": {"type": "string"},
    "cwd": {"type": "string"},
    "key": {"type": "string"},
    "fresh": {"type": "boolean"},
}
_PROMPT: dict[str, Any] = {"properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}


def module_stub(agents: Sequence[AgentDefinition]) -> str:
    """Return the text of `subagent.pyi` for a program that may start these agents."""
    names = {agent.tool_name.removeprefix("run_"): agent for agent in agents}
    writer = StubWriter([f"_{name}" for name in names])
    parts = [_HEAD]
    for name, agent in names.items():
        own: Any = agent.input_schema if isinstance(agent.input_schema, dict) else _PROMPT
        schema = {
            "type": "object",
            "properties": {**own["properties"], **_COMMON},
            "required": own["required"],
            "additionalProperties": False,
        }
        tool = ServerTool("agents", type_name("_", name), "", schema, agent.output_schema)
        text = writer.stub(f"_{name}", tool).text
        head, define, function = text.rpartition(f"def _{name}(")
        end = function.index(") -> ")
        parameter, first = "on_question: _Answer | None = ...", function[:end]
        whole = f"{first}    {parameter},\n" if first.endswith("\n") else f"{first}, {parameter}"
        rest = f"{whole}{function[end:]}"
        parts.append(f"{head}@_agent\n{define}{rest}".rstrip() + "\n")
    attributes = "".join(f"    {name} = _{name}\n" for name in names) or "    pass\n"
    parts.append(f"class _Agents:\n{attributes}\nagents: _Agents\n")
    return "\n".join(parts)
