"""Spans made with OpenTelemetry's SDK and sent with OTLP over HTTP. Imported only if they are wanted.

The SDK's provider is not registered for the whole process: other libraries would then send spans of their own
beside these. They do see the open span, so their requests carry its trace context.
"""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from subagent_server import __version__
from subagent_server.domain.secrets import Masker
from subagent_server.domain.trace_context import of_environment
from subagent_server.toolkit.telemetry import CURRENT, ERROR_TYPE, Facts, Span, error_type

SERVICE = "subagent-server"
LONGEST_CHARACTERS = 200_000
"""Longer texts are cut: a collector refuses, or bills, texts without a bound."""
_W3C = TraceContextTextMapPropagator()


class SdkTracer:
    """Implements `tracing.Exporting`. The trace context of `environment` is the parent of the first span."""

    def __init__(self, environment: Mapping[str, str], masker: Masker, *, keeps_content: bool) -> None:
        self.keeps_content = keeps_content
        self._masker = masker
        self._trouble = _LastWord.of_the_sdk()
        self._exporter = _Counted(OTLPSpanExporter())
        self._sent = _Counting(self._exporter)
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(self._sent)
        self._tracer = self._provider.get_tracer(SERVICE, __version__)
        self._parent = _W3C.extract(of_environment(environment))

    @contextmanager
    def span(self, name: str, facts: Facts, *, client: bool = False) -> Iterator[Span]:
        """Open a span and make this span current, for this project and for the libraries."""
        kind = SpanKind.CLIENT if client else SpanKind.INTERNAL
        context = None if trace.get_current_span().get_span_context().is_valid else self._parent
        first = _attributes(facts, self._masker)
        made = self._tracer.start_span(self._masker.text(name), context, kind, first)
        span = _SdkSpan(made, self._masker)
        with trace.use_span(made, record_exception=False, set_status_on_exception=False):
            token = CURRENT.set(_headers())
            try:
                yield span
            except BaseException as error:
                span.fail(error_type(error))
                raise
            finally:
                CURRENT.reset(token)
                made.end()

    async def deliver(self, seconds: float) -> str | None:
        """Send the remaining spans, in a thread abandoned when the time is over."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def send() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop has ended, and with it the wait
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=send, name="spans", daemon=True).start()
        with suppress(TimeoutError):  # the spans not taken by then are counted
            await asyncio.wait_for(done.wait(), seconds)
        missing = self._sent.ended - self._exporter.delivered
        if missing <= 0:
            return None
        why = f": {self._trouble.text}" if self._trouble.text else ""
        return f"{missing} of {self._sent.ended} spans were not delivered{why}; the run is not affected."


class _SdkSpan:
    def __init__(self, span: trace.Span, masker: Masker) -> None:
        self._span = span
        self._masker = masker
        self._failed = False

    def set(self, facts: Facts) -> None:
        if self._span.is_recording():
            self._span.set_attributes(_attributes(facts, self._masker))

    def fail(self, error_type: str, message: str = "") -> None:
        """Mark it as failed; the first reason stays."""
        if not self._failed:
            self._failed = True
            self._span.set_attribute(ERROR_TYPE, error_type)
            self._span.set_status(Status(StatusCode.ERROR, self._masker.text(message) or None))


class _Counting(BatchSpanProcessor):
    """Counts the spans to send."""

    ended = 0

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self.ended += 1
        super().on_end(span)


class _Counted(SpanExporter):
    """Counts the spans that the collector has taken."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.delivered = 0
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.delivered += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _LastWord(logging.Handler):
    """Keeps the last complaint of the SDK for the journal: a sentence, not pages of stderr."""

    text = ""

    @classmethod
    def of_the_sdk(cls) -> "_LastWord":
        last, logger = cls(logging.WARNING), logging.getLogger("opentelemetry")
        logger.addHandler(last)
        logger.propagate = False
        return last

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage().strip().rstrip(".")[:300]


def _resource() -> Resource:
    """Return the name of this process: as the standard variables say, else that of this project."""
    ours = Resource.create({"service.name": SERVICE, "service.version": __version__})
    return ours.merge(OTELResourceDetector().detect())


def _headers() -> dict[str, str]:
    headers: dict[str, str] = {}
    _W3C.inject(headers)
    return headers


def _attributes(facts: Facts, masker: Masker) -> dict[str, Any]:
    known = {key: value for key, value in facts.items() if value is not None}
    return {key: _value(value) for key, value in masker.data(known).items()}


def _value(value: Any) -> Any:
    """Return `value` as an attribute can hold it: texts, numbers and lists of texts; all else as JSON."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text[:LONGEST_CHARACTERS]
