"""The command line obeys the token of a run (SPEC sections 5 and 13)."""

import secrets

import pytest

from tests.cli.command import Cli, asked, inside

OWN, NESTED, OTHER = (secrets.token_hex(3) for _ in range(3))


def test_a_child_sees_its_own_run_and_those_it_started(cli: Cli) -> None:
    with cli.living(OWN) as own:
        nested, other = cli.completed(NESTED, parent_run_id=own), cli.completed(OTHER)
        assert cli("ls", "-q", env=inside(own)).stdout.split() == [own, nested]
        assert cli("show", nested, env=inside(own)).returncode == 0
        assert cli("logs", own, env=inside(own)).returncode == 0
        for words in (["show", other], ["logs", other], ["wait", other], ["logs", "-f", other]):
            refused = cli(*words, env=inside(own))
            assert refused.returncode == 2 and "not open to run" in refused.stderr
            assert refused.stdout == ""


def test_a_child_whose_agent_may_start_no_others_may_not_start_answer_or_stop(cli: Cli) -> None:
    cli.agent("reviewer")
    with cli.living(OWN, asked()) as own:
        for words in (["run", "reviewer", "Go"], ["reply", own, "blue"], ["stop", own]):
            cli.leaves_with(2, f"The agent of run {own} may ", *words, env=inside(own))
        assert cli.meta(own).status == "waiting_parent_reply"
        assert cli("ls", "-q").stdout.split() == [own]


@pytest.mark.parametrize("verb", [["ls"], ["show", "@last"], ["inbox"], ["stop", "@last"]])
@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_wrong_token_opens_nothing(cli: Cli, verb: list[str], token: str) -> None:
    with cli.living(OWN) as own:
        cli.leaves_with(2, "SUBAGENT_RUN_TOKEN", *verb, env=inside(own, token))
        assert cli.meta(own).status == "running"


def test_a_child_registers_no_server_with_a_client(cli: Cli) -> None:
    with cli.living(OWN) as own:
        cli.leaves_with(
            2, "only the owner of the runs may do this", "init", "claude", "--yes", env=inside(own)
        )
        assert not (cli.home / ".mcp.json").exists()


@pytest.mark.parametrize(
    "words",
    [("mcp", "info", "x", "--agent", "reviewer"), ("tools", "reviewer"), ("demo",)],
    ids=["mcp", "tools", "demo"],
)
def test_a_child_starts_no_server_of_an_agent(cli: Cli, words: tuple[str, ...]) -> None:
    started = cli.home / "started"
    cli.agent("reviewer", codeMode=True, mcpServers={"x": {"command": "touch", "args": [str(started)]}})
    with cli.living(OWN) as own:
        cli.leaves_with(2, "only the owner of the runs may do this", *words, env=inside(own))
        assert not started.exists()


def test_a_child_that_may_delegate_answers_its_children_and_not_itself(cli: Cli) -> None:
    with cli.living(OWN, asked()) as own:
        request = cli.store.read_request(own)
        named = request.model_copy(update={"agent": {**request.agent, "agents": ["tester"]}})
        cli.store.paths.run(own).request.path.write_bytes(named.to_json())
        with cli.living(NESTED, asked(), parent_run_id=own) as nested:
            assert cli("reply", nested, "blue", env=inside(own)).returncode == 0
            assert cli.meta(nested).messages[0].answered_by == "parent"
        cli.leaves_with(2, "does not answer itself", "reply", own, "blue", env=inside(own))
        cli.agent("reviewer")
        assert "may not start reviewer" in cli("run", "reviewer", "Go", env=inside(own)).stderr
