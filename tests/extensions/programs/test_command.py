"""A run that any program carries out, through the real start, with small scripts as the programs."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from subagent_server.run.schemas import file_schema
from subagent_server.run.states import MessageStatus
from tests.extensions.programs.direct import PROGRAMS, Worked
from tests.helpers.files import write_program
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

SERVER = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from asking_parent import Server\n"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def program(world: World, code: str, *args: str, **keys: Any) -> None:
    """Write an agent whose program is this Python code."""
    script = world.home / "program.py"
    script.write_text(code, encoding="utf-8")
    world.agent("worker", "", runner="command", command=sys.executable, args=[str(script), *args], **keys)


def test_the_task_comes_on_stdin_and_the_output_is_the_result(world: World) -> None:
    code = "import sys; print('careful', file=sys.stderr); print('begun', flush=True)"
    program(world, f"{code}; print(sys.stdin.read().upper())")
    run_id = world.start("Shout.")
    assert world.completed_and_gone(run_id) == "begun\nSHOUT."
    assert [event["text"] for event in world.events(run_id, "server_log")] == ["careful"]
    kinds = [event["type"] for event in world.events(run_id)]
    assert kinds[0] == "run_started" and kinds[-1] == "run_ended" and "text" in kinds


def test_arguments_hold_the_task_and_a_result_file_holds_the_output(tmp_path: Path) -> None:
    code = (
        "import json, os, sys\n"
        "assert sys.stdin.read() == '', 'the task came twice'\n"
        "json.dump({'n': len(sys.argv[1])}, open(os.environ['SUBAGENT_RESULT_FILE'], 'w'))\n"
        "print(sys.argv[1:])"
    )
    outcome = direct(
        tmp_path, code, "{prompt}", "{other} {prompt}", task="{model}", outputSchema=SCHEMA
    ).outcome
    assert "'{other} {model}'" in outcome.text  # what fills a place is not looked through again
    assert outcome.output == {"n": 7}


def test_the_words_of_a_caller_are_no_option_of_the_program(tmp_path: Path) -> None:
    args = ("{prompt}", "--task={prompt}", "-x")
    worked = direct(tmp_path, "import sys; print(sys.argv[1:])", *args, task="--yolo")
    assert worked.outcome.text == "[' --yolo', '--task=--yolo', '-x']"


def test_no_program_gets_what_leads_to_the_session_that_has_called(world: World) -> None:
    session = {
        "CLAUDECODE": "1",
        "CLAUDE_CODE_MESSAGING_TOKEN": "8861accecd5afeb1",
        "CLAUDE_CODE_SESSION_ID": "s",
    }
    world.environment.update(session)
    program(world, "import os; print(*os.environ)", env={"CLAUDE_CODE_SESSION_ID": "its own"})
    (name,) = (name for name in world.completed(world.start()).split() if name in session)
    assert name == "CLAUDE_CODE_SESSION_ID"  # the author of the agent knows why


def test_figures_that_a_program_does_not_give_are_null_at_every_door(world: World) -> None:
    program(world, "print('Done.')")
    run_id = world.completed_run()
    meta = json.loads(world.paths(run_id).meta.read(1 << 20))
    assert meta["usage"] == meta["withDescendants"] == dict.fromkeys(meta["usage"]), "each of them is null"
    Draft202012Validator(file_schema("meta")).validate(meta)
    shown = {verb: world.cli(*words, "--json") for verb, words in DOORS.items()}
    views = {verb: json.loads(done.stdout) for verb, done in shown.items()}
    assert views["show"]["usage"] == meta["usage"]
    assert views["stats"]["total"]["inputTokens"] is None and "turns" not in views["compare"]["runs"][0]
    told = {verb: world.cli(*words).stdout for verb, words in DOORS.items()}
    assert "? turns, ? tool calls, ? tokens" in told["show"] and re.search(r"turns +- +-", told["compare"])
    assert world.cli("doctor", "--runs").returncode == 0


DOORS = {"show": ["show", "@last"], "stats": ["stats"], "compare": ["compare", "@last", "@last"]}


BAD_ENDS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "an exit code": ("print('half'); raise SystemExit(3)", {}, "agent_error", "ended with exit code 3."),
    "an exit code and a reason": (
        "raise SystemExit('no key')",
        {},
        "agent_error",
        "code 1. Its last words: no key",
    ),
    "a signal": ("import os; os.kill(os.getpid(), 9)", {}, "agent_error", "ended by SIGKILL"),
    "a success without a word": ("pass", {}, "agent_error", "without output"),
    "words instead of the output": ("print('done')", {"outputSchema": SCHEMA}, "invalid_output", "not JSON"),
    "another output": ("print('{}')", {"outputSchema": SCHEMA}, "invalid_output", "'n' is a required"),
    "a broken result file": (
        "import os; open(os.environ['SUBAGENT_RESULT_FILE'], 'w').write('{'); print('done')",
        *({"outputSchema": SCHEMA}, "invalid_output", "is not JSON"),
    ),
    "an output that no file can hold": (
        "print('[' * 300 + ']' * 300)",
        *({"outputSchema": {"type": "array"}}, "invalid_output", "is not JSON"),
    ),
    "a link as result file": (
        "import os; os.symlink('/etc/hostname', os.environ['SUBAGENT_RESULT_FILE']); print('done')",
        *({}, "invalid_output", "cannot be read"),
    ),
    "a lie": (
        "print('Working...\\nRepeatedFormatError: no')",
        *({"failIf": {"output": "^Repeated\\w+Error"}}, "agent_error", "has '^Repeated"),
    ),
    "a pattern that never ends": (
        "print('a' * 50)",
        *({"failIf": {"output": "(a|a)*b"}}, "agent_error", "simplify it"),
    ),
    "a code of its own": ("raise SystemExit(4)", {"failIf": {"exitCodes": [4]}}, "agent_error", "code 4"),
    "silence after a question on its output": (
        "import time; print('Press Enter to log in', flush=True); time.sleep(600)",
        *({"limits": {"idleTimeoutSeconds": 2}}, "timeout", "Press Enter to log in"),
    ),
    "silence": (
        "import sys, time; print('Log in at the terminal', file=sys.stderr, flush=True); time.sleep(600)",
        *({"limits": {"idleTimeoutSeconds": 2}}, "timeout", "Log in at the terminal"),
    ),
}


def direct(tmp_path: Path, code: str, *args: str, task: str = "Do it.", **keys: Any) -> Worked:
    """Return what this Python code has done as a program."""
    script = tmp_path / "program.py"
    script.write_text(code, encoding="utf-8")
    words = [str(script), *args]
    return Worked(tmp_path, task, {}, runner="command", command=sys.executable, args=words, **keys)


@pytest.mark.parametrize("name", BAD_ENDS)
def test_a_run_whose_program_ends_so_has_failed_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    code, keys, failure, words = BAD_ENDS[name]
    if name == "a pattern that never ends":
        monkeypatch.setattr("subagent_server.run.commands.PATTERN_SECONDS", 0.5)  # 5 in earnest
    found = direct(tmp_path, code, **keys).failure
    assert found.code == failure and words in found.message, found
    assert ("memory ran out" in (found.hint or "")) == ("SIGKILL" in found.message)


def test_text_in_a_result_file_is_the_result_and_a_banner_no_summary(tmp_path: Path) -> None:
    writes = "import os; open(os.environ['SUBAGENT_RESULT_FILE'], 'w').write('Fixed it.\\nIn a.py.\\n'); "
    written = direct(tmp_path, writes + "print('Welcome to mini 2.4')").outcome
    assert written.text == "Fixed it.\nIn a.py." and written.to_result().summary is None
    (tmp_path / "result.json").unlink()
    writes = "import os; open(os.environ['SUBAGENT_RESULT_FILE'], 'w').write('{\"n\": 1}'); "
    structured = direct(tmp_path, writes + "print('Welcome to mini 2.4')").outcome
    assert structured.output == {"n": 1} and structured.summary == '{"n": 1}'
    (tmp_path / "result.json").unlink()
    deeper = direct(tmp_path, "print('[' * 201 + ']' * 201)", outputSchema={}).failure
    assert deeper.code == "invalid_output", "a run with this result could never be read again"
    fenced = direct(tmp_path, "print('Here it is:\\n```json\\n{}\\n```')").outcome
    assert fenced.summary == "{}"
    code = "print('Welcome to mini 2.4\\nFixed it.'); raise SystemExit(1)"
    printed = direct(tmp_path, code, failIf={"exitCodes": [4]}).outcome
    assert printed.text.startswith("Welcome") and printed.summary == "Fixed it."


def test_a_script_asks_its_parent_by_one_command_and_reads_the_answer(world: World) -> None:
    ask = f"{sys.executable} -m subagent_server ask 'Which \"one\"?' --option A --option B"
    script = world.home / "asks.sh"
    script.write_text(f'answer=$({ask}) || exit 9\necho "It is $answer."\n', encoding="utf-8")
    world.agent("worker", "", runner="command", command="sh", args=[str(script)])
    run_id = world.start()
    (message,) = world.asking(run_id).messages
    assert (message.question_content, message.options) == ('Which "one"?', ["A", "B"])
    world.reply(run_id, "neither: C")
    assert world.completed(run_id) == "It is neither: C."
    assert world.meta(run_id).messages[0].message_status is MessageStatus.ACKNOWLEDGED
    outside = world.cli("ask", "Which?")
    assert outside.returncode != 0 and "Only a program of a run" in outside.stderr
    boxed = world.cli("ask", "Which?", env={"SUBAGENT_MCP_CONFIG": "mcp.json"})
    assert "or its agent file say `sandbox: none`" in boxed.stderr
    world.agent("worker", "", runner="command", command="sh", args=[str(script)], askTimeoutSeconds=0.5)
    assert world.failed(world.start())[1].startswith("The program ended with exit code 9. Its last words: ")


HOSTILE = {
    "a line without end": "sys.stdout.write('x' * (9 << 20))",
    "more than is kept": "[sys.stdout.write(('y' * 9_999 + '\\n') * 100) for _ in range(5)]",
    "bytes that are no text": "sys.stdout.buffer.write(bytes(range(256)) * 1000)",
    "a child that keeps the pipe": (
        "import subprocess; subprocess.Popen(['sh', '-c', 'while :; do echo more; sleep 0.01; done'], "
        "start_new_session=True)"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_run_ends_and_stays_small_whatever_its_program_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(f"{PROGRAMS}.program.MOST_CHARACTERS", 4 << 20)  # 32 MiB in earnest
    worked = direct(
        tmp_path, f"import sys; {HOSTILE[name]}; sys.stdout.flush(); print('\\nThe end.', flush=True)"
    )
    assert "The end." in worked.outcome.text and len(worked.outcome.text) < 500_000
    assert sum(len(str(facts)) for _, facts in worked.run.journal) < 5 << 20


def test_a_stop_interrupts_the_program_and_ends_all_that_it_has_started(world: World) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: (open('interrupted', 'w'), sys.exit(1)))\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('at work', flush=True); time.sleep(600)"
    )
    program(world, code)
    run_id = world.start()
    wait_for(lambda: world.events(run_id, "text"), BOUND, "the first words")
    world.stop(run_id)
    world.gone(run_id)
    assert (world.work / "interrupted").exists()


def test_a_program_keeps_its_state_in_the_home_directory_and_nowhere_else(world: World) -> None:
    comes = "import pathlib; [pathlib.Path(name).mkdir() for name in ('.claude', '.envrc')]; print('Done.')"
    script = world.home / "program.py"
    script.write_text(comes, encoding="utf-8")
    world.agent(prompt="", runner="command", command=sys.executable, args=[str(script)])
    for cwd, kept in ((world.home, [".claude"]), (world.work, [])):
        assert world.completed(world.start(cwd=str(cwd))) == "Done."
        assert [name for name in (".claude", ".envrc") if (cwd / name).exists()] == kept


def test_a_program_starts_runs_of_its_own_by_the_server_of_its_run(world: World) -> None:
    code = (
        "print(Server().call('run_inner', prompt='Do it.', waitSeconds=60)['status'])\n"
        "print(Server().ask('Which colour?'))"
    )
    program(world, SERVER + code, agents=["inner"])
    world.agent("inner", "", runner="command", command="echo", args=["Done."])
    run_id = world.start_asking()
    world.reply(run_id, "blue")
    assert world.completed(run_id) == "completed\nblue"


def test_a_program_that_ends_its_own_run_reads_the_answer_first(world: World) -> None:
    code = (
        "import time\n"
        "end = {'status': 'completed', 'summary': 'All done.', 'payload': 'the work'}\n"
        "open('answer', 'w').write(Server().call('update_status', **end)['status'])\n"
        "time.sleep(600)"
    )
    program(world, SERVER + code)
    run_id = world.start()
    assert world.completed_and_gone(run_id) == "All done."
    assert (world.work / "answer").read_text(encoding="utf-8") == "completed"


def test_a_file_that_a_run_can_write_is_found_in_an_option(world: World) -> None:
    (world.work / "hook.sh").touch()
    args = ["-c", "ls $HOME", "sh", "--import=./hook.sh"]
    world.agent("worker", "", runner="command", command="sh", args=args, sandbox="auto")
    assert "agents" not in world.completed(world.start()).split(), "it works in a box"


@pytest.mark.parametrize("how", ["", "-S "])
def test_its_interpreter_is_not_looked_up_where_a_run_writes(world: World, how: str) -> None:
    for directory in (world.work, world.home / "tools"):
        directory.mkdir(exist_ok=True)
        write_program(directory / "tool", f"#!/bin/sh\necho from {directory.name}\n")
    write_program(world.home / "tools" / "program", f"#!/usr/bin/env {how}tool\n")
    path = [str(world.work), str(world.home / "tools"), world.environment["PATH"]]
    world.environment["PATH"] = os.pathsep.join(path)
    world.agent("worker", "", runner="command", command="program", sandbox="auto")
    assert world.completed(world.start()) == "from tools"


def test_a_script_of_any_length_is_an_argument(world: World) -> None:
    args = ["-c", f"echo Done. # {'x' * 300}"]
    world.agent("worker", "", runner="command", command="sh", args=args, sandbox="auto")
    assert world.completed(world.start()) == "Done."
