"""Spans of a run: their names and attributes, and the protocol by which runners and tools make them.

All names stand here. They are those of the GenAI conventions of OpenTelemetry
(https://github.com/open-telemetry/semantic-conventions-genai, July 2026); names that these lack begin with
`subagent.`. The worker implements `Tracer` if tracing is configured; otherwise `NO_TRACER` does nothing. No
module of OpenTelemetry is imported here.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol

from subagent_server.domain.errors import RunRefused, SubagentError
from subagent_server.domain.figures import known_sum
from subagent_server.toolkit.run_context import RunOver
from subagent_server.toolkit.tool import ToolResult

INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
CONVERSATION_ID = "gen_ai.conversation.id"
AGENT_NAME = "gen_ai.agent.name"
AGENT_DESCRIPTION = "gen_ai.agent.description"
OUTPUT_TYPE = "gen_ai.output.type"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_write.input_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
ERROR_TYPE = "error.type"

SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
"""These five hold contents, and are set only if `Tracer.keeps_content` is true."""

RUN_STATUS = "subagent.run.status"
RUN_PARENT = "subagent.run.parent_id"
RUN_ROOT = "subagent.run.root_id"
RUN_DEPTH = "subagent.run.depth"
RUN_TURNS = "subagent.run.turns"
RUN_TOOL_CALLS = "subagent.run.tool_calls"

Facts = Mapping[str, Any]
"""Attributes by name. None is left out; other than texts, numbers, bools and lists of texts become JSON."""


class Span(Protocol):
    """An open span."""

    def set(self, facts: Facts) -> None:
        """Add attributes."""
        ...

    def fail(self, error_type: str, message: str = "") -> None:
        """Mark it as failed. `error_type` has few values: a code, or the name of an exception."""
        ...


class Tracer(Protocol):
    """Makes the spans of one run. A span that begins inside another is its child."""

    @property
    def keeps_content(self) -> bool:
        """Whether spans may hold the inputs and outputs of models and tools."""
        ...

    def span(self, name: str, facts: Facts, *, client: bool = False) -> AbstractContextManager[Span]:
        """Return a span for a `with` block; an exception that leaves the block fails it with `error_type`.

        `client` marks a request to another program.
        """
        ...


class _NoSpan:
    def set(self, facts: Facts) -> None:
        """Do nothing."""

    def fail(self, error_type: str, message: str = "") -> None:
        """Do nothing."""


class _NoTracer:
    keeps_content = False

    def span(self, name: str, facts: Facts, *, client: bool = False) -> AbstractContextManager[Span]:
        """Return a span that does nothing."""
        return _NOTHING


_NOTHING: AbstractContextManager[Span] = nullcontext(_NoSpan())
NO_TRACER: Tracer = _NoTracer()

CURRENT: ContextVar[Mapping[str, str]] = ContextVar("CURRENT", default={})  # noqa: B039 - it is never changed
"""The trace context of the open span, set by the tracer."""


def trace_headers() -> dict[str, str]:
    """Return `traceparent` (and `tracestate`) of the open span; empty if nothing is traced.

    They belong in the `_meta` of a request to an MCP server and into the headers of an HTTP request.
    """
    return dict(CURRENT.get())


def token_facts(
    fresh: int | None, output: int | None, cache_read: int | None, cache_write: int | None
) -> Facts:
    """Return the token counts of a call, without those that are not known.

    In the conventions, input includes the tokens of caches.
    """
    return {
        INPUT_TOKENS: known_sum(fresh, cache_read, cache_write),
        OUTPUT_TOKENS: output,
        CACHE_READ_TOKENS: cache_read,
        CACHE_WRITE_TOKENS: cache_write,
    }


def error_type(error: BaseException) -> str:
    """Return the code of an error of this package, `cancelled` for ended work, else the exception's name."""
    if isinstance(error, RunRefused):
        return error.failure_code
    if isinstance(error, SubagentError):
        return error.code
    if isinstance(error, asyncio.CancelledError | RunOver):
        return "cancelled"
    return type(error).__name__


async def execute_tool(
    tracer: Tracer, name: str, call_id: str, arguments: Mapping[str, Any], work: Awaitable[ToolResult]
) -> ToolResult:
    """Await `work`, one call of a tool, inside a span."""
    facts: dict[str, Any] = {
        OPERATION: EXECUTE_TOOL,
        TOOL_NAME: name,
        TOOL_TYPE: "function",
        TOOL_CALL_ID: call_id,
    }
    if tracer.keeps_content:
        facts[TOOL_ARGUMENTS] = dict(arguments)
    with tracer.span(f"{EXECUTE_TOOL} {name}", facts) as span:
        result = await work
        if result.is_error:
            span.fail("tool_error")
        if tracer.keeps_content:
            span.set({TOOL_RESULT: result.text})
        return result
