"""The text of `--help`, and the cost of calling a verb."""

import json
import re

import pytest

from subagent_server import __version__
from subagent_server.cli.console.app import verbs
from tests.cli.command import Cli, asked
from tests.helpers.processes import run_python

CHEAP = ["run", "ls", "show", "logs", "wait", "inbox", "reply", "stop", "agents", "schema"]
_IMPORTED = """
    import json, sys
    from subagent_server.cli import main
    code = main(sys.argv[1:])
    print()
    print(json.dumps([code, sorted(sys.modules)]))
"""


def modules_after(cli: Cli, *words: str) -> set[str]:
    """Return what is imported once the command has done its work."""
    done = run_python(_IMPORTED, *words, "--runs", cli.store.paths.root, environment=cli.environment)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    return set(modules)


def test_the_help_lists_every_verb_and_the_exit_codes(cli: Cli) -> None:
    said = cli("--help").stdout
    for name in verbs():
        assert f"\n  {name} " in said
    assert "124 the time was over" in " ".join(said.split())


@pytest.mark.process
def test_the_help_of_the_group_imports_no_verb() -> None:
    code = "import sys; from subagent_server.cli import main; main(['--help']); print(sorted(sys.modules))"
    said = run_python(code).stdout.splitlines()[-1]
    for module in ("mcp", "anthropic", "subagent_server.cli.ls", "subagent_server.verbs.start"):
        assert f"'{module}'" not in said


@pytest.mark.parametrize("verb", list(verbs()))
def test_the_help_of_a_verb_begins_with_its_purpose(cli: Cli, verb: str) -> None:
    done = cli(verb, "-h")
    usage, _, first, *_ = done.stdout.splitlines()
    assert done.returncode == 0
    assert usage.startswith(f"Usage: subagent {verb} ")
    assert first.strip() and first.startswith("  ")
    for option in ("--agents", "--runs", "--max-runs", "--debug"):
        assert option in done.stdout


@pytest.mark.parametrize("verb", CHEAP)
def test_the_list_and_the_help_of_a_verb_say_the_same(cli: Cli, verb: str) -> None:
    assert verbs()[verb].help in " ".join(cli(verb, "--help").stdout.split())


@pytest.mark.parametrize("word", ["--version", "-v"])
def test_the_version_is_printed(cli: Cli, word: str) -> None:
    assert cli(word).stdout == f"subagent {__version__}\n"


def test_a_misspelt_option_is_answered_in_one_sentence_with_those_that_may_be_meant(cli: Cli) -> None:
    done = cli("logs", "--ful", "@last")
    sentence = (
        "No such option '--ful'. Did you mean one of '--follow', '--full'? `subagent logs --help` says more."
    )
    assert (done.returncode, done.stderr) == (2, f"subagent: {sentence}\n")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["mcp", "serve", "--config", "x.yaml"], "subagent serve --config FILE"),
        (["config", "lint", "x.yaml"], "subagent doctor FILE"),
        (["list"], "subagent ls"),
        (["ps"], "subagent ls"),
        (["status"], "subagent show RUN"),
        (["top"], "subagent ls --watch"),
    ],
)
def test_a_verb_of_other_programs_is_pointed_to_by_its_name_here(
    cli: Cli, words: list[str], meant: str
) -> None:
    done = cli(*words)
    assert done.returncode == 2 and f"`{meant}`" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["sto", "stopp", "mr", "prun", "merg"])
def test_a_misspelt_verb_suggests_none_that_ends_runs(cli: Cli, name: str) -> None:
    said = cli(name).stderr
    assert "No such command" in said and not re.search(r"'(stop|rm|prune|merge)'", said)


@pytest.mark.parametrize("group", [[], ["mcp"]])
def test_a_command_without_a_verb_shows_the_verbs_and_exits_with_2(cli: Cli, group: list[str]) -> None:
    done = cli(*group)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == cli(*group, "--help").stdout


@pytest.mark.parametrize(
    "words", [["ls"], ["show", "@last"], ["logs", "@last"], ["inbox"], ["agents"], ["schema", "meta"]]
)
def test_a_verb_that_reads_imports_nothing_heavy(cli: Cli, words: list[str]) -> None:
    cli.completed("aaaaaa")
    imported = modules_after(cli, *words)
    assert imported.isdisjoint({"mcp", "anthropic", "rich", "starlette", "uvicorn"})


@pytest.mark.parametrize("words", [["wait", "@last"], ["stop", "@last"], ["logs", "-f", "@last"]])
def test_a_verb_that_waits_imports_neither_mcp_nor_anthropic(cli: Cli, words: list[str]) -> None:
    cli.completed("aaaaaa")
    assert modules_after(cli, *words).isdisjoint({"mcp", "anthropic", "rich"})


def test_the_flags_of_every_verb_are_taken_before_and_after_its_name(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    away = ["--runs", str(cli.home / "elsewhere")]
    here = ["--runs", str(cli.home / "runs")]
    assert cli(*here, "ls", "-q").stdout == cli("ls", "-q", *here).stdout == f"{run_id}\n"
    assert cli(*away, "ls", "-q").stdout == ""
    assert cli(*away, "ls", "-q", *here).stdout == f"{run_id}\n"


def test_a_command_that_is_suggested_names_the_runs_root_that_was_given(cli: Cli) -> None:
    with cli.living("aaaaaa", asked("Which colour?")) as run_id:
        done = cli("--runs", str(cli.home / "runs"), "wait", run_id)
    assert "Which colour?" in done.stderr
    assert f"`subagent --runs {cli.home}/runs reply {run_id} q1 ANSWER`" in done.stderr
