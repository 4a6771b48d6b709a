"""A collector on loopback: takes spans by OTLP over HTTP, and shows what it was sent."""

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True)
class Seen:
    """A span as it arrived. `error` is the description of its status, None where it is no error."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    facts: dict[str, Any]
    error: str | None
    resource: dict[str, Any]


class Collector:
    """Listens while its `with` block lasts."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.bodies: list[bytes] = []
        collector = self

        class Handler(_Handler):
            taker = collector

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def endpoint(self) -> str:
        """What OTEL_EXPORTER_OTLP_ENDPOINT has to say."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def one(self, name: str) -> Seen:
        """Return the span of this name, of which there has to be one."""
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def take(self, body: bytes) -> None:
        """Keep what a request brings."""
        self.bodies.append(body)
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _facts(group.resource.attributes)
            self.spans += [_seen(span, resource) for scope in group.scope_spans for span in scope.spans]


class _Handler(BaseHTTPRequestHandler):
    taker: ClassVar[Collector]

    def do_POST(self) -> None:
        """Take spans as a real collector does."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", PROTOBUF)
        self.taker.take(body)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", PROTOBUF)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on stderr."""


def _seen(span: Span, resource: dict[str, Any]) -> Seen:
    failed = span.status.code == Status.STATUS_CODE_ERROR
    return Seen(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        facts=_facts(span.attributes),
        error=span.status.message if failed else None,
        resource=resource,
    )


def _facts(attributes: Any) -> dict[str, Any]:
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    assert which is not None
    if which == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, which)
