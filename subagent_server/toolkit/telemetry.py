"""Spans of a run: what they are called, and how a runner and its tools make them.

The one place that has the names. They are those of the GenAI conventions of OpenTelemetry
(https://github.com/open-telemetry/semantic-conventions-genai, July 2026); what those do not have is named
`subagent.*`. The worker fills in `Tracer` where tracing is configured; else there is `NO_TRACER`, which does
nothing. No module of OpenTelemetry is imported here.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol

from subagent_server.domain.errors import RunRefused, SubagentError
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
"""These five are contents, which only `Tracer.keeps_content` lets into a span."""

RUN_STATUS = "subagent.run.status"
RUN_PARENT = "subagent.run.parent_id"
RUN_ROOT = "subagent.run.root_id"
RUN_DEPTH = "subagent.run.depth"
RUN_TURNS = "subagent.run.turns"
RUN_TOOL_CALLS = "subagent.run.tool_calls"

Facts = Mapping[str, Any]
"""By name. None is left out; what is no text, number, truth value or list of texts is sent as JSON."""


class Span(Protocol):
    """Something that began and has not ended."""

    def set(self, facts: Facts) -> None:
        """Add attributes."""
        ...

    def fail(self, error_type: str, message: str = "") -> None:
        """Mark it as failed. `error_type` is one of few words: a code, or the name of an exception."""
        ...


class Tracer(Protocol):
    """Makes the spans of one run. The one that is open where another begins is its parent."""

    @property
    def keeps_content(self) -> bool:
        """Whether spans may hold what is said to and by models and tools."""
        ...

    def span(self, name: str, facts: Facts, *, client: bool = False) -> AbstractContextManager[Span]:
        """Return a span for a `with` block; an exception that leaves the block fails it with `error_type`.

        `client` says that the work is done elsewhere, by whom this process asks.
        """
        ...


class _NoSpan:
    def set(self, facts: Facts) -> None:
        """Nobody looks."""

    def fail(self, error_type: str, message: str = "") -> None:
        """Nobody looks."""


class _NoTracer:
    keeps_content = False

    def span(self, name: str, facts: Facts, *, client: bool = False) -> AbstractContextManager[Span]:
        """Return what does nothing."""
        return _NOTHING


_NOTHING: AbstractContextManager[Span] = nullcontext(_NoSpan())
NO_TRACER: Tracer = _NoTracer()

CURRENT: ContextVar[Mapping[str, str]] = ContextVar("CURRENT", default={})  # noqa: B039 - nobody changes it
"""The trace context of the open span, set by whoever makes spans."""


def trace_headers() -> dict[str, str]:
    """Return `traceparent` (and `tracestate`) of the span that is open here; empty where nothing is traced.

    They belong into the `_meta` of a request to an MCP server and into the headers of an HTTP request.
    """
    return dict(CURRENT.get())


def token_facts(fresh: int, output: int, cache_read: int, cache_write: int) -> Facts:
    """Return what was used, in tokens. The conventions count as input what a cache had or took, too."""
    return {
        INPUT_TOKENS: fresh + cache_read + cache_write,
        OUTPUT_TOKENS: output,
        CACHE_READ_TOKENS: cache_read,
        CACHE_WRITE_TOKENS: cache_write,
    }


def error_type(error: BaseException) -> str:
    """Return the code of one of our errors, `cancelled` where work was ended, else the exception's name."""
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
    """Do `work`, which is one call of a tool, within its span."""
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
