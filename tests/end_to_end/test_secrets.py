"""Secrets reach the run and never the disk (SPEC sections 4 and 13)."""

import json
from pathlib import Path

from tests.helpers.forked import PROGRAM
from tests.helpers.turns import asks, says, shell, tool_results
from tests.helpers.wait import wait_for
from tests.helpers.world import API_KEY, BOUND, World

LITERAL = "hunter2-correct-horse"
EXPANDED = "of-the-environment-4711"
HEADER = "Bearer abcdefghij-header-secret"


def holding(directory: Path, secret: str) -> list[Path]:
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
    world.completed_and_gone(run_id)
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
        "ANTHROPIC_API_KEY holds characters that no key has, so the model cannot be called: "
        "set ANTHROPIC_API_KEY to the key alone.",
    )
    assert holding(world.runs, API_KEY) == []


TOKEN_SHAPED = "ghp_" + "a1B2" * 9
PLAIN_KEY = "plain-words-of-a-gateway-4711"
"""A key that has no shape: only its value is known."""


def test_no_door_of_a_child_writes_a_secret_to_disk(world: World) -> None:
    world.agent(env={"DB_PASSWORD": LITERAL})
    world.agent("boss", agents=["worker"])
    world.environment["ANTHROPIC_API_KEY"] = PLAIN_KEY
    secret = f"{PLAIN_KEY} {LITERAL} {TOKEN_SHAPED}"
    words = " ".join(PROGRAM)
    command = (
        f'{words} run worker "Use $ANTHROPIC_API_KEY and {TOKEN_SHAPED}" --label "{TOKEN_SHAPED}" --wait 60'
    )
    leads = [shell(command), asks("Enough?"), says("Done.")]
    simulator = world.play(asks("Go on?"), conversations=[{"when": {"prompt": "Lead"}, "turns": leads}])
    run_id, boss = world.start(), world.start("Lead.", agent="boss")
    world.asking(run_id)
    with world.serve(env=world.given_to(run_id)) as child, world.serve("--role", "parent") as parent:
        child.call("ask_parent", question=f"Is it {secret}?", options=[secret], waitSeconds=0)
        child.call("update_status", status="running", summary=secret)
        parent.call("reply_subagent", runId=run_id, messageId="q2", answer=f"It is {TOKEN_SHAPED}.")
        child.call(
            "update_status", status="completed", summary=secret, payload=json.dumps({secret: [secret]})
        )
    published = lambda: [c for c in world.store.children_of(boss) if world.store.exists(c)]  # noqa: E731
    wait_for(published, BOUND, "a run that was started from the shell")
    (nested,) = world.store.children_of(boss)
    world.asking(nested)
    stopped = world.cli("stop", nested, "--reason", secret, env={"DB_PASSWORD": LITERAL})
    assert stopped.returncode == 0, stopped.stderr
    world.asking(boss)
    for each in (run_id, boss, nested):
        world.stop(each)
        world.gone(each)
    meta = world.meta(run_id)
    assert meta.messages[1].question_content == "Is it *** *** ***?" and meta.summary == "*** *** ***"
    assert meta.messages[1].answer_content == "It is ***."
    assert world.store.read_payload(run_id) == b'{"*** *** ***": ["*** *** ***"]}'
    assert world.store.read_request(nested).prompt == "Use *** and ***", "it had the key to hand it on"
    assert world.meta(nested).label == "***" and world.meta(nested).summary == "*** *** ***"
    assert simulator.requests
    for value in (PLAIN_KEY, LITERAL, TOKEN_SHAPED):
        assert holding(world.runs, value) == []


def test_what_a_parent_gives_reaches_disk_without_secrets_and_the_run_has_the_prompt(world: World) -> None:
    world.agent(env={"DB_PASSWORD": LITERAL})
    world.environment["ANTHROPIC_API_KEY"] = PLAIN_KEY
    secret = f"{PLAIN_KEY} {LITERAL} {TOKEN_SHAPED}"
    (world.work / "notes.txt").write_text(f"Log in with {secret}, nöthing else.", encoding="utf-8")
    (world.work / "plain.txt").write_text("Nothing.", encoding="utf-8")
    simulator = world.play(asks("Go on?"), says("Done."))
    run_id = world.start_asking(f"Use {secret}.", label=secret, inputs=["notes.txt", "plain.txt"])
    world.reply(run_id, secret)  # the literal of the agent file is known to the worker alone
    world.completed_and_gone(run_id)
    for value in (PLAIN_KEY, LITERAL, TOKEN_SHAPED):
        assert holding(world.runs, value) == []
    assert LITERAL in json.dumps(simulator.requests[1].body), "the model has the answer as it was given"
    assert world.meta(run_id).messages[0].answer_content == "*** *** ***"
    asked = json.dumps(simulator.requests[0].body, ensure_ascii=False)
    assert f"Use {secret}." in asked and "Log in with *** *** ***, nöthing else." in asked
    warnings = world.store.read_request(run_id).warnings
    assert [w.split(" was replaced")[0].split(" is ")[0] for w in warnings] == [
        "A secret in the prompt",
        "A secret in input 'notes.txt'",
    ]
    assert world.store.read_request(run_id).prompt == "Use *** *** ***."
    assert "started anew" in warnings[0] and world.cli("rerun", run_id).returncode != 0
    assert world.meta(run_id).label == "*** *** ***"
    assert warnings[0] in world.cli("show", run_id).stdout


def test_the_shell_of_a_run_has_no_key_of_the_model_unless_its_file_gives_it_or_it_starts_others(
    world: World,
) -> None:
    world.environment["ANTHROPIC_AUTH_TOKEN"] = "another-way-to-the-model"
    prints = shell("echo ${ANTHROPIC_API_KEY:-none} ${ANTHROPIC_AUTH_TOKEN:-none}")
    world.agent()
    world.agent("given", env={"ANTHROPIC_API_KEY": "${ANTHROPIC_API_KEY}"})
    world.agent("boss", agents=["worker"])
    for name, told in (
        ("worker", "none none"),
        ("given", f"{API_KEY} none"),
        ("boss", f"{API_KEY} another-way-to-the-model"),
    ):
        simulator = world.play(prints, says("Done."))
        world.completed(world.start(agent=name))
        assert tool_results(simulator.requests[1].body) == [told]
