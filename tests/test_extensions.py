"""Extensions can be deleted with their entries in the registry, and everything else still works.

That one does not need another is a test of `test_layers.py`.
"""

import subprocess
from pathlib import Path

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


def test_without_extensions_everything_else_works(tmp_path: Path) -> None:
    installed = Installation(tmp_path / "installed", marked=False)
    work, agents = tmp_path / "work", tmp_path / "work" / "agents"
    agents.mkdir(parents=True)
    (agents / "worker.md").write_text(AGENT.format(name="worker", keys=""), encoding="utf-8")
    for name, (key, _) in ASKS.items():
        asking = AGENT.format(name=f"asks-{name}", keys=f"{key}\n")
        (agents / f"{name}.md").write_text(asking, encoding="utf-8")
    (work / "script.json").write_text('{"turns": [{"text": "Done."}]}', encoding="utf-8")

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

    folders = {name for name in EXTENSIONS if (FOLDERS / name).is_dir()}
    gone: set[str] = set()
    for removed in (folders - {"simulator"}, {"simulator"}):
        for name in removed:
            installed.remove_extension(name)
        gone |= removed
        verbs = {line.split()[0] for line in subagent("--help").splitlines() if line.startswith("  ")}
        for name, extension in EXTENSIONS.items():
            assert verbs.isdisjoint(extension.commands) if name in gone else set(extension.commands) <= verbs
        listed = subagent("agents")
        assert "worker" in listed and all(f"{said} is not in this" in listed for _, said in ASKS.values())
        if "simulator" not in gone:
            assert subagent("run", "worker", "Do it.", "--script", "script.json") == "Done.\n"
