"""The connection to the Messages API: when a request counts as sent."""

import asyncio
import sys

import pytest

from subagent_server.loop.model import Model, ModelSettings, Retry
from subagent_server.run.errors import RunRefused
from subagent_server.run.stderr import half_upgraded
from tests.helpers.pace import Alone
from tests.helpers.turns import says
from tests.loop.scripted_run import BOUND, Played


def test_a_request_is_sent_once_the_api_has_it_and_before_it_answers() -> None:
    async def scene() -> None:
        arrived, sent = asyncio.Event(), asyncio.Event()

        async def read_and_say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            arrived.set()
            await reader.read()
            writer.close()

        async with await asyncio.start_server(read_and_say_nothing, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            settings = ModelSettings("claude-test", "key", f"http://127.0.0.1:{port}")
            model = Model(settings, Alone(), sent.set)
            message = {"role": "user", "content": "x" * 1_000_000}
            call = asyncio.create_task(model.reply([], [message], [], _no_retry))
            async with asyncio.timeout(BOUND):
                await sent.wait()
                await arrived.wait()
            assert not call.done()
            call.cancel()
            await asyncio.wait([call], timeout=BOUND)
            await model.aclose()

    asyncio.run(scene())


def test_every_attempt_that_reaches_the_api_is_sent_once() -> None:
    played = Played(says("Done.", fault=[{"status": 529}, {"cut_after": 3}]))
    assert played.outcome.text == "Done." and played.run.sent == len(played.bodies) == 3


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("HTTPS_PROXY", "ftp://proxy:1", "Unknown scheme"),
        ("NO_PROXY", "::1/128", "Invalid port"),
        ("ALL_PROXY", "socks5://127.0.0.1:1", "socksio"),
        ("SSL_CERT_FILE", "/missing.pem", "No such file"),
    ],
)
def test_a_proxy_or_certificates_that_cannot_be_used_refuse_the_run(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(RunRefused, match=words) as refused:
        Model(ModelSettings("claude-test", "key"), Alone())
    assert refused.value.failure_code == "config" and name in (refused.value.hint or "")
    assert not str(refused.value).endswith("..")


def test_a_package_that_is_gone_amid_an_upgrade_is_no_fault_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "httpcore2", None)
    with pytest.raises(ModuleNotFoundError) as gone:
        Model(ModelSettings("claude-test", "key"), Alone())
    assert "a package that it needs, is missing" in (half_upgraded(gone.value) or "")


def test_an_address_that_no_resolver_takes_refuses_the_run() -> None:
    with pytest.raises(RunRefused, match="address of the model cannot be used") as refused:
        Model(ModelSettings("claude-test", "key", "http://my_größe.example"), Alone())
    assert refused.value.failure_code == "config" and "baseUrl" in (refused.value.hint or "")


async def _no_retry(retry: Retry) -> None:
    raise AssertionError(retry)
