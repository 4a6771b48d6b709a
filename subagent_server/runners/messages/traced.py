"""The model with a span for each of its calls, retries included."""

from typing import Any
from urllib.parse import urlsplit

import anthropic

from subagent_server.domain.errors import RunRefused
from subagent_server.runners.messages.model import (
    Model,
    ModelSettings,
    OnRetry,
    OnSent,
    OnSpent,
    api_error_type,
    not_counted,
    not_noted,
)
from subagent_server.runners.messages.reply import ModelReply
from subagent_server.toolkit import telemetry
from subagent_server.toolkit.pace import Pace
from subagent_server.toolkit.telemetry import Span, Tracer

PROVIDER = "anthropic"
DEFAULT_BASE_URL = "https://api.anthropic.com"
KEPT_CHARACTERS = 100_000
"""How much of a conversation a span holds, its newest messages first. The whole is in the transcript."""

Block = dict[str, Any]
Message = dict[str, Any]


class TracedModel(Model):
    """A model that makes a span of each call. `run_id` names the conversation."""

    def __init__(
        self,
        settings: ModelSettings,
        run_id: str,
        tracer: Tracer,
        pace: Pace | None = None,
        on_sent: OnSent = not_noted,
    ) -> None:
        super().__init__(settings, pace, on_sent)
        self._tracer = tracer
        self._name = f"{telemetry.CHAT} {settings.model}"
        self._facts = {
            telemetry.OPERATION: telemetry.CHAT,
            telemetry.PROVIDER: PROVIDER,
            telemetry.CONVERSATION_ID: run_id,
            telemetry.REQUEST_MODEL: settings.model,
            telemetry.REQUEST_MAX_TOKENS: settings.max_tokens,
            telemetry.REQUEST_STREAM: True,
            **_server(settings.base_url or DEFAULT_BASE_URL),
        }

    async def reply(
        self,
        system: list[Block],
        messages: list[Message],
        tools: list[Block],
        on_retry: OnRetry,
        on_spent: OnSpent = not_counted,
    ) -> ModelReply:
        """Return the model's next turn, as `Model.reply` does.

        Raises:
            RunRefused.
        """
        with self._tracer.span(self._name, self._facts, client=True) as span:
            if self._tracer.keeps_content:
                span.set({telemetry.SYSTEM_INSTRUCTIONS: _parts(system), **_inputs(messages)})
            try:
                reply = await super().reply(system, messages, tools, on_retry, on_spent)
            except RunRefused as refusal:
                span.fail(_error_type(refusal), refusal.sentence)
                raise
            self._describe(span, reply)
            return reply

    def _describe(self, span: Span, reply: ModelReply) -> None:
        used = reply.usage
        span.set(
            {
                telemetry.RESPONSE_ID: reply.response_id,
                telemetry.RESPONSE_MODEL: reply.model,
                telemetry.FINISH_REASONS: [reply.stop_reason] if reply.stop_reason else None,
                **telemetry.token_facts(
                    used.get("input_tokens", 0),
                    used.get("output_tokens", 0),
                    used.get("cache_read_input_tokens", 0),
                    used.get("cache_creation_input_tokens", 0),
                ),
            }
        )
        if self._tracer.keeps_content:
            said = {"role": "assistant", "parts": _parts(reply.content), "finish_reason": reply.stop_reason}
            span.set({telemetry.OUTPUT_MESSAGES: [said]})


def _server(base_url: str) -> dict[str, Any]:
    """Return host and port of the API, without the rest of its address."""
    try:
        parts = urlsplit(base_url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return {}
    return {telemetry.SERVER_ADDRESS: parts.hostname, telemetry.SERVER_PORT: port}


def _error_type(refusal: RunRefused) -> str:
    """Return the API's name of the fault, else its status, else the name of the exception behind it."""
    cause = refusal.__cause__
    if isinstance(cause, anthropic.APIStatusError):
        return api_error_type(cause) or str(cause.status_code)
    return telemetry.error_type(refusal) if cause is None else type(cause).__name__


def _inputs(messages: list[Message]) -> dict[str, Any]:
    kept: list[Message] = []
    room = KEPT_CHARACTERS
    for message in reversed(messages):
        parts = _parts(message["content"])
        room -= len(str(parts))
        if room < 0 and kept:
            break
        kept.insert(0, {"role": message["role"], "parts": parts})
    return {telemetry.INPUT_MESSAGES: kept}


def _parts(content: str | list[Block]) -> list[Block]:
    """Return content of the Messages API as the conventions write it; images and documents by their kind."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [_part(block) for block in blocks]


def _part(block: Block) -> Block:
    match block.get("type"):
        case "text":
            return {"type": "text", "content": str(block.get("text"))[:KEPT_CHARACTERS]}
        case "thinking":
            return {"type": "reasoning", "content": str(block.get("thinking"))[:KEPT_CHARACTERS]}
        case "tool_use":
            return {
                "type": "tool_call",
                "id": block["id"],
                "name": block["name"],
                "arguments": block["input"],
            }
        case "tool_result":
            response = _parts(block.get("content", []))
            return {"type": "tool_call_response", "id": block["tool_use_id"], "response": response}
        case other:
            return {"type": str(other)}
