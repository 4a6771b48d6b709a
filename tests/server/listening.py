"""A client of either era of the protocol that keeps every notification, over the bare pipes."""

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from tests.helpers.forked import PROGRAM
from tests.helpers.raw_server import BOUND, MODERN, RawServer
from tests.helpers.world import World

Era = Literal["older", "modern"]
ERAS: tuple[Era, ...] = ("older", "modern")
Message = dict[str, Any]

_CLIENT = {"name": "listener", "version": "1"}
_ENVELOPE = {**MODERN["_meta"], "io.modelcontextprotocol/clientInfo": _CLIENT}
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


class Listener(RawServer):
    """A server with its client. `received` has every notification so far, in its order."""

    def __init__(self, world: World, era: Era, *flags: str, env: Mapping[str, str] | None = None) -> None:
        environment = {**world.environment, **(env or {})}
        super().__init__([*PROGRAM, "serve", *flags], environment, world.work, world.errors)
        self.era = era
        self.received: list[Message] = []
        self.capabilities: Message = {}
        self._numbers = itertools.count(1)

    def __enter__(self) -> "Listener":
        """Introduce the client, as its era does."""
        if self.era == "modern":
            self.capabilities = self.ask("server/discover")["capabilities"]
            return self
        hello: Message = {"protocolVersion": "2025-11-25", "clientInfo": _CLIENT}
        self.capabilities = self.ask("initialize", **hello, capabilities={})["capabilities"]
        self.say({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def begin(self, method: str, *, meta: Mapping[str, Any] | None = None, **params: Any) -> int:
        """Send a request and return its number."""
        number = next(self._numbers)
        given = {**(_ENVELOPE if self.era == "modern" else {}), **(meta or {})}
        body = {**params, "_meta": given} if given else params
        self.say({"jsonrpc": "2.0", "id": number, "method": method, "params": body})
        return number

    def ask(self, method: str, *, meta: Mapping[str, Any] | None = None, **params: Any) -> Message:
        """Return the result of a request that must succeed."""
        answer = self.answer_to(self.begin(method, meta=meta, **params))
        assert "result" in answer, answer
        result: Message = answer["result"]
        return result

    def refused(self, method: str, **params: Any) -> tuple[int, str]:
        """Return the code and the message of the error that a request must give."""
        answer = self.answer_to(self.begin(method, **params))
        assert "error" in answer, answer
        return answer["error"]["code"], answer["error"]["message"]

    def call(self, tool: str, *, meta: Mapping[str, Any] | None = None, **arguments: Any) -> Message:
        """Return the structured content of a tool call that must succeed."""
        result = self.ask("tools/call", meta=meta, name=tool, arguments=arguments)
        assert not result.get("isError"), result
        content: Message = result["structuredContent"]
        return content

    def read(self, uri: str) -> str:
        """Return the text of a resource."""
        (content,) = self.ask("resources/read", uri=uri)["contents"]
        assert content["uri"] == uri
        return str(content["text"])

    def listen(self, *uris: str, tools: bool = False, resources: bool = False) -> int:
        """Ask for changes in the way of the era, and return the number of a modern stream."""
        if self.era == "older":
            for uri in uris:
                self.ask("resources/subscribe", uri=uri)
            if tools:
                self.ask("tools/list")
            if resources:
                self.ask("resources/list")
            return 0
        kinds = {"toolsListChanged": tools, "resourcesListChanged": resources}
        wanted = {"resourceSubscriptions": list(uris), **{k: True for k, on in kinds.items() if on}}
        number = self.begin("subscriptions/listen", notifications=wanted)
        acknowledged = "notifications/subscriptions/acknowledged"
        self.hears(lambda m: m["method"] == acknowledged and m["params"]["_meta"][SUBSCRIPTION] == number)
        return number

    def hears(self, wanted: Callable[[Message], object], seconds: float = BOUND) -> Message:
        """Return the first notification, so far or to come, that is `wanted`."""
        deadline = time.monotonic() + seconds
        seen = 0
        while True:
            for message in self.received[seen:]:
                if wanted(message):
                    return message
            seen = len(self.received)
            assert time.monotonic() < deadline, f"no such notification within {seconds:g} s"
            self._hear()

    def hears_of(self, method: str, count: int = 1, **params: Any) -> list[Message]:
        """Return the notifications of this method with these parameters, as soon as there are `count`."""

        def fitting() -> list[Message]:
            of_it = [m for m in self.received if m["method"] == f"notifications/{method}"]
            return [m for m in of_it if params.items() <= m.get("params", {}).items()]

        self.hears(lambda _: len(fitting()) >= count) if len(fitting()) < count else None
        return fitting()

    def hears_event(self, kind: str, run_id: str | None = None) -> None:
        """Return as soon as an event of this type (of this run) has come."""

        def fits(message: Message) -> bool:
            data = message.get("params", {}).get("data", {})
            return data.get("type") == kind and run_id in (None, data.get("runId"))

        self.hears(fits)

    def events(self) -> list[tuple[str, str, Message]]:
        """Return the level, the logger and the data of the logging notifications so far."""
        params = [m["params"] for m in self.received if m["method"] == "notifications/message"]
        return [(p["level"], p["logger"], p["data"]) for p in params]

    def _hear(self) -> None:
        """Take the next message; answers are kept for `answer_to`."""
        message = self._next()
        if "method" not in message:
            self._answers[message["id"]] = message

    def _next(self) -> Message:
        message = super()._next()
        if "method" in message:
            self.received.append(message)
        return message
