"""The directory that a run works in, and which of its files may be written."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from subagent_server.run.confined_path import PathInside, Reached, inside
from subagent_server.run.errors import BadArgument, shorten
from subagent_server.run.executed_files import GIT, Executed, executed_by, is_lifted
from subagent_server.run.records import first_problem
from subagent_server.run.schemas import shown_schema
from subagent_server.sandbox.git_files import OF_A_REPOSITORY, makes_repository


@dataclass(frozen=True)
class Workspace:
    """The directory a run works in, by its real path.

    Files in a `read_only` root, and files that other programs execute, can be read and not written.
    `lifted` are paths below the directory for which the author of the agent lifts that rule.
    """

    root: Path
    read_only: Sequence[Path] = ()
    lifted: Sequence[str] = ()

    def find(
        self, path: str, *, writing: bool = False, make_parents: bool = False
    ) -> AbstractContextManager[PathInside]:
        """Find `path`, relative to the root or absolute inside it; it need not exist, its directory must.

        Raises:
            BadArgument: it leaves the root, is not to be written, or its directory is missing or is a file.
            OSError: the system refused.
        """
        check = self._check_writable if writing else None
        return inside(self.root, path, check=check, make_parents=make_parents)

    def _check_writable(self, reached: Reached) -> None:
        self._check_read_only(reached)
        by = executed_by(reached.parts, self.lifted, is_directory=reached.is_directory)
        by = by or self._in_repository(reached)
        if by is not None:
            raise BadArgument(
                f"{shorten(reached.asked)} is read-only here, because such files are executed by {by.by}: "
                "leave it as it is, and say in your answer what should be in it."
            )

    def _check_read_only(self, reached: Reached) -> None:
        target = self.root.joinpath(*reached.parts)
        on_the_way = {(status.st_dev, status.st_ino) for status in map(os.fstat, reached.directories)}
        for root in self.read_only:
            covered = target.is_relative_to(os.path.realpath(root))
            with suppress(OSError):
                status = root.stat()
                covered = covered or (status.st_dev, status.st_ino) in on_the_way
            if covered:
                raise BadArgument(
                    f"{shorten(reached.asked)} is read-only here, because {shorten(str(root))} belongs to "
                    "the runs, agents or programs of the server: write somewhere else."
                )

    def _in_repository(self, reached: Reached) -> Executed | None:
        """Return git if a directory on the way is one of its own, whatever it is called."""
        for depth, directory in enumerate(reached.directories):
            if _is_repository(directory) and not is_lifted(reached.parts, self.lifted, below=depth - 1):
                return GIT
        return None


def _is_repository(directory: int) -> bool:
    names = set()
    for name in OF_A_REPOSITORY:
        with suppress(OSError):
            os.stat(name, dir_fd=directory)
            names.add(name)
    return makes_repository(names)


# -- From what a model passed to a tool to checked values, or to one sentence on what is wrong.


class Arguments(BaseModel):
    """The base of every tool's arguments: no other keys, nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@cache
def definition_of(name: str, description: str, arguments: type[Arguments]) -> dict[str, Any]:
    """Return the entry of `tools` in a request for a tool with these arguments."""
    return {"name": name, "description": description, "input_schema": shown_schema(arguments)}


A = TypeVar("A", bound=Arguments)


def parse_arguments(model: type[A], raw: object) -> A:
    """Return `raw` as `model`.

    Raises:
        BadArgument: an argument is missing, mistyped or unknown.
    """
    if not isinstance(raw, dict):
        raise BadArgument(f"The arguments must be an object, not {shorten(repr(raw))}: call the tool again.")
    for name, value in raw.items():
        _check_unicode(str(name), value)
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        known = ", ".join(f"`{info.alias or name}`" for name, info in model.model_fields.items())
        why = f"The arguments do not fit ({first_problem(error)[:300]}): this tool takes {known or 'none'}."
        raise BadArgument(why) from error


def _check_unicode(name: str, value: object) -> None:
    """Half a surrogate pair can come through JSON, but can be neither stored nor shown."""
    try:
        f"{name}{value}".encode()
    except UnicodeEncodeError as error:
        raise BadArgument(
            f"The argument {name!a} holds half of a surrogate pair, which is no character: "
            "write the whole character."
        ) from error


# -- Blocking work in a thread that never outlives its caller.


T = TypeVar("T")


async def off_loop(work: Callable[[], T], *, interrupt: Callable[[], object] | None = None) -> T:
    """Run `work` in a thread and return what it returns.

    If the caller is cancelled, `interrupt` is called and the end of `work` is awaited before the cancellation
    continues: no thread is left behind.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if interrupt is not None:
            interrupt()
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                continue  # cancelled again: the interruption is on its way
        if not future.cancelled():
            future.exception()  # retrieved, so that asyncio logs no warning
        raise


@asynccontextmanager
async def entered_off_loop(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a context by blocking work in a thread; it does not learn of exceptions."""
    value = await off_loop(manager.__enter__)
    try:
        yield value
    finally:
        await off_loop(lambda: manager.__exit__(None, None, None))
