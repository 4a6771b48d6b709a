"""The description of a tool: a `ToolSpec` holds everything needed by any door."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from subagent_server.service.tools.call import Call
from subagent_server.service.tools.context import ToolContext
from subagent_server.service.tools.schema import Schema, brief

Answer = dict[str, Any]
LIST = "result"
"""The only key of an answer that is a list: structured content has to be an object."""
Handler = Callable[[ToolContext, Call], Awaitable[Answer]]
ToolRole = Literal["parent", "child"]
"""`parent`: a caller that may start runs; `child`: a run that may start none."""


@dataclass(frozen=True)
class ToolHints:
    """What clients show of a tool or decide by; None leaves it to the protocol's default."""

    read_only: bool = False
    destructive: bool | None = False
    idempotent: bool | None = False
    open_world: bool = False


@dataclass(frozen=True, eq=False)
class ToolSpec:
    """A tool: its texts, the schemas of its arguments and of its answer, its roles, and its handler."""

    name: str
    title: str
    description: str
    arguments: Schema
    """What the arguments of a call must fit."""
    answer: Callable[[], Schema] | None
    """Returns the schema of the answer when somebody lists the tools; None if the tool shows none."""
    handler: Handler
    roles: frozenset[ToolRole]
    hints: ToolHints = ToolHints()
    in_sight: bool = False
    """Whether a client that hides tools shall show this one: a view may name it as the next call."""

    @property
    def shown_arguments(self) -> Schema:
        """The schema of the arguments as a model sees it: every parent pays for each byte."""
        return brief(self.arguments)
