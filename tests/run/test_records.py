"""How states are written and read: camelCase, UTC with milliseconds, money as a decimal string."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from pydantic import ValidationError

from subagent_server.run.agent_definition import tool_name
from subagent_server.run.records import UNKNOWN_USAGE, RunMeta, RunResult, Usage, Worktree, WorktreeState
from subagent_server.run.states import MessageStatus, Status, timestamp
from tests.helpers.runs import make_message, make_meta, make_request


@pytest.mark.parametrize(
    ("moment", "written"),
    [
        (datetime(2026, 11, 22, 9, 30, 15, 417_999, tzinfo=UTC), "2026-11-22T09:30:15.417Z"),
        (datetime(2026, 11, 22, tzinfo=UTC), "2026-11-22T00:00:00.000Z"),
        (
            datetime(2026, 11, 22, 1, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2))),
            "2026-11-21T23:00:00.999Z",
        ),
    ],
)
def test_a_moment_is_written_in_utc_with_milliseconds(moment: datetime, written: str) -> None:
    assert timestamp(moment) == written


def test_a_moment_without_a_zone_is_no_moment() -> None:
    with pytest.raises(ValidationError):
        make_meta(created_at="2026-11-22T09:30:15")


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
def test_a_moment_that_another_time_zone_does_not_have_is_no_moment(text: str) -> None:
    with pytest.raises(ValidationError, match="the year is out of range"):
        make_meta(created_at=text)


def test_a_state_is_camel_case_outside_and_reads_back_as_it_was() -> None:
    meta = make_meta(
        status=Status.WAITING,
        messages=[make_message("q1", MessageStatus.PENDING, options=["a", "b"])],
        usage=Usage(input_tokens=3, cost_usd=Decimal("0.0000010")),
        label="Grüße \u2028 \0",
    )
    written = meta.to_json()
    names = json.loads(written)
    assert {"schemaVersion", "runId", "agentName", "pendingQuestions", "rootRunId", "withDescendants"} <= set(
        names
    )
    assert names["messages"][0]["questionTimestamp"] == "2026-11-22T09:30:15.417Z"
    assert RunMeta.model_validate_json(written) == meta


@pytest.mark.parametrize("amount", ["0.0000010", "12.5", "0", "1E-7", "1234567890.123456789"])
def test_money_is_a_plain_decimal_string(amount: str) -> None:
    written = json.loads(Usage(cost_usd=Decimal(amount)).to_json())["costUsd"]
    assert "E" not in written
    assert Decimal(written) == Decimal(amount)


@pytest.mark.parametrize("amount", ["NaN", "Infinity", "much"])
def test_what_is_no_amount_is_no_money(amount: str) -> None:
    with pytest.raises(ValidationError):
        Usage.model_validate({"costUsd": amount})


@pytest.mark.parametrize("commit", ["--output=x", "HEAD", "a" * 41, f"{'a' * 40}\n", ""])
def test_a_word_that_git_reads_otherwise_is_no_commit(commit: str) -> None:
    for record, field in ((Worktree, "base"), (WorktreeState, "tip"), (WorktreeState, "mergedInto")):
        with pytest.raises(ValidationError, match=rf"{field}\n.*pattern"):
            record.model_validate({field: commit})


def test_text_that_utf8_cannot_hold_never_keeps_a_state_or_a_result_from_being_written() -> None:
    broken = "half a pair: \ud83d"
    assert json.loads(make_meta(label=broken).to_json())["label"] == "half a pair: ?"
    assert json.loads(make_request(prompt=broken).to_json())["prompt"] == "half a pair: ?"
    result = RunResult(outcome=Status.COMPLETED, text=broken, output={"deep": [broken]})
    assert json.loads(result.to_json())["output"] == {"deep": ["half a pair: ?"]}


def test_usage_of_two_runs_is_summed_and_an_unknown_cost_stays_unknown() -> None:
    one, other = Usage(input_tokens=1, turns=2), Usage(input_tokens=10, tool_calls=3)
    assert one.plus(other) == Usage(input_tokens=11, turns=2, tool_calls=3)
    assert one.plus(Usage(cost_usd=Decimal("0.5"))).cost_usd == Decimal("0.5")
    assert one.plus(other).cost_usd is None


def test_a_sum_over_runs_with_a_figure_that_nobody_told_is_marked_as_at_least() -> None:
    program, loop = UNKNOWN_USAGE.model_copy(update={"tool_calls": 2}), Usage(input_tokens=5, turns=3)
    for total in (program.plus(loop), loop.plus(program), Usage().plus(loop).plus(program)):
        assert (total.input_tokens, total.turns, total.tool_calls, total.output_tokens) == (5, 3, 2, None)
        assert total.at_least == ("inputTokens", "turns") and total.tokens == 5
    assert program.plus(Usage()) == program and UNKNOWN_USAGE.tokens is None, (
        "nothing below leaves nothing open"
    )
    assert json.loads(program.to_json())["turns"] is None, "a field that is missing is 0"
    assert Usage.model_validate_json(program.to_json()) == program
    assert Usage.model_validate({"inputTokens": 1}) == Usage(input_tokens=1), "as an older file has it"


def test_merging_usage_twice_is_merging_it_once() -> None:
    one, other = Usage(input_tokens=5, turns=1), Usage(input_tokens=3, turns=2, cost_usd=Decimal("1"))
    merged = one.merged(other)
    assert merged == Usage(input_tokens=5, turns=2, cost_usd=Decimal("1"))
    assert merged.merged(other) == merged.merged(one) == merged.merged(None) == merged


def test_a_result_tells_an_output_of_null_from_none() -> None:
    nothing = RunResult(outcome=Status.COMPLETED, text="x")
    null = RunResult(outcome=Status.COMPLETED, text="x", output=None)
    assert (nothing.has_output, null.has_output) == (False, True)
    read = [RunResult.model_validate_json(result.to_json()) for result in (nothing, null)]
    assert [result.has_output for result in read] == [False, True]


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("reviewer", "run_reviewer"),
        ("Code Reviewer", "run_code_reviewer"),
        ("a-b.c/d", "run_a_b_c_d"),
        ("Ünïcode ٣", "run_unicode__"),
        ("Œuvre d'été", "run_oeuvre_d_ete"),
        ("Smørrebrød Łódź Straße", "run_smorrebrod_lodz_strasse"),
        ("e\u0301tude", "run_etude"),
        ("数据 v2", "run____v2"),
        ("x" * 60, "run_" + "x" * 48),
        ("snake_9", "run_snake_9"),
    ],
)
def test_the_tool_of_an_agent_is_named_after_it(name: str, tool: str) -> None:
    assert tool_name(name) == tool


def test_names_without_a_readable_letter_have_tools_that_differ_and_stay() -> None:
    names = ["数据分析", "前端开发", "Программист", "🦀", "---"]
    tools = [tool_name(name) for name in names]
    assert len(set(tools)) == len(names)
    assert all(re.fullmatch(r"run_agent_[0-9a-f]{6}", tool) for tool in tools)
    assert tool_name("数据分析") == tools[0]
    assert re.fullmatch(r"run_agent_[0-9a-f]{6}", tool_name("Agent")), "run_agent starts any agent"


def test_a_distinct_tool_has_a_suffix_and_stays_within_its_length() -> None:
    tool = tool_name("x" * 60, distinct=True)
    assert re.fullmatch(r"run_x{41}_[0-9a-f]{6}", tool)
    assert tool != tool_name("x" * 61, distinct=True)
