"""The tool `str_replace_based_edit_tool`: files of the workspace, seen and edited."""

import base64
import os
import re
import secrets
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from subagent_server.run.confined_path import PathInside, printable
from subagent_server.run.errors import BadArgument, shorten
from subagent_server.run.files import held_open, kind_of
from subagent_server.run.images import check_image, media_type
from subagent_server.sandbox.file_watch import CommandWatch, watching
from subagent_server.toolbox.tool import Tool, ToolResult
from subagent_server.toolbox.workspace import Arguments, Workspace, definition_of, off_loop, parse_arguments

# -- Changes of a text, and lines with their numbers. Pure: no files.
#
# A line ends at `\n`; a `\r` before it belongs to the line break. Inserted text takes the line breaks of
# the text around it, so that a file with CRLF stays one.


SHOWN_CHARACTERS = 50_000
_AROUND = 4
_NAMED_LINES = 20


@dataclass(frozen=True)
class Edited:
    """A text after a change, and which lines (from 1, both included) are new."""

    text: str
    first: int
    last: int


def lines_of(text: str) -> list[str]:
    """Return the lines without their breaks; a break at the end starts no further line."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def replace_once(name: str, text: str, old: str, new: str) -> Edited:
    """Replace the only occurrence of `old`.

    Raises:
        BadArgument: `old` is empty, changes nothing, or occurs not exactly once (the sentence has the lines).
    """
    if not old:
        raise BadArgument("`old_str` is empty: give the text to replace, or use `insert` or `create`.")
    wanted = old.replace("\r\n", "\n")
    if wanted == new.replace("\r\n", "\n"):
        raise BadArgument("`new_str` is the same as `old_str`, so nothing would change.")
    pattern = re.compile(r"\r?\n".join(map(re.escape, wanted.split("\n"))))
    matches = pattern.finditer(text)
    found = next(matches, None)
    if found is None:
        raise BadArgument(
            f"Nothing was replaced, because `old_str` does not occur in {name}: view the file and copy the "
            "text exactly, white space included."
        )
    others = [match.start() for match in islice(matches, _NAMED_LINES)]
    if others:
        count = 1 + len(others) + sum(1 for _ in matches)
        raise BadArgument(_too_many(name, text, [found.start(), *others], count))
    put = new.replace("\r\n", "\n").replace("\n", _break_near(found.group(), text))
    first = text.count("\n", 0, found.start()) + 1
    return Edited(text[: found.start()] + put + text[found.end() :], first, first + put.count("\n"))


def insert_after(name: str, text: str, line: int, addition: str) -> Edited:
    """Put `addition` on lines of its own after line `line`; 0 is the beginning.

    Raises:
        BadArgument: there is no such line.
    """
    pieces = text.split("\n")
    count = len(pieces) - (pieces[-1] == "")
    if not 0 <= line <= count:
        raise BadArgument(f"`insert_line` must be from 0 to {count}, the last line of {name}, not {line}.")
    ending = _break_near("", text)
    before = text if line == len(pieces) else "".join(f"{piece}\n" for piece in pieces[:line])
    put = addition.replace("\r\n", "\n").replace("\n", ending)
    if before and not before.endswith("\n"):
        before += ending
    elif text and not put.endswith("\n"):
        put += ending
    after = text[len(before) :]
    return Edited(before + put + after, line + 1, line + len(lines_of(put)))


def numbered(lines: list[str], first: int) -> str:
    """Return lines with their numbers, the first of them `first`, as `cat -n` does."""
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, first))


def excerpt(edited: Edited) -> str:
    """Return the new lines with some around them, numbered."""
    lines = lines_of(edited.text)
    first = max(edited.first - _AROUND, 1)
    return view("the file", lines, first, min(edited.last + _AROUND, len(lines)))


def view(name: str, lines: list[str], first: int, last: int) -> str:
    """Return the lines from `first` to `last` as far as they fit, with a note on the rest."""
    shown: list[str] = []
    room = SHOWN_CHARACTERS
    for line in lines[first - 1 : last]:
        cut = line if len(line) <= room else f"{line[:room]} [... {len(line) - room:,} characters cut]"
        shown.append(cut)
        room -= len(cut) + 8
        if room <= 0:
            break
    text = numbered(shown, first)
    end = first + len(shown) - 1
    if end >= last:
        return text
    return f"{text}\n[lines {first} to {end} of {len(lines)} of {name} are shown: use view_range for others]"


def _break_near(matched: str, text: str) -> str:
    """Return the line break of the replaced text; if it has none, the commonest of the whole."""
    if "\n" in matched:
        return "\r\n" if "\r\n" in matched else "\n"
    return "\r\n" if 2 * text.count("\r\n") > text.count("\n") else "\n"


def _too_many(name: str, text: str, positions: list[int], count: int) -> str:
    numbers = [str(text.count("\n", 0, position) + 1) for position in positions[:_NAMED_LINES]]
    more = ", ..." if count > _NAMED_LINES else ""
    return (
        f"Nothing was replaced, because `old_str` occurs {count} times in {name}, at lines "
        f"{', '.join(numbers)}{more}: add lines around it so that it is unique."
    )


# -- Reading and replacing one file of the workspace.


MOST_BYTES = 32 << 20
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextFile:
    """A text file as it was read: `text` without a byte order mark, `faithful` if all bytes were UTF-8."""

    text: str
    bom: bool
    faithful: bool

    def encoded(self, text: str) -> bytes:
        """Return `text` in the encoding of this file."""
        return (_BOM if self.bom else b"") + text.encode()


def read_file(target: PathInside) -> bytes:
    """Return the content of a regular file.

    Raises:
        BadArgument: it is missing, too large, or nothing that has a content.
        OSError: the system refused.
    """
    status = target.status()
    if status is None:
        raise BadArgument(f"There is no file {target.shown}: check the path.")
    _refuse_special(target, status)  # before it is opened: opening a device can do things
    descriptor = target.open(os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        _refuse_special(target, status)
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise BadArgument(
            f"{target.shown} is larger than {MOST_BYTES >> 20} MiB ({status.st_size:,} bytes), "
            "too large for this tool: search it with grep, or use the shell."
        )
    return data


def as_text(target: PathInside, data: bytes) -> TextFile:
    """Return the text in `data`; bytes that are not UTF-8 become U+FFFD.

    Raises:
        BadArgument: it is binary (it holds a NUL).
    """
    if b"\0" in data:
        raise BadArgument(f"{target.shown} is a binary file, which this tool does not show or edit.")
    bom = data.startswith(_BOM)
    body = data[len(_BOM) :] if bom else data
    try:
        return TextFile(body.decode(), bom, faithful=True)
    except UnicodeDecodeError:
        return TextFile(body.decode("utf-8", "replace"), bom, faithful=False)


def write_file(target: PathInside, data: bytes) -> bool:
    """Write `data` to `target`, atomically for every reader; an existing file keeps mode and owner.

    As with write(2), it is not setuid or setgid any more. Another name of an existing file (a hard link)
    keeps the old content, so nothing outside the working directory is changed through one.

    Return whether the file is new.

    Raises:
        BadArgument: something that is not a regular file is there.
        OSError: the system refused; the former content is whole.
    """
    before = target.status()
    if target.name == "." or (before is not None and not stat.S_ISREG(before.st_mode)):
        what = kind_of(before.st_mode) if before else "a directory"
        raise BadArgument(f"{target.shown} is {what}: give the path of a file.")
    name = f".{secrets.token_hex(8)}.tmp"
    temporary = PathInside(target.directory, name, (*target.parts[:-1], name))
    try:
        _write(temporary, data, before)
        os.rename(name, target.name, src_dir_fd=target.directory, dst_dir_fd=target.directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=target.directory)
        raise
    return before is None


def _write(temporary: PathInside, data: bytes, like: os.stat_result | None) -> None:
    descriptor = temporary.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if like is None else 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if like is not None:
            with suppress(PermissionError):  # only the superuser may change the owner
                os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(like.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))
        os.fsync(descriptor)


def _refuse_special(target: PathInside, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadArgument(
            f"{target.shown} is {kind_of(status.st_mode)}, not a regular file: use another path."
        )


# -- Images as content blocks of the Messages API.


def image_block(name: str, data: bytes) -> dict[str, Any]:
    """Return the content block of an image.

    Raises:
        BadArgument: the API would refuse it, and with it the whole conversation.
    """
    check_image(name, data)
    source = {"type": "base64", "media_type": media_type(data), "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


# -- The entries of a directory, two levels deep.


_MOST_ENTRIES = 1000
_MOST_READ = 20_000
_LEVELS = 2
_NOT_ENTERED = frozenset({"node_modules", "__pycache__"})


def list_directory(target: PathInside) -> str:
    """Return the entries of `target` and of its directories, hidden ones left out, links not followed."""
    lines: list[str] = []
    with held_open(target.open_directory()) as descriptor:
        _list(descriptor, "/".join(target.parts), _LEVELS, lines)
    head = f"{target.shown}/ holds, two levels deep and without hidden entries:"
    if not lines:
        return f"{target.shown}/ is empty, but for hidden entries perhaps."
    if len(lines) > _MOST_ENTRIES:
        return "\n".join([head, *lines[:_MOST_ENTRIES], "[... and more: view a directory below]"])
    return "\n".join([head, *lines])


def _list(directory: int, prefix: str, levels: int, lines: list[str]) -> None:
    with os.scandir(directory) as entries:
        visible = (entry for entry in entries if not entry.name.startswith("."))
        found = sorted(islice(visible, _MOST_READ), key=lambda entry: entry.name)
    for entry in found:
        if len(lines) > _MOST_ENTRIES:
            return
        path = f"{prefix}/{entry.name}" if prefix else entry.name
        is_directory = entry.is_dir(follow_symlinks=False)
        lines.append(printable(path) + ("/" if is_directory else _target(directory, entry)))
        if is_directory and levels > 1 and entry.name not in _NOT_ENTERED:
            _enter(directory, entry.name, path, levels - 1, lines)


def _enter(directory: int, name: str, path: str, levels: int, lines: list[str]) -> None:
    try:
        inner = PathInside(directory, name, ()).open_directory()
    except OSError as error:
        lines[-1] += f" [not readable: {error.strerror}]"
        return
    with held_open(inner):
        _list(inner, path, levels, lines)


def _target(directory: int, entry: os.DirEntry[str]) -> str:
    if not entry.is_symlink():
        return ""
    try:
        return f" -> {printable(os.readlink(entry.name, dir_fd=directory))}"
    except OSError:  # it was removed meanwhile
        return ""


class _ViewArguments(Arguments):
    command: Literal["view"]
    path: str = Field(description="Relative to the working directory.")
    view_range: list[int] | None = Field(
        default=None,
        min_length=2,
        max_length=2,
        description="First and last line to show, counted from 1; -1 as last is the end.",
    )


_VIEW_ONLY = (
    "View a file or directory of the working directory. A text file comes with line numbers, view_range "
    "picks lines; an image (PNG, JPEG, GIF, WebP) is shown; a directory is listed two levels deep."
)


class _EditorArguments(Arguments):
    command: Literal["view", "create", "str_replace", "insert"]
    path: str
    view_range: list[int] | None = None
    file_text: str | None = None
    old_str: str | None = None
    new_str: str | None = None
    insert_line: int | None = None
    insert_text: str | None = None


class EditorTool(Tool):
    """Views and edits what lies in `cwd`, a real path; never anything else.

    `read_only` roots are viewed only, and so is what other programs execute, but for the `lifted` paths. For
    files of that kind `watch` looks before and after each edit.

    Without `edit` it has `view` alone, by a definition of its own, and refuses the other commands; without
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
            return definition_of(self.name, _VIEW_ONLY, _ViewArguments)
        return {"type": "text_editor_20250728", "name": self.name}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Do one command; whatever is wrong with it is answered in one sentence."""
        wanted = parse_arguments(_EditorArguments, arguments)
        command = self._commands.get(wanted.command)
        if command is None:
            allowed = ", ".join(f"`{name}`" for name in self._commands)
            raise BadArgument(f"`{wanted.command}` is not allowed to this agent: it may use {allowed}.")
        watch = None if wanted.command == "view" else self._watch
        try:
            # Off the loop, and to its end even if the call is cancelled: half an edit would be left.
            return await off_loop(lambda: _watched(command, wanted, watch))
        except OSError as error:
            why = error.strerror or str(error)
            raise BadArgument(
                f"`{wanted.command}` of {shorten(wanted.path)} failed ({why}) and changed nothing: "
                "check the path, its permissions and the free space."
            ) from error

    def _view(self, wanted: _EditorArguments) -> ToolResult:
        with self._workspace.find(wanted.path) as target:
            status = target.status()
            if status is not None and stat.S_ISDIR(status.st_mode):
                return ToolResult.of_text(list_directory(target))
            data = read_file(target)
            if media_type(data):
                return ToolResult([image_block(target.shown, data)])
            return ToolResult.of_text(_shown_text(target, as_text(target, data), wanted.view_range))

    def _create(self, wanted: _EditorArguments) -> ToolResult:
        text = _needed(wanted, "file_text")
        with self._workspace.find(wanted.path, writing=True, make_parents=True) as target:
            is_new = write_file(target, text.encode())
            lines = len(lines_of(text))
            done = "was created" if is_new else "was overwritten"
            return ToolResult.of_text(f"{target.shown} {done} ({lines} line{'' if lines == 1 else 's'}).")

    def _replace(self, wanted: _EditorArguments) -> ToolResult:
        old, new = _needed(wanted, "old_str"), wanted.new_str or ""
        return self._change(wanted, lambda name, text: replace_once(name, text, old, new))

    def _insert(self, wanted: _EditorArguments) -> ToolResult:
        line = wanted.insert_line
        if line is None:
            raise BadArgument("The argument `insert_line` is missing: give the line to insert after, or 0.")
        text = wanted.new_str if wanted.insert_text is None else wanted.insert_text  # its older name
        if text is None:
            raise BadArgument("The argument `insert_text` is missing: `insert` needs the text to put in.")
        return self._change(wanted, lambda name, before: insert_after(name, before, line, text))

    def _change(self, wanted: _EditorArguments, edit: Callable[[str, str], Edited]) -> ToolResult:
        with self._workspace.find(wanted.path, writing=True) as target:
            file = as_text(target, read_file(target))
            if not file.faithful:
                raise BadArgument(
                    f"{target.shown} is not UTF-8, so an edit would damage it: convert it first, "
                    "or edit it with a program that knows its encoding."
                )
            edited = edit(target.shown, file.text)
            write_file(target, file.encoded(edited.text))
            done = f"{target.shown} was edited."
            return ToolResult.of_text(f"{done}\n{excerpt(edited)}" if self._may_view else done)


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


def _shown_text(target: PathInside, file: TextFile, wanted: list[int] | None) -> str:
    lines = lines_of(file.text)
    first, last = _range(target, len(lines), wanted)
    if not lines:
        return f"({target.shown} is empty)"
    text = view(target.shown, lines, first, last)
    if file.faithful:
        return text
    return f"{text}\n[{target.shown} is not UTF-8: what could not be read is shown as \ufffd]"


def _range(target: PathInside, count: int, wanted: list[int] | None) -> tuple[int, int]:
    if wanted is None:
        return 1, count
    if len(wanted) != 2:
        raise BadArgument("`view_range` must be two line numbers, such as [1, 50]; -1 as second is the end.")
    first, last = wanted
    if not 1 <= first <= max(count, 1):
        raise BadArgument(f"`view_range` starts at line {first}, but {target.shown} has {count} lines.")
    if last != -1 and last < first:
        raise BadArgument(f"`view_range` ends at line {last}, before its start: give {first} or more, or -1.")
    return first, count if last == -1 else min(last, count)
