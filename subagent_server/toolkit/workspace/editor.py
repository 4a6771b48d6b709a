"""The tool `str_replace_based_edit_tool`: files of the workspace, seen and edited."""

import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from subagent_server.domain.errors import BadArgument, shorten
from subagent_server.domain.images import media_type
from subagent_server.host.inside import PathInside
from subagent_server.sandbox.name_watch import CommandWatch, watching
from subagent_server.toolkit.tool import ToolResult
from subagent_server.toolkit.workspace import edits
from subagent_server.toolkit.workspace.arguments import Arguments, parse_arguments
from subagent_server.toolkit.workspace.edits import Edited
from subagent_server.toolkit.workspace.files import TextFile, as_text, read_file, write_file
from subagent_server.toolkit.workspace.images import image_block
from subagent_server.toolkit.workspace.listing import list_directory
from subagent_server.toolkit.workspace.off_loop import off_loop
from subagent_server.toolkit.workspace.paths import Workspace

_VIEW_ONLY: dict[str, Any] = {
    "description": (
        "View a file or directory of the working directory. A text file comes with line numbers, view_range "
        "picks lines; an image (PNG, JPEG, GIF, WebP) is shown; a directory is listed two levels deep."
    ),
    "input_schema": {
        "type": "object",
        "properties": {
            "command": {"type": "string", "enum": ["view"]},
            "path": {
                "type": "string",
                "description": "Relative to the working directory.",
            },
            "view_range": {
                "type": "array",
                "items": {"type": "integer"},
                "minItems": 2,
                "maxItems": 2,
                "description": "First and last line to show, counted from 1; -1 as last is the end.",
            },
        },
        "required": ["command", "path"],
        "additionalProperties": False,
    },
}


class _EditorArguments(Arguments):
    command: Literal["view", "create", "str_replace", "insert"]
    path: str
    view_range: list[int] | None = None
    file_text: str | None = None
    old_str: str | None = None
    new_str: str | None = None
    insert_line: int | None = None
    insert_text: str | None = None


class EditorTool:
    """Views and edits what lies in `cwd`, a real path; never anything else.

    `read_only` roots are viewed only, and so is what other programs execute, but for the `lifted` paths. For
    files of that kind `watch` looks before and after each edit.

    Without `edit` it offers `view` alone, by a definition of its own, and refuses the other commands; without
    `view` it refuses that, and shows nothing of what it has changed.
    """

    name = "str_replace_based_edit_tool"
    sequential = True

    def __init__(
        self,
        *,
        cwd: Path,
        read_only: Sequence[Path] = (),
        lifted: Sequence[str] = (),
        view: bool = True,
        edit: bool = True,
        watch: CommandWatch | None = None,
    ) -> None:
        self._watch = watch
        self._workspace = Workspace(cwd, tuple(read_only), tuple(lifted))
        self._may_view = view
        writers = {"create": self._create, "str_replace": self._replace, "insert": self._insert}
        self._commands: Mapping[str, Callable[[_EditorArguments], ToolResult]] = {
            **({"view": self._view} if view else {}),
            **(writers if edit else {}),
        }

    def definition(self) -> dict[str, Any]:
        """Return the entry of `tools`: Anthropic's definition where files may be changed."""
        if set(self._commands) == {"view"}:
            return {"name": self.name, **_VIEW_ONLY}
        return {"type": "text_editor_20250728", "name": self.name}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Do one command; whatever is wrong with it comes back as a failure in one sentence."""
        try:
            wanted = parse_arguments(_EditorArguments, arguments)
            command = self._commands.get(wanted.command)
            if command is None:
                allowed = ", ".join(f"`{name}`" for name in self._commands)
                raise BadArgument(f"`{wanted.command}` is not allowed to this agent: it may use {allowed}.")
            # Off the loop, and to its end even if the call is cancelled: half an edit would be left.
            watch = None if wanted.command == "view" else self._watch
            return await off_loop(lambda: _watched(command, wanted, watch))
        except BadArgument as error:
            return ToolResult.failure(error.sentence)
        except OSError as error:
            why = error.strerror or str(error)
            return ToolResult.failure(
                f"`{wanted.command}` of {shorten(wanted.path)} failed ({why}) and changed nothing: "
                "check the path, its permissions and the free space."
            )

    async def aclose(self) -> None:
        """Nothing is held between calls."""

    def _view(self, wanted: _EditorArguments) -> ToolResult:
        with self._workspace.place(wanted.path) as place:
            status = place.status()
            if status is not None and stat.S_ISDIR(status.st_mode):
                return ToolResult.of_text(list_directory(place))
            data = read_file(place)
            if media_type(data):
                return ToolResult([image_block(place.shown, data)])
            return ToolResult.of_text(_shown_text(place, as_text(place, data), wanted.view_range))

    def _create(self, wanted: _EditorArguments) -> ToolResult:
        text = _needed(wanted, "file_text")
        with self._workspace.place(wanted.path, writing=True, make_parents=True) as place:
            is_new = write_file(place, text.encode())
            lines = len(edits.lines_of(text))
            done = "was created" if is_new else "was overwritten"
            return ToolResult.of_text(f"{place.shown} {done} ({lines} line{'' if lines == 1 else 's'}).")

    def _replace(self, wanted: _EditorArguments) -> ToolResult:
        old, new = _needed(wanted, "old_str"), wanted.new_str or ""
        return self._change(wanted, lambda name, text: edits.replace_once(name, text, old, new))

    def _insert(self, wanted: _EditorArguments) -> ToolResult:
        line = wanted.insert_line
        if line is None:
            raise BadArgument("The argument `insert_line` is missing: give the line to insert after, or 0.")
        text = wanted.new_str if wanted.insert_text is None else wanted.insert_text  # as older editors had it
        if text is None:
            raise BadArgument("The argument `insert_text` is missing: `insert` needs the text to put in.")
        return self._change(wanted, lambda name, before: edits.insert_after(name, before, line, text))

    def _change(self, wanted: _EditorArguments, edit: Callable[[str, str], Edited]) -> ToolResult:
        with self._workspace.place(wanted.path, writing=True) as place:
            file = as_text(place, read_file(place))
            if not file.faithful:
                raise BadArgument(
                    f"{place.shown} is not UTF-8, so an edit would damage it: convert it first, "
                    "or edit it with a program that knows its encoding."
                )
            edited = edit(place.shown, file.text)
            write_file(place, file.encoded(edited.text))
            done = f"{place.shown} was edited."
            return ToolResult.of_text(f"{done}\n{edits.excerpt(edited)}" if self._may_view else done)


def _watched(
    command: Callable[[_EditorArguments], ToolResult], wanted: _EditorArguments, watch: CommandWatch | None
) -> ToolResult:
    with watching(watch, f"{wanted.command} {wanted.path}") as came:
        result = command(wanted)
    return result.with_remark(came.remark)


def _needed(wanted: _EditorArguments, name: str) -> str:
    value: str | None = getattr(wanted, name)
    if value is None:
        raise BadArgument(f"The argument `{name}` is missing: `{wanted.command}` needs it.")
    return value


def _shown_text(place: PathInside, file: TextFile, wanted: list[int] | None) -> str:
    lines = edits.lines_of(file.text)
    first, last = _range(place, len(lines), wanted)
    if not lines:
        return f"({place.shown} is empty)"
    text = edits.view(place.shown, lines, first, last)
    if file.faithful:
        return text
    return f"{text}\n[{place.shown} is not UTF-8: what could not be read is shown as \ufffd]"


def _range(place: PathInside, count: int, wanted: list[int] | None) -> tuple[int, int]:
    if wanted is None:
        return 1, count
    if len(wanted) != 2:
        raise BadArgument("`view_range` must be two line numbers, such as [1, 50]; -1 as second is the end.")
    first, last = wanted
    if not 1 <= first <= max(count, 1):
        raise BadArgument(f"`view_range` starts at line {first}, but {place.shown} has {count} lines.")
    if last != -1 and last < first:
        raise BadArgument(f"`view_range` ends at line {last}, before its start: give {first} or more, or -1.")
    return first, count if last == -1 else min(last, count)
