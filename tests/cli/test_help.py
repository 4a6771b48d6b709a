"""The text of `--help`, and the cost of calling a verb."""

import json
import re

import pytest
from click.testing import CliRunner

from subagent_server import __version__
from subagent_server.cli.console.app import subagent, verbs
from tests.cli.command import Cli, asked
from tests.helpers.processes import run_python

_IMPORTED = """
    import json, sys
    from subagent_server.cli import main
    codes = [main(words.split()) for words in sys.argv[1:]]
    print()
    print(json.dumps([codes, sorted(sys.modules)]))
"""


def modules_after(cli: Cli, *calls: str) -> set[str]:
    """Return what is imported once a process has done the work of these commands."""
    places = {"SUBAGENT_RUNS": str(cli.store.paths.root), "SUBAGENT_AGENTS": str(cli.home / "agents")}
    done = run_python(_IMPORTED, *calls, environment=cli.environment | places)
    codes, modules = json.loads(done.stdout.splitlines()[-1])
    assert set(codes) == {0}, done.stderr
    return set(modules)


def test_the_help_lists_every_verb_and_the_exit_codes(cli: Cli) -> None:
    said = cli("--help").stdout
    for name in verbs():
        assert f"\n  {name} " in said
    assert "124 the time was over" in " ".join(said.split())


@pytest.mark.parametrize("verb", list(verbs()))
def test_the_help_of_a_verb_begins_with_its_purpose(verb: str) -> None:
    done = CliRunner().invoke(subagent, [verb, "-h"], prog_name="subagent", terminal_width=80)
    usage, _, first, *_ = done.stdout.splitlines()
    assert done.exit_code == 0
    assert usage.startswith(f"Usage: subagent {verb} ")
    assert first.strip() and first.startswith("  ")
    for option in ("--agents", "--runs", "--max-runs", "--debug"):
        assert option in done.stdout


@pytest.mark.parametrize("word", ["--version", "-v"])
def test_the_version_is_printed(cli: Cli, word: str) -> None:
    assert cli(word).stdout == f"subagent {__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("mcp serve --config x.yaml", "`subagent serve --config FILE`"),
        ("config lint x.yaml", "`subagent doctor FILE`"),
        ("list", "`subagent ls`"),
        ("ps", "`subagent ls`"),
        ("status", "`subagent show RUN`"),
        ("top", "`subagent ls --watch`"),
        ("ui", "`subagent page`"),
        ("lgos", "'logs'"),
        (
            "logs --ful @last",
            "'--ful'. Did you mean one of '--follow', '--full'? `subagent logs --help` says",
        ),
    ],
)
def test_a_mistyped_or_foreign_word_is_pointed_to_what_is_meant(cli: Cli, words: str, said: str) -> None:
    done = cli(*words.split())
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["sto", "stopp", "mr", "prun", "merg"])
def test_a_misspelt_verb_suggests_none_that_ends_runs(cli: Cli, name: str) -> None:
    said = cli(name).stderr
    assert "No such command" in said and not re.search(r"'(stop|rm|prune|merge)'", said)


@pytest.mark.parametrize("group", [[], ["mcp"]])
def test_a_command_without_a_verb_shows_the_verbs_and_exits_with_2(cli: Cli, group: list[str]) -> None:
    done = cli(*group)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == cli(*group, "--help").stdout


def test_a_verb_imports_no_more_than_it_needs(cli: Cli) -> None:
    cli.completed("aaaaaa")
    heavy = {"mcp", "anthropic", "rich", "starlette", "uvicorn"}
    reading = (
        "ls",
        "ls --json",
        "show @last",
        "logs @last",
        "inbox",
        "stats",
        "agents",
        "doctor",
        "schema meta",
    )
    waiting = ("wait @last", "stop @last", "logs -f @last")
    assert modules_after(cli, *reading, *waiting).isdisjoint(heavy)
    code = "import sys; from subagent_server.cli import main; main(['--help']); print(sorted(sys.modules))"
    said = run_python(code).stdout.splitlines()[-1]
    for module in ("mcp", "anthropic", "subagent_server.cli.ls", "subagent_server.verbs.start"):
        assert f"'{module}'" not in said


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
