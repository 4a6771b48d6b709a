"""An MCP server for programs to call, and runs whose model runs programs."""

from typing import Any

from tests.helpers.mcp_servers import scripted
from tests.helpers.turns import call, says, tool_results
from tests.helpers.world import World

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
BOX = {"type": "object", "properties": {"name": {"type": "string"}}}
TEXTS = {"type": "object", "properties": {"from": {"type": "string"}, "self": {"type": "string"}, "box": BOX}}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
SHOP = scripted(
    {"name": "price", "inputSchema": NUMBER},
    {"name": "mail", "inputSchema": TEXTS},
    {"name": "bad", "does": {"content": [{"type": "text", "text": "sold out"}], "isError": True}},
    {
        "name": "sizes",
        "outputSchema": {
            "type": "object",
            "properties": {"result": {"type": "array"}},
            "required": ["result"],
        },
        "does": {"content": [], "structuredContent": {"result": [1, 2]}},
    },
    {
        "name": "photo",
        "does": {
            "content": [
                {"type": "text", "text": "a photo"},
                {"type": "image", "data": PIXEL, "mimeType": "image/png"},
            ]
        },
    },
    {"name": "hangs", "does": {"hang": True}},
)


def program(code: str, seconds: int = 30) -> dict[str, Any]:
    """Return a turn that runs a program."""
    return call("execute_python_code", code=code, executionTimeout=seconds)


def in_code_mode(world: World, **keys: Any) -> None:
    """Write an agent in code mode."""
    world.agent(**{"codeMode": True, "mcpServers": {"shop": SHOP}, **keys})


def outcomes(world: World, *programs: Any, **keys: Any) -> list[str]:
    """Return the results of programs that one run runs, as its model sees them."""
    in_code_mode(world, **keys)
    turns = [each if isinstance(each, dict) else program(each) for each in programs]
    simulator = world.play(*turns, says("Done."))
    assert world.completed(world.start()) == "Done."
    return [tool_results(request.body)[0] for request in simulator.requests[1:]]
