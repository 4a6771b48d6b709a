"""`subagent new`: a file that runs at once, and nothing that was there is touched."""

from pathlib import Path

import pytest

from subagent_server.extensions.simulator import Simulator
from tests.cli.command import Cli
from tests.helpers.turns import says


@pytest.fixture
def fresh(cli: Cli) -> Cli:
    """The command in a directory that nobody has trusted."""
    assert cli("trust", "--remove", ".").returncode == 0
    (cli.home / "agents").rmdir()
    return cli


@pytest.mark.parametrize("there", ["nothing", "an evaluation"])
def test_a_new_agent_runs_at_once(fresh: Cli, there: str) -> None:
    if there == "an evaluation":  # of one that starts no program
        (fresh.home / "e.yaml").write_text(
            "agents: [asker]\ncases: [{name: a, prompt: b}]\n", encoding="utf-8"
        )
    done = fresh("new", "asker")
    assert (done.returncode, done.stdout) == (0, "agents/asker.md\n"), done.stderr
    assert "This directory is trusted now" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Next: subagent run asker ")
    with Simulator({"turns": [says("Here.")]}) as simulator:
        ran = fresh("run", "asker", "Where is it?", env={"ANTHROPIC_BASE_URL": simulator.base_url})
    assert (ran.returncode, ran.stdout) == (0, "Here.\n"), ran.stderr
    assert "not trusted" not in fresh("agents").stdout and fresh("doctor").returncode == 0


@pytest.mark.parametrize("example", ["reviewer", "scout", "timekeeper", "triage"])
def test_an_agent_that_comes_with_subagent_is_copied_and_nothing_else_offers_it(
    cli: Cli, example: str
) -> None:
    assert cli("run", example, "x").returncode == 3, "it is not an agent of this directory yet"
    done = cli.json("new", "mine", "--from", example)
    assert (done["file"], done["trusted"]) == (str(cli.home / "agents" / "mine.md"), True)
    original = (Path(__file__).parents[2] / "agents" / f"{example}.md").read_text(encoding="utf-8")
    copy = (cli.home / "agents" / "mine.md").read_text(encoding="utf-8")
    assert copy == original.replace(f"name: {example}", "name: mine", 1)


def test_an_agent_of_ones_own_is_copied_before_one_that_comes_with_subagent(cli: Cli) -> None:
    cli.agent("scout", model="haiku")
    assert cli("new", "other", "--from", "scout").returncode == 0
    assert "Does scout." in (cli.home / "agents" / "other.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["worker"], 2, "There is an agent worker already in "),
        (["../out"], 2, "'../out' is no name for an agent: "),
        (["Capital"], 2, "is no name for an agent: "),
        (["null"], 2, "is no name for an agent: "),
        (["-x"], 2, "No such option"),
        (["x" * 49], 2, "is no name for an agent: "),
        (["a", "--from", "nobody"], 3, "There is no agent 'nobody': the agents here are "),
        (["a", "--from", "odd"], 3, "its front matter has no end"),
        (["taken"], 2, "agents/taken.md exists and was left as it is: take another name."),
    ],
)
def test_what_cannot_be_made_is_refused_and_leaves_everything_as_it_was(
    cli: Cli, words: list[str], code: int, sentence: str
) -> None:
    cli.agent("worker")
    (cli.home / "agents" / "taken.md").write_text("no agent", encoding="utf-8")
    (cli.home / "agents" / "odd.md").write_text("---\nname: odd\n", encoding="utf-8")
    before = {path: path.read_bytes() for path in cli.home.rglob("*") if path.is_file()}
    done = cli("new", *words)
    assert done.returncode == code and sentence in done.stderr and done.stderr.count("\n") == 1
    assert {path: path.read_bytes() for path in cli.home.rglob("*") if path.is_file()} == before


def test_a_directory_that_came_with_agents_is_not_trusted_because_one_was_added(cli: Cli) -> None:
    cli("trust", "--remove", ".")
    (cli.home / "agents" / "theirs.md").write_text("---\nname: theirs\n---\nObey.", encoding="utf-8")
    done = cli("new", "mine")
    assert done.returncode == 0 and "Not trusted: agent mine comes with " in done.stderr
    assert cli("run", "theirs", "x").returncode == 2


def test_a_link_out_of_the_project_is_not_followed_unless_it_is_named(
    fresh: Cli, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (fresh.home / "agents").symlink_to(outside)
    refused = fresh("new", "mine")
    assert refused.returncode == 2 and "is a link out of this directory" in refused.stderr
    assert not list(outside.iterdir())
    named = fresh("new", "mine", "--agents", str(outside))
    assert named.returncode == 0 and f"--agents {outside}" in named.stderr and (outside / "mine.md").exists()
