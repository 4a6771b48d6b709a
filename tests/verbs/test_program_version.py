"""The versions of the programs that carry out runs, by `doctor` and by real starts."""

from pathlib import Path

import pytest

from tests.helpers.files import write_program
from tests.helpers.world import World

SAYS = {
    "an old version": ("echo '2.1.197 (Claude Code)'", "too old"),
    "an old version, and a process that stays": ("sleep 604 & echo 1.0.9", "too old"),
    "no version": ("echo Welcome; exit 3", "did not tell"),
    "words without an end": ("[ $1 = --version ] && exec yes; exit 3", "did not tell"),
}


def claude(world: World, code: str, directory: Path | None = None) -> Path:
    """Write an agent whose Claude Code is a small script, which notes each time that it is started."""
    program = write_program(
        world.home / "claude", f'#!/bin/sh\necho "$1 $PWD" >> {world.home}/asked\n{code}\n'
    )
    world.agent("worker", runner="claude", command=str(program))
    return program


@pytest.mark.parametrize("said", SAYS)
def test_a_program_that_is_too_old_is_refused_and_one_that_tells_nothing_is_doubted(
    world: World, said: str
) -> None:
    code, words = SAYS[said]
    claude(world, code)
    done = world.cli("doctor")
    assert words in done.stdout and "2.1.330" in done.stdout, done.stdout + done.stderr
    assert done.returncode == (1 if words == "too old" else 0)
    assert (world.home / "asked").read_text(encoding="utf-8") == "--version /\n"
    run_id = world.start()
    failure, message = world.failed(run_id)
    if words == "too old":
        assert failure == "config" and "npm install -g @anthropic-ai/claude-code" in message
    else:
        assert failure == "agent_error", "it was started all the same"
        assert words in str(world.store.read_request(run_id).warnings)


def test_a_program_is_asked_once_and_never_for_an_agent_that_nobody_trusts(world: World) -> None:
    claude(world, '[ "$1" = --version ] && exec echo 2.1.330\nexit 3')
    asked = world.home / "asked"
    agents = world.work / "agents"
    agents.mkdir()
    (world.agents / "worker.md").rename(agents / "worker.md")
    done = world.cli("doctor", env={"SUBAGENT_AGENTS": ""})
    assert "not trusted" in done.stdout and not asked.exists()
    (agents / "worker.md").rename(world.agents / "worker.md")
    assert "Claude Code ended with exit code 3" in world.failed(world.start())[1]
    assert asked.read_text(encoding="utf-8").count("--version") == 1
