"""An MCP server of a run in a box of its own."""

from pathlib import Path

from tests.helpers.mcp_servers import scripted
from tests.helpers.turns import calls, says, tool_results, use
from tests.helpers.world import World

HELPERS = Path(__file__).resolve().parents[1] / "helpers"


def names(variable: str) -> dict[str, object]:
    """Return a tool that tells a variable of its server."""
    return {"name": variable.lower(), "does": {"env": variable}}


def test_a_server_in_a_box_has_the_credentials_of_its_entry_and_no_others(world: World) -> None:
    variables = ("SERVICE_TOKEN", "ANTHROPIC_API_KEY", "SUBAGENT_RUN_TOKEN", "AGENT_SECRET", "HOME")
    env = {"SERVICE_TOKEN": "of the entry"}
    mark = world.home / "outside"
    server = scripted(*map(names, variables), keys={"env": env, "sandbox": True})
    escaping = scripted("other", mark=str(mark), keys={"sandbox": True})
    world.agent(
        mcpServers={"boxed": server},
        env={"AGENT_SECRET": "of the agent"},
        sandboxRead=[str(HELPERS)],
        tools=[f"mcp__boxed__{name.lower()}" for name in variables],
    )
    simulator = world.play(calls(*(use(name.lower()) for name in variables)), says("Done."))
    run_id = world.start()
    assert world.completed(run_id) == "Done."
    token, key, run_token, secret, home = tool_results(simulator.requests[-1].body)
    assert (token, home) == ("of the entry", str(world.home))
    assert not {key, run_token, secret} & {*world.environment.values(), "of the agent"}
    world.gone(run_id)
    assert list(world.work.iterdir()) == []

    world.agent(mcpServers={"boxed": escaping}, sandboxRead=[str(HELPERS)], tools=["mcp__boxed__other"])
    world.play(says("Done."))
    run_id = world.start()
    world.ended(run_id)
    assert not mark.exists()


def test_a_server_that_asks_for_a_box_is_not_started_without_one(world: World) -> None:
    fake = world.home / "bwrap"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n', encoding="utf-8")
    fake.chmod(0o755)
    world.environment["SUBAGENT_BWRAP"] = str(fake)
    mark = world.home / "started"
    world.agent(mcpServers={"boxed": scripted("tool", mark=str(mark), keys={"sandbox": True})})
    world.play(says("Never."))
    code, message = world.failed(world.start())
    assert code == "config" and "boxed" in message and "sandbox" in message, message
    assert not mark.exists()
