"""Trust of a directory on the command line: a clone's agents are listed, and run only after a yes."""

import json
from pathlib import Path

import pytest

from tests.cli.command import BOUND, Cli, Model, inside
from tests.cli.terminal import person
from tests.helpers.turns import says

RUN = ("run", "worker", "Do it.", "--wait", "30")
SERVER = {"type": "http", "url": "http://127.0.0.1:9"}


@pytest.fixture
def clone(cli: Cli, model: Model) -> Cli:
    """The command in a directory that is not trusted any more, with an agent whose work is soon done."""
    model(says("Done."))
    assert cli("trust", "--remove", ".").returncode == 0
    cli.trusts = False
    return cli


def trusted(cli: Cli) -> list[str]:
    return [each["directory"] for each in cli.json("trust", "--list")["directories"]]


def test_an_agent_that_came_with_a_directory_is_listed_and_not_run_until_it_is_trusted(clone: Cli) -> None:
    command = f"`subagent trust {clone.home}`"
    (agent,) = clone.json("agents")["agents"]
    assert (agent["name"], agent["trusted"]) == ("worker", False)
    assert "not trusted" in clone("agents").stdout and "not trusted" in clone("doctor").stdout
    refused = clone(*RUN)
    assert refused.returncode == 2 and command in refused.stderr and clone.store.run_ids() == []
    assert clone("trust").returncode == 2, "there is no terminal to ask at"
    alias = clone.home / "alias"
    alias.symlink_to(clone.home)
    done = clone("trust", str(alias))
    assert done.returncode == 0 and "agents: worker" in done.stdout
    assert trusted(clone) == [str(clone.home)], "trust belongs to the real path"
    assert "no longer there" not in clone("trust", "--list").stdout
    assert clone(*RUN).stdout == "Done.\n"
    assert "not trusted" not in clone("agents").stdout + clone("doctor").stdout
    assert clone("trust", "--remove", ".").returncode == 0 and clone(*RUN).returncode == 2


def test_for_programs_there_is_json(clone: Cli) -> None:
    here = str(clone.home)
    said = [clone.json("trust", *words) for words in ([here], [here], ["--remove", "."])]
    assert [each["state"] for each in said] == ["trusted", "current", "removed"]
    assert {each["directory"] for each in said} == {here}
    assert clone.json("trust", "--runs", "runs") == {
        "runs": f"{here}/runs",
        "state": "current",
        "statuses": {},
    }


def test_a_trusted_directory_that_is_gone_is_listed_as_such(clone: Cli) -> None:
    gone = clone.home / "gone"
    gone.mkdir()
    assert clone("trust", str(gone)).returncode == 0
    gone.rmdir()
    assert f"{gone}  (no longer there)\n" in clone("trust", "--list").stdout
    assert clone("trust", "--remove", str(gone)).returncode == 0 and trusted(clone) == []


def test_trust_for_one_command_is_not_stored(clone: Cli) -> None:
    before = Path(clone.environment["XDG_CONFIG_HOME"], "subagent", "trust.json").read_bytes()
    assert clone(*RUN, "--trust").stdout == "Done.\n"
    assert Path(clone.environment["XDG_CONFIG_HOME"], "subagent", "trust.json").read_bytes() == before
    assert clone(*RUN).returncode == 2


def test_a_person_is_asked_once_and_again_when_a_pinned_command_has_changed(clone: Cli) -> None:
    with person(clone, *RUN) as terminal:
        assert "agents: worker" in terminal.hear("Trust this directory?")
        terminal.type("n\n")
        assert "which is not trusted" in terminal.hear("one command")
    with person(clone, *RUN) as terminal:
        terminal.hear("[y/N]: ")
        terminal.type("\x04")
        assert terminal.hear("interrupted.").startswith("\r\nsubagent: ")
    assert clone.store.run_ids() == [] and trusted(clone) == []
    with person(clone, *RUN) as terminal:
        terminal.hear("Trust this directory?")
        terminal.type("y\n")
        assert terminal.command.hear("Done.")
    clone.agent("worker", tools=["Read"], model="opus", description="Another text.")
    assert clone(*RUN).stdout == "Done.\n", "prompts and tools change without a question"
    address = clone.environment["ANTHROPIC_BASE_URL"]
    clone.agent(
        "worker", baseUrl=address, mcpServers={"x": {"command": "evil", "args": ["--token=abcdefgh"]}}
    )
    clone.leaves_with(2, "'baseUrl', 'mcpServers.x.args', 'mcpServers.x.command'", *RUN)
    clone.agent("worker", baseUrl=address)
    with person(clone, *RUN) as terminal:
        assert f"+ agent worker: baseUrl: {address}" in terminal.hear("Trust this directory?")
        terminal.type("y\n")
        assert terminal.command.hear("Done.")
    assert clone(*RUN).stdout == "Done.\n"
    odd = {"x": {"command": "evil", "args": ["数据", "\u202e"]}}
    clone.agent("worker", baseUrl="http://127.0.0.1:9", mcpServers=odd)
    shown = clone("trust", ".").stdout
    assert r'+ agent worker: mcpServers.x.args: ["数据", "\u202e"]' in shown
    assert (
        f"- agent worker: baseUrl: {address}" in shown
        and "+ agent worker: baseUrl: http://127.0.0.1:9" in shown
    )
    clone.agent("worker")
    clone.leaves_with(2, "'baseUrl', 'mcpServers.x.args', 'mcpServers.x.command'", *RUN)
    assert "- agent worker: baseUrl: http://127.0.0.1:9" in clone("trust", ".").stdout
    assert clone(*RUN).stdout == "Done.\n", "what is pinned no more may have been a wall"


def test_the_question_shows_all_of_a_long_value(clone: Cli) -> None:
    script = f"true {'A' * 2_500}; evil"
    clone.agent("worker", mcpServers={"x": {"command": "sh", "args": ["-c", script]}})
    with person(clone, *RUN) as terminal:
        asked = terminal.hear("Trust this directory?")
        terminal.type("n\n")
    lines = asked.split("\r\n")
    assert "; evil" in asked and sum(line.count("A") for line in lines) >= 2_500
    begun = next(at for at, line in enumerate(lines) if "mcpServers.x.args" in line)
    assert all(line.startswith("      ") for line in lines[begun + 1 : begun + 30]), "no piece is like a line"


def test_what_is_too_much_to_show_is_not_asked(clone: Cli) -> None:
    args = ["-c", f"true {'A' * 50_000}; evil"]
    clone.agent("worker", mcpServers={"x": {"command": "sh", "args": args}})
    for words in (RUN, ("trust", "."), ("init", "claude")):
        with person(clone, *words) as terminal:
            refusal = terminal.hear("trusts it.")
            assert "than a question can show whole" in refusal and "AAAA" not in refusal
            terminal.command.process.wait(BOUND)
    assert trusted(clone) == []
    assert clone("trust", "--yes", ".").returncode == 0 and trusted(clone) == [str(clone.home)]
    assert clone("trust", ".").stdout == "", "what is kept of a long value is enough to know it again"


def test_the_yes_of_init_lists_what_it_covers_and_the_server_asks_nothing_afterwards(clone: Cli) -> None:
    clone.agent("worker", mcpServers={"x": {"command": "some-program"}})
    refused = clone("init", "claude")
    assert refused.returncode == 5 and "+ agent worker: mcpServers.x.command: some-program" in refused.stdout
    assert trusted(clone) == []
    with person(clone, "init", "claude") as terminal:
        terminal.hear("It trusts the directory too")
        terminal.type("y\n")
        terminal.command.process.wait(BOUND)
    assert trusted(clone) == [str(clone.home)]
    assert clone.json("agents")["agents"][0]["trusted"]
    assert clone("trust", "--remove", ".").returncode == 0
    assert clone("init", "cursor", "--yes", "--agents", "mine").returncode == 0
    assert trusted(clone) == [], "who names agents does not speak of those that lie around"


def test_a_server_that_is_named_comes_from_a_trusted_directory_and_is_what_was_trusted(clone: Cli) -> None:
    clone.agent("worker", mcpServers=["files"])
    (clone.home / ".mcp.json").write_text(json.dumps({"mcpServers": {"files": SERVER}}), encoding="utf-8")
    named = ("--agents", "agents")
    clone.leaves_with(2, "server files of .mcp.json comes with", *RUN, *named)
    info = clone("mcp", "info", "files", "--agent", "worker", *named)
    assert info.returncode == 2 and "Nothing was started" in info.stderr and clone.store.run_ids() == []
    assert clone.json("mcp", "list-servers", "--agent", "worker")["servers"][0]["name"] == "files"
    assert "server files of .mcp.json: url: http://127.0.0.1:9" in clone("trust", ".").stdout
    assert clone(*RUN).returncode == 1, "it is started now, and its address does not answer"
    runs = clone.store.run_ids()
    (clone.home / ".mcp.json").write_text('{"mcpServers": {"files": {"command": "evil"}}}', encoding="utf-8")
    clone.leaves_with(2, "has changed since you trusted it ('command', 'type', 'url')", *RUN, *named)
    (clone.home / ".mcp.json").unlink()
    home = clone.home / "home"
    home.mkdir()
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"files": SERVER}}), encoding="utf-8")
    assert clone(*RUN, env={"HOME": str(home)}).returncode == 1, "the user's own needs no trust"
    assert len(clone.store.run_ids()) == len(runs) + 1


def test_a_run_cannot_trust(clone: Cli) -> None:
    with clone.living("c1d2e3") as own:
        env = inside(own)
        for words in (["trust", "."], ["trust", ".", "--yes"], ["trust", "--remove", "."], [*RUN, "--trust"]):
            clone.leaves_with(2, "A run cannot trust", *words, env=env)
        assert clone("init", "claude", "--yes", env=env).returncode == 2
        clone.leaves_with(2, "A run cannot bring in agents", "serve", "--config", "agents/worker.md", env=env)
    assert trusted(clone) == []


@pytest.mark.parametrize("place", ["relative", "", "clone"])
def test_a_configuration_directory_that_is_odd_or_inside_the_clone_trusts_nothing(
    clone: Cli, place: str
) -> None:
    inside = clone.home / "config"
    clone.environment["XDG_CONFIG_HOME"] = str(inside)
    home = clone.home.with_name(f"{clone.home.name}.home")
    env = {"XDG_CONFIG_HOME": str(inside) if place == "clone" else place, "HOME": str(home)}
    done = clone("trust", ".", env=env)
    if place == "clone":
        assert done.returncode == 2 and "lies inside the directory that it would trust" in done.stderr
        assert not inside.exists()
    else:
        assert done.returncode == 0 and (home / ".config" / "subagent" / "trust.json").is_file()
    assert clone(*RUN).returncode == 2
