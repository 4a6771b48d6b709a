"""What a command gives back."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from subagent_server.run.files import Directory
from subagent_server.toolbox.bash import BashTool
from tests.helpers.wait import wait_for
from tests.toolbox.calls import ENVIRONMENT, PATIENCE_SECONDS, a_shell, fault_of, run, run_texts, with_shell

pytestmark = pytest.mark.process


def test_it_is_the_shell_tool_that_models_know(tmp_path: Path) -> None:
    tool = BashTool(cwd=tmp_path, environment={}, output_dir=Directory(tmp_path))
    assert tool.definition() == {"type": "bash_20250124", "name": "bash"}


@pytest.mark.parametrize(
    ("commands", "texts"),
    [
        (["echo one; echo two >&2; echo three"], ["one\ntwo\nthree"]),
        (
            ["true\ntrue", "true\nno_such"],
            ["(no output)", "bash: line 2: no_such: command not found\n[exit code 127]"],
        ),
        (["set -eu; A=kept", "false; echo $A $NOT_SET on"], ["(no output)", "kept on"]),
        (
            ["exec > file 2>&1; echo in", "cat file", "exec <file; cat", "cat; echo x"],
            ["(no output)", "in", "in", "x"],
        ),
        (["sleep 60 & echo started", "jobs -p | wc -l; kill %1; echo ended"], ["started", "1\nended"]),
        ([f"a='{'x' * 300_000}'; echo ${{#a}}"], ["300000"]),
    ],
    ids=["order", "line", "set -e", "exec", "background", "long"],
)
def test_each_command_of_one_shell_gives_its_text(
    tmp_path: Path, commands: list[str], texts: list[str]
) -> None:
    assert run_texts(tmp_path, *commands) == texts


def test_directory_variables_and_functions_last(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    texts = run_texts(
        tmp_path,
        "pwd",
        "cd sub; export A=1; B=2; f() { echo f$1; }",
        "pwd; echo $A$B; f 3; bash -c 'echo $A$B'",
    )
    assert texts[0] == str(tmp_path)
    assert texts[2] == f"{tmp_path}/sub\n12\nf3\n1"


def test_commands_get_the_given_environment_and_no_other(tmp_path: Path) -> None:
    (text,) = run_texts(tmp_path, "env", environment={**ENVIRONMENT, "GIVEN": "a value"})
    names = {line.partition("=")[0] for line in text.splitlines()}
    assert "GIVEN=a value" in text.splitlines()
    assert names <= {*ENVIRONMENT, "GIVEN", "PWD", "OLDPWD", "SHLVL", "_"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("printf 'no newline'", "no newline"),
        ("true", "(no output)"),
        ("", "(no output)"),
        ("echo", "(no output)"),
        ("# only a comment", "(no output)"),
        ("false", "[exit code 1]"),
        ("echo out; (exit 42)", "out\n[exit code 42]"),
        ("cat <<END\nhere $((1+1))\nEND", "here 2"),
        ("cat <<END\nno end\n", "\nno end"),  # after a warning of the shell
        ("cat; echo $?", "0"),
        ("read line; echo $?", "1"),
        ("exec 3>&1; echo to three >&3", "to three"),
        ("echo 'it''s' \"q\" \\$x", "its q $x"),
        ("printf 'a\\0b'", "a\ufffdb"),
        ("printf 'a\\377b\\303\\251'", "a\ufffdbé"),
        ("echo one\necho two", "one\ntwo"),
        ("bash -c 'exit 130'", "[exit code 130]"),
    ],
)
def test_every_kind_of_command_has_a_clear_result(tmp_path: Path, command: str, expected: str) -> None:
    first, second = run(tmp_path, command, "echo still here")
    assert first.text.endswith(expected)
    assert not first.is_error
    assert second.text == "still here"


@pytest.mark.parametrize(
    "command",
    [
        *("echo 'open", 'echo "open', "echo $(", "if true; then", "echo `"),
        *("}", "a() {", "case x in", "&& a"),
    ],
)
def test_a_command_that_does_not_parse_is_an_error_and_desynchronises_nothing(
    tmp_path: Path, command: str
) -> None:
    first, second = run(tmp_path, command, "echo next")
    assert "[exit code " in first.text
    assert "bash: " in first.text
    assert second.text == "next"


@pytest.mark.parametrize(
    "command", ["break", "continue", "break 1; echo no", "return 3", "set -o pipefail", "set +e"]
)
def test_a_stray_keyword_leaves_the_shell_alive(tmp_path: Path, command: str) -> None:
    _, _, third = run_texts(tmp_path, "A=kept", command, "echo $A")
    assert third == "kept"


@pytest.mark.parametrize(
    "command", ["echo a; break; echo b", "echo a; continue; echo b", "echo a; break 3; echo b"]
)
def test_a_command_cut_off_by_a_stray_break_says_so(tmp_path: Path, command: str) -> None:
    first, second = run_texts(tmp_path, command, "echo next; false")
    assert first.startswith("a\n[")
    assert "loop" in first or "the shell ended" in first
    assert second == "next\n[exit code 1]"


def test_a_command_sees_none_of_the_channels_of_the_tool(tmp_path: Path) -> None:
    (text,) = run_texts(tmp_path, "bash -c 'for f in /proc/self/fd/*; do echo $(basename $f); done'; true")
    assert {int(word) for word in text.split() if word.isdigit()} <= {0, 1, 2, 3, 255}


def test_output_between_two_commands_is_marked_as_such(tmp_path: Path) -> None:
    async def body(tool: BashTool) -> str:
        await tool.call({"command": "(while [ ! -e go ]; do :; done; echo late; > gone) & true"})
        (tmp_path / "go").touch()
        wait_for((tmp_path / "gone").exists, PATIENCE_SECONDS, "the last of the background process")
        return (await tool.call({"command": "echo now"})).text

    assert with_shell(tmp_path, body) == "[background processes had printed:]\nlate\n[this command:]\nnow"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({}, "`command`"),
        ({"restart": "yes"}, "restart: Input should be a valid boolean"),
        ({"command": "a\0b"}, "NUL"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(
    tmp_path: Path, arguments: dict[str, Any], word: str
) -> None:
    tool = BashTool(cwd=tmp_path, environment=ENVIRONMENT, output_dir=Directory(tmp_path))
    sentence = fault_of(tool, **arguments)
    assert word in sentence and sentence.endswith(".")


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    tool = BashTool(cwd=tmp_path / "gone", environment=ENVIRONMENT, output_dir=Directory(tmp_path))
    assert str(tmp_path / "gone") in fault_of(tool, command="true")


def test_calls_at_the_same_time_run_one_after_the_other(tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with a_shell(tmp_path) as tool:
            commands = [f"echo {n}a; sleep 0.05; echo {n}b" for n in range(4)]
            results = await asyncio.gather(*(tool.call({"command": command}) for command in commands))
            return [result.text for result in results]

    assert asyncio.run(main()) == [f"{n}a\n{n}b" for n in range(4)]


def test_the_event_loop_goes_on_while_a_command_runs(tmp_path: Path) -> None:
    async def body(tool: BashTool) -> str:
        waiting = asyncio.ensure_future(tool.call({"command": "while [ ! -e go ]; do :; done; echo went"}))
        await asyncio.sleep(0)
        (tmp_path / "go").touch()
        return (await waiting).text

    assert with_shell(tmp_path, body) == "went"
