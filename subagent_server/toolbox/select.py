"""The tools of a run on files and programs, as its agent's file selects them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from subagent_server.run.agent_definition import Selection
from subagent_server.run.files import Directory
from subagent_server.run.secrets import Masker
from subagent_server.sandbox.box import Box
from subagent_server.sandbox.file_watch import CommandWatch
from subagent_server.toolbox.agent_process import Spare, spare_none
from subagent_server.toolbox.bash import BashTool
from subagent_server.toolbox.editor import EditorTool
from subagent_server.toolbox.ripgrep import SearchScope
from subagent_server.toolbox.search import GlobTool, GrepTool, ListTool
from subagent_server.toolbox.tool import Tool


def make_workspace_tools(
    selection: Selection,
    *,
    scope: SearchScope,
    environment: Mapping[str, str],
    read_only: Sequence[Path],
    output_dir: Directory,
    lifted: Sequence[str] = (),
    masker: Masker | None = None,
    spare: Spare = spare_none,
    box: Callable[[], Box] | None = None,
    watch: CommandWatch | None = None,
) -> list[Tool]:
    """Return the selected tools for a run that works in the `cwd` of `scope`; none starts anything yet.

    The editor opens its files without following links. `environment` is all that the shell gets. What lies
    in a `read_only` root, and what other programs execute, is not written by the editor (the shell is held
    back by the sandbox alone), except for the paths that are `lifted`. Long outputs of the shell go to files
    in `output_dir`, without the secrets that `masker` knows. What `spare` names outlives the shell. With a
    `box`, which is built when it is first needed, the shell runs in it, with the environment of the box.
    `watch` is told of each command and edit.
    """
    tools: list[Tool] = []
    if selection.bash:
        tools.append(
            BashTool(
                cwd=scope.cwd,
                environment=environment,
                output_dir=output_dir,
                masker=masker,
                spare=spare,
                box=box,
                watch=watch,
            )
        )
    if selection.view or selection.edit:
        tools.append(
            EditorTool(
                cwd=scope.cwd,
                read_only=read_only,
                lifted=lifted,
                view=selection.view,
                edit=selection.edit,
                watch=watch,
            )
        )
    if selection.grep:
        tools.append(GrepTool(scope))
    if selection.glob:
        tools.append(GlobTool(scope))
    if selection.ls:
        tools.append(ListTool(scope))
    return tools
