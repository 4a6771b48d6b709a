"""The span of a run, and whether spans are wanted, by the standard variables of OpenTelemetry.

If they are not, OpenTelemetry's SDK is not imported. Any fault of the SDK becomes a warning, and the run goes
on.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from subagent_server.catalog.models import resolve_model
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.records import RunMeta, Usage
from subagent_server.domain.secrets import Masker
from subagent_server.domain.states import Status
from subagent_server.domain.trace_context import carried
from subagent_server.toolkit import telemetry
from subagent_server.toolkit.telemetry import NO_TRACER, Span, Tracer, trace_headers

DELIVERY_SECONDS = 2.0
"""How long the end of a worker waits for its spans to be taken."""

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURED = ("true", "span_only", "span_and_event")

Environment = Mapping[str, str]


class Exporting(Tracer, Protocol):
    """A tracer whose spans go somewhere."""

    async def deliver(self, seconds: float) -> str | None:
        """Send the rest within `seconds`; return a sentence on the spans that were not taken, or None."""
        ...


@dataclass(frozen=True)
class Tracing:
    """The spans of one run. `exporting` is None if they are not wanted or cannot be made."""

    run_id: str
    agent: AgentDefinition
    exporting: Exporting | None = None

    @property
    def tracer(self) -> Tracer:
        """The tracer that the runner makes its spans with."""
        return self.exporting or NO_TRACER

    @contextmanager
    def run(self, environment: dict[str, str]) -> Iterator[Span]:
        """Open the span of the run; `environment` gets its trace context, for the programs of the run."""
        facts = {
            telemetry.OPERATION: telemetry.INVOKE_AGENT,
            telemetry.PROVIDER: "anthropic",
            telemetry.CONVERSATION_ID: self.run_id,
            telemetry.AGENT_NAME: self.agent.name,
            telemetry.AGENT_DESCRIPTION: self.agent.description or None,
            telemetry.REQUEST_MODEL: resolve_model(self.agent.model),
            telemetry.OUTPUT_TYPE: "text" if self.agent.output_schema is None else "json",
        }
        with self.tracer.span(f"{telemetry.INVOKE_AGENT} {self.agent.name}", facts) as span:
            inherited = carried(environment, trace_headers())
            environment.clear()
            environment.update(inherited)
            yield span

    async def deliver(self) -> str | None:
        """Send the rest; return a sentence on the spans that were not taken, or None."""
        return None if self.exporting is None else await self.exporting.deliver(DELIVERY_SECONDS)


def open_tracing(
    run_id: str,
    agent: AgentDefinition,
    environment: Environment,
    masker: Masker,
    warn: Callable[[str], None],
) -> Tracing:
    """Return the spans of a run; `warn` gets one sentence on whatever stands in their way."""
    off = Tracing(run_id, agent)
    complaint = _complaint(environment)
    if complaint:
        warn(complaint)
    if complaint is not None:
        return off
    try:
        from subagent_server.worker.spans import SdkTracer

        return Tracing(
            run_id, agent, SdkTracer(environment, masker, keeps_content=_keeps_content(environment))
        )
    except ModuleNotFoundError as error:
        why = f"{error.name} is missing: install subagent-server[otel], or unset OTEL_EXPORTER_OTLP_ENDPOINT"
    except Exception as error:  # noqa: BLE001 - no value of any OTEL_ variable may keep a run from its work
        why = f"{type(error).__name__}: {error}: mend the OTEL_ variables"[:500]
    warn(f"The run is not traced ({why}).")
    return off


def end_span(span: Span, meta: RunMeta) -> None:
    """Add to the span how the run ended."""
    span.set(
        {
            telemetry.RUN_STATUS: meta.status.value,
            telemetry.RUN_PARENT: meta.parent_run_id,
            telemetry.RUN_ROOT: meta.root_run_id,
            telemetry.RUN_DEPTH: meta.depth,
            **_usage_facts(meta.usage),
        }
    )
    if meta.status is Status.FAILED and meta.error is not None:
        span.fail(meta.error.code, meta.error.message)


def _usage_facts(usage: Usage) -> telemetry.Facts:
    tokens = telemetry.token_facts(
        usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens
    )
    return {**tokens, telemetry.RUN_TURNS: usage.turns, telemetry.RUN_TOOL_CALLS: usage.tool_calls}


def _complaint(environment: Environment) -> str | None:
    """Return None if spans are wanted and can be sent, `""` if they are not wanted, else why they cannot."""
    if _said(environment, "OTEL_SDK_DISABLED").lower() == "true":
        return ""
    exporters = [
        name.strip() for name in _said(environment, "OTEL_TRACES_EXPORTER").split(",") if name.strip()
    ]
    if "none" in exporters or not (exporters or _said(environment, *_ENDPOINTS)):
        return ""
    if exporters and "otlp" not in exporters:
        return _refused("OTEL_TRACES_EXPORTER", ",".join(exporters), "`otlp` or `none`")
    protocol = _said(environment, *_PROTOCOLS)
    if protocol not in ("", _PROTOCOL):
        return _refused(
            "OTEL_EXPORTER_OTLP_PROTOCOL", protocol, f"`{_PROTOCOL}`, on port 4318 of most collectors"
        )
    return None


def _said(environment: Environment, *names: str) -> str:
    """Return the first of the variables that says something."""
    return next((value for name in names if (value := environment.get(name, "").strip())), "")


def _refused(variable: str, value: str, known: str) -> str:
    return f"The run is not traced: {variable} is {value[:80]!r}, and only {known} can be used here."


def _keeps_content(environment: Environment) -> bool:
    return _said(environment, _CAPTURE).lower() in _CAPTURED
