"""The connection of one client: its handlers put together, and the protocol server around them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from subagent_server import __version__
from subagent_server.domain.visible import visible
from subagent_server.server.log_notifier import LogNotifier
from subagent_server.server.notifications import (
    Background,
    ClientNotices,
    ResourceWatch,
    SubscriptionHandlers,
    ToolWatch,
    is_modern,
)
from subagent_server.server.resources import ResourceHandlers
from subagent_server.server.tools import ToolHandlers
from subagent_server.service.access import Caller
from subagent_server.service.agent_changes import AgentChanges
from subagent_server.service.changes import Changes
from subagent_server.service.context import Service
from subagent_server.service.tools.table import ToolTables
from subagent_server.settings import Role

Context = ServerRequestContext[Any, Any]
Params = TypeVar("Params")
Result = TypeVar("Result")

PARENT_INSTRUCTIONS = (
    "Hand focused work to subagents: run_<agent> (of many: run_agent, with a name from list_agents) "
    "starts one and returns a runId at once, or its result with waitSeconds (default 0; cut to your "
    "client's timeout). It sees only prompt and inputs (file paths, relative to cwd), and works in cwd if "
    "that is given. For several at once start all in one turn, each with a label, then wait_for_runs. When a "
    "view shows an open question, "
    "answer it with reply_subagent. Wait with waitSeconds or wait_for_runs instead of polling. Runs go on"
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
LEFT = (
    "The server left before this call was answered. Runs go on: look with list_runs before you call again, "
    "or start anything again."
)
MAX_AT_WORK = 128
"""How many requests may have no answer, or one that nobody has read, beside those that wait for runs."""
MAX_FAULTS = 5
MAX_NAME_CHARACTERS = 80
_ENVELOPE = ("params", "_meta")
"""Checked before the parameters are; the model of a newer request asks for it once more."""
_NOT_YET_INITIALIZED = ""
"""The data of the error that the SDK has for a request before the handshake."""
FIXED_TTL_MS = 3_600_000
"""The server's description of itself stays; lists change at any time, so they go stale at once."""


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
        self.count_unanswered: Callable[[], int] = lambda: 0
        """How many requests have no answer, or not all of it: set by what reads and writes them."""
        self.log_notifier = LogNotifier(service, changes, caller, background)
        self.tools = ToolHandlers(service, changes, role, caller, self.log_notifier, shared.tables)
        self.resources = ResourceHandlers(service, caller)
        self.subscriptions = SubscriptionHandlers(
            ResourceWatch(service, changes, caller, notices, background),
            ToolWatch(service.registry, shared.agents, self.tools.digest, notices, background),
            notices,
        )
        self.instructions = _instructions(service, role, may_delegate=self.tools.may_delegate)
        self.tools_may_change = bool(service.registry.directories)

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
        return self.count_unanswered() - self.tools.waiting - self.subscriptions.listening

    def read_ahead(self) -> None:
        """Begin to read the agent files: the first list of the tools finds them read, or being read."""
        self._background.start(asyncio.to_thread(self.tools.digest))

    async def list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Return a page of the tools as they are now."""
        result, digest = await self.tools.page(None if params is None else params.cursor)
        await self.subscriptions.listed_tools(context, digest)
        return result

    async def list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """Return the resources as they are now."""
        await self.subscriptions.listed_resources(context)
        return await self.resources.list_resources(context, params)

    def close(self) -> None:
        """End what goes on beside its calls: the client has gone."""
        self._background.close()


def _instructions(service: Service, role: Role, *, may_delegate: bool) -> str:
    offers_contracts = role != "child" and service.settings.contract_model is not None
    parts = {
        CHILD_INSTRUCTIONS: role == "child",
        PARENT_INSTRUCTIONS: may_delegate,
        LIFECYCLE_INSTRUCTIONS: offers_contracts,
    }
    return " ".join(text for text, is_wanted in parts.items() if is_wanted)


class ProtocolServer(Server[Any]):
    """The protocol server. `changing`: the lists whose changes an older client may listen for."""

    changing = NotificationOptions()

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *args: Any, **kwargs: Any
    ) -> InitializationOptions:
        """Return what the handshake tells an older client."""
        return super().create_initialization_options(notification_options or self.changing, *args, **kwargs)


def build_server(find: Callable[[Context], ClientConnection], alike: ClientConnection) -> ProtocolServer:
    """Return the protocol server. `find` gives the connection of a request; all of them are like `alike`."""

    def of(
        pick: Callable[[ClientConnection], Callable[[Context, Params], Awaitable[Result]]],
    ) -> Callable[[Context, Params], Awaitable[Result]]:
        async def handle(context: Context, params: Params) -> Result:
            return await pick(find(context))(context, params)

        return handle

    server = ProtocolServer(
        "subagent-server",
        version=__version__,
        title="Subagents",
        instructions=alike.instructions,
        cache_hints={"server/discover": CacheHint(FIXED_TTL_MS, "private")},
        on_list_tools=of(lambda client: client.list_tools),
        on_call_tool=of(lambda client: client.tools.call_tool),
        on_list_resources=of(lambda client: client.list_resources),
        on_list_resource_templates=of(lambda client: client.resources.list_templates),
        on_read_resource=of(lambda client: client.resources.read),
        on_subscribe_resource=of(lambda client: client.subscriptions.subscribe),
        on_unsubscribe_resource=of(lambda client: client.subscriptions.unsubscribe),
        on_subscriptions_listen=of(lambda client: client.subscriptions.listen),
    )
    server.changing = NotificationOptions(tools_changed=alike.tools_may_change, resources_changed=True)
    server.middleware += [explain_bad_parameters, refuse_second_initialize]
    # Not by the constructor, which warns on stderr of what only newer clients do without.
    server.add_request_handler(
        "logging/setLevel", types.SetLevelRequestParams, of(lambda client: client.log_notifier.set_level)
    )
    return server


# -- requests that the protocol refuses: the error says which parameter to mend, or which order to keep


async def explain_bad_parameters(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Pass a message on, and name the parameter to mend if the protocol refuses it.

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
    if ctx.method == "initialize" and not is_modern(ctx) and ctx.session.client_params is not None:
        raise MCPError(types.INVALID_REQUEST, "The connection is initialized already: go on with it.")
    return await call_next(ctx)


def _explained(method: str, error: ValidationError) -> MCPError:
    """Return the error of the protocol. It repeats no value: a value may be long, or a secret."""
    every = error.errors(include_url=False, include_input=False, include_context=False)
    faults = [
        {"parameter": _name(each["loc"]), "fault": each["msg"]} for each in every if each["loc"] != _ENVELOPE
    ][:MAX_FAULTS]
    said = "; ".join(f"{each['parameter']}: {each['fault']}" for each in faults)
    return MCPError(types.INVALID_PARAMS, f"{method}: {said}: mend this, and send it again.", faults)


def _name(place: tuple[int | str, ...]) -> str:
    return visible(".".join(map(str, place)))[:MAX_NAME_CHARACTERS]
