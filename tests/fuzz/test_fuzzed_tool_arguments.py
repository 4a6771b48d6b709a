"""Tool calls with arguments that no schema has seen."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subagent_server.process.launcher import LocalLauncher
from subagent_server.run.errors import SubagentError
from subagent_server.settings import read_settings
from subagent_server.tools.parent_tools import MANY_AGENTS, RUN_ARGUMENTS
from subagent_server.tools.spec import Call
from subagent_server.tools.tool_table import LIFECYCLE_TOOLS, TOOLS, ToolDispatcher
from subagent_server.verbs.access import USER
from subagent_server.verbs.service import open_service
from subagent_server.verbs.wait_for_runs import Changes
from tests.fuzz.dice import FUZZED, JSON, is_plain
from tests.helpers.runs import ASKED, RUN_ID, STARTED, start_run

pytestmark = pytest.mark.fuzz

REFUSED = "---\nname: {}\ndescription: Never starts a process.\nrunner: codex\n---\nYou are other.\n"
"""Agents whose runs are refused with `config`, so that no example starts a worker."""
GENERIC = (*TOOLS, *(tool for tool in LIFECYCLE_TOOLS if tool.name != "agent_start"))
SCHEMAS = {"run_other": RUN_ARGUMENTS, **{tool.name: tool.arguments for tool in (*GENERIC, *MANY_AGENTS)}}

strange = st.sampled_from(
    [
        "",
        "../../etc/passwd",
        "\0",
        "a" * 5000,
        RUN_ID,
        RUN_ID + "\n",
        "-",
        "@last",
        "q1",
        "q99",
        "/",
        "\ud800",
    ]
)
values = JSON | strange


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw a tool and arguments: of its own names mostly, sometimes of none."""
    name = draw(st.sampled_from(sorted(SCHEMAS)) | st.text(max_size=20))
    schema = SCHEMAS.get(name, RUN_ARGUMENTS)
    known = st.sampled_from(sorted(schema["properties"]))
    arguments = draw(st.dictionaries(known | st.text(max_size=10), values, max_size=5))
    if draw(st.booleans()):
        arguments |= {key: RUN_ID if key in ("runId", "agent_id") else "text" for key in schema["required"]}
    return name, arguments


@FUZZED
@given(st.lists(calls(), min_size=1, max_size=3))
def test_whatever_a_tool_is_called_with_gives_an_answer_or_one_sentence(
    made: list[tuple[str, dict[str, Any]]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(_call_all(Path(name), made))


async def _call_all(directory: Path, made: list[tuple[str, dict[str, Any]]]) -> None:
    (directory / "agents").mkdir()
    for agent in ("other", "reviewer"):  # the second is that of the run, which may be continued
        (directory / "agents" / f"{agent}.md").write_text(REFUSED.format(agent), encoding="utf-8")
    settings = read_settings(
        environment={"SUBAGENT_AGENTS": "agents", "ANTHROPIC_API_KEY": "k"}, cwd=directory
    )
    service = open_service(settings, LocalLauncher())
    start_run(service.store, RUN_ID, STARTED, ASKED)
    changes = Changes(service.store)
    dispatcher = ToolDispatcher(service, changes, USER, GENERIC)
    try:
        for tool, arguments in made:
            try:
                answer = await dispatcher.call(tool, Call(arguments, longest_wait=0.01))
                assert isinstance(answer, dict)
            except SubagentError as error:
                assert is_plain(error.sentence)
                assert len(error.sentence) < 3000
        for run_id in service.store.run_ids():
            assert service.store.exists(run_id), "a run was made by halves"
    finally:
        changes.close()
