"""Blocking work beside the event loop that never outlives its caller."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


async def off_loop(work: Callable[[], T], *, interrupt: Callable[[], object] | None = None) -> T:
    """Run `work` in a thread and return what it returns.

    If the caller is cancelled, `interrupt` is called and the end of `work` is awaited before the cancellation
    goes on: no thread is left behind.
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
    """Enter and leave a context by blocking work beside the event loop; it does not hear of exceptions."""
    value = await off_loop(manager.__enter__)
    try:
        yield value
    finally:
        await off_loop(lambda: manager.__exit__(None, None, None))
