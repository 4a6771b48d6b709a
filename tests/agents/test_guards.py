"""Limits, guards and conditions in the spelling of other tools: honoured, or the run is refused."""

import re
from pathlib import Path

import pytest

from subagent_server.agents import templates
from subagent_server.agents.formats import load_agent_file

TEMPLATE = templates.TEMPLATE.read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"(?:^#\w.*\n(?:^#  .*\n)*)", TEMPLATE, re.MULTILINE))
def test_every_line_of_the_template_works_when_uncommented(block: str, tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text(TEMPLATE.replace(block, re.sub("(?m)^#", "", block)), encoding="utf-8")
    definition = load_agent_file(path)
    assert (definition.faults, definition.warnings) == ([], [])
    assert set(definition.ask) <= set(definition.tools or [])
    assert definition.ask or definition.agents or definition.output_schema
