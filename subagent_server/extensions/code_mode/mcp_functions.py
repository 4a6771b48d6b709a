"""The tools of MCP servers as functions of programs: which become functions, and what a call of one returns.

Only runs with servers import this, and with it the SDK of the protocol.
"""

from collections.abc import Sequence
from typing import Any

from subagent_server.extensions.code_mode.code_tool import Called, Functions
from subagent_server.extensions.code_mode.execution import Reply
from subagent_server.extensions.code_mode.stubs import ServerTool, ToolFunction, catalogue_of
from subagent_server.run.errors import shorten
from subagent_server.toolbox.mcp.mcp_tools import McpTool, converted
from subagent_server.toolbox.mcp.server_connection import CallAnswer, ServerTrouble
from subagent_server.toolbox.outputs import KeptOutputs
from subagent_server.toolbox.tool import RunTools


class McpFunctions(Functions):
    """The tools of a run's servers; those that `excludedTools` of the agent names stay `ordinary`.

    Raises:
        RunRefused: `config`; names clash.
    """

    def __init__(self, tools: Sequence[McpTool], excluded: Sequence[str], kept: KeptOutputs) -> None:
        self.ordinary = [tool for tool in tools if any(map(tool.answers_to, excluded))]
        functions = [tool for tool in tools if tool not in self.ordinary]
        self.warnings = [
            f"codeMode.excludedTools names {shorten(name)}, which no server offers."
            for name in excluded
            if not any(tool.answers_to(name) for tool in tools)
        ]
        self.catalogue = catalogue_of(list(map(_server_tool, functions)))
        self._tools = {(tool.named.server, tool.named.tool.name): tool for tool in functions}
        self._kept = kept

    @classmethod
    def of_run(cls, setup: RunTools, excluded: Sequence[str]) -> "McpFunctions":
        """Return the functions of a run. Raises RunRefused."""
        listed = [tool for tool in setup.listed if isinstance(tool, McpTool)]
        return cls(listed, excluded, KeptOutputs(setup.outputs, setup.masker))

    def is_read_only(self, function: ToolFunction) -> bool:
        """Whether the server declares that a tool changes nothing."""
        annotations = self._tool(function).named.tool.annotations
        return annotations is not None and annotations.read_only_hint is True

    async def call(self, function: ToolFunction, arguments: dict[str, Any]) -> Called:
        """Call a tool; every failure is an answer for the program."""
        try:
            answer = await self._tool(function).answer(arguments)
        except ServerTrouble as trouble:
            return Called({"error": str(trouble)})
        return called(answer, function, self._kept)

    def _tool(self, function: ToolFunction) -> McpTool:
        return self._tools[function.tool.server, function.tool.name]


def called(answer: CallAnswer, function: ToolFunction, kept: KeptOutputs) -> Called:
    """Return what a call has brought: its value, as the program gets it, and what the model sees of it.

    A tool with an output schema returns its value. Any other returns text, with its structured content
    at hand: so the type of a result never depends on the data.
    """
    structured = answer.result.structured_content
    shown = converted(answer.result, kept)
    if shown.is_error:
        return Called({"error": shown.text}, remarks=answer.remarks)
    media = [block for block in shown.content if block["type"] != "text"]
    if function.tool.output_schema is not None and structured is not None:
        is_wrapped = (
            function.stub.unwraps and isinstance(structured, dict) and structured.keys() == {"result"}
        )
        return Called({"value": structured["result"] if is_wrapped else structured}, media, answer.remarks)
    words = [
        block["text"] if block["type"] == "text" else f"[{block['type']}: you will see it after the program]"
        for block in shown.content
    ]
    reply: Reply = {"text": "\n\n".join(words)}
    if structured is not None:
        reply["value"] = structured
    return Called(reply, media, answer.remarks)


def _server_tool(tool: McpTool) -> ServerTool:
    listed = tool.named.tool
    return ServerTool(
        server=tool.named.server,
        name=listed.name,
        description=listed.description or listed.title or "",
        input_schema=listed.input_schema,
        output_schema=listed.output_schema,
    )
