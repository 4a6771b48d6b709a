"""Which failures of the API are tried again, and what the run's log has of them (SPEC section 6)."""

import gzip
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from subagent_server.loop.model import MOST_BYTES
from tests.helpers.turns import Turn, calls, says, use
from tests.loop.scripted_run import Played, ScriptedTool, echo

ECHO = ScriptedTool("echo", echo)


def faulty(*faults: Turn) -> Turn:
    """Return a turn that goes wrong in these ways, then says Done."""
    return says("Done.", fault=list(faults))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"status": 429}, "the API limits the rate (429)"),
        ({"status": 529}, "the API is overloaded (529)"),
        ({"stream_error": "overloaded_error"}, "the API is overloaded (529)"),
        ({"stream_error": "rate_limit_error", "after": 3}, "the API limits the rate (429)"),
        ({"cut_after": 0}, "the connection to the API failed"),
        ({"cut_after": 3}, "the connection to the API failed"),
        ({"garbage_after": 3}, "not JSON in UTF-8"),
        ({"status": 408}, "the API waited too long for the request (408)"),
        ({"status": 500}, "the API met a fault of its own (500)"),
        ({"status": 502}, "behind its gateway (502)"),
        ({"status": 503}, "the API is not available (503)"),
        ({"status": 504}, "the API took too long (504)"),
        ({"stream_error": "api_error", "after": 3}, "the API met a fault of its own (500)"),
    ],
    ids=[
        *("429", "529", "overloaded in the stream", "limited in the stream", "no answer"),
        *("a cut stream", "no JSON", "408", "500", "502", "503", "504", "a fault in the stream"),
    ],
)
def test_a_busy_api_and_a_broken_connection_are_tried_again_with_a_warning(fault: Turn, reason: str) -> None:
    played = Played(faulty(fault, fault))
    assert played.outcome.text == "Done." and played.outcome.failure is None
    assert len(played.bodies) == 3 and played.bodies[0] == played.bodies[2]
    warnings = [warning["message"] for warning in played.run.recorded("warning")]
    assert len(warnings) == 2 and all(reason in warning for warning in warnings), warnings
    assert played.loop.usage.turns == 1, "an attempt is no turn"


def test_the_waits_between_attempts_grow_and_an_api_that_names_one_is_obeyed() -> None:
    played = Played(faulty({"status": 529, "times": 4}, {"status": 429, "retry_after": 7}))
    first, second, third, fourth, asked = played.run.pauses
    assert 0.3 < first < second < third < fourth < 6
    assert asked == 7
    assert "trying again in 7.0 s" in played.run.recorded("warning")[-1]["message"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"status": 400, "message": "max_tokens: too large"}, ["400", "max_tokens: too large"]),
        ({"status": 401}, ["401", "authentication_error"]),
        ({"status": 403}, ["403", "permission_error"]),
        ({"status": 404}, ["404", "the name of the model", "the path in `baseUrl`"]),
        (
            {"stream_error": "billing_error", "message": "It broke."},
            ["billing_error", "It broke.", "credit: add"],
        ),
        ({"status": 400, "message": "Your credit balance is too low"}, ["400", "continue the run"]),
    ],
    ids=["400", "401", "403", "404", "an error in the stream", "no credit"],
)
def test_any_other_failure_ends_the_run_with_the_words_of_the_api(fault: Turn, words: list[str]) -> None:
    played = Played(faulty(fault))
    assert played.failure.code == "model_error"
    shown = f"{played.failure.message} {played.failure.hint}"
    assert all(word in shown for word in words), shown
    assert len(played.bodies) == 1 and not played.run.pauses


def test_an_api_that_stays_busy_is_given_up_after_ten_attempts() -> None:
    played = Played(faulty({"status": 529, "times": "always"}))
    assert played.failure.code == "model_error"
    assert len(played.bodies) == 10
    assert "10 attempts at 127.0.0.1 failed: the API is overloaded (529)" in played.failure.message
    moment = re.search(r"it may be called again at (\S+)\.$", played.failure.message)
    assert moment is not None and datetime.fromisoformat(moment[1]) > datetime.now(UTC) + timedelta(seconds=5)
    assert "ANTHROPIC_BASE_URL" not in (played.failure.hint or "")


def test_an_api_out_of_reach_is_given_up_with_what_may_be_in_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with answering(b"{}", 403) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        played = Played(says("Never said."), base_url="https://api.example")
    assert "10 attempts at api.example failed" in played.failure.message
    assert "(the proxy refused: 501 Unsupported" in played.failure.message
    hint = played.failure.hint or ""
    assert "HTTPS_PROXY" in hint and "SSL_CERT_FILE" in hint and "continue it" in hint


def test_only_a_wait_for_a_busy_api_is_no_working_time() -> None:
    played = Played(
        faulty({"status": 529, "retry_after": 3}, {"status": 500}, {"status": 503, "retry_after": 2})
    )
    assert played.run.spared == [3, 2] and len(played.run.pauses) == 3


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("1e308", 600, 600),
        ("inf", 600, 600),
        ("0", 0.3, 0.7),
        ("-5", 0.3, 0.7),
        ("nan", 0.3, 0.7),
        ("9" * 400, 600, 600),
        ("soon", 0.3, 0.7),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.3, 0.7),
        ("Wed, 21 Oct 2015 07:28:00", 0.3, 0.7),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 600, 600),
        ("Fri, 31 Dec 9999 23:59:59 -2359", 0.3, 600),
    ],
)
def test_whatever_wait_the_api_names_is_bounded(header: str, least: float, most: float) -> None:
    with answering(b"{}", 429, {"retry-after": header}) as base_url:
        played = Played(says("Never said."), base_url=base_url)
    assert least <= played.run.pauses[0] <= most


def test_a_date_to_come_is_waited_for() -> None:
    moment = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    with answering(b"{}", 429, {"retry-after": moment}) as base_url:
        played = Played(says("Never said."), base_url=base_url)
    assert 50 < played.run.pauses[0] <= 100


def test_an_api_that_cannot_be_reached_is_tried_again_with_a_warning() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        played = Played(says("Never said."), base_url=f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert played.failure.code == "model_error" and not played.bodies and played.run.sent == 0
    assert "ANTHROPIC_BASE_URL" in (played.failure.hint or "")
    assert len(played.run.recorded("warning")) == 9
    assert "the connection to the API failed" in played.run.recorded("warning")[0]["message"]


def whole_reply(text: str, **usage: Any) -> list[dict[str, Any]]:
    """Return the events of a reply; `usage` is that of its begin."""
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
    return [
        {
            "type": "message_start",
            "message": message | {"usage": {"input_tokens": 1, "output_tokens": 1} | usage},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": text}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"input_tokens": 1, "output_tokens": 2},
        },
        {"type": "message_stop"},
    ]


@contextmanager
def streaming(*events: dict[str, Any]) -> Iterator[str]:
    """Run an API that answers everything with these events, and give its address."""
    with answering(streamed(*events)) as base_url:
        yield base_url


def streamed(*events: dict[str, Any]) -> bytes:
    """Return the bytes of a stream of these events."""
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


@contextmanager
def answering(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run an API that answers everything with the bytes of this stream, and give its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            for name, value in {"content-type": "text/event-stream", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # the client has broken it off
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def counting(digits: int) -> bytes:
    """Return the begin of a reply that has cost as many tokens as fill `digits`."""
    return streamed(*whole_reply("", input_tokens="many")).replace(b'"many"', b"9" * digits)


NAN_BLOCK = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [float("nan")]}
DAMAGED = {
    "not UTF-8": (b"event: message_start\ndata: \x00\xff\xfe\n\n", "not JSON in UTF-8"),
    "too deep": (b"event: message_start\ndata: " + b"[" * 100_000 + b"\n\n", "not JSON in UTF-8"),
    "a delta of no block": (
        streamed({"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta", "text": "x"}}),
        "an event that makes no sense (content_block_delta)",
    ),
    "a reason of no text": (
        streamed({"type": "message_delta", "delta": {"stop_reason": ["end_turn"]}, "usage": {}}),
        "an event that makes no sense (message_delta)",
    ),
    "a block of no type": (
        streamed(
            {"type": "content_block_start", "index": 0, "content_block": {"type": ["text"], "text": ""}}
        ),
        "an event that makes no sense (content_block_start)",
    ),
    "a number that JSON has not": (
        streamed(
            *whole_reply("")[:1], {"type": "content_block_start", "index": 0, "content_block": NAN_BLOCK}
        )
        + streamed(*whole_reply("")[2:]),
        "an event that makes no sense (message_stop)",
    ),
    "a count of too many tokens": (counting(400), "an event that makes no sense (message_start)"),
    "a count that is no number": (counting(5_000), "not JSON"),
}


@pytest.mark.parametrize(("body", "words"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_stream_is_tried_again_as_a_fault_of_the_api(body: bytes, words: str) -> None:
    with answering(body) as base_url:
        played = Played(says("Never said."), base_url=base_url)
    assert played.failure.code == "model_error" and len(played.run.pauses) == 9
    assert words in played.failure.message


@pytest.mark.parametrize(
    ("kind", "body"),
    [("application/json", b'{"type": "message", "content": []}'), ("Text/HTML; charset=utf-8", b"<p>Log in")],
)
def test_an_answer_that_is_no_stream_is_refused_with_its_words_and_paid_once(kind: str, body: bytes) -> None:
    with answering(body, headers={"content-type": kind}) as base_url:
        played = Played(says("Never said."), base_url=base_url)
    assert played.failure.code == "model_error" and played.run.pauses == []
    assert body.decode() in played.failure.message and "it has to stream" in (played.failure.hint or "")


def test_what_is_packed_wrongly_is_a_damaged_stream_that_is_tried_again() -> None:
    with answering(b"not gzip", headers={"content-encoding": "gzip"}) as base_url:
        played = Played(says("Never said."), base_url=base_url)
    assert played.failure.code == "model_error" and len(played.run.pauses) == 9


def test_key_and_conversation_follow_no_redirect() -> None:
    with (
        answering(b"") as elsewhere,
        answering(b"", status=307, headers={"location": f"{elsewhere}/v1/messages"}) as base_url,
    ):
        played = Played(says("Never said."), base_url=base_url)
    assert played.failure.code == "model_error" and played.run.pauses == []
    assert "(307" in played.failure.message and "baseUrl" in (played.failure.hint or "")


@pytest.mark.parametrize(
    "more", [{"type": "error", "error": {"type": "api_error"}}, {"type": "message_stop"}]
)
def test_a_reply_ends_with_its_end_whatever_follows(more: Turn) -> None:
    with streaming(*whole_reply("First."), more, *whole_reply("Second.")) as base_url:
        played = Played(says("Never said."), base_url=base_url)
    assert played.outcome.text == "First." and played.run.pauses == []


@pytest.mark.parametrize(
    "fault",
    [
        {"cut_after": 99},
        {"stall_after": 99},
        {"garbage_after": 99},
        {"stream_error": "api_error", "after": 99},
    ],
    ids=["cut", "standing still", "garbage", "a fault of the API"],
)
def test_a_reply_that_lacks_only_the_sign_of_its_end_is_not_asked_for_again(fault: Turn) -> None:
    played = Played(faulty(fault), settings={"idle_seconds": 1.0})
    assert played.outcome.text == "Done." and len(played.bodies) == 1
    with streaming(*whole_reply("Done.")[:3]) as base_url:  # as some gateways end each stream
        assert Played(says("Never said."), base_url=base_url).outcome.text == "Done."


@pytest.mark.parametrize(
    "applied", [[{"cleared_tool_uses": "a"}, 5, {"cleared_input_tokens": None}], {"a": 5}]
)
def test_odd_words_about_cleared_results_are_passed_over(applied: Any) -> None:
    *events, end, stop = whole_reply("Done.")
    with streaming(*events, end | {"context_management": {"applied_edits": applied}}, stop) as base_url:
        assert Played(says("Never said."), base_url=base_url).outcome.text == "Done."


@pytest.mark.parametrize("status", [200, 307, 400])
@pytest.mark.parametrize("packed", [0, 1, 2])
def test_an_answer_without_an_end_is_broken_off(status: int, packed: int) -> None:
    line = b":" + bytes(1 << 17) + b"\n\n"  # the client copies all of a line with each of its pieces
    body = line * (2 * MOST_BYTES // len(line))
    for _ in range(packed):
        body = gzip.compress(body)
    headers = {"content-encoding": ", ".join(["gzip"] * packed)} if packed else {}
    with answering(body, status, headers) as base_url:
        played = Played(says("Never said."), base_url=base_url)
    assert played.failure.code == "model_error" and not played.run.pauses
    assert "more than 32 MiB, so it was broken off" in played.failure.message


def test_a_long_reply_that_is_said_not_to_be_compressed_is_a_reply() -> None:
    long = "Done. " * 20_000
    with answering(streamed(*whole_reply(long)), headers={"content-encoding": "identity"}) as base_url:
        assert Played(says("Never said."), base_url=base_url).outcome.text == long


def test_counts_of_tokens_never_fall_and_parts_of_one_count_as_one() -> None:
    with streaming(*whole_reply("Done.", input_tokens=999.5, output_tokens=70)) as base_url:
        usage = Played(says("Never said."), base_url=base_url).loop.usage
    assert (usage.input_tokens, usage.output_tokens) == (1000, 70)


@pytest.mark.parametrize("usage", [{}, {"usage": None}], ids=["none", "null"])
def test_a_reply_without_counts_of_tokens_is_a_reply(usage: dict[str, None]) -> None:
    start, block, end, stop = whole_reply("Done.")
    start["message"] = {key: value for key, value in start["message"].items() if key != "usage"} | usage
    end = {key: value for key, value in end.items() if key != "usage"} | usage
    with streaming(start, block, end, stop) as base_url:
        played = Played(says("Never said."), base_url=base_url)
    assert played.outcome.text == "Done." and played.run.pauses == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([1], "no JSON object"), ("x", "no JSON object"), ({"x": float("nan")}, "NaN is no number")],
    ids=["a list", "a text", "nan"],
)
def test_an_input_that_comes_whole_with_its_block_is_judged_too(arguments: object, words: str) -> None:
    start, _, end, stop = whole_reply("")
    call = {"type": "tool_use", "id": "toolu_1", "name": "echo", "input": arguments}
    block = {"type": "content_block_start", "index": 0, "content_block": call}
    with streaming(start, block, end, stop) as base_url:
        played = Played(says("Never said."), base_url=base_url, tools=[ECHO], max_turns=1)
    made, answer = played.run.transcript
    assert made["content"][0]["input"] == {} and answer["content"][0]["is_error"]
    assert words in answer["content"][0]["content"][0]["text"]


@pytest.mark.parametrize("pings", [None, 0.05], ids=["in silence", "with pings"])
def test_a_stream_that_stands_still_is_given_up_and_tried_again(pings: float | None) -> None:
    stall: Turn = {"stall_after": 4} | ({"pings": pings} if pings else {})
    played = Played(says("Done at last.", fault=stall), settings={"idle_seconds": 0.3})
    assert played.outcome.text == "Done at last." and len(played.bodies) == 2
    (warning,) = played.run.recorded("warning")
    assert "the stream stood still for 0.3 s" in warning["message"]
    assert (played.loop.usage.input_tokens or 0) > 0


def test_a_stream_that_always_breaks_off_keeps_its_text_and_its_cost() -> None:
    begun = says("This much I can tell. " * 20, fault={"cut_after": 9, "times": "always"})
    played = Played(calls(use("echo"), text="I look."), begun, tools=[ECHO])
    assert played.failure.code == "model_error" and "10 attempts" in played.failure.message
    first, second = played.outcome.text.split("\n\n")
    assert first == "I look." and second.startswith("This much I can tell.")
    once, lone = played.loop.usage.input_tokens or 0, Played(says("x")).loop.usage.input_tokens or 0
    assert played.loop.usage.turns == 1 and len(played.bodies) == 11
    assert once > lone * 10, "each broken attempt was paid for"
