"""The protocol of an agent's tools, and their results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.files import Directory
from subagent_server.run.secrets import Masker
from subagent_server.sandbox.box import Box
from subagent_server.sandbox.file_watch import CommandWatch
from subagent_server.toolbox.agent_process import Spare
from subagent_server.toolbox.run_context import RunContext

if TYPE_CHECKING:  # it imports this module
    from subagent_server.toolbox.basic import Delegation

ContentBlock = dict[str, Any]
"""A content block of the Messages API: `{"type": "text", "text": ...}`, an image, a document."""


@dataclass(frozen=True)
class ToolResult:
    """The result of a call, as the model will see it. A failure has `is_error` set.

    `exit_code` is that of a command, for the journal: a command that failed is no failure of its tool.
    """

    content: list[ContentBlock]
    is_error: bool = False
    exit_code: int | None = None

    @classmethod
    def of_text(cls, text: str) -> "ToolResult":
        """Return a plain text result."""
        return cls([{"type": "text", "text": text}])

    @classmethod
    def failure(cls, text: str) -> "ToolResult":
        """Return an error that the model reads and can adapt to."""
        return cls([{"type": "text", "text": text}], is_error=True)

    def with_remark(self, remark: str) -> "ToolResult":
        """Return the result with a remark behind it, if that is not empty."""
        if not remark:
            return self
        return replace(self, content=[*self.content, {"type": "text", "text": remark}])

    @property
    def is_text(self) -> bool:
        """Whether the result has text blocks only."""
        return all(b.get("type") == "text" for b in self.content)

    @property
    def text(self) -> str:
        """The text blocks, joined by blank lines; other blocks as `[type]`."""
        return "\n\n".join(
            b["text"] if b.get("type") == "text" else f"[{b.get('type')}]" for b in self.content
        )


class Tool(Protocol):
    """One tool, by the `name` that the model calls.

    `sequential` tools of a turn run in the order of their calls, the others all at once.
    """

    name: str
    sequential: bool = False

    def definition(self) -> dict[str, Any]:
        """Return the entry of `tools` in a Messages request."""

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Run the tool. An error that the model can act on is a failure.

        Raises:
            CallerError: the model can put the call right; it reads the sentence as a failure.
        """

    async def aclose(self) -> None:
        """Release resources (processes, connections), if any. Called once, before the worker exits."""
        return  # most hold none


@dataclass(frozen=True)
class RunTools:
    """The tools of a run of the built-in loop, for an extension that changes those of its MCP servers.

    `own` are the tools of the run itself, `listed` those of its MCP servers. Programs work in `box`, without
    one with the rights of the user. `watch` is notified of each; processes that `spare` names outlive them.
    `delegation` is None if the agent may start no others.
    `code` and `outputs` are directories of the run: for programs, and for texts too long for the model.
    """

    agent: AgentDefinition
    run: RunContext
    environment: Mapping[str, str]
    own: Sequence[Tool]
    listed: Sequence[Tool]
    code: Directory
    outputs: Directory
    masker: Masker
    box: Callable[[], Box] | None
    spare: Spare
    watch: CommandWatch | None
    delegation: "Delegation | None"
