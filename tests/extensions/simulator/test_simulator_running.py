"""A running simulator: what it records, how much it bears, how it starts and stops."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from anthropic import AsyncAnthropic

from subagent_server.extensions.simulator import Simulator
from subagent_server.extensions.simulator.__main__ import main
from subagent_server.run.errors import HostError, StorageFailed
from tests.extensions.simulator.clients import LOCAL, client_of, post
from tests.helpers.forked import PROGRAM, run

SCRIPT = {"turns": [{"text": "ok"}]}
BOUND = 120.0


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command of the simulator, and end it however the test ends."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "subagent_server.extensions.simulator", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def script_file(directory: Path) -> Path:
    file = directory / "script.yaml"
    file.write_text(json.dumps(SCRIPT), encoding="utf-8")
    return file


def test_fifty_slow_streams_run_at_once_without_a_thread_for_each() -> None:
    turn = {"text": "x" * 10, "chunk_size": 1, "chunk_delay": 0.1}

    async def one(client: AsyncAnthropic, number: int) -> str:
        async with client.messages.stream(
            model="m", max_tokens=99, messages=[{"role": "user", "content": f"run {number}"}]
        ) as stream:
            return await stream.get_final_text()

    async def many(simulator: Simulator) -> list[str]:
        async with client_of(simulator, max_retries=0) as client:
            return await asyncio.wait_for(asyncio.gather(*(one(client, n) for n in range(50))), BOUND)

    with Simulator({"turns": [turn]}) as simulator:
        threads = threading.active_count()
        assert asyncio.run(many(simulator)) == ["x" * 10] * 50  # one after the other they would take 50 s
        assert threading.active_count() == threads
        assert len({request.body["messages"][0]["content"] for request in simulator.requests}) == 50


def test_requests_are_recorded_with_body_headers_arrival_and_answer() -> None:
    with Simulator(SCRIPT) as simulator:
        before = time.monotonic()
        headers = {"x-api-key": "secret", "x-run": "7"}
        post(simulator, path="/v1/messages?beta=true", model="mine", headers=headers)
        post(simulator, path="/v1/messages/count_tokens")
        post(simulator, raw=b"{oops")
        first, counted, refused = simulator.requests
        assert (first.path, first.body["model"], first.headers["x-run"]) == ("/v1/messages", "mine", "7")
        assert (first.answer, first.headers["x-api-key"]) == ("turns[0]", "secret")
        assert before <= first.arrived <= counted.arrived <= time.monotonic()
        assert (counted.path, counted.answer) == ("/v1/messages/count_tokens", "count")
        assert refused.body == "{oops" and refused.answer.startswith("400 ")
        simulator.clear()
        assert simulator.requests == []


def test_a_wait_for_requests_ends_when_they_have_come_or_with_its_bound() -> None:
    def ends_in_an_error() -> None:
        with pytest.raises(httpx2.HTTPError):
            post(simulator)

    with Simulator({"turns": [{"fault": {"hang": True, "times": "always"}}]}) as simulator:
        client = threading.Thread(target=ends_in_an_error)
        client.start()
        (request,) = simulator.wait_for_requests(1)
        assert request.body["model"] == "m"
        with pytest.raises(TimeoutError, match="1 of 2 requests"):
            simulator.wait_for_requests(2, timeout=0.1)
    client.join(BOUND)
    assert not client.is_alive()


def test_it_can_be_stopped_and_started_again_on_its_port() -> None:
    simulator = Simulator(SCRIPT)
    with simulator:
        url = simulator.base_url
        assert post(simulator).status_code == 200
    with pytest.raises(httpx2.ConnectError):
        post(simulator)
    with simulator:
        assert simulator.base_url == url
        assert post(simulator).status_code == 200
    assert len(simulator.requests) == 2


def test_a_port_that_is_taken_or_no_port_is_one_sentence() -> None:
    with Simulator(SCRIPT) as simulator:
        port = int(simulator.base_url.rpartition(":")[2])
        for wrong in (port, 70000):
            with pytest.raises(HostError, match=rf"cannot listen on 127\.0\.0\.1:{wrong}.*another port"):
                Simulator(SCRIPT, port=wrong).__enter__()


def test_a_record_that_cannot_be_written_is_reported_and_frees_the_port(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "mine")  # as a run may have made one
    for place in ("none/record.jsonl", "link"):
        with pytest.raises(StorageFailed, match="could not be written"):
            Simulator(SCRIPT, record=tmp_path / place).__enter__()


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_a_signal_ends_it(number: int, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    with command(str(script_file(tmp_path)), "--record", str(record)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:")
        url = line.split()[-1] + "/v1/messages"
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        for _ in range(2):
            answer = httpx2.post(url, json=body, headers={"x-api-key": "secret"}, **LOCAL)
            assert answer.json()["content"][0]["text"] == "ok"
        os.kill(process.pid, number)
        out, errors = process.communicate(timeout=BOUND)
        assert (process.returncode, out, errors) == (0, "", "")
    lines = [json.loads(row) for row in record.read_text(encoding="utf-8").splitlines()]
    assert [(row["answer"], row["body"]) for row in lines] == [("turns[0]", body)] * 2
    assert "secret" not in record.read_text(encoding="utf-8")


@pytest.mark.process
def test_the_command_leaves_at_once_although_a_request_hangs(tmp_path: Path) -> None:
    file = tmp_path / "script.yaml"
    file.write_text("turns: [{fault: {hang: true, times: always}}]", encoding="utf-8")
    with command(str(file)) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1] + "/v1/messages"
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(url, json=body, headers={"x-api-key": "x"}, timeout=0.2, **LOCAL)
        process.terminate()
        _, errors = process.communicate(timeout=BOUND)
        assert (process.returncode, errors) == (0, "")


@pytest.mark.process
def test_the_command_refuses_a_wrong_script_with_2_and_a_taken_port_with_6(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("turns: [{txt: x}]", encoding="utf-8")
    with Simulator(SCRIPT) as simulator:
        port = simulator.base_url.rpartition(":")[2]
        for arguments, code, expected in [
            ([str(wrong)], 2, "turns.0: has no key 'txt'"),
            ([str(script_file(tmp_path)), "--port", port], 6, "cannot listen"),
        ]:
            done = run([*PROGRAM, *arguments], os.environ, call=main, seconds=BOUND)
            assert (done.returncode, done.stdout) == (code, b"")
            assert expected in done.stderr.decode() and done.stderr.count(b"\n") == 1
