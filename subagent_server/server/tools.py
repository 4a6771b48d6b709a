"""The handlers of `tools/list` and `tools/call`: they present the specs and the answers of the service."""

import asyncio
import json
import sys
import traceback
from collections.abc import Collection
from functools import partial
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from starlette.requests import Request

from subagent_server.domain.errors import SubagentError
from subagent_server.server.log_notifier import LogNotifier
from subagent_server.server.resources import refusal
from subagent_server.service.access import Caller
from subagent_server.service.changes import Changes
from subagent_server.service.context import Service
from subagent_server.service.progress import progress_words
from subagent_server.service.tools.call import Call
from subagent_server.service.tools.dispatch import ToolDispatcher
from subagent_server.service.tools.pages import page_of
from subagent_server.service.tools.spec import LIST, Answer, ToolSpec
from subagent_server.service.tools.table import PAGE_TOOLS, PARENT_TOOLS, ToolTables, tools_of
from subagent_server.settings import Role

Context = ServerRequestContext[Any, Any]
DEFAULT_WAIT_SECONDS = 50.0
WAIT_SECONDS = {"claude-code": 1500.0, "codex": 280.0, "gemini-cli": 570.0}
"""How long a call of a client may take before the client gives it up (measured; see `docs/tools.md`)."""
ADDED_BY_CLIENTS = frozenset({"wait_for_previous"})
"""Arguments that a client adds to every tool's schema for itself and passes on all the same: Gemini CLI's."""


class ToolHandlers:
    """Lists and calls the tools for one connection."""

    def __init__(
        self,
        service: Service,
        changes: Changes,
        role: Role,
        caller: Caller,
        log_notifier: LogNotifier,
        tables: ToolTables,
    ) -> None:
        self._settings = service.settings
        self._store = service.store
        self._log_notifier = log_notifier
        self._dispatcher = ToolDispatcher(service, changes, caller, tools_of(service, role, caller), tables)

    @property
    def waiting(self) -> int:
        """How many calls wait for runs."""
        return self._dispatcher.waiting

    @property
    def may_delegate(self) -> bool:
        """Whether the tools of a parent are among those of this role."""
        return set(PARENT_TOOLS) <= set(self._dispatcher.generic)

    async def page(self, cursor: str | None) -> tuple[types.ListToolsResult, str]:
        """Return a page of the tools, and the digest of all of them.

        The first page is of the tools as they are now, and the others go on with it: files are not looked at
        for each page. When the table has been made anew meanwhile, a cursor of the old one is refused.

        Raises:
            MCPError: the cursor is not of these tools.
        """
        table = None if cursor is None else self._dispatcher.kept_table
        if table is None:
            table = await asyncio.to_thread(self._dispatcher.table)
        try:
            page = page_of(table.tools, table.digest, PAGE_TOOLS, cursor)
        except SubagentError as error:
            raise refusal(error) from error
        tools = [_tool(tool) for tool in page.items]
        return types.ListToolsResult(tools=tools, next_cursor=page.next_cursor), table.digest

    def digest(self) -> str:
        """Return a text that differs as soon as a client would be listed other tools. Looks at files."""
        return self._dispatcher.table().digest

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Call a tool. Whatever is wrong becomes a tool error in one sentence."""
        try:
            return _presented(await self._dispatcher.call(params.name, self._call(context, params)))
        except SubagentError as error:
            return _refused(error.sentence)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a call: the server stays alive
            traceback.print_exc(file=sys.stderr)
            return _refused(
                f"{params.name} met a fault of the server's own ({type(error).__name__}); "
                "its stderr has the details: please report it."
            )

    def _call(self, context: Context, params: types.CallToolRequestParams) -> Call:
        client = context.session.client_params
        name = client.client_info.name if client is not None and client.client_info is not None else None
        longest = longest_wait_seconds(name, self._settings.max_wait_seconds)

        async def progress(elapsed: float, run_ids: Collection[str]) -> None:
            words = await asyncio.to_thread(progress_words, self._store, run_ids)
            await context.session.report_progress(elapsed, None, words)

        beside = partial(self._log_notifier.beside, context)
        call = Call(_arguments(params), longest, progress, beside, name)
        if isinstance(request := context.request, Request):
            call.http_url = str(request.base_url)
        return call


def _tool(spec: ToolSpec) -> types.Tool:
    """Return a tool as the protocol describes it.

    `anthropic/alwaysLoad` keeps a tool in sight of a client that hides tools until they are searched for.
    Hiding costs a call. It is asked for in so many words: `subagent init` tells Claude Code to show all tools
    of this server but those that say no, as its first turn waits for no other server.
    """
    hints = spec.hints
    return types.Tool(
        name=spec.name,
        title=spec.title,
        description=spec.description,
        input_schema=spec.shown_arguments,
        output_schema=None if spec.answer is None else spec.answer(),
        annotations=types.ToolAnnotations(
            read_only_hint=hints.read_only,
            destructive_hint=hints.destructive,
            idempotent_hint=hints.idempotent,
            open_world_hint=hints.open_world,
        ),
        meta={"anthropic/alwaysLoad": spec.in_sight},
    )


def longest_wait_seconds(client_name: str | None, maximum: float | None) -> float:
    """Return the longest wait for a client, in seconds; `maximum` (`--max-wait`) overrules it."""
    if maximum is not None:
        return maximum
    for start, seconds in WAIT_SECONDS.items():
        if client_name is not None and client_name.lower().startswith(start):
            return seconds
    return DEFAULT_WAIT_SECONDS


def _arguments(params: types.CallToolRequestParams) -> dict[str, Any]:
    return {name: value for name, value in (params.arguments or {}).items() if name not in ADDED_BY_CLIENTS}


def _presented(answer: Answer) -> types.CallToolResult:
    shown = answer[LIST] if answer.keys() == {LIST} else answer
    text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content=answer
    )


def _refused(sentence: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=sentence)], is_error=True)
