"""Calling the tools as the loop does."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from subagent_server.run.errors import CallerError
from subagent_server.run.files import Directory
from subagent_server.toolbox.bash import BashTool
from subagent_server.toolbox.tool import Tool, ToolResult

T = TypeVar("T")

ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
PATIENCE_SECONDS = 120.0


def call(tool: Tool, **arguments: Any) -> ToolResult:
    """Return the result of one call, on an event loop of its own."""
    return asyncio.run(asyncio.wait_for(called(tool, arguments), PATIENCE_SECONDS))


async def called(tool: Tool, arguments: dict[str, Any]) -> ToolResult:
    """Return the result of one call as the model reads it."""
    try:
        return await tool.call(arguments)
    except CallerError as error:
        return ToolResult.failure(error.sentence)


def text_of(tool: Tool, **arguments: Any) -> str:
    """Return the text of a call that has to succeed."""
    result = call(tool, **arguments)
    assert not result.is_error, result.text
    return result.text


def fault_of(tool: Tool, **arguments: Any) -> str:
    """Return the sentence of a call that has to fail."""
    result = call(tool, **arguments)
    assert result.is_error, result.text
    return result.text


@asynccontextmanager
async def a_shell(directory: Path, **options: Any) -> AsyncIterator[BashTool]:
    """A `bash` tool that works in `directory` and is closed at the end."""
    options = {
        "environment": ENVIRONMENT,
        "output_dir": Directory(directory / "outputs"),
        "grace": 0.3,
        **options,
    }
    tool = BashTool(cwd=directory, **options)
    try:
        yield tool
    finally:
        await asyncio.wait_for(tool.aclose(), PATIENCE_SECONDS)


def with_shell(directory: Path, body: Callable[[BashTool], Awaitable[T]], **options: Any) -> T:
    """Return what `body` returns, given a `bash` tool that works in `directory`."""

    async def main() -> T:
        async with a_shell(directory, **options) as tool:
            return await asyncio.wait_for(body(tool), PATIENCE_SECONDS)

    return asyncio.run(main())


def run(directory: Path, *commands: str, **options: Any) -> list[ToolResult]:
    """Return the results of `commands`, one after the other in one shell."""

    async def body(tool: BashTool) -> list[ToolResult]:
        return [await tool.call({"command": command}) for command in commands]

    return with_shell(directory, body, **options)


def run_texts(directory: Path, *commands: str, **options: Any) -> list[str]:
    """Return the texts of the results of `commands`, one after the other in one shell."""
    return [result.text for result in run(directory, *commands, **options)]
