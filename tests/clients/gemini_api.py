"""A Gemini API with a scripted model, as much of it as Gemini CLI needs."""

import json
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.clients.parent_model import Call, Heard, ParentModel, Say

_ADDED = {"wait_for_previous": True}
"""What Gemini CLI adds to the arguments of every tool; a model that uses it must not be refused for that."""
_WRAPPING = ("<untrusted_context>", "</untrusted_context>")


def gemini_app(model: ParentModel, prefix: str) -> Starlette:
    """Return the application; the server's tools are those whose names begin with `prefix`."""

    async def generate(request: Request) -> Response:
        body = await request.json()
        answer = _answer(model.next(heard(body, prefix)), prefix)
        if "stream" not in request.path_params["call"]:
            return JSONResponse(answer)
        return StreamingResponse(iter([f"data: {json.dumps(answer)}\n\n"]), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1beta/models/{call:path}", generate, methods=["POST"])])


def heard(body: dict[str, Any], prefix: str) -> Heard:
    """Return the tools and answers of a request."""
    names = [f["name"] for tool in body.get("tools", []) for f in tool.get("functionDeclarations", [])]
    parts = [part for content in body["contents"] for part in content.get("parts", [])]
    responses = [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]
    own = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return Heard(own, [_text(response) for response in responses], json.dumps(body["contents"]))


def _text(response: dict[str, Any]) -> str:
    text = str(response.get("output") or response.get("error"))
    for mark in _WRAPPING:
        text = text.replace(mark, "")
    return text.strip()


def _answer(said: Call | Say, prefix: str) -> dict[str, Any]:
    if isinstance(said, Say):
        part: dict[str, Any] = {"text": said.text}
    else:
        name = said.tool if said.own else f"{prefix}{said.tool}"
        part = {"functionCall": {"name": name, "args": {**said.arguments, **_ADDED}}}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}
