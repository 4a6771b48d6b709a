"""A Responses API with a scripted model, as much of it as Codex needs."""

import json
from collections.abc import Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.clients.parent_model import Call, Heard, ParentModel, Say

_ANSWER = "Output:\n"
"""What stands before the answer of a tool; a line with the time it took is before that."""


def responses_app(model: ParentModel, namespace: str) -> Starlette:
    """Return the application; the server's tools are those of `namespace`."""

    async def responses(request: Request) -> Response:
        body = await request.json()
        said = model.next(heard(body, namespace))
        return StreamingResponse(_events(body, _item(body, said, namespace)), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/responses", responses, methods=["POST"])])


def heard(body: dict[str, Any], namespace: str) -> Heard:
    """Return the tools and answers of a request."""
    spaces = [tool for tool in body.get("tools", []) if tool.get("name") == namespace]
    outputs = [item["output"] for item in body["input"] if item.get("type") == "function_call_output"]
    own = [tool["name"] for space in spaces for tool in space["tools"]]
    return Heard(own, [_text(output) for output in outputs], json.dumps(body["input"]))


def _text(output: str | list[dict[str, Any]]) -> str:
    text = output if isinstance(output, str) else "".join(part.get("text", "") for part in output)
    return text.partition(_ANSWER)[2] or text


def _item(body: dict[str, Any], said: Call | Say, namespace: str) -> dict[str, Any]:
    number = len(body["input"])
    if isinstance(said, Say):
        content = [{"type": "output_text", "text": said.text}]
        return {"type": "message", "role": "assistant", "id": f"msg_{number}", "content": content}
    return {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        **({} if said.own else {"namespace": namespace}),
        "name": said.tool,
        "arguments": json.dumps(said.arguments),
    }


def _events(body: dict[str, Any], item: dict[str, Any]) -> Iterator[str]:
    response = {"id": f"resp_{len(body['input'])}"}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    for event in (
        {"type": "response.created", "response": response},
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": {**response, "usage": usage}},
    ):
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
