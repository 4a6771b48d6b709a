"""Each extension can be deleted with its entry in the registry, and everything else still works."""

import subprocess
from pathlib import Path

import pytest

from subagent_server.extensions import EXTENSIONS
from tests.helpers.installation import Installation
from tests.helpers.processes import REPOSITORY

FOLDERS = REPOSITORY / "subagent_server" / "extensions"
AGENT = "---\nname: {name}\ndescription: Works.\n{keys}---\nWork.\n"
ASKS = {"code_mode": ("codeMode: true", "codeMode"), "programs": ("runner: claude", "runner: claude")}
"""The line of an agent file that asks for an extension, and the beginning of its refusal."""


def test_every_folder_of_an_extension_has_its_entry() -> None:
    folders = {each.name for each in FOLDERS.iterdir() if (each / "__init__.py").exists()}
    assert folders and folders <= EXTENSIONS.keys()


@pytest.mark.parametrize("name", [name for name in EXTENSIONS if (FOLDERS / name).is_dir()])
def test_without_an_extension_everything_else_works(tmp_path: Path, name: str) -> None:
    installed = Installation(tmp_path / "installed")
    installed.remove_extension(name)
    work, agents = tmp_path / "work", tmp_path / "work" / "agents"
    agents.mkdir(parents=True)
    (agents / "worker.md").write_text(AGENT.format(name="worker", keys=""), encoding="utf-8")
    (work / "script.json").write_text('{"turns": [{"text": "Done."}]}', encoding="utf-8")
    if name in ASKS:
        asking = AGENT.format(name="asking", keys=f"{ASKS[name][0]}\n")
        (agents / "asking.md").write_text(asking, encoding="utf-8")

    def subagent(*words: str) -> str:
        done = subprocess.run(
            [*installed.program, *words],
            cwd=work,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(tmp_path),
                "SUBAGENT_RUNS": str(tmp_path / "runs"),
                "SUBAGENT_AGENTS": str(agents),
                "SUBAGENT_WARM": "0",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    verbs = {line.split()[0] for line in subagent("--help").splitlines() if line.startswith("  ")}
    gone = set(EXTENSIONS[name].commands)
    kept = {verb for other in EXTENSIONS.values() for verb in other.commands} - gone
    assert verbs.isdisjoint(gone) and kept <= verbs
    listed = subagent("agents")
    assert "worker" in listed and (name not in ASKS or f"{ASKS[name][1]} is not in this" in listed)
    if name == "simulator":
        subagent("ls")
    else:
        assert subagent("run", "worker", "Do it.", "--script", "script.json") == "Done.\n"
