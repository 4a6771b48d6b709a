"""Bodies that are not messages: the same error as over stdio, with the id of the request if it has one."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from subagent_server.server.refusals import bad_line, is_message


class BadMessages:
    """Puts a clear error in place of an answer with status 400 to a body that is not a message."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and answer for the application if it refuses what is not a message."""
        if scope["method"] != "POST":
            return await self._app(scope, receive, send)
        body = await Request(scope, receive).body()
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        explained: Response | None = None

        async def receive_again() -> Message:
            return first.pop() if first else await receive()

        async def explain(message: Message) -> None:
            nonlocal explained
            if message["type"] == "http.response.start" and message["status"] == 400:
                explained = _explanation(body)
            if explained is None:
                await send(message)

        await self._app(scope, receive_again, explain)
        if explained is not None:
            await explained(scope, receive, send)
        return None


def _explanation(body: bytes) -> Response | None:
    bad = None if is_message(body) else bad_line(body or b"{")
    if bad is None:
        return None
    if bad.answer is None:
        return Response(bad.why, 400, media_type="text/plain")
    return Response(bad.answer.model_dump_json(by_alias=True), 400, media_type="application/json")
