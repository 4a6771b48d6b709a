"""A server with the fixtures that the conformance suite asks for, behind the product's own HTTP assembly.

`python -m tests.clients.conformance.server PORT` serves it on loopback until it is killed.
"""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

from subagent_server.server.connection import ProtocolServer, explain_bad_parameters, refuse_second_initialize
from subagent_server.server.http import HttpServer, McpSessions, OpenCalls, assemble
from subagent_server.server.sockets import HttpDoor, Proxies
from tests.clients.conformance.documents import (
    PROMPT_ARGUMENTS,
    RESOURCES,
    TEMPLATE,
    TOOL_CONTENTS,
    prompt,
    resource,
    text,
)
from tests.clients.conformance.inputs import ROUNDS, next_round

Context = ServerRequestContext[Any, Any]
Tool = Callable[[Context, dict[str, Any]], Awaitable[str]]
PAUSE_SECONDS = 0.05
"""The pause between notifications that the suite asks for."""
_bus = InMemorySubscriptionBus()


async def _log(context: Context, arguments: dict[str, Any]) -> str:
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await context.session.send_log_message("info", words, related_request_id=context.request_id)
        await asyncio.sleep(PAUSE_SECONDS)
    return "It was logged."


async def _progress(context: Context, arguments: dict[str, Any]) -> str:
    for progress in (0, 50, 100):
        await context.session.report_progress(progress, 100, f"Completed step {progress} of 100")
        await asyncio.sleep(PAUSE_SECONDS)
    return "It was reported."


async def _sampling(context: Context, arguments: dict[str, Any]) -> str:
    said = types.SamplingMessage(role="user", content=text(arguments["prompt"]))
    reply = await context.session.create_message(
        [said], max_tokens=100, related_request_id=context.request_id
    )
    return f"LLM response: {getattr(reply.content, 'text', '')}"


async def _elicited(context: Context, message: str, properties: dict[str, Any]) -> str:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    reply = await context.session.elicit_form(message, schema, context.request_id)
    return f"action={reply.action}, content={reply.content}"


async def _elicitation(context: Context, arguments: dict[str, Any]) -> str:
    words = {"type": "string"}
    said = await _elicited(context, arguments["message"], {"username": words, "email": words})
    return f"User response: {said}"


async def _defaults(context: Context, arguments: dict[str, Any]) -> str:
    properties = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return f"Elicitation completed: {await _elicited(context, 'Say who you are.', properties)}"


async def _enums(context: Context, arguments: dict[str, Any]) -> str:
    names = ["one", "two", "three"]
    titled = [{"const": name, "title": name.title()} for name in names]
    properties = {
        "untitledSingle": {"type": "string", "enum": names},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": names, "enumNames": [name.title() for name in names]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": names}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return f"Elicitation completed: {await _elicited(context, 'Choose.', properties)}"


async def _fail(context: Context, arguments: dict[str, Any]) -> str:
    raise ValueError("This tool fails so that it can be tested.")


async def _reconnect(context: Context, arguments: dict[str, Any]) -> str:
    if context.close_sse_stream is not None:
        await context.close_sse_stream()
    await asyncio.sleep(2 * PAUSE_SECONDS)
    return "The stream was closed in the middle of this call."


async def _need_sampling(context: Context, arguments: dict[str, Any]) -> str:
    capabilities = context.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        missing: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "This needs sampling.", missing)
    return "It is there."


async def _change_tools(context: Context, arguments: dict[str, Any]) -> str:
    await _bus.publish(ToolsListChanged())
    return "Changed."


async def _change_prompts(context: Context, arguments: dict[str, Any]) -> str:
    await _bus.publish(PromptsListChanged())
    return "Changed."


TOOLS: dict[str, Tool] = {
    "test_tool_with_logging": _log,
    "test_logging_tool": _log,
    "test_tool_with_progress": _progress,
    "test_sampling": _sampling,
    "test_elicitation": _elicitation,
    "test_elicitation_sep1034_defaults": _defaults,
    "test_elicitation_sep1330_enums": _enums,
    "test_error_handling": _fail,
    "test_reconnection": _reconnect,
    "test_missing_capability": _need_sampling,
    "test_trigger_tool_change": _change_tools,
    "test_trigger_prompt_change": _change_prompts,
}


async def _list_tools(context: Context, params: Any) -> types.ListToolsResult:
    names = [*TOOL_CONTENTS, *TOOLS, *(name for name in ROUNDS if name not in PROMPT_ARGUMENTS)]
    tools = [
        types.Tool(name=name, description="A fixture.", input_schema={"type": "object"}) for name in names
    ]
    return types.ListToolsResult(tools=tools)


async def _call_tool(
    context: Context, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    if params.name in TOOL_CONTENTS:
        return types.CallToolResult(content=TOOL_CONTENTS[params.name])
    if params.name in ROUNDS:
        asked = next_round(params, context.session.client_capabilities)
        return asked or types.CallToolResult(content=[text("Hello, Alice: state-ok.")])
    if params.name not in TOOLS:
        raise MCPError(types.INVALID_PARAMS, f"There is no tool {params.name}.")
    try:
        said = await TOOLS[params.name](context, params.arguments or {})
    except ValueError as error:
        return types.CallToolResult(content=[text(str(error))], is_error=True)
    return types.CallToolResult(content=[text(said)])


async def _list_resources(context: Context, params: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult(
        resources=[
            types.Resource(uri=uri, name=uri, mime_type=each.mime_type) for uri, each in RESOURCES.items()
        ]
    )


async def _list_templates(context: Context, params: Any) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(uri_template=TEMPLATE, name="template", mime_type="application/json")
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def _read(context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    found = resource(params.uri)
    if found is None:
        raise MCPError(types.INVALID_PARAMS, f"There is no resource {params.uri}.", {"uri": params.uri})
    return types.ReadResourceResult(contents=[found])


async def _accept(context: Context, params: Any) -> types.EmptyResult:
    return types.EmptyResult()


async def _list_prompts(context: Context, params: Any) -> types.ListPromptsResult:
    return types.ListPromptsResult(
        prompts=[
            types.Prompt(
                name=name,
                description="A fixture.",
                arguments=[types.PromptArgument(name=each, required=True) for each in arguments],
            )
            for name, arguments in PROMPT_ARGUMENTS.items()
        ]
    )


async def _get_prompt(
    context: Context, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    if params.name in ROUNDS and (asked := next_round(params, context.session.client_capabilities)):
        return asked
    said = prompt(params.name, dict(params.arguments or {}))
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=each) for each in said])


async def _complete(context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    return types.CompleteResult(
        completion=types.Completion(values=["paris", "park"], total=2, has_more=False)
    )


def fixture_server() -> ProtocolServer:
    """Return the server with all fixtures."""
    server = ProtocolServer(
        "conformance",
        version="1",
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
        on_list_resources=_list_resources,
        on_list_resource_templates=_list_templates,
        on_read_resource=_read,
        on_subscribe_resource=_accept,
        on_unsubscribe_resource=_accept,
        on_subscriptions_listen=ListenHandler(_bus),
        on_list_prompts=_list_prompts,
        on_get_prompt=_get_prompt,
        on_completion=_complete,
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, _accept)
    server.changing = NotificationOptions(tools_changed=True, prompts_changed=True)
    server.middleware += [
        explain_bad_parameters,
        refuse_second_initialize,
        RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="conformance"),
    ]
    return server


async def serve(port: int) -> None:
    """Serve the fixtures as `subagent serve --http --no-token` serves runs, for ever."""
    server = fixture_server()
    sessions = McpSessions(server)
    server.middleware.insert(0, OpenCalls())
    with socket.create_server(("127.0.0.1", port)) as listener:
        door = HttpDoor(listener, ("127.0.0.1", "localhost"), None, Proxies(frozenset()))
        async with sessions.run():
            await HttpServer(assemble(sessions, door, None)).serve([listener])


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
