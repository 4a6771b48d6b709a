"""Runs as resources: `run://{runId}/meta`, `/log` and `/result`."""

import asyncio
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from subagent_server.domain.errors import CallerError, SubagentError
from subagent_server.server.documents import (
    JSON,
    PLAIN,
    Address,
    Listed,
    list_documents,
    parse_address,
    read_document,
)
from subagent_server.server.protocol_checks import refuse_cursor
from subagent_server.service.access import Caller
from subagent_server.service.context import Service

Context = ServerRequestContext[Any, Any]

FINAL_TTL_MS = 3_600_000
"""How long a client may keep what never changes again."""

TEMPLATES = [
    types.ResourceTemplate(
        uri_template="run://{runId}/meta",
        name="run state",
        title="State of a run",
        description="Everything that is recorded of a run: status, questions, steps, usage.",
        mime_type=JSON,
    ),
    types.ResourceTemplate(
        uri_template="run://{runId}/log",
        name="run log",
        title="Log of a run",
        description="The last page of what a run did.",
        mime_type=PLAIN,
    ),
    types.ResourceTemplate(
        uri_template="run://{runId}/result",
        name="run result",
        title="Result of a run",
        description="The whole result of a run that has ended: text, or JSON where its agent has a schema.",
    ),
]


MAX_URI_CHARACTERS = 1_000
"""How much of an address that names no resource is repeated."""


def refusal(error: SubagentError, data: dict[str, Any] | None = None) -> MCPError:
    """Return the protocol error that says the same as a tool would: the caller's fault, or the machine's."""
    code = types.INVALID_PARAMS if isinstance(error, CallerError) else types.INTERNAL_ERROR
    return MCPError(code, error.sentence, data)


class ResourceHandlers:
    """Lists and reads the documents of the runs that are open to a caller."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service = service
        self._caller = caller

    async def list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """Return the documents of the live runs and of the newest."""
        refuse_cursor("resources/list", params)
        listed = await asyncio.to_thread(list_documents, self._service, self._caller)
        return types.ListResourcesResult(resources=[_resource(item) for item in listed])

    async def list_templates(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """Return the addresses that any run has, listed or not."""
        refuse_cursor("resources/templates/list", params)
        return types.ListResourceTemplatesResult(
            resource_templates=TEMPLATES, ttl_ms=FINAL_TTL_MS, cache_scope="public"
        )

    async def read(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Return a document.

        Raises:
            MCPError: with the sentence that a tool would refuse the same with.
        """
        try:
            address = parse_address(params.uri)
            document = await asyncio.to_thread(read_document, self._service, address, self._caller)
        except SubagentError as error:
            raise refusal(error, {"uri": params.uri[:MAX_URI_CHARACTERS]}) from error
        content = types.TextResourceContents(uri=params.uri, mime_type=document.mime_type, text=document.text)
        return types.ReadResourceResult(
            contents=[content], ttl_ms=FINAL_TTL_MS if document.is_final else 0, cache_scope="private"
        )


def _resource(listed: Listed) -> types.Resource:
    address: Address = listed.address
    return types.Resource(
        uri=str(address),
        name=f"{address.run_id} {address.kind}",
        title=listed.title,
        description=listed.description,
        mime_type=listed.mime_type,
    )
