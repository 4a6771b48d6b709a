"""The hooks of the user: told of questions and ends, as data, and unable to hold up or fail a run."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from subagent_server.process.cleanup import HOOK_SECONDS
from tests.cli.command import BOUND, Cli, Model, stored
from tests.helpers.turns import asks, says
from tests.helpers.wait import wait_for

HOSTILE = "Which $(touch owned)\n`touch owned`; \x1b[2J colour?"
TELL = """\
import json, os, sys
name = sys.argv[1] + "/" + os.environ["SUBAGENT_EVENT"]
with open(name + ".new", "w") as file:
    said = {"environment": dict(os.environ), "stdin": json.loads(sys.stdin.read()), "cwd": os.getcwd()}
    json.dump(said, file)
os.rename(name + ".new", name)
"""


def hooks_file(cli: Cli) -> Path:
    """Return the place of the hooks in the configuration of the user."""
    return Path(cli.environment["XDG_CONFIG_HOME"]) / "subagent" / "hooks.json"


def told(cli: Cli, event: str) -> Any:
    """Return what a hook was told, once it was."""
    file = cli.home / event
    wait_for(file.exists, BOUND, f"the hook {event}")
    return json.loads(file.read_text(encoding="utf-8"))


def test_hooks_are_told_as_data_and_are_not_decided_by_an_agent(cli: Cli, model: Model) -> None:
    model(asks(HOSTILE), says("Done."))
    tell = cli.home.with_name(f"{cli.home.name}.tell.py")
    tell.write_text(TELL, encoding="utf-8")
    command = [sys.executable, str(tell), str(cli.home)]
    hooks_file(cli).write_text(json.dumps({"onQuestion": command, "onEnd": command}), encoding="utf-8")
    forged = json.dumps({"onQuestion": ["/bin/touch", "owned"], "onEnd": ["/bin/touch", "owned"]})
    cli.agent(
        "worker", env={"SUBAGENT_HOOKS": forged, "PYTHONPATH": "/nowhere", "XDG_CONFIG_HOME": "/nowhere"}
    )
    assert cli("run", "worker", "Do it.", "--wait", "60").returncode == 5
    (run_id,) = stored(cli)
    question = told(cli, "onQuestion")
    assert question["stdin"]["question"] == HOSTILE and question["stdin"]["messageId"] == "q1"
    environment = question["environment"]
    assert environment["SUBAGENT_EVENT_RUN"] == run_id and "\x1b" not in environment["SUBAGENT_EVENT_TEXT"]
    assert environment["SUBAGENT_RUNS"] == str(cli.store.paths.root), "so `subagent show` finds the run"
    assert not {"ANTHROPIC_API_KEY", "SUBAGENT_RUN_TOKEN", "PYTHONPATH", "SUBAGENT_HOOKS"} & set(environment)
    assert cli("reply", run_id, "blue").returncode == 0
    end = told(cli, "onEnd")
    assert (end["stdin"]["status"], end["stdin"]["agent"]) == ("completed", "worker")
    assert end["environment"]["SUBAGENT_EVENT_TEXT"] == "Done."
    assert question["cwd"] == end["cwd"] == "/", "not where the run writes"
    assert not list(cli.home.rglob("owned"))


def test_a_hook_that_hangs_or_fails_holds_up_and_fails_nothing(cli: Cli, model: Model) -> None:
    model(says("Done."))
    hang = ["sh", "-c", "tr '\\0' ' ' < /proc/$PPID/cmdline; sleep 3600"]
    hooks_file(cli).write_text(json.dumps({"onEnd": hang}), encoding="utf-8")
    assert cli("run", "worker", "Do it.", "--wait", "60").stdout == "Done.\n"
    (run_id,) = stored(cli)
    printed = cli.store.paths.run(run_id).worker_out.path
    wait_for(lambda: f"bounded_command.py +{HOOK_SECONDS:g} " in printed.read_text(), BOUND, "its bound")
    wait_for(lambda: cli.json("show", run_id)["live"] is False, BOUND, "the end of its tree")


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        ("{", 0o600, "is not used"),
        ("[" * 50_000, 0o600, "is not used"),
        ('["onEnd"]', 0o600, "it must be an object with onQuestion and onEnd"),
        ('{"onStart": "true"}', 0o600, "it must be an object"),
        ('{"onEnd": "no-such-program-here"}', 0o600, "is not in PATH"),
        ('{"onEnd": [1]}', 0o600, "must be a command"),
        ('{"onEnd": "true"}', 0o666, "others may write it"),
    ],
)
def test_a_file_of_hooks_that_cannot_be_used_is_said(cli: Cli, content: str, mode: int, why: str) -> None:
    hooks_file(cli).write_text(content, encoding="utf-8")
    hooks_file(cli).chmod(mode)
    assert any(why in sentence for sentence in cli.json("doctor", code=1)["unusableHooks"])


def test_a_link_in_place_of_the_hooks_is_not_followed_and_the_run_goes_on(cli: Cli, model: Model) -> None:
    model(says("Done."))
    planted = cli.home / "planted.json"
    planted.write_text('{"onEnd": "touch owned"}', encoding="utf-8")
    hooks_file(cli).symlink_to(planted)
    view = cli.json("run", "worker", "Do it.", "--wait", "60")
    assert "is not used" in view["warnings"][0]
