"""Programs of a model that call the tools of a run's MCP servers (SPEC section 9)."""

from typing import Any

from tests.helpers.mcp_servers import scripted
from tests.helpers.turns import call, says, tool_results
from tests.helpers.world import World


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def program(code: str, seconds: int = 30) -> dict[str, Any]:
    """Return a turn that runs a program."""
    return call("execute_python_code", code=code, executionTimeout=seconds)


def test_a_program_calls_the_tools_of_a_server_and_its_output_is_the_result(world: World) -> None:
    world.agent(codeMode={"enabled": True}, mcpServers={"shop": scripted({"name": "price", "inputSchema": NUMBER})})
    simulator = world.play(
        program("prices = [shop.price(n=n).json()['n'] for n in range(3)]\nsum(prices)"), says("Done.")
    )
    run_id = world.start()
    assert world.completed(run_id) == "Done."
    names = [tool["name"] for tool in simulator.requests[0].body["tools"]]
    assert "execute_python_code" in names and "price" not in names
    assert tool_results(simulator.requests[1].body) == ["3"]
