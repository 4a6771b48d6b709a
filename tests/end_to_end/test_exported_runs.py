"""Runs as OpenTelemetry spans and as a log of Inspect, made of their journals."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from subagent_server.verbs.export_run import export_end, send
from tests.helpers.turns import call, calls, says, use
from tests.helpers.world import API_KEY, World

Span = dict[str, Any]


@contextmanager
def collector(leads_to: str = "", answer: bytes = b"{}") -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Listen on loopback; yield the address and the requests that come. All may be led elsewhere."""
    taken: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            taken.append({"path": self.path, "key": self.headers["x-key"], "spans": spans_of(body)})
            self.send_response(302 if leads_to else 200)
            if leads_to:
                self.send_header("location", leads_to)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_GET(self) -> None:
            taken.append({"key": self.headers["x-key"]})
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            """Say nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def spans_of(body: bytes) -> list[Span]:
    """Return the spans of a request, each with its attributes by name."""
    (group,) = json.loads(body)["resourceSpans"]
    (scope,) = group["scopeSpans"]
    for span in scope["spans"]:
        span["facts"] = {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}
    return list(scope["spans"])


def test_each_run_of_a_tree_sends_its_spans_when_it_ends(world: World) -> None:
    world.agent("boss", agents=["helper"], model="claude-test")
    world.agent("helper", model="claude-test")
    boss = [
        calls(use("bash", command="echo hello"), use("nothing")),
        call("run_helper", prompt="Help.", waitSeconds=60),
        says("All done."),
    ]
    refused = says("Never.", fault={"status": 400, "error_type": "invalid_request_error", "message": "No."})
    with collector() as (address, taken):
        world.environment |= {
            "SUBAGENT_OTLP": address,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a-key-012345",
        }
        world.play(refused, conversations=[{"when": {"prompt": "Lead"}, "turns": boss}])
        run_id = world.start("Lead.", agent="boss")
        assert world.completed(run_id) == "All done."
        (child,) = world.store.children_of(run_id)
        world.gone(run_id)
        world.gone(child)
    assert {(each["path"], each["key"]) for each in taken} == {("/v1/traces", "a-key-012345")}
    # the run above may be the first to have sent its own
    nested, own = sorted((each["spans"] for each in taken), key=len)
    root, failed = own[0], nested[0]
    assert sorted(span["name"] for span in own) == [
        *("chat claude-test",) * 3,
        *("execute_tool bash", "execute_tool nothing", "execute_tool run_helper", "invoke_agent boss"),
    ]
    assert {span["traceId"] for span in own + nested} == {root["traceId"]}
    assert failed["parentSpanId"] == root["spanId"] and "parentSpanId" not in root
    assert all(span["parentSpanId"] == root["spanId"] for span in own[1:])
    assert all(int(s["startTimeUnixNano"]) <= int(s["endTimeUnixNano"]) for s in own + nested)
    assert failed["status"]["code"] == 2 and failed["facts"]["error.type"] == "model_error"
    assert nested[1]["name"] == "chat claude-test" and nested[1]["facts"]["error.type"] == "model_error"
    unknown = next(span for span in own if span["name"] == "execute_tool nothing")
    assert unknown["facts"]["error.type"] == "tool_error" and "status" not in root
    chats = [span for span in own if span["name"] == "chat claude-test"]
    sums = sum(int(span["facts"]["gen_ai.usage.output_tokens"]) for span in chats)
    assert sums == int(root["facts"]["gen_ai.usage.output_tokens"]) > 0 and len(chats) == 3
    assert root["facts"]["subagent.run.status"] == "completed" and chats[0]["kind"] == 3
    assert "All done." not in json.dumps(taken), "contents are not sent unasked"


NO_SPANS = b'{"resourceSpans": [{"scopeSpans": [{"spans": []}]}]}'


def test_spans_that_a_collector_refuses_in_its_answer_were_not_taken() -> None:
    some = b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}'
    with collector(answer=some) as (address, _), pytest.raises(OSError, match="refused 2 of them: too old"):
        send(address, NO_SPANS, {}, 10)
    with collector(answer=b'{"partialSuccess": {"errorMessage": "send fewer"}}') as (address, taken):
        send(address, NO_SPANS, {}, 10)
    assert len(taken) == 1


def test_the_key_of_a_collector_follows_no_redirect() -> None:
    with (
        collector() as (elsewhere, taken),
        collector(f"{elsewhere}/v1/traces") as (address, sent),
        pytest.raises(OSError, match="302"),
    ):
        send(address, NO_SPANS, {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=a-key-012345"}, 10)
    assert len(sent) == 1 and taken == []


def test_a_collector_that_takes_nothing_costs_a_warning_and_a_file_gets_a_line_a_run(world: World) -> None:
    world.agent_saying(says("Done."))
    world.environment["SUBAGENT_OTLP"] = "http://127.0.0.1:9"
    refused = world.start()
    assert world.completed_and_gone(refused) == "Done."
    (warning,) = world.events(refused, "warning")
    assert "spans of the run were not exported" in warning["message"]
    assert "Connection refused" in warning["message"]
    file = world.work / "spans.jsonl"
    world.environment["SUBAGENT_OTLP"] = str(file)
    world.environment["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "true"
    assert world.completed_and_gone(world.start(f"Take {API_KEY}.")) == "Done."

    def exported(target: str) -> str | None:
        return export_end(world.store, world.meta(refused), {"SUBAGENT_OTLP": target})

    mine, link = world.home / "profile", world.work / "planted.jsonl"
    mine.write_text("mine", encoding="utf-8")
    link.symlink_to(mine)
    assert "it is a link" in str(exported(str(link))) and mine.read_text(encoding="utf-8") == "mine"
    assert "home directory" in str(exported("~nobody-here/x")) and exported(str(file)) is None
    first, second = file.read_bytes().splitlines()
    assert spans_of(first)[0]["traceId"] != spans_of(second)[0]["traceId"]
    assert b"Done." in first and b"Take ***." in first and API_KEY.encode() not in first
