"""Access log and metrics: a line of JSON on stderr for each request, and the counts at `/metrics`."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from subagent_server.domain.ids import is_run_id
from subagent_server.server.http.clients import request_of
from subagent_server.server.http.gates import parent_of
from subagent_server.server.http.log_lines import write_line

Context = ServerRequestContext[Any, Any]
MAX_RUN_IDS = 20
MAX_TEXT = 200
QUIET_PATHS = frozenset({"/healthz", "/metrics"})
"""The paths that monitors ask for all the time: they are counted, and not logged."""
_FACTS = "subagent.facts"
_RUN_KEYS = ("runId", "runIds", "agent_id", "agent_ids")


@dataclass
class _Facts:
    """The facts of a request for its line in the log."""

    method: str | None = None
    tool: str | None = None
    run_ids: list[str] = field(default_factory=list)


class Traffic:
    """Logs and counts requests. `gauges` are further numbers for the metrics, by their names."""

    def __init__(self, gauges: Mapping[str, Callable[[], int]]) -> None:
        self._gauges = gauges
        self._answered: Counter[int] = Counter()
        self._seconds = 0.0
        self._open = 0

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return the application with its requests logged and counted."""

        async def logged(scope: Scope, receive: Receive, send: Send) -> None:
            facts = scope[_FACTS] = _Facts()
            began, sent = time.monotonic(), {"status": 0, "bytes": 0}

            async def watch(message: Message) -> None:
                if message["type"] == "http.response.start":
                    sent["status"] = message["status"]
                elif message["type"] == "http.response.body":
                    sent["bytes"] += len(message.get("body", b""))
                await send(message)

            self._open += 1
            try:
                await app(scope, receive, watch)
            finally:
                self._open -= 1
                seconds = time.monotonic() - began
                self._answered[sent["status"]] += 1
                self._seconds += seconds
                if scope["path"] not in QUIET_PATHS:
                    _log(scope, facts, sent, seconds)

        return logged

    async def metrics(self, _: Request) -> Response:
        """Answer with the counts, in the text format of Prometheus."""
        lines = ["# TYPE subagent_http_requests_total counter"]
        lines += [
            f'subagent_http_requests_total{{status="{status or "none"}"}} {count}'
            for status, count in sorted(self._answered.items())
        ]
        lines += [
            "# TYPE subagent_http_request_seconds summary",
            f"subagent_http_request_seconds_sum {self._seconds:.3f}",
            f"subagent_http_request_seconds_count {self._answered.total()}",
        ]
        gauges = {"requests_open": self._open, **{name: count() for name, count in self._gauges.items()}}
        for name, value in gauges.items():
            lines += [f"# TYPE subagent_http_{name} gauge", f"subagent_http_{name} {value}"]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


async def note_call(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Pass a message on, and note for the log what it asks for and which runs it is about."""
    facts = request_of(ctx).scope.get(_FACTS)
    if not isinstance(facts, _Facts):
        return await call_next(ctx)
    params = ctx.params or {}
    facts.method = ctx.method[:MAX_TEXT]
    if ctx.method == "tools/call":
        facts.tool = str(params.get("name"))[:MAX_TEXT]
        _note_runs(facts, params.get("arguments"))
    result = await call_next(ctx)
    if isinstance(result, dict):
        _note_runs(facts, result.get("structuredContent"))
    return result


def _note_runs(facts: _Facts, said: object) -> None:
    if not isinstance(said, Mapping):
        return
    for key in _RUN_KEYS:
        named = said.get(key)
        for run_id in named[:MAX_RUN_IDS] if isinstance(named, list) else [named]:
            if not isinstance(run_id, str) or not is_run_id(run_id) or run_id in facts.run_ids:
                continue
            if len(facts.run_ids) < MAX_RUN_IDS:
                facts.run_ids.append(run_id)


def _log(scope: Scope, facts: _Facts, sent: Mapping[str, int], seconds: float) -> None:
    write_line(
        {
            "from": (scope.get("client") or [None])[0],
            "parent": parent_of(scope),
            "request": f"{scope['method'][:MAX_TEXT]} {scope['path'][:MAX_TEXT]}",
            "status": sent["status"] or None,
            "bytes": sent["bytes"],
            "ms": round(seconds * 1000, 1),
            "method": facts.method,
            "tool": facts.tool,
            "runs": facts.run_ids or None,
        }
    )
