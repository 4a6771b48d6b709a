"""Spans of runs, read back from a collector that they were sent to (GenAI conventions)."""

import json
import socket
from pathlib import Path

from subagent_server.domain.states import Status
from tests.helpers.collector import Collector, Seen
from tests.helpers.mcp_servers import scripted
from tests.helpers.raw_server import HELLO, READY, tool_call
from tests.helpers.turns import call, calls, says, shell, use
from tests.helpers.world import API_KEY, World

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
HEADER_KEY = "collector-key-0123456789"


def test_a_run_its_calls_and_a_run_it_starts_are_one_trace_below_the_call_that_asked_for_it(
    world: World,
) -> None:
    world.agent("boss", agents=["helper"], model="claude-test")
    world.agent("helper", model="claude-test")
    boss = [
        calls(use("bash", command='test -n "$TRACEPARENT" && echo $TRACEPARENT'), use("nothing")),
        call("run_helper", prompt="Help.", waitSeconds=60),
        says("All done."),
    ]
    refused = says("Never.", fault={"status": 400, "error_type": "invalid_request_error", "message": "No."})
    with Collector() as collector:
        world.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.endpoint
        simulator = world.play(
            shell("echo $TRACEPARENT"),
            refused,
            conversations=[{"when": {"prompt": "Lead"}, "turns": boss}],
        )
        run_id = _asked_by_a_traced_client(world, "run_boss", prompt="Lead.")
        assert world.completed(run_id) == "All done."
        (child,) = world.store.children_of(run_id)
        assert world.failed(child)[0] == "model_error"
        world.gone(run_id)
        world.gone(child)

    root, nested = collector.one("invoke_agent boss"), collector.one("invoke_agent helper")
    tool = collector.one("execute_tool run_helper")
    assert {span.trace_id for span in collector.spans} == {TRACE}
    assert (root.parent_id, tool.parent_id, nested.parent_id) == (CALLER, root.span_id, tool.span_id)
    assert _below(collector, root) == [
        *("chat claude-test",) * 3,
        *("execute_tool bash", "execute_tool nothing", "execute_tool run_helper"),
    ]
    assert _below(collector, nested) == ["chat claude-test", "chat claude-test", "execute_tool bash"]
    _check_runs(root, nested, run_id, child)
    _check_calls(collector, root, nested)
    assert f"00-{TRACE}-{root.span_id}-01" in _told(world, run_id), "programs of the run are below it too"
    assert {"invoke_agent", "chat", "execute_tool"} == {
        s.facts["gen_ai.operation.name"] for s in collector.spans
    }
    assert b"All done." not in b"".join(collector.bodies), "contents are not sent unasked"
    asked = {f"00-{TRACE}-{span.span_id}-01" for span in collector.spans if span.name.startswith("chat")}
    assert {request.headers["traceparent"] for request in simulator.requests} == asked and len(asked) == 5


def test_runs_that_carry_on_and_the_calls_of_mcp_servers_are_below_the_calls_that_asked_for_them(
    world: World,
) -> None:
    world.agent("boss", agents=["helper"])
    world.agent("helper", mcpServers={"told": scripted({"name": "echo", "does": {"meta": True}})})
    carried_on = call("continue_run", runId="${run}", prompt="More.", waitSeconds=60)
    boss = [
        call("run_helper", prompt="Help.", waitSeconds=60),
        {**carried_on, "capture": {"run": '"runId": ?"([a-z0-9-]+)"'}},
        says("All done."),
    ]
    with Collector() as collector:
        world.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.endpoint
        world.play(call("echo"), says("Helped."), conversations=[{"when": {"prompt": "Lead"}, "turns": boss}])
        first = world.start("Lead.", agent="boss")
        assert world.completed(first) == "All done."
        again = _asked_by_a_traced_client(world, "continue_run", runId=first, prompt="Lead on.")
        world.completed(again)
        runs = [first, again, *world.store.children_of(first)]
        for run_id in runs:
            world.gone(run_id)
    spans = {str(s.facts["gen_ai.conversation.id"]): s for s in collector.spans if "invoke" in s.name}
    helped, more = (spans[run_id] for run_id in runs[2:])
    assert helped.parent_id == collector.one("execute_tool run_helper").span_id
    assert more.parent_id == collector.one("execute_tool continue_run").span_id
    assert (spans[again].trace_id, spans[again].parent_id) == (TRACE, CALLER)
    told = json.loads(_told(world, runs[2]))["traceparent"]
    assert told.startswith(f"00-{helped.trace_id}-{collector.one('execute_tool echo').span_id}-")


def test_contents_are_sent_where_the_variable_of_the_conventions_says_so_and_never_secrets(
    world: World,
) -> None:
    world.agent(model="claude-test", env={"ANTHROPIC_API_KEY": "${ANTHROPIC_API_KEY}"})
    world.play(
        shell("echo $ANTHROPIC_API_KEY; echo ${OTEL_EXPORTER_OTLP_HEADERS#*=}; env"),
        says(f"Painted with {API_KEY}."),
    )
    with Collector() as collector:
        world.environment |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={HEADER_KEY}",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only",
            "OTEL_SERVICE_NAME": "painters",
        }
        run_id = world.start("Paint it.")
        world.completed(run_id)
        world.gone(run_id)
    tool = collector.one("execute_tool bash")
    assert json.loads(tool.facts["gen_ai.tool.call.arguments"])["command"].startswith("echo $ANTHROPIC")
    printed = tool.facts["gen_ai.tool.call.result"].splitlines()
    assert printed[:2] == ["***", "***"] and "OTEL_EXPORTER_OTLP_HEADERS=***" in printed
    last = [span for span in collector.spans if span.name.startswith("chat")][-1]
    asked = json.loads(last.facts["gen_ai.input.messages"])
    assert [message["role"] for message in asked] == ["user", "assistant", "user"]
    assert "Paint it." in asked[0]["parts"][-1]["content"]
    assert [message["parts"][0]["type"] for message in asked[1:]] == ["tool_call", "tool_call_response"]
    (answered,) = json.loads(last.facts["gen_ai.output.messages"])
    assert answered["parts"] == [{"type": "text", "content": "Painted with ***."}]
    assert "told" in last.facts["gen_ai.system_instructions"]
    assert tool.resource["service.name"] == "painters"
    for body in collector.bodies:
        assert API_KEY.encode() not in body and HEADER_KEY.encode() not in body
    assert not [p for p in world.runs.rglob("*") if p.is_file() and HEADER_KEY.encode() in p.read_bytes()]


def test_a_collector_that_takes_nothing_costs_a_run_nothing_but_a_line_in_its_log(world: World) -> None:
    world.agent()
    world.play(says("Done."))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections are made, and nobody reads
        world.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        hung = world.start()
        assert world.completed(hung) == "Done."
        world.gone(hung)
    world.environment["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = "http://127.0.0.1:9/v1/traces"
    refused = world.start()
    assert world.completed(refused) == "Done."
    world.gone(refused)
    for run_id in (hung, refused):
        (warning,) = world.events(run_id, "warning")
        assert warning["message"].startswith("2 of 2 spans were not delivered"), warning
        assert _printed(world, run_id) == ""


def test_what_asks_for_spans_that_cannot_be_made_is_one_warning_and_what_forbids_them_none(
    world: World,
) -> None:
    world.agent()
    world.agent("quiet", env={"OTEL_SDK_DISABLED": "true"})
    world.agent(
        "odd", env={"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_BSP_SCHEDULE_DELAY": "-5"}
    )
    world.play(says("Done."))
    world.environment |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    quiet, odd = world.start(agent="quiet"), world.start(agent="odd")
    world.environment["OTEL_EXPORTER_OTLP_PROTOCOL"] = "grpc"
    grpc = world.start()
    for run_id in (quiet, odd, grpc):
        assert world.ended(run_id).status is Status.COMPLETED
        world.gone(run_id)
    assert world.events(quiet, "warning") == []
    (warning,) = world.events(odd, "warning")
    assert "not traced" in warning["message"] and "OTEL_" in warning["message"]
    (warning,) = world.events(grpc, "warning")
    assert "'grpc'" in warning["message"] and "http/protobuf" in warning["message"]


def _asked_by_a_traced_client(world: World, tool: str, **arguments: object) -> str:
    """Start a run as a client does that has a trace of its own."""
    asked = tool_call(1, tool, **arguments)
    asked["params"]["_meta"] = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    with world.raw_server() as server:
        server.say(HELLO)
        server.answer_to("hello")
        server.say(READY)
        run_id: str = server.result_of(asked)["structuredContent"]["runId"]
        return run_id


def _below(collector: Collector, parent: Seen) -> list[str]:
    return sorted(span.name for span in collector.spans if span.parent_id == parent.span_id)


def _check_runs(root: Seen, nested: Seen, run_id: str, child: str) -> None:
    assert root.kind == nested.kind == "internal"
    assert (root.error, nested.error is not None) == (None, True)
    assert nested.facts["error.type"] == "model_error" and "error.type" not in root.facts
    expected = {
        "gen_ai.agent.name": "helper",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.conversation.id": child,
        "gen_ai.request.model": "claude-test",
        "gen_ai.output.type": "text",
        "subagent.run.status": "failed",
        "subagent.run.parent_id": run_id,
        "subagent.run.root_id": run_id,
        "subagent.run.depth": 1,
    }
    assert expected.items() <= nested.facts.items()
    assert root.resource["service.name"] == "subagent-server"


def _check_calls(collector: Collector, root: Seen, nested: Seen) -> None:
    chats = [span for span in collector.spans if span.facts["gen_ai.operation.name"] == "chat"]
    assert {span.kind for span in chats} == {"client"}
    assert {span.facts["server.address"] for span in chats} == {"127.0.0.1"}
    good = [span for span in chats if span.parent_id == root.span_id]
    for name in ("input_tokens", "output_tokens"):
        key = f"gen_ai.usage.{name}"
        assert sum(span.facts[key] for span in good) == root.facts[key] > 0
    assert sorted(span.facts["gen_ai.response.finish_reasons"] for span in good) == [
        ["end_turn"],
        ["tool_use"],
        ["tool_use"],
    ]
    assert all(span.facts["gen_ai.response.id"] for span in good)
    (bad,) = [span for span in chats if span.error is not None]
    assert bad.parent_id == nested.span_id and bad.facts["error.type"] == "invalid_request_error"
    unknown = collector.one("execute_tool nothing")
    assert (unknown.error, unknown.facts["error.type"]) == ("", "tool_error")
    tool = collector.one("execute_tool run_helper")
    assert tool.error is None and tool.facts["gen_ai.tool.call.id"] and tool.facts["gen_ai.tool.name"]
    assert "gen_ai.tool.call.arguments" not in tool.facts and "gen_ai.input.messages" not in chats[0].facts


def _told(world: World, run_id: str) -> str:
    return " ".join(str(event.get("text")) for event in world.events(run_id, "tool_result"))


def _printed(world: World, run_id: str) -> str:
    return Path(world.paths(run_id).worker_out.path).read_text(encoding="utf-8")
