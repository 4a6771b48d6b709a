"""How shells and commands end, and that nothing outlives them."""

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from subagent_server.toolbox.bash import BashTool
from subagent_server.toolbox.tool import ToolResult
from tests.helpers.files import open_descriptors
from tests.helpers.wait import wait_for
from tests.toolbox.calls import PATIENCE_SECONDS, run, with_shell

pytestmark = pytest.mark.process


def is_gone(pid: int) -> bool:
    try:
        state = (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    except OSError:
        return True
    return state in "ZX"


def pids_in(directory: Path) -> list[int]:
    return [int(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.pid"))]


def assert_all_gone(directory: Path, count: int) -> None:
    pids = pids_in(directory)
    assert len(pids) == count
    wait_for(lambda: all(map(is_gone, pids)), 60, f"the end of {pids}")


async def file_appears(path: Path) -> None:
    for _ in range(2000):
        if path.exists() and path.stat().st_size:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{path} did not appear")


STUBBORN = "trap '' TERM; echo $BASHPID > {}.pid; while :; do sleep 0.1; done"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("exit 3", "ended with exit code 3"),
        ("exit", "ended with exit code 0"),
        ("echo said; exit 4", "said\n[the shell ended with exit code 4"),
        ("set -e; false; echo never", "ended with exit code 1"),
        ("kill $$; sleep 20", "SIGTERM"),
        ("kill -9 $$", "exit code 137"),
        ("kill -KILL 0", "SIGKILL"),
        ("exec echo replaced", "replaced\n[the shell ended with exit code 0"),
        ("exec no_such_program", "ended with exit code 127"),
        ("trap 'echo bye' EXIT; exit 5", "bye\n[the shell ended with exit code 5"),
        ("while :; do break; done; exit 6", "ended with exit code 6"),
        ("set -u; echo $NOT_SET", "unbound variable"),
        ("sleep 50 & exit 7", "ended with exit code 7"),
    ],
)
def test_a_shell_that_ends_says_how_and_the_next_command_gets_a_new_one(
    tmp_path: Path, command: str, told: str
) -> None:
    (tmp_path / "sub").mkdir()
    results = run(tmp_path, "cd sub; A=lost", command, "echo A=$A; pwd")
    assert told in results[1].text
    assert "the next call starts a new one" in results[1].text
    assert results[2].text == f"A=\n{tmp_path}"


@pytest.mark.parametrize("code", ["no", "9" * 5000])
def test_what_a_command_writes_into_the_pipe_of_its_shell_ends_nothing(tmp_path: Path, code: str) -> None:
    find = "form='ready... ([0-9a-f]+)'; [[ $BASH_EXECUTION_STRING =~ $form ]]"
    write = f'for end in /proc/$$/fd/*; do [ -p $end ] && echo "${{BASH_REMATCH[1]}} {code}" > $end; done'
    (result,) = run(tmp_path, f"{find} && {write}; echo written")
    assert result.text.endswith("\nwritten")


def test_a_shell_that_ended_between_two_commands_is_reported(tmp_path: Path) -> None:
    async def body(tool: BashTool) -> str:
        await tool.call(
            {"command": "echo $$ > shell.pid; (while [ ! -e go ]; do :; done; kill -9 $$) & true"}
        )
        (tmp_path / "go").touch()
        wait_for(lambda: all(map(is_gone, pids_in(tmp_path))), 60, "the end of the shell")
        return (await tool.call({"command": "echo new"})).text

    text = with_shell(tmp_path, body)
    assert "the earlier shell was ended by SIGKILL" in text
    assert text.endswith("\nnew")


def test_restart_starts_afresh(tmp_path: Path) -> None:
    async def body(tool: BashTool) -> list[str]:
        calls: list[dict[str, Any]] = [
            {"restart": True},
            {"command": "A=lost; sleep 60 & echo $! > 1.pid"},
            {"restart": True},
            {"command": "echo A=$A"},
            {"command": "A=lost"},
            {"command": "echo both A=$A", "restart": True},
        ]
        return [(await tool.call(arguments)).text for arguments in calls]

    texts = with_shell(tmp_path, body)
    assert "new one" in texts[0]
    assert "new one" in texts[2]
    assert texts[3] == "A="
    assert texts[5] == "both A="
    assert_all_gone(tmp_path, 1)


@pytest.mark.parametrize(
    "command",
    [
        "echo part; sleep 60",
        "echo part; while :; do :; done",
        "echo part; kill -STOP $$",
        "echo part; trap '' TERM; while :; do sleep 60; done",
        "echo part; set -m; sleep 60 & setsid -w sleep 61",
        "echo part; set -n",
        "echo part; yes > /dev/null",
    ],
)
def test_a_command_that_takes_too_long_is_ended_and_its_output_kept(tmp_path: Path, command: str) -> None:
    first, second = run(tmp_path, command, "echo next", timeout=1.5)
    assert first.is_error
    assert first.text.startswith("part\n[timed out after 1.5 s")
    assert "the next call starts a new one" in first.text
    assert second.text == "next"


def test_a_timeout_ends_the_whole_tree(tmp_path: Path) -> None:
    command = (
        "sleep 60 & echo $! > 1.pid; set -m; sleep 60 & echo $! > 2.pid; set +m;"
        "setsid bash -c 'echo $$ > 3.pid; sleep 60; true' & "
        f"({STUBBORN.format(4)}) & setsid bash -c {shlex.quote(STUBBORN.format(5))} & wait"
    )
    (result,) = run(tmp_path, command, timeout=3.0)
    assert "timed out" in result.text
    assert_all_gone(tmp_path, 5)


def test_the_run_of_another_shim_outlives_the_command_that_started_it(tmp_path: Path) -> None:
    command = "setsid bash -c 'echo $$ > 1.pid; read line < fifo; echo $line > told' & wait"
    os.mkfifo(tmp_path / "fifo")
    (result,) = run(
        tmp_path, command, timeout=2.0, spare=lambda identity: [identity.pid] == pids_in(tmp_path)
    )
    assert result.is_error
    (pid,) = pids_in(tmp_path)
    assert not is_gone(pid)
    (tmp_path / "fifo").write_text("alive\n", encoding="utf-8")
    wait_for((tmp_path / "told").exists, 60, "its last word")
    assert_all_gone(tmp_path, 1)


def cancelled(directory: Path, command: str, then: Callable[[BashTool], Awaitable[ToolResult]]) -> ToolResult:
    """Cancel `command` once it has written `1.pid`, then do something else with the tool."""

    async def body(tool: BashTool) -> ToolResult:
        running = asyncio.ensure_future(tool.call({"command": command}))
        await file_appears(directory / "1.pid")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, PATIENCE_SECONDS)
        assert all(map(is_gone, pids_in(directory)))
        return await then(tool)

    return with_shell(directory, body)


@pytest.mark.parametrize("command", ["echo $BASHPID > 1.pid; sleep 60", STUBBORN.format(1)])
def test_cancelling_a_call_ends_its_command_before_it_returns(tmp_path: Path, command: str) -> None:
    result = cancelled(tmp_path, command, lambda tool: tool.call({"command": "echo next"}))
    assert result.text == "next"


def test_closing_interrupts_a_command_and_lets_none_start(tmp_path: Path) -> None:
    async def body(tool: BashTool) -> tuple[ToolResult, ToolResult]:
        running = asyncio.ensure_future(tool.call({"command": "echo $$ > 1.pid; echo part; sleep 60"}))
        await file_appears(tmp_path / "1.pid")
        await tool.aclose()
        return await running, await tool.call({"command": "echo $$ > 2.pid"})

    first, second = with_shell(tmp_path, body)
    assert first.text.startswith("part\n[")
    assert first.is_error
    assert second.is_error
    assert_all_gone(tmp_path, 1)


def test_closing_ends_the_shell_and_its_background_jobs(tmp_path: Path) -> None:
    command = (
        f"echo $$ > 1.pid; sleep 60 & echo $! > 2.pid; ({STUBBORN.format(3)}) & "
        "setsid sleep 60 & echo $! > 4.pid; while [ ! -s 3.pid ]; do :; done"
    )
    run(tmp_path, command)
    assert_all_gone(tmp_path, 4)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    run(tmp_path, "true")
    before = open_descriptors()
    run(tmp_path, "exit 1", "seq 1 20000", "sleep 60", "true", timeout=0.2)
    assert open_descriptors() == before
