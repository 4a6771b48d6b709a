"""The examples of flows: they run by their scripts, and a type checker accepts them."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from mypy import api

from subagent_server.agents.discover import discover
from subagent_server.agents.formats import load_agent_file
from subagent_server.extensions.code_mode.module_stub import module_stub
from tests.extensions.flows.place import repository
from tests.helpers.processes import REPOSITORY
from tests.helpers.world import World

EXAMPLES = REPOSITORY / "docs/examples/flows"
NAMES = ("review", "extract", "repair")


def checked(tmp_path: Path, name: str, text: str) -> str:
    """Return what mypy says about a flow, against the stubs made for it."""
    agents = discover([EXAMPLES / "agents"]).agents
    flow = agents[name]
    called = [load_agent_file(agents[each].source or Path()) for each in flow.agents]
    (tmp_path / "subagent.pyi").write_text(module_stub(called), encoding="utf-8")
    (tmp_path / "flow.py").write_text(text, encoding="utf-8")
    config = tmp_path / "mypy.ini"
    config.write_text(
        f"[mypy]\nstrict = True\nmypy_path = {tmp_path}\ncache_dir = {tmp_path}/cache\n", "utf-8"
    )
    said, wrong, _ = api.run(["--config-file", str(config), str(tmp_path / "flow.py")])
    return said + wrong


def test_mypy_accepts_each_example_and_refuses_a_wrong_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "setrecursionlimit", lambda _: None)  # it would hold for all later tests
    for name in NAMES:  # in one test, as they share what mypy has cached of the standard library
        text = (EXAMPLES / "agents" / f"{name}.flow.py").read_text(encoding="utf-8")
        assert "Success" in checked(tmp_path, name, text)
        assert 'Unexpected keyword argument "prompts"' in checked(
            tmp_path, name, text.replace("prompt=", "prompts=", 1)
        )


def test_the_examples_load_without_a_remark() -> None:
    catalog = discover([EXAMPLES / "agents"])
    assert catalog.problems == [] and {*NAMES} < {*catalog.agents}


def played(world: World, name: str, **arguments: object) -> Any:
    """Run an example by its script, and return its result."""
    shutil.copytree(EXAMPLES / "agents", world.agents, dirs_exist_ok=True)
    del world.environment["ANTHROPIC_API_KEY"]
    script = str(EXAMPLES / f"{name}.script.yaml")
    words = ("run", name, "--args", json.dumps(arguments), "--script", script, "--json", "--wait", "110")
    done = world.cli(*words)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)["output"]


def test_changed_files_are_reviewed_and_findings_voted_on(world: World) -> None:
    (world.work / "price.py").write_text("def price(): ...\n", encoding="utf-8")
    (finding,) = played(world, "review", files=["price.py"], votes=3)
    assert finding["file"] == "price.py" and finding["votes"] == 3


def test_a_table_is_extracted_from_files(world: World) -> None:
    (world.work / "invoices").mkdir()
    for number in range(4):
        text = f"From: Vendor {number}\nTotal: {number}.50\n"
        (world.work / f"invoices/{number}.txt").write_text(text, encoding="utf-8")
    assert played(world, "extract") == {"file": "invoices.csv", "rows": 4, "failed": []}
    assert "2.txt,Vendor 2,12.5,EUR" in (world.work / "invoices.csv").read_text(encoding="utf-8")


def test_problems_are_fixed_and_merged_in_turns(world: World) -> None:
    (world.work / "notes.txt").write_text("first\n", encoding="utf-8")
    repository(world.work)
    result = played(world, "repair", problems=["Mend one.", "Mend two."])
    assert len(result) == 2
    assert (world.work / "notes.txt").read_text(encoding="utf-8") == "first\nmended\nmended\n"
