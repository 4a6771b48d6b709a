"""Code mode of a run: which of its MCP tools become functions of programs, and where programs run.

Imports the SDK of the protocol, so it is imported for agents in code mode alone.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from subagent_server.domain.definitions import CodeMode
from subagent_server.sandbox.box import Box
from subagent_server.sandbox.environment import box_environment
from subagent_server.toolkit.ask_parent import AskParent
from subagent_server.toolkit.code_mode.calls import Functions
from subagent_server.toolkit.code_mode.division import divided
from subagent_server.toolkit.code_mode.interpreter import own_version, version_of
from subagent_server.toolkit.code_mode.process import ProgramPlace
from subagent_server.toolkit.code_mode.records import ProgramRecords
from subagent_server.toolkit.code_mode.tool import ExecutePythonCode, ProgramSetting
from subagent_server.toolkit.mcp_servers.results import Attachments
from subagent_server.toolkit.mcp_servers.tool import McpTool
from subagent_server.toolkit.tool import Tool
from subagent_server.toolkit.workspace.off_loop import off_loop
from subagent_server.toolkit.workspace.process_tree import Spare
from subagent_server.worker.runner_setup import RunnerSetup


async def with_programs(
    setup: RunnerSetup,
    code_mode: CodeMode,
    tools: Sequence[McpTool],
    ask: AskParent | None,
    box: Callable[[], Box] | None,
    spare: Spare,
) -> list[Tool]:
    """Return the tool that runs programs, before the MCP tools that stay ordinary ones.

    Raises:
        RunRefused: `config`; names clash, or there is no such interpreter.
    """
    run, division = setup.run, await off_loop(lambda: divided(tools, code_mode.excluded_tools))
    for warning in division.warnings:
        run.record("warning", message=warning)
    by_origin = {(tool.offered.server, tool.offered.tool.name): tool for tool in division.functions}
    attachments = Attachments(run.paths.outputs, run.masker)
    python = code_mode.python
    version = own_version() if python is None else await off_loop(lambda: version_of(python, box and box()))
    setting = ProgramSetting(
        run=run,
        place=ProgramPlace(python or sys.executable, Path.cwd(), _environment(setup), box, spare),
        records=ProgramRecords(
            run.paths.code, run.masker, lambda message: run.record("warning", message=message)
        ),
        outputs=run.paths.outputs,
        masker=run.masker,
        version=version,
        most_seconds=code_mode.max_timeout_seconds,
        stub_characters=code_mode.stub_characters,
        watch=setup.watch,
    )
    return [
        ExecutePythonCode(Functions(division.catalogue, by_origin, attachments, ask), setting),
        *division.ordinary,
    ]


def _environment(setup: RunnerSetup) -> dict[str, str]:
    """Return the environment of programs without a box: the allow-list of boxes, and the mark of the run."""
    home = Path(setup.environment.get("HOME") or "/")
    kept = box_environment(setup.environment, setup.agent.env, home, network=True)
    return {**kept, "SUBAGENT_RUN_ID": setup.run.run_id}
