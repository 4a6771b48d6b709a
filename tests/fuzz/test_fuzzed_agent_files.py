"""Agent files that nobody proofread."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subagent_server.agents.discover import discover
from subagent_server.settings import read_settings
from subagent_server.verbs.check_agent import AgentChecker
from subagent_server.verbs.service import open_service
from tests.fuzz.dice import FUZZED, is_plain, mutated
from tests.helpers.processes import REPOSITORY

pytestmark = pytest.mark.fuzz

CONFIGURATION = b"""version: "1.0"
models:
  - {ref: main, id: claude-sonnet-5-5, type: anthropic, api_key_env: ANTHROPIC_API_KEY}
subagent: {name: coder, description: Writes code.}
defaults: {model: main, codeMode: {enabled: true, excludedTools: [a]}}
mcpServers:
  files: {command: files-mcp, args: ["--root", "."], type: stdio, timeout: 60, enabledTools: [read]}
"""
REVIEWER = (REPOSITORY / "agents" / "reviewer.md").read_bytes()

files = st.tuples(st.just("a.md"), mutated(REVIEWER) | st.binary(max_size=300)) | st.tuples(
    st.just("a.cpe.yaml"), mutated(CONFIGURATION) | st.binary(max_size=300)
)


@FUZZED
@given(files)
def test_an_agent_file_loads_or_is_listed_with_its_reason(file: tuple[str, bytes]) -> None:
    name, content = file
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        path.write_bytes(content)
        catalog = discover([Path(directory)])
        assert catalog.agents or [p for p in catalog.problems if p.path == path and p.reason]
        service = open_service(read_settings(environment={}, cwd=Path(directory), trust=True))
        for agent in catalog.agents.values():
            checked = AgentChecker(service).check(agent)
            assert all(is_plain(refusal.sentence) for refusal in checked.refusals)
            assert checked.description
