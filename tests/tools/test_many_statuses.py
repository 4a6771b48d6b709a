"""An answer about many agents keeps its size."""

import json
from pathlib import Path

from subagent_server.process.launcher import LocalLauncher
from subagent_server.run import transitions
from subagent_server.run.records import RunResult
from subagent_server.run.states import Status, make_run_id
from subagent_server.settings import read_settings
from subagent_server.verbs.contract_agent import agent_statuses
from subagent_server.verbs.service import open_service
from subagent_server.verbs.views import MAX_TOOL_ANSWER_CHARACTERS
from tests.helpers.runs import STARTED, T0, start_run


def test_the_summaries_of_many_agents_are_shorter_and_those_of_a_few_whole(tmp_path: Path) -> None:
    service = open_service(read_settings(environment={}, cwd=tmp_path), LocalLauncher())
    agent_ids = [make_run_id(T0, bytes([number, *range(5)])) for number in range(30)]
    for agent_id in agent_ids:
        start_run(service.store, agent_id, STARTED)
        result = RunResult(outcome=Status.COMPLETED, text="s" * 4_000)
        service.store.update(agent_id, transitions.Finished(summary="s" * 4_000), T0, result=result)
    few = agent_statuses(service, agent_ids[:3])
    assert [shown.status.summary for shown in few] == ["s" * 4_000] * 3
    many = agent_statuses(service, [*agent_ids, *("\ud800" * 1_000 for _ in range(970))])
    assert [shown.status.agent_id for shown in many[:30]] == agent_ids
    size = len(json.dumps([shown.status.model_dump(mode="json", exclude_none=True) for shown in many]))
    assert size < 3 * MAX_TOOL_ANSWER_CHARACTERS
