"""Secrets reach the run and never the disk (SPEC sections 4 and 13)."""

from pathlib import Path

from tests.helpers.turns import asks, says, shell, tool_results
from tests.helpers.world import API_KEY, World

LITERAL = "hunter2-correct-horse"
EXPANDED = "of-the-environment-4711"
HEADER = "Bearer abcdefghij-header-secret"


def holding(directory: Path, secret: str) -> list[Path]:
    """Return the files under a directory that hold a secret."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if secret.encode() in path.read_bytes()]


def test_nothing_under_runs_holds_a_key_a_token_or_a_secret_of_the_agent_file(world: World) -> None:
    env = {"SERVICE_PASSWORD": LITERAL, "OTHER_TOKEN": "${HOST_SECRET}", "GREETING": "hello"}
    headers = {"Authorization": HEADER}
    world.agent(env=env)
    world.agent("caller", mcpServers={"x": {"url": "http://127.0.0.1:1/", "headers": headers}})
    world.environment["HOST_SECRET"] = EXPANDED
    world.environment["ANTHROPIC_API_KEY"] = f"{API_KEY}\n"  # as from a file
    has_them = shell('[ "$SERVICE_PASSWORD" = hunter2-""correct-horse ] && echo $GREETING ${#OTHER_TOKEN}')
    prints_them = shell("env; echo $ANTHROPIC_API_KEY")
    simulator = world.play(has_them, prints_them, asks("Go on?"), says("Done."))
    run_id, refused = world.start(), world.start(agent="caller")
    world.asking(run_id)
    token = world.given_to(run_id)["SUBAGENT_RUN_TOKEN"]
    world.reply(run_id, "yes")
    world.completed(run_id)
    world.gone(run_id)
    assert tool_results(simulator.requests[1].body) == [f"hello {len(EXPANDED)}"], "the run has them"
    for secret in (API_KEY, token, LITERAL, EXPANDED, "header-secret"):
        assert holding(world.runs, secret) == []
    kept = world.store.read_request(run_id).agent["env"]
    assert kept == {"SERVICE_PASSWORD": "***", "OTHER_TOKEN": "${HOST_SECRET}", "GREETING": "hello"}
    assert world.failed(refused)[0] == "config"
    assert world.paths(run_id).directory.stat().st_mode & 0o077 == 0, "and it is for its owner alone"


def test_a_key_that_cannot_be_one_is_refused_before_anything_quotes_it(world: World) -> None:
    world.agent()
    world.environment["ANTHROPIC_API_KEY"] = f"{API_KEY}\n{API_KEY}…"
    run_id = world.start()
    assert world.failed(run_id) == (
        "config",
        "ANTHROPIC_API_KEY holds characters that no key has, so the model cannot be called.",
    )
    assert holding(world.runs, API_KEY) == []
