"""`subagent completion`: the scripts, and what they complete."""

import shutil
import subprocess
from datetime import UTC, datetime

import pytest

from subagent_server.verbs import list_runs
from tests.cli.command import Cli
from tests.helpers.stored import make_stored


def completed(cli: Cli, *words: str) -> list[str]:
    """Return what bash is offered behind these words, the last of which is being typed."""
    line = " ".join(["subagent", *words])
    asked = {
        "_SUBAGENT_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words)),
    }
    done = cli(env=asked)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_runs_are_completed_by_short_and_whole_ids_and_agents_by_name(cli: Cli) -> None:
    cli.agent("reviewer")
    cli.agent("two words")
    run_id = cli.completed("abc234")
    cli.completed("xyz789")
    assert completed(cli, "show", "abc") == ["abc234"]
    assert completed(cli, "stop", run_id[:-3]) == [run_id]
    assert completed(cli, "run", "r") == ["reviewer"]
    assert completed(cli, "run", "t") == []
    assert completed(cli, "merge", "abc") == ["abc234"]
    assert completed(cli, "ls", "--agent", "rev") == ["reviewer"]
    assert completed(cli, "new", "x", "--from", "rev") == ["reviewer"]
    assert completed(cli, "doctor", "--runs", "abc") == ["abc234"]
    assert completed(cli, "show", "@") == ["@last"]
    assert completed(cli, "--runs", str(cli.home / "nowhere"), "show", "abc") == []


def test_an_older_run_is_completed_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_runs, "MAX_SEARCHED", 300)  # 5,000 in earnest
    cli.completed("abc234")
    make_stored(cli.home / "runs", 51, first=datetime(2027, 1, 1, tzinfo=UTC))  # more than are shown at once
    for number in range(300):  # starts that never were
        (cli.home / "runs" / f"20270102-{number}").mkdir()
    assert completed(cli, "show", "abc") == ["abc234"]


def test_no_warning_comes_into_the_line_that_is_typed(cli: Cli) -> None:
    shutil.rmtree(cli.home / "runs")
    (cli.home / "runs/mine").mkdir(parents=True)
    assert "is not marked as made here" in cli("ls").stderr
    assert completed(cli, "show", "abc") == []


def test_values_of_options_and_servers_of_the_named_agent_are_completed(cli: Cli) -> None:
    cli.agent("keeper", mcpServers={name: {"command": "true"} for name in ("shop", "sheep", "till")})
    assert completed(cli, "run", "keeper", "--effort", "m") == ["medium", "max"]
    assert completed(cli, "rerun", "@last", "--model", "o") == ["opus"]
    assert completed(cli, "mcp", "info", "--agent", "keeper", "sh") == ["shop", "sheep"]
    assert completed(cli, "mcp", "list-tools", "sh") == []


def test_paths_are_left_to_the_shell(cli: Cli) -> None:
    for words in (
        "run reviewer --input",
        "export abc234 -o",
        "--runs",
        "eval",
        "trust",
        "serve --cwd",
        "doctor",
    ):
        assert completed(cli, *words.split(), "some") == ["some"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_that_says_where_it_goes(cli: Cli, shell: str) -> None:
    done = cli("completion", shell)
    assert done.stdout.startswith("# ") and f"completion {shell}" in done.stdout.splitlines()[0]
    assert f"_SUBAGENT_COMPLETE={shell}_complete" in done.stdout
    assert "complete --no-files" not in done.stdout, (
        "fish would sort runs that need a person among the others"
    )
    assert 'split ","' not in done.stdout, "fish would end a path and a description at the first comma"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_takes_the_script(cli: Cli) -> None:
    script = cli.home / "completion.bash"
    script.write_text(cli("completion", "bash").stdout, encoding="utf-8")
    done = subprocess.run(["bash", "-n", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
