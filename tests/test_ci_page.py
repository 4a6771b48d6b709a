"""The jobs of docs/ci.md are YAML, and their shell steps do as the page says, in a fresh directory."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from subagent_server.extensions.simulator import Simulator
from tests.helpers import warm
from tests.helpers.processes import REPOSITORY
from tests.helpers.turns import Turn, call

pytestmark = pytest.mark.process

PAGE = REPOSITORY / "docs" / "ci.md"
BOUND = 120.0
FOUND = call(
    "final_answer",
    cause="The disk was full.",
    evidence=[{"source": "build.log:1", "quote": "No space left"}],
    confidence="high",
    nextStep="Make room.",
)


def jobs(forge: str) -> dict[str, Any]:
    text = PAGE.read_text(encoding="utf-8").split(f"## {forge}\n")[1]
    found: dict[str, Any] = yaml.safe_load(re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S)[0])
    inner: dict[str, Any] = found.get("jobs", found)
    return inner


def script(forge: str) -> str:
    """Return the step of the page that starts the agent."""
    job = jobs(forge)["triage"]
    steps = job["script"] if "script" in job else [step.get("run", "") for step in job["steps"]]
    (asking,) = [str(step) for step in steps if "subagent run" in step]
    return asking


def ran(forge: str, turn: Turn, place: Path) -> tuple[int, str]:
    """Run that step as the forge does; return its exit code and the summary."""
    (place / "agents").mkdir(parents=True)
    shutil.copy(REPOSITORY / "agents" / "triage.md", place / "agents")
    (place / "build.log").write_text("No space left on device\n", encoding="utf-8")
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("SUBAGENT", "ANTHROPIC"))
    }
    with Simulator({"turns": [turn]}) as simulator:
        environment = {
            **kept,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(place.with_name("home")),
            "ANTHROPIC_BASE_URL": simulator.base_url,
            "ANTHROPIC_API_KEY": "scripted",
            "GITHUB_STEP_SUMMARY": str(place / "summary.md"),
            **warm.settings(),
        }
        environment.pop("XDG_CONFIG_HOME", None)
        done = subprocess.run(
            ["bash", "-e", "-c", script(forge)],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BOUND,
        )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, (place / "summary.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("forge", ["GitHub Actions", "GitLab"])
def test_a_job_of_the_page_ends_well_with_a_summary(forge: str, tmp_path: Path) -> None:
    code, summary = ran(forge, FOUND, tmp_path / "checkout")
    assert code == 0 and summary.startswith("### ✔ completed: `triage`") and "The disk was full." in summary
    view = json.loads((tmp_path / "checkout" / "view.json").read_text(encoding="utf-8"))
    assert view["output"]["confidence"] == "high"


def test_no_text_of_a_model_is_a_command_to_the_runner_of_github() -> None:
    before = script("GitHub Actions").split("subagent run triage")[0]
    assert before.endswith('echo "::stop-commands::$(openssl rand -hex 16)"\n')


def test_a_job_of_the_page_fails_with_its_run_and_still_has_a_summary(tmp_path: Path) -> None:
    code, summary = ran("GitHub Actions", {"text": "x", "fault": {"status": 401}}, tmp_path / "checkout")
    assert code == 1 and summary.startswith("### ✘ failed: `triage`") and "`model_error`" in summary
