"""Parents without a model that come over HTTP: the SDKs for Python and TypeScript, and the Inspector."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.clients.driver import BOUND
from tests.clients.installed import Installed
from tests.helpers.http_server import HttpServer
from tests.helpers.processes import REPOSITORY

SCRIPT = REPOSITORY / "tests" / "clients" / "typescript_parent.mjs"
Ask = Callable[..., Any]
"""Calls a tool by its name and arguments, and returns its structured content."""


@dataclass(frozen=True)
class Place:
    """A server, the environment of its clients, and the era that they speak."""

    server: HttpServer
    environment: Mapping[str, str]
    clients: Installed
    era: str


def python(place: Place) -> AbstractContextManager[Ask]:
    """Connect by the SDK for Python."""
    words = [sys.executable, "-m", "tests.clients.python_parent", place.server.url]
    return _program([*words, place.server.token("python"), place.era])


def typescript(place: Place) -> AbstractContextManager[Ask]:
    """Connect by the SDK for TypeScript."""
    words = [place.clients.node, str(SCRIPT), str(place.clients.typescript), place.server.url]
    return _program([*words, place.server.token("typescript"), place.era])


@contextmanager
def _program(words: list[str]) -> Iterator[Ask]:
    """Start a program that makes the calls that it reads, and kill it at the end."""
    process = subprocess.Popen(
        words, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )

    def ask(tool: str, **arguments: Any) -> Any:
        assert process.stdin is not None and process.stdout is not None
        print(json.dumps({"name": tool, "arguments": arguments}), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        assert answer, f"{tool} was not answered"
        return json.loads(answer)

    with process:
        try:
            yield ask
        finally:
            process.kill()


@contextmanager
def inspector(place: Place) -> Iterator[Ask]:
    """Call by the Inspector: each call is a connection of its own."""
    token = f"Authorization: Bearer {place.server.token('inspector')}"
    where = [place.server.url, "--transport", "http", "--header", token, "--protocol-era", place.era]
    begun: list[subprocess.Popen[str]] = []

    def ask(tool: str, **arguments: Any) -> Any:
        pairs = [word for name, value in arguments.items() for word in ("--tool-arg", f"{name}={value}")]
        process = subprocess.Popen(
            [*place.clients.inspector, *where, "--method", "tools/call", "--tool-name", tool, *pairs],
            env=place.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        begun.append(process)
        said, errors = process.communicate(timeout=BOUND)
        assert process.returncode == 0, errors
        return json.loads(said)["structuredContent"]

    try:
        yield ask
    finally:
        for process in begun:
            process.kill()


PARENTS: dict[str, Callable[[Place], AbstractContextManager[Ask]]] = {
    "python": python,
    "typescript": typescript,
    "inspector": inspector,
}
