"""When a run is traced, and that an untraced run imports and logs nothing for it."""

import json
from typing import Any

import pytest

from tests.helpers.processes import run_python

BOUND = 120.0
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
NOT_WANTED = {
    "nothing said": {},
    "metrics only": {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:9"},
    "disabled": {**ENDPOINT, "OTEL_SDK_DISABLED": "true"},
    "none": {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"},
}
IMPOSSIBLE = {"zipkin": {"OTEL_TRACES_EXPORTER": "zipkin"}, "without the extra": ENDPOINT}
WANTED = {"endpoint": ENDPOINT, "otlp": {"OTEL_TRACES_EXPORTER": "otlp"}}
CASES = {**NOT_WANTED, **IMPOSSIBLE, **WANTED}
"""In this order in one process: an import for one case is there for the next."""

OPEN = """
    import json, sys
    import subagent_server.worker.life
    from opentelemetry.propagate import inject
    from opentelemetry.trace import get_tracer
    from subagent_server.domain.definitions import AgentDefinition
    from subagent_server.domain.secrets import Masker
    from subagent_server.toolkit.telemetry import NO_TRACER, trace_headers
    from subagent_server.worker.tracing import open_tracing

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.startswith("opentelemetry.sdk"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def answer(case, environment):
        warnings, environment = [], {**environment, "TRACEPARENT": "as it was"}
        if case == "without the extra":
            sys.meta_path.insert(0, Missing())
        agent = AgentDefinition(name="worker")
        tracing = open_tracing("a-run", agent, environment, Masker(), warnings.append)
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Missing)]
        carried = {}
        with tracing.run(environment):
            headers = trace_headers()
            with get_tracer("another library").start_as_current_span("a request of its own"):
                inject(carried)
        return {
            "warnings": warnings,
            "traced": tracing.tracer is not NO_TRACER,
            "headers": headers,
            "carried": carried,
            "imported": any(name.startswith("opentelemetry.sdk") for name in sys.modules),
            "environment": environment["TRACEPARENT"],
        }

    print(json.dumps({case: answer(case, said) for case, said in json.loads(sys.argv[1]).items()}))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    """What comes of a run in each case."""
    done = run_python(OPEN, json.dumps(CASES), seconds=BOUND)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", NOT_WANTED)
def test_a_run_without_tracing_imports_nothing_and_logs_nothing(
    answers: dict[str, dict[str, Any]], case: str
) -> None:
    nothing = {"warnings": [], "traced": False, "headers": {}, "carried": {}, "imported": False}
    assert answers[case] == {**nothing, "environment": "as it was"}


@pytest.mark.parametrize("case", WANTED)
def test_a_traced_run_passes_its_trace_context_to_the_api_and_its_servers(
    answers: dict[str, dict[str, Any]], case: str
) -> None:
    answer = answers[case]
    assert (answer["warnings"], answer["traced"]) == ([], True)
    assert answer["headers"]["traceparent"].startswith("00-")
    assert answer["carried"] == answer["headers"], "other libraries see the open span"
    assert answer["environment"] == answer["headers"]["traceparent"]


def test_a_missing_sdk_or_an_unknown_setting_is_one_warning_with_a_next_step(
    answers: dict[str, dict[str, Any]],
) -> None:
    assert answers["zipkin"]["warnings"] == [
        "The run is not traced: OTEL_TRACES_EXPORTER is 'zipkin', and only `otlp` or `none` can be used here."
    ]
    (warning,) = answers["without the extra"]["warnings"]
    assert "install subagent-server[otel]" in warning
    for case in IMPOSSIBLE:
        assert (answers[case]["traced"], answers[case]["environment"]) == (False, "as it was")
