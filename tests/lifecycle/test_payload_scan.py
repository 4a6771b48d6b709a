"""A payload is found and decoded in whatever pieces its request comes, and the rest stays as it was."""

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subagent_server.server.http.payload_scan import PayloadScan, TooLarge

texts = st.text(st.sampled_from('ab"\\\n/é😀\u2028\ud83d\ude00ud'), max_size=30)


def request(payload: Any, **beside: Any) -> dict[str, Any]:
    """Return a request with this payload, and more arguments beside it."""
    arguments = {**beside, "payload": payload, "summary": "s"}
    return {"method": "tools/call", "params": {"x": [{"payload": 1}, "]"], "arguments": arguments}}


def scanned(body: bytes, size: int, most: int = 1_000) -> tuple[PayloadScan, bytes]:
    """Scan a body that comes in pieces of this size; return what was found and the payload."""
    file = io.BytesIO()
    scan = PayloadScan(file, most)
    for begin in range(0, len(body), size):
        scan.feed(body[begin : begin + size])
    return scan, file.getvalue()


@given(texts, texts, st.integers(1, 60))
def test_every_text_is_decoded_as_a_whole_parser_would(payload: str, other: str, size: int) -> None:
    body = json.dumps(request(payload, **{other: '{"payload":'})).encode()
    scan, found = scanned(body, size)
    whole = json.loads(body)  # halves of one character beside each other have become one
    decoded = whole["params"]["arguments"]["payload"]
    assert scan.found and found == decoded.encode("utf-8", "replace")
    whole["params"]["arguments"]["payload"] = ""
    assert json.loads(bytes(scan.rest)) == whole


@given(st.text(max_size=30), st.integers(1, 9))
def test_characters_that_are_not_escaped_may_come_in_parts(payload: str, size: int) -> None:
    body = json.dumps(request(payload), ensure_ascii=False).encode()
    assert scanned(body, size)[1] == payload.encode()


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"payload": "p", "params": {"payload": "p", "arguments": ["payload", {"payload": "p"}]}}),
        json.dumps(request(None)),
        json.dumps(request({"payload": "p"})),
        '{"params":{"arguments":{"payload"',
        ']]}}:::,,,"',
    ],
)
def test_what_is_elsewhere_or_no_text_stays(body: str) -> None:
    scan, found = scanned(body.encode(), 3)
    assert not scan.found and found == b"" and bytes(scan.rest) == body.encode()


def test_of_two_payloads_the_later_counts_as_in_every_parser_and_each_has_the_bound() -> None:
    body = b'{"params":{"arguments":{"payload":"first","\\u0070ayload":"later"}}}'
    assert scanned(body, 7, most=5)[1] == b"later"
    with pytest.raises(TooLarge):
        scanned(body.replace(b"later", b"longer"), 7, most=5)


@pytest.mark.parametrize("text", [rb"\uZZZZ and more of it", b"\xff\xfe", b"a\nb", rb"\q"])
def test_what_no_parser_takes_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        scanned(b'{"params":{"arguments":{"payload":"' + text + b'"}}}', 4)
    with pytest.raises(ValueError):
        scanned(b"[" * 200, 4)
