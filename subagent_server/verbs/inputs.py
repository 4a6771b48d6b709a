"""What a run gets from its starter: prompt, label and files, which reach the disk without secrets."""

import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from subagent_server.agents.variables import MissingVariable, expand_definition, hidden_values
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.confined_path import LeadsOutside, inside, is_text, open_real
from subagent_server.run.errors import BadArgument, SubagentError, shorten, storing
from subagent_server.run.executed_files import executed_by
from subagent_server.run.files import Entry, NotPlain, check_regular, held_open, read_opened, read_plain
from subagent_server.run.host_programs import lies_in
from subagent_server.run.images import check_image
from subagent_server.run.images import media_type as image_type
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import RunMeta
from subagent_server.run.secrets import MASK, Masker, collector_secrets, secret_values
from subagent_server.verbs.access import Caller
from subagent_server.verbs.service import Service

# -- The directories of a run and of its children: a tree stays in the `cwd` of its first run (SPEC 13).


@dataclass(frozen=True)
class ParentDirectories:
    """The directories that a run may hand on to its children, by real paths.

    Children may work in `cwd`, and their inputs may lie there. `kept` are the run's own `inputs/` and
    `outputs/`, in which inputs may lie too.
    """

    run_id: str
    cwd: Path
    kept: tuple[Path, ...] = ()


def directories_of(service: Service, parent: RunMeta) -> ParentDirectories:
    """Return the directories that `parent` may hand on.

    Raises:
        UnreadableMeta.
    """
    cwd = Path(service.store.read_request(parent.run_id).cwd)
    run = service.store.paths.run(parent.run_id)
    own = Path(os.path.realpath(run.directory.parent), run.run_id)
    kept = [own / directory.path.name for directory in (run.inputs, run.outputs)]
    return ParentDirectories(parent.run_id, cwd, tuple(kept))


def cwd_of_user(service: Service, named: str | None) -> Path:
    """Return the directory named by a user, relative to the current directory, or the current directory.

    Raises:
        BadArgument: the path is not a directory.
    """
    cwd = _absolute(service, named)
    try:
        exists = cwd.is_dir()
    except OSError as error:  # a name too long for any file system
        raise _not_to_enter(named, error.strerror) from error
    if not exists:
        raise BadArgument(f"cwd {str(cwd)[:200]!r} is no directory: name one that exists.")
    return Path(os.path.normpath(cwd))


def cwd_of_child(service: Service, named: str | None, parent: ParentDirectories) -> Path:
    """Return the real path of the directory a run named for its child, or of the caller's directory.

    Raises:
        BadArgument: it is not a directory below the run's own, or other programs execute files in this
            directory.
    """
    asked = str(_absolute(service, named))
    shown = shorten(named or asked, 200)
    try:
        with inside(parent.cwd, asked) as directory:
            status = directory.status()
            if status is None or not stat.S_ISDIR(status.st_mode):
                raise BadArgument(f"cwd {shown} is not a directory: name one that exists.")
            if not all(map(is_text, directory.parts)):
                raise BadArgument(f"cwd {shown} has a name that is not UTF-8: name another.")
            parts = directory.parts
    except LeadsOutside as error:
        raise BadArgument(
            f"cwd {shown} leads outside {shorten(str(parent.cwd), 200)}, where run {parent.run_id} works and "
            "all that it starts: name a directory in it."
        ) from error
    except OSError as error:
        raise _not_to_enter(asked, error.strerror) from error
    by = executed_by(parts, is_directory=True, or_above=True)
    if by is not None:
        raise BadArgument(
            f"cwd {shown} is not a directory to work in, because files in it are executed by {by.by}: name a "
            "directory above it."
        )
    return parent.cwd.joinpath(*parts)


def cwd_of_agent(service: Service, agent: AgentDefinition) -> Path | None:
    """Return the real path of the directory that the agent file itself names: its author decides."""
    if not agent.cwd:
        return None
    return Path(os.path.realpath(cwd_of_user(service, agent.cwd)))


def check_is_real(directory: str, run_id: str) -> None:
    """Refuse a directory on record into whose path a link has come: a run has decided where it leads.

    Raises:
        BadArgument.
    """
    if os.path.realpath(directory) != directory:
        raise BadArgument(
            f"The directory {shorten(directory, 200)} in which run {run_id} worked leads through a link now, "
            "to a directory that nobody has named: look at it, or start a new run."
        )


def enter(directory: str) -> None:
    """Make a real path the working directory of this process.

    Raises:
        OSError: the directory is gone, or its path got a link since the check.
    """
    with held_open(open_real(Path(directory))) as descriptor:
        os.fchdir(descriptor)


def _absolute(service: Service, named: str | None) -> Path:
    try:
        return service.settings.cwd / Path(named or ".").expanduser()
    except RuntimeError as error:  # the home of nobody
        raise _not_to_enter(named, str(error).rstrip(".")) from error


def _not_to_enter(named: str | None, why: str | None) -> BadArgument:
    return BadArgument(f"cwd {shorten(named or '')} cannot be entered ({why}): name another.")


# -- Input files: checked and copied at the start, so that a run reads the files as they were then.


MAX_TEXT_BYTES = 2_000_000
MAX_BINARY_BYTES = 24_000_000
MAX_TOTAL_BYTES = 32_000_000
"""Of all files of a run as they are sent, in base64 unless text: the API takes a request of 32 MB."""
MAX_FILES = 50
_MAX_NAME_BYTES = 200
_HEAD_BYTES = 8192
"""By so many of its first bytes a file shows its media type."""


@dataclass(frozen=True)
class InputFile:
    """A file that a run may read, as read by the check: its path, media type and content."""

    path: Path
    media_type: str
    data: bytes

    @property
    def sent_bytes(self) -> int:
        """How many bytes of a request it takes."""
        size = len(self.data)
        return size if self.media_type == "text/plain" else (size + 2) // 3 * 4

    def masked(self, masker: Masker) -> "InputFile":
        """Return the file without secrets; images and PDFs stay as they are."""
        if self.media_type != "text/plain":
            return self
        return replace(self, data=masker.text(self.data.decode("utf-8")).encode("utf-8"))


def check_inputs(
    paths: list[str], cwd: Path, parent: ParentDirectories | None = None, written: Sequence[Path] = ()
) -> list[InputFile]:
    """Return the files that `paths` name, relative to `cwd`, with their media types and contents.

    Each file is opened once, so the checked bytes are the copied bytes. For a run, the files have to lie in
    the directories of its parent; for a user links are followed, but none where runs have `written` that
    leads out of these directories: a run could have made it, and the model would get a file of the user.

    Raises:
        BadArgument: a file cannot be read, is neither text, PDF nor image, or is too big, alone or with the
            files before; the message names its path.
    """
    if len(paths) > MAX_FILES:
        raise BadArgument(
            f"{len(paths)} input files are more than the {MAX_FILES} that a run takes: name fewer."
        )
    files: list[InputFile] = []
    for name in paths:
        files.append(_checked(name, cwd, parent, written))
        total = sum(file.sent_bytes for file in files)
        if total > MAX_TOTAL_BYTES:
            raise BadArgument(
                f"With input {shorten(name, 200)} all inputs take {total:,} bytes of a request, more than "
                f"the {MAX_TOTAL_BYTES:,} that a model takes: give fewer or smaller files."
            )
    return files


def copy_inputs(files: list[InputFile], run: RunPaths) -> None:
    """Copy the files into the run's directory, numbered in their order.

    Raises:
        StorageFailed: the copy failed.
    """
    if not files:
        return
    copies = {f"{n:02d}-{_copy_name(file.path)}": file.data for n, file in enumerate(files, start=1)}
    with storing(run.inputs.path):
        inputs = run.inputs
        inputs.make_new()
        for name, data in copies.items():
            with os.fdopen(inputs.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as copy:
                copy.write(data)


def copied_inputs(run: RunPaths) -> tuple[tuple[Entry, str], ...]:
    """Return the input files as they were copied for a run, in their order, each with its media type."""
    inputs = run.inputs
    if not inputs.exists():
        return ()
    copies: list[tuple[Entry, str]] = []
    for name in sorted(inputs.names())[:MAX_FILES]:
        with inputs.entry(name).reader() as file:
            kind = media_type(file.read(_HEAD_BYTES)) or "text/plain"
        copies.append((inputs.entry(name), kind))
    return tuple(copies)


def media_type(head: bytes) -> str | None:
    """Return the media type of a file by its first bytes, or None if a model cannot read it."""
    if head.startswith(b"%PDF-"):
        return "application/pdf"
    return image_type(head) or (None if b"\0" in head else "text/plain")


def _copy_name(path: Path) -> str:
    """Return the name of a copy, which has a number before it and no more bytes than a name may have."""
    suffix = path.suffix if len(os.fsencode(path.suffix)) < _MAX_NAME_BYTES // 2 else ""
    room = _MAX_NAME_BYTES - len(os.fsencode(suffix))
    stem = os.fsencode(path.name.removesuffix(suffix))
    return path.name if len(stem) <= room else stem[:room].decode("utf-8", "ignore") + suffix


def _checked(name: str, cwd: Path, parent: ParentDirectories | None, written: Sequence[Path]) -> InputFile:
    if "\0" in name or not name:
        raise BadArgument("An input path is empty or holds a NUL byte: name a file.")
    path, shown = cwd / name, shorten(name, 200)
    if not is_text(name):
        raise BadArgument(f"Input {shown} has a name that is not UTF-8: rename it.")
    try:
        data = _read_named(path, shown, written) if parent is None else _read_inside(path, shown, parent)
    except OSError as error:
        raise BadArgument(
            f"Input {shown} cannot be read ({error.strerror}): name a file, by its path from {cwd}."
        ) from error
    kind = media_type(data[:_HEAD_BYTES])
    if kind is None:
        raise _unreadable(shown)
    if kind.startswith("image/"):
        check_image(f"Input {shown}", data)
    if kind == "text/plain":
        _check_text(data, shown)
    return InputFile(path, kind, data)


def _check_text(data: bytes, shown: str) -> None:
    if len(data) > MAX_TEXT_BYTES:
        raise BadArgument(
            f"Input {shown} has {len(data):,} bytes, more than the {MAX_TEXT_BYTES:,} allowed: "
            "give a part of it."
        )
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        raise _unreadable(shown) from None


def _read_named(path: Path, shown: str, written: Sequence[Path]) -> bytes:
    """Return the content of a file that a user names. Raises OSError, BadArgument."""
    way = lies_in(Path(os.path.normpath(path)), written)  # `../notes` only passes through `cwd`

    def check(descriptor: int) -> None:
        real = Path(f"/proc/self/fd/{descriptor}").readlink()  # of what was opened, whatever comes now
        if way is not None and not any(real.is_relative_to(os.path.realpath(each)) for each in written):
            raise BadArgument(
                f"Input {shown} leads out of {shorten(str(way), 200)} by a link that a run could have made: "
                "name the file itself."
            )

    return read_plain(path, MAX_BINARY_BYTES, check=check)[0]


def _read_inside(path: Path, shown: str, parent: ParentDirectories) -> bytes:
    """Return the content of a file in one of the directories of a parent. Raises OSError, BadArgument."""
    for root in (parent.cwd, *parent.kept):
        with suppress(LeadsOutside, FileNotFoundError), inside(root, str(path)) as found:
            if (status := found.status()) is None:
                raise NotPlain(path, os.strerror(errno.ENOENT))
            check_regular(path, status)  # before it is opened: opening a device can do things
            with held_open(found.open(os.O_RDONLY)) as descriptor:
                return read_opened(descriptor, path, MAX_BINARY_BYTES)[0]
    raise BadArgument(
        f"Input {shown} leads outside {shorten(str(parent.cwd), 200)}, where run {parent.run_id} works, and "
        "is not in its inputs/ or outputs/ either: give a file of these."
    )


def _unreadable(shown: str) -> BadArgument:
    return BadArgument(f"Input {shown} is neither UTF-8 text, PDF nor image: give one of these.")


# -- Masking: every door removes the secrets known to its process from all text before writing.


def masker_of(
    agent: AgentDefinition | None, environment: Mapping[str, str], also: Iterable[str] = ()
) -> Masker:
    """Return the masker of the secrets in `environment`, of those that `agent` holds or names, of `also`."""
    if agent is None:
        return Masker([*secret_values(environment).values(), *collector_secrets(environment), *also])
    masked = [name for name, value in agent.env.items() if MASK in value]  # of a stored definition
    named = secret_values(environment, [agent.api_key_env, *masked])
    return Masker([*named.values(), *collector_secrets(environment), *hidden_values(agent), *also])


def masker_at_door(service: Service, run_id: str) -> Masker:
    """Return the masker of the words that come for run `run_id` from outside its worker.

    The worker knows the secrets of its agent file; here they are found as far as the environment has them.
    """
    environment = service.settings.environment
    try:
        stored = AgentDefinition.model_validate(service.store.read_request(run_id).agent)
    except (SubagentError, ValueError):
        return masker_of(None, environment)  # its request is damaged: the run can be stopped all the same
    with suppress(MissingVariable):
        stored = expand_definition(stored, environment)
    return masker_of(stored, environment)


def masker_at_start(service: Service, agent: AgentDefinition, caller: Caller) -> Masker:
    """Return the masker of what a start writes; the worker gets the prompt itself.

    Secrets are those of the starter's environment, those of the agent (its variables are replaced), and
    whatever has the shape of a token. If a run is the starter, its own count too.
    """
    own = [] if caller.run_id is None else masker_at_door(service, caller.run_id).values
    return masker_of(agent, service.settings.environment, own)


NAMES_ON_DISK = ("name", "agents")
"""The definition on disk is found by these names, so they stay whole."""
_MASKED_PROMPT = (
    f"A secret in the prompt is {MASK} in the records of the run, for no secret is written to disk: "
    "the run has read the prompt itself, but cannot be started anew from its records."
)


def masked_warnings(files: Iterable[Path], *, is_prompt_masked: bool) -> list[str]:
    """Return the warnings about a prompt, and about input files, in which secrets were masked."""
    return [
        *([_MASKED_PROMPT] if is_prompt_masked else []),
        *(
            f"A secret in input {shorten(path.name)} was replaced by {MASK}, for no secret is written to "
            "disk: give it in a variable of the environment, and name that."
            for path in files
        ),
    ]
