"""`subagent init`: registers the server with a client and changes nothing else in its file."""

import json
import os
import re
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Cli
from tests.cli.init_clients import COMMAND, FOR_CLAUDE, SERVE, everything, servers, written
from tests.cli.terminal import person
from tests.helpers.files import write_program
from tests.helpers.processes import REPOSITORY


def test_without_a_person_and_without_yes_nothing_is_written(cli: Cli, home: Path) -> None:
    done = cli("init", "codex")
    assert done.returncode == 5
    assert "+[mcp_servers.subagents]" in done.stdout
    assert done.stderr == "subagent: nothing was written: add --yes to write this without being asked.\n"
    assert not (home / ".codex").exists()


@pytest.mark.parametrize(("answer", "is_written"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_init_asks_before_it_writes(cli: Cli, home: Path, answer: str, is_written: bool) -> None:
    with person(cli, "init", "claude") as terminal:
        assert "subagents" in terminal.command.hear("+}")
        terminal.hear("Write this?")
        terminal.type(answer)
        assert terminal.command.end()[0] == 0
    assert (cli.home / ".mcp.json").exists() is is_written


def test_print_shows_the_entry_and_touches_no_file(cli: Cli, home: Path) -> None:
    (cli.home / ".mcp.json").write_text("not to be read", encoding="utf-8")
    before = everything(cli.home)
    pasted = json.loads(cli("init", "claude", "--print").stdout)
    assert pasted == {"mcpServers": {"subagents": FOR_CLAUDE}}
    table = tomllib.loads(cli("init", "codex", "--print").stdout)["mcp_servers"]["subagents"]
    assert table["args"] == SERVE
    assert everything(cli.home) == before


def test_another_server_of_this_name_is_replaced_only_by_force(cli: Cli, home: Path) -> None:
    config = cli.home / ".mcp.json"
    other = '{"mcpServers": {"subagents": {"command": "other", "env": {"A": "b"}}, "mine": {"url": "x"}}}'
    config.write_text(other, encoding="utf-8")
    done = cli("init", "claude", "--yes")
    assert done.returncode == 2 and "add --force to replace it." in done.stderr
    assert '-{"mcpServers": {"subagents": {"command": "other"' in done.stdout
    assert config.read_text(encoding="utf-8") == other
    written(cli, "claude", "--force")
    assert servers(config) == {"subagents": FOR_CLAUDE, "mine": {"url": "x"}}


def test_keys_that_a_person_added_to_the_entry_are_kept(cli: Cli, home: Path) -> None:
    written(cli, "gemini")
    config = home / ".gemini" / "settings.json"
    data = json.loads(config.read_text(encoding="utf-8"))
    data["mcpServers"]["subagents"] |= {"trust": True, "timeout": 900000}
    data["mcpServers"]["subagents"]["env"]["GITHUB_TOKEN"] = "$GITHUB_TOKEN"
    config.write_text(json.dumps(data), encoding="utf-8")
    before = config.read_bytes()
    assert cli("init", "gemini").returncode == 0
    assert config.read_bytes() == before


def test_an_entry_of_an_earlier_version_gets_what_it_lacks(cli: Cli, home: Path) -> None:
    written(cli, "codex")
    config = home / ".codex" / "config.toml"
    text = config.read_text(encoding="utf-8").replace('"SUBAGENT_TOOLS_BUDGET"', '"MINE"')
    config.write_text(text.replace("required = true\n", "").replace("= 300", "= 900"), encoding="utf-8")
    written(cli, "codex")
    entry = servers(config)["subagents"]
    assert entry["required"] is True and entry["tool_timeout_sec"] == 900
    assert {"MINE", "SUBAGENT_TOOLS_BUDGET"} <= set(entry["env_vars"])


def test_a_file_keeps_its_mode_and_a_new_one_is_for_those_it_belongs_to(cli: Cli, home: Path) -> None:
    config = home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text("", encoding="utf-8")
    config.chmod(0o640)
    written(cli, "codex")
    written(cli, "gemini")
    written(cli, "claude")
    files = (config, home / ".gemini" / "settings.json", cli.home / ".mcp.json")
    assert [oct(stat.S_IMODE(path.stat().st_mode)) for path in files] == ["0o640", "0o600", "0o644"]


def test_flags_that_are_given_are_passed_to_the_server_as_absolute_paths(cli: Cli, home: Path) -> None:
    flags = ("--agents", "agents", "--agents", "/opt/agents", "--runs", "elsewhere", "--max-runs", "3")
    cli.agent("reviewer")
    written(cli, "claude", *flags, "--agent", "review*")
    places = ["--agents", f"{cli.home}/agents", "--agents", "/opt/agents", "--runs", f"{cli.home}/elsewhere"]
    entry = servers(cli.home / ".mcp.json")["subagents"]
    assert entry["args"] == [*SERVE, *places, "--max-runs", "3", "--agent", "review*"]
    cli.leaves_with(2, "--agent 'nobody-*' fits no agent", "init", "claude", "--print", "--agent", "nobody-*")


def test_a_client_that_does_not_start_servers_in_the_project_gets_an_entry_with_every_directory(
    cli: Cli, home: Path
) -> None:
    written(cli, "cursor")
    args = servers(cli.home / ".cursor" / "mcp.json")["subagents"]["args"]
    assert args == [*SERVE, "--cwd", f"{cli.home}", "--runs", f"{cli.home}/runs"], "its agents need trust"
    named = written(cli, "cursor", "--force", "--agents", "mine")
    assert "--agents" in named.stdout and f"{cli.home}/mine" in named.stdout


def test_codex_passes_every_setting_on_and_waits_as_long_as_the_server_does(cli: Cli, home: Path) -> None:
    written(cli, "codex")
    entry = servers(home / ".codex" / "config.toml")["subagents"]
    document = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    table = document.partition("\n## Settings\n")[2].partition("\n\nA run inherits ")[0]
    settings = {*re.findall(r"`((?:SUBAGENT|ANTHROPIC)_\w+)`", table)}
    assert len(settings) > 10 and settings | {"SUBAGENT_RUN_TOKEN", "XDG_STATE_HOME"} <= set(
        entry["env_vars"]
    )
    assert (entry["tool_timeout_sec"], entry["required"]) == (300, True)


def test_variables_name_other_homes_of_a_client(cli: Cli, home: Path) -> None:
    cli.environment["CODEX_HOME"] = str(cli.home / "codex")
    cli.environment["CLAUDE_CONFIG_DIR"] = str(cli.home / "claude")
    written(cli, "codex")
    written(cli, "claude", "--scope", "user")
    assert (cli.home / "codex" / "config.toml").exists() and (cli.home / "claude" / ".claude.json").exists()


def test_a_name_on_path_is_written_only_where_it_leads_here_for_good(cli: Cli, home: Path) -> None:
    folder, venv = cli.home / "bin", cli.home / "venv"
    folder.mkdir()
    (folder / "subagent").symlink_to(COMMAND)
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("", encoding="utf-8")
    shutil.copy(folder / "subagent", venv / "bin" / "subagent", follow_symlinks=False)
    path = cli.environment["PATH"]

    def command(client: str, *before: Path) -> Any:
        cli.environment["PATH"] = os.pathsep.join([*map(str, before), path])
        return cli.json("init", client, code=5)["entry"]["command"]

    assert command("claude", folder) == "subagent"
    assert command("claude", venv / "bin", folder) == "subagent"
    assert command("claude", venv / "bin") == COMMAND
    assert command("cursor", folder) == COMMAND
    (folder / "subagent").unlink()
    write_program(folder / "subagent", "#!/bin/sh\n")
    assert command("claude", folder) == COMMAND


def test_a_person_who_starts_the_server_reads_who_starts_it(cli: Cli, home: Path) -> None:
    with person(cli, "serve") as terminal:
        terminal.hear("`subagent init CLIENT` registers it. Ctrl-C ends it.")
        terminal.type("\x04")
        assert terminal.command.end()[0] == 0


def test_for_programs_there_is_json(cli: Cli, home: Path) -> None:
    pending = cli.json("init", "claude", code=5)
    assert pending["state"] == "refused" and not (cli.home / ".mcp.json").exists()
    done = cli.json("init", "claude", "--yes")
    assert (done["client"], done["state"], done["file"]) == ("claude", "written", f"{cli.home}/.mcp.json")
    assert done["entry"] == FOR_CLAUDE and done["diff"] == pending["diff"]
    assert cli.json("init", "claude")["state"] == "current"


def test_a_project_file_with_a_path_of_this_machine_says_that_it_is_of_no_use_to_others(
    cli: Cli, home: Path
) -> None:
    assert "no use to a colleague" in written(cli, "claude").stderr
    assert "no use to a colleague" not in written(cli, "claude", "--scope", "user").stderr
    folder = cli.home / "bin"
    folder.mkdir()
    (folder / "subagent").symlink_to(COMMAND)
    cli.environment["PATH"] = f"{folder}{os.pathsep}{cli.environment['PATH']}"
    assert "no use to a colleague" not in written(cli, "claude", "--force").stderr
    assert servers(cli.home / ".mcp.json")["subagents"]["command"] == "subagent"


def test_a_program_in_a_cache_is_named_as_one_that_may_go(cli: Cli, home: Path) -> None:
    called = cli.home / ".cache" / "uv" / "bin" / "subagent"
    called.parent.mkdir(parents=True)
    called.symlink_to(COMMAND)
    done = subprocess.run(
        [called, "init", "codex", "--yes"], cwd=cli.home, env=cli.environment, capture_output=True, text=True
    )
    assert (
        f"It starts {called} serve.\nThat program is in a cache, which may be emptied: install" in done.stderr
    )


def test_init_says_what_is_missing_what_is_started_and_what_will_be_asked(cli: Cli, home: Path) -> None:
    del cli.environment["ANTHROPIC_API_KEY"]
    said = written(cli, "claude").stderr
    assert "There is no agent yet" in said and "`subagent new reviewer --from reviewer`" in said
    assert "ANTHROPIC_API_KEY is not set here." in said and "billed by the API" in said
    assert f"It starts {COMMAND} serve." in said and "it asks whether you trust it" in said
    cli.agent("worker")
    cli.environment["ANTHROPIC_API_KEY"] = "key"
    said = written(cli, "codex").stderr
    assert "no agent yet" not in said and "ANTHROPIC_API_KEY is not set" not in said
    assert "passes over the file of a project that it does not trust" in said
