"""When a run is traced, and what it costs where it is not: nothing is imported, nothing is said."""

import json

import pytest

from tests.helpers.processes import run_python

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
OPEN = """
    import json, os, sys
    if sys.argv[1] == "without the extra":
        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name.startswith("opentelemetry.sdk"):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.meta_path.insert(0, Missing())
    import subagent_server.worker.life
    from subagent_server.domain.definitions import AgentDefinition
    from subagent_server.domain.secrets import Masker
    from subagent_server.toolkit.telemetry import NO_TRACER, trace_headers
    from subagent_server.worker.tracing import open_tracing
    told = []
    agent = AgentDefinition(name="worker")
    tracing = open_tracing("a-run", agent, dict(os.environ), Masker(), told.append)
    environment = {"TRACEPARENT": "as it was"}
    with tracing.run(environment):
        headers = trace_headers()
    answer = {"told": told, "traced": tracing.tracer is not NO_TRACER, "headers": headers}
    heavy = [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
    print(json.dumps({**answer, "imported": bool(heavy), "kept": environment["TRACEPARENT"] == "as it was"}))
"""
VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED")


def opened(environment: dict[str, str], *, extra: bool = True) -> dict[str, object]:
    """Return what comes of a run with these variables, in a process of its own."""
    word = "with the extra" if extra else "without the extra"
    done = run_python(OPEN, word, environment={**dict.fromkeys(VARIABLES, ""), **environment})
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:9"},
        {**ENDPOINT, "OTEL_SDK_DISABLED": "true"},
        {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"},
    ],
    ids=["nothing said", "metrics only", "disabled", "none"],
)
def test_a_run_that_is_not_to_be_traced_imports_nothing_and_says_nothing(environment: dict[str, str]) -> None:
    expected = {"told": [], "traced": False, "headers": {}, "imported": False, "kept": True}
    assert opened(environment) == expected


@pytest.mark.parametrize(
    "environment", [ENDPOINT, {"OTEL_TRACES_EXPORTER": "otlp"}], ids=["endpoint", "otlp"]
)
def test_a_run_that_is_to_be_traced_is_and_has_headers_for_whom_it_asks(environment: dict[str, str]) -> None:
    answer = opened(environment)
    assert (answer["told"], answer["traced"], answer["kept"]) == ([], True, False)
    assert isinstance(answer["headers"], dict) and answer["headers"]["traceparent"].startswith("00-")


def test_without_the_extra_a_warning_names_it_and_the_run_goes_on_untraced() -> None:
    answer = opened(ENDPOINT, extra=False)
    assert (answer["traced"], answer["kept"]) == (False, True)
    assert isinstance(answer["told"], list) and len(answer["told"]) == 1
    assert "install subagent-server[otel]" in answer["told"][0]


def test_an_exporter_that_is_not_known_here_is_a_warning() -> None:
    answer = opened({"OTEL_TRACES_EXPORTER": "zipkin"})
    assert answer["told"] == [
        "The run is not traced: OTEL_TRACES_EXPORTER is 'zipkin', and only `otlp` or `none` can be used here."
    ]
    assert not answer["imported"]
