"""A call is known by what it asks: pure, without a process."""

import random
from functools import cache
from typing import Any

import pytest

from subagent_server.extensions.code_mode.identity import Fate, Identities, call_digest, fate_of
from subagent_server.run.agent_definition import AgentDefinition, Limits
from subagent_server.run.states import Status

AGENT = AgentDefinition(name="worker", system_prompt="You work.")
USUAL: dict[str, Any] = {"agent": AGENT, "prompt": "Do it.", "inputs": [b"a"], "cwd": None, "base": "c0ffee"}


@cache
def hashed(prompt: str) -> str:
    """Return the hash of a call with this prompt."""
    return call_digest(AGENT, prompt, [], None, None)


def identities(prompts: list[str]) -> list[str]:
    """Return the identities of the calls of a program that asks these prompts in this order."""
    program = Identities()
    return [program.of(hashed(prompt)) for prompt in prompts]


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "Do that."},
        {"inputs": [b"b"]},
        {"inputs": []},
        {"base": "beef"},
        {"agent": AGENT.model_copy(update={"system_prompt": "You rest."})},
        {"agent": AGENT.model_copy(update={"model": "opus"})},
        {"agent": AGENT.model_copy(update={"tools": ["Bash"]})},
        {"agent": AGENT.model_copy(update={"output_schema": {"type": "string"}})},
    ],
)
def test_what_is_asked_makes_another_call(change: dict[str, Any]) -> None:
    assert call_digest(**{**USUAL, **change}) != call_digest(**USUAL)


@pytest.mark.parametrize(
    ("change", "pinned"),
    [
        ({"model": "claude-haiku-4-5"}, "5445dbe84bd96fc2e587c389d61aeb7c17c3eaf731e0a41aeffd41418f6fe9f3"),
        (
            {"output_schema": {"maximum": 3}},
            "4d66a62ac3a48905a633afeb6f8b7a83616e70e290782108efc7461015ce9242",
        ),
    ],
)
def test_a_call_has_the_same_hash_in_every_version(change: dict[str, Any], pinned: str) -> None:
    assert call_digest(**{**USUAL, "agent": AGENT.model_copy(update=change)}) == pinned


@pytest.mark.parametrize(
    "change",
    [
        {"limits": Limits(max_turns=3)},
        {"description": "Another one."},
        {"env": {"A": "b"}},
        {"max_concurrent": 3},
        {"source": "/elsewhere"},
    ],
)
def test_limits_description_and_environment_make_no_other_call(change: dict[str, Any]) -> None:
    agent = AGENT.model_copy(update=change)
    assert call_digest(**{**USUAL, "agent": agent}) == call_digest(**USUAL)


@pytest.mark.parametrize(
    "change", [{"agents": ["other"]}, {"output_schema": {"type": "integer"}}, {"tools": ["Read"]}]
)
def test_an_edited_flow_is_the_same_call_whatever_its_file_says(change: dict[str, Any]) -> None:
    flow = AGENT.model_copy(update={"runner": "flow"})
    edited = flow.model_copy(update={"system_prompt": "def run(): ...", **change})
    assert call_digest(**{**USUAL, "agent": edited}) == call_digest(**{**USUAL, "agent": flow})


def test_integers_of_64_bits_have_an_identity() -> None:
    int64 = AGENT.model_copy(update={"output_schema": {"type": "integer", "maximum": 2**63 - 1}})
    assert call_digest(int64, "Count.", [], None, None) != call_digest(AGENT, "Count.", [], None, None)


def test_in_any_order_of_completion_no_call_is_repeated() -> None:
    prompts = [f"task {number % 60}" for number in range(100)]  # 40 of them twice
    record, dice = set(identities(prompts)), random.Random(39)
    assert len(record) == len(prompts)
    for _ in range(50):  # what follows a call is planned when that has completed
        dice.shuffle(prompts)
        assert set(identities(prompts)) == record


def test_an_edit_is_one_new_call_and_moved_lines_none() -> None:
    prompts = [f"task {number}" for number in range(100)]
    edited = ["task x" if number == 41 else prompt for number, prompt in enumerate(prompts)]
    assert len(set(identities(edited)) - set(identities(prompts))) == 1
    assert set(identities(prompts[::-1])) == set(identities(prompts))


def test_a_key_is_an_identity_whatever_was_asked_before() -> None:
    one, other = Identities(), Identities()
    one.of("hash")
    assert one.of("hash", "a") == other.of("hash", "a") != other.of("hash", "b")


@pytest.mark.parametrize(
    ("status", "code", "has_begun", "options", "fate"),
    [
        (Status.RUNNING, None, True, {"is_ours": True}, Fate.RUNNING),
        (Status.RUNNING, None, True, {}, Fate.RESUMED),
        (Status.READY, None, False, {}, Fate.NEW),
        (Status.COMPLETED, None, True, {}, Fate.RECORDED),
        *((Status.FAILED, code, True, {}, Fate.RESUMED) for code in ("crashed", "lost", "timeout", "budget")),
        (Status.FAILED, "storage", True, {}, Fate.RESUMED),
        (Status.STOPPED, None, True, {}, Fate.RESUMED),
        (Status.STOPPED, None, False, {}, Fate.NEW),
        (Status.FAILED, "max_turns", True, {}, Fate.RECORDED),
        (Status.FAILED, "max_turns", True, {"retry_failed": True}, Fate.NEW),
        (Status.FAILED, "launch_failed", False, {}, Fate.NEW),
    ],
)
def test_what_becomes_of_a_call(
    status: Status, code: str | None, has_begun: bool, options: dict[str, Any], fate: Fate
) -> None:
    usual = {"is_ours": False, "retry_failed": False}
    assert fate_of(status, code, has_begun=has_begun, **{**usual, **options}) is fate
