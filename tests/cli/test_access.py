"""The command line obeys the token of a run (SPEC sections 5 and 13)."""

import pytest

from subagent_server.service.access import token_hash
from tests.cli.command import Cli, asked

TOKEN = "a-token-that-nobody-guesses"


def child(run_id: str, token: str = TOKEN) -> dict[str, str]:
    """Return what the programs of a run have in their environment."""
    return {"SUBAGENT_RUN_ID": run_id, "SUBAGENT_RUN_TOKEN": token}


def test_a_child_sees_its_own_run_and_those_it_started(cli: Cli) -> None:
    with cli.living("aaaaaa", child_token_hash=token_hash(TOKEN)) as own:
        nested, other = cli.completed("bbbbbb", parent_run_id=own), cli.completed("cccccc")
        assert cli("ls", "-q", env=child(own)).stdout.split() == [own, nested]
        assert cli("show", nested, env=child(own)).returncode == 0
        assert cli("logs", own, env=child(own)).returncode == 0
        for words in (["show", other], ["logs", other], ["wait", other], ["logs", "-f", other]):
            refused = cli(*words, env=child(own))
            assert refused.returncode == 2 and "not open to run" in refused.stderr
            assert refused.stdout == ""


def test_a_child_whose_agent_may_start_no_others_leads_nobody(cli: Cli) -> None:
    cli.agent("reviewer")
    with cli.living("aaaaaa", asked(), child_token_hash=token_hash(TOKEN)) as own:
        for words in (["run", "reviewer", "Go"], ["reply", own, "blue"], ["stop", own]):
            refused = cli(*words, env=child(own))
            assert refused.returncode == 2 and "no other agents" in refused.stderr
        assert cli.meta(own).status == "waiting_parent_reply"
        assert cli("ls", "-q").stdout.split() == [own]


@pytest.mark.parametrize("verb", [["ls"], ["show", "@last"], ["inbox"], ["stop", "@last"]])
@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_wrong_token_opens_nothing(cli: Cli, verb: list[str], token: str) -> None:
    with cli.living("aaaaaa", child_token_hash=token_hash(TOKEN)) as own:
        refused = cli(*verb, env=child(own, token))
        assert refused.returncode == 2 and "SUBAGENT_RUN_TOKEN" in refused.stderr
        assert cli.meta(own).status == "running"
