"""The connection of one client: its handlers put together, and the protocol server around them."""

import asyncio
import json
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError
from starlette.requests import Request

from subagent_server import __version__
from subagent_server.run.errors import HostError, SubagentError, visible
from subagent_server.run.stderr import of_the_system
from subagent_server.server.log_notifier import LogNotifier
from subagent_server.server.notifications import (
    Background,
    ClientNotices,
    ResourceWatch,
    SubscriptionHandlers,
    ToolWatch,
    is_modern,
)
from subagent_server.server.resources import Context, ResourceHandlers, refusal
from subagent_server.settings import Role
from subagent_server.tools.spec import LIST, Answer, Call, ToolSpec, page_of
from subagent_server.tools.tool_table import PAGE_TOOLS, PARENT_TOOLS, ToolDispatcher, ToolTables, tools_of
from subagent_server.verbs.access import Caller
from subagent_server.verbs.service import Service
from subagent_server.verbs.wait_for_runs import AgentChanges, Changes, progress_text

Params = TypeVar("Params")
Result = TypeVar("Result")

PARENT_INSTRUCTIONS = (
    "Hand focused work to subagents: run_<agent> (of many: run_agent, with a name from list_agents) "
    "starts one and returns a runId at once, or its result with waitSeconds (default 0; cut to your "
    "client's timeout). It sees only prompt and inputs (file paths, relative to cwd), and works in cwd if "
    "that is given. For several at once start all in one turn, each with a label, then wait_for_runs. When a "
    "view shows an open question, "
    "answer it with reply_subagent. Wait with waitSeconds or wait_for_runs instead of polling. Runs continue"
    " whatever happens to this server or to a call: after a call that timed out, look with list_runs "
    "before you start it again."
)
CHILD_INSTRUCTIONS = (
    "You are a subagent. Ask your parent with ask_parent what only it can decide; update_status says how far "
    "you are."
)
LIFECYCLE_INSTRUCTIONS = (
    "agent_start(contract) starts an agent without a file and returns its agent_id, which is a runId too; "
    "agent_status looks at several."
)
BASE_URL = "subagent.base_url"
"""The key of a request's scope with what the addresses in its answers begin with, with a slash at the end."""
LEFT = (
    "The server left before this call was answered. Runs continue: look with list_runs before you call "
    "again, or start anything again."
)
DEFAULT_WAIT_SECONDS = 50.0
WAIT_SECONDS = {"claude-code": 1500.0, "codex": 280.0, "gemini-cli": 570.0}
"""How long a call of a client may take before the client cancels it (measured; see `docs/tools.md`)."""
ADDED_BY_CLIENTS = frozenset({"wait_for_previous"})
"""Arguments that a client adds to every tool's schema for itself and passes on all the same: Gemini CLI's."""
THREADS = 32
MAX_AT_WORK = 128
"""Maximum unanswered requests of a client, not counting waits."""
MAX_FAULTS = 5
MAX_NAME_CHARACTERS = 80
_ENVELOPE = ("params", "_meta")
"""Checked before the parameters are; the model of a newer request asks for it once more."""
_NOT_YET_INITIALIZED = ""
"""The data of the error that the SDK has for a request before the handshake."""
FIXED_TTL_MS = 3_600_000
"""The server's description of itself stays; lists change at any time, so they go stale at once."""


def prepare_loop(service: Service) -> None:
    """Prepare the running loop for a server: threads for verbs, children that end, and the zygote."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="verb"))
    loop.add_signal_handler(signal.SIGCHLD, service.launcher.reap)
    loop.call_soon(service.launcher.warm_up)


class SharedByClients:
    """What the connections of a process share: a watch on runs and agent files, and the tables of tools."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self.tables = ToolTables(service, caller)
        self.runs = Changes(service.store)
        self.agents = AgentChanges(service.registry.directories, self.runs.watcher)


class ClientConnection:
    """The connection of one client: its handlers, and the requests that have no answer yet."""

    def __init__(self, service: Service, role: Role, caller: Caller, shared: SharedByClients) -> None:
        background, notices, changes = Background(), ClientNotices(), shared.runs
        self._background = background
        self._store = service.store
        self._max_wait_seconds = service.settings.max_wait_seconds
        self._dispatcher = ToolDispatcher(
            service, changes, caller, tools_of(service, role, caller), shared.tables
        )
        self.count_unanswered: Callable[[], int] = lambda: 0
        """How many requests have no answer, or not all of it: set by what reads and writes them."""
        self.log_notifier = LogNotifier(service, changes, caller, background)
        self.resources = ResourceHandlers(service, caller)
        self.subscriptions = SubscriptionHandlers(
            ResourceWatch(service, changes, caller, notices, background),
            ToolWatch(service.registry, shared.agents, self._digest, notices, background),
            notices,
        )
        may_delegate = set(PARENT_TOOLS) <= set(self._dispatcher.generic)
        self.instructions = _instructions(service, role, may_delegate=may_delegate)
        self.tools_may_change = bool(service.registry.directories)

    @property
    def waiting(self) -> int:
        """How many calls wait for runs."""
        return self._dispatcher.waiting

    @property
    def busy(self) -> bool:
        """Whether a request is being worked on: more have no answer than wait for runs or for changes."""
        return self._at_work > 0

    @property
    def is_full(self) -> bool:
        """Whether no further request is taken before one of those being worked on is answered and read."""
        return self._at_work >= MAX_AT_WORK

    @property
    def _at_work(self) -> int:
        return self.count_unanswered() - self.waiting - self.subscriptions.listening

    def read_ahead(self) -> None:
        """Begin to read the agent files: the first list of the tools finds them read, or being read."""
        self._background.start(asyncio.to_thread(self._digest))

    def _digest(self) -> str:
        """Return a text that differs as soon as a client would be listed other tools. Looks at files."""
        return self._dispatcher.table().digest

    async def list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Return a page of the tools.

        Raises:
            MCPError: the cursor is not of the tools as they are now.
        """
        cursor = None if params is None else params.cursor
        table = await asyncio.to_thread(self._dispatcher.table)
        try:
            page, next_cursor = page_of(table.tools, table.digest, PAGE_TOOLS, cursor)
        except SubagentError as error:
            raise refusal(error) from error
        tools = [_tool(tool) for tool in page]
        await self.subscriptions.listed_tools(context, table.digest)
        return types.ListToolsResult(tools=tools, next_cursor=next_cursor)

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
        arguments = {
            name: value for name, value in (params.arguments or {}).items() if name not in ADDED_BY_CLIENTS
        }
        client = context.session.client_params
        info = None if client is None else client.client_info
        client_name = None if info is None else info.name

        async def progress(elapsed: float, run_ids: Collection[str]) -> None:
            words = await asyncio.to_thread(progress_text, self._store, run_ids)
            await context.session.report_progress(elapsed, None, words)

        call = Call(
            arguments,
            longest_wait_seconds(client_name, self._max_wait_seconds),
            progress,
            partial(self.log_notifier.sending, context),
            client_name,
        )
        if isinstance(request := context.request, Request):
            call.http_url = request.scope[BASE_URL]
            call.has_gone = request.is_disconnected
        return call

    async def list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """Return the resources as they are now."""
        await self.subscriptions.listed_resources(context)
        return await self.resources.list_resources(context, params)

    def close(self) -> None:
        """End the work in the background: the client has gone."""
        self._background.close()


def _tool(spec: ToolSpec) -> types.Tool:
    """Return a tool as the protocol describes it.

    `anthropic/alwaysLoad` keeps a tool in sight of a client that hides tools until they are searched for.
    Hiding costs a call. Each tool sets it, True or False: `subagent init` has Claude Code show all tools of
    this server except those with False, as its first turn waits for no other server.
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


def _presented(answer: Answer) -> types.CallToolResult:
    shown = answer[LIST] if answer.keys() == {LIST} else answer
    # As JavaScript writes it, 2 for 2.0: Qwen Code shows a text besides the structure unless both are equal.
    shown = json.loads(json.dumps(shown), parse_float=_plain_number)
    text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content=answer
    )


def _plain_number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 1e15 else number


def _refused(sentence: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=sentence)], is_error=True)


def _instructions(service: Service, role: Role, *, may_delegate: bool) -> str:
    has_contracts = role != "child" and service.settings.contract_model is not None
    parts = {
        CHILD_INSTRUCTIONS: role == "child",
        PARENT_INSTRUCTIONS: may_delegate,
        LIFECYCLE_INSTRUCTIONS: has_contracts,
    }
    return " ".join(text for text, is_wanted in parts.items() if is_wanted)


class ProtocolServer(Server[Any]):
    """The protocol server. `changing`: the lists whose changes an older client may listen for."""

    changing = NotificationOptions()

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *args: Any, **kwargs: Any
    ) -> InitializationOptions:
        """Return what an older client gets in the handshake."""
        return super().create_initialization_options(notification_options or self.changing, *args, **kwargs)


def build_server(find: Callable[[Context], ClientConnection], sample: ClientConnection) -> ProtocolServer:
    """Return the protocol server. `find` returns the connection of a request; all are like `sample`."""

    def of(
        pick: Callable[[ClientConnection], Callable[[Context, Params], Awaitable[Result]]],
    ) -> Callable[[Context, Params], Awaitable[Result]]:
        async def handle(context: Context, params: Params) -> Result:
            try:
                return await pick(find(context))(context, params)
            except OSError as error:
                raise refusal(HostError(of_the_system(error))) from error

        return handle

    server = ProtocolServer(
        "subagent-server",
        version=__version__,
        title="Subagents",
        instructions=sample.instructions,
        cache_hints={"server/discover": CacheHint(FIXED_TTL_MS, "private")},
        on_list_tools=of(lambda client: client.list_tools),
        on_call_tool=of(lambda client: client.call_tool),
        on_list_resources=of(lambda client: client.list_resources),
        on_list_resource_templates=of(lambda client: client.resources.list_templates),
        on_read_resource=of(lambda client: client.resources.read),
        on_subscribe_resource=of(lambda client: client.subscriptions.subscribe),
        on_unsubscribe_resource=of(lambda client: client.subscriptions.unsubscribe),
        on_subscriptions_listen=of(lambda client: client.subscriptions.listen),
    )
    server.changing = NotificationOptions(tools_changed=sample.tools_may_change, resources_changed=True)
    server.middleware += [explain_bad_parameters, refuse_second_initialize]
    # Not by the constructor, which warns on stderr of what only newer clients do without.
    server.add_request_handler(
        "logging/setLevel", types.SetLevelRequestParams, of(lambda client: client.log_notifier.set_level)
    )
    return server


async def explain_bad_parameters(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Pass a message on, and name the parameter to fix if the protocol refuses it.

    Raises:
        MCPError.
    """
    try:
        return await call_next(ctx)
    except ValidationError as error:
        raise _explained(ctx.method, error) from error
    except MCPError as error:
        if error.code == types.INVALID_PARAMS and error.data == _NOT_YET_INITIALIZED:
            raise MCPError(
                error.code, "The connection is not initialized yet: send initialize first.", "initialize"
            ) from error
        raise


async def refuse_second_initialize(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Pass a message on, unless it would begin a connection of the older era that has begun.

    Raises:
        MCPError.
    """
    is_request = ctx.method == "initialize" and ctx.request_id is not None
    if is_request and not is_modern(ctx) and ctx.session.client_params is not None:
        raise MCPError(types.INVALID_REQUEST, "The connection is initialized already: use it.")
    return await call_next(ctx)


def _explained(method: str, error: ValidationError) -> MCPError:
    """Return the error of the protocol. It repeats no value: a value may be long, or a secret."""
    every = error.errors(include_url=False, include_input=False, include_context=False)
    of_parameters = [each for each in every if each["loc"] != _ENVELOPE] or every
    faults = [
        {"parameter": visible(".".join(map(str, each["loc"])))[:MAX_NAME_CHARACTERS], "fault": each["msg"]}
        for each in of_parameters[:MAX_FAULTS]
    ]
    named = "; ".join(f"{each['parameter']}: {each['fault']}" for each in faults)
    return MCPError(types.INVALID_PARAMS, f"{method}: {named}: fix this, and send it again.", faults)
