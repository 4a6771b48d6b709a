"""Tools called in this process, as one client of a server calls them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from subagent_server.tools.spec import Call
from subagent_server.tools.tool_table import TOOLS, ToolDispatcher
from subagent_server.verbs.access import USER, Caller
from subagent_server.verbs.service import Service
from subagent_server.verbs.wait_for_runs import Changes

Tool = Callable[..., Any]
"""Calls a tool by its name and arguments, and returns its answer."""


@contextmanager
def connection(service: Service, caller: Caller = USER) -> Iterator[Tool]:
    """Give a function that calls tools on one connection."""
    with closing(Changes(service.store)) as changes:
        dispatcher = ToolDispatcher(service, changes, caller, TOOLS)

        def call(tool: str, **arguments: Any) -> Any:
            return asyncio.run(dispatcher.call(tool, Call(arguments, longest_wait=5.0)))

        yield call
