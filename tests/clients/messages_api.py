"""What Claude Code asks its model, and what the scripted model answers as a turn of the simulator."""

import json
from typing import Any

from subagent_server.extensions.simulator.model_request import blocks_of, texts_of
from tests.clients.parent_model import Call, Heard, Say


def heard(body: dict[str, Any], prefix: str) -> Heard:
    """Return the tools and answers of a request; names of the server's tools begin with `prefix`."""
    blocks = [block for message in body["messages"] for block in blocks_of(message["content"])]
    results = [block for block in blocks if block.get("type") == "tool_result"]
    names = [tool["name"] for tool in body.get("tools", [])]
    own = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    answers = ["".join(texts_of(result.get("content"))) for result in results]
    return Heard(own, answers, json.dumps(body["messages"]))


def turn(said: Call | Say, prefix: str) -> dict[str, Any]:
    """Return what the model says as a turn."""
    if isinstance(said, Say):
        return {"text": said.text}
    name = said.tool if said.own else f"{prefix}{said.tool}"
    return {"tool_use": {"name": name, "input": said.arguments}}
