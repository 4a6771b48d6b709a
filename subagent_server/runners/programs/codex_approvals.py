"""The approvals that Codex asks for, as questions to the parent or a person."""

from typing import Any

from subagent_server.runners.programs.codex_items import PATCH, SHELL, CodexItems, mcp_tool
from subagent_server.runners.programs.events import ProgramEvents
from subagent_server.runners.programs.json_rpc import NO_METHOD, Message, ProtocolError, members, text_of
from subagent_server.toolkit.permission import Permissions


class CodexApprovals:
    """Answers the requests of Codex."""

    def __init__(self, items: CodexItems, events: ProgramEvents, permissions: Permissions) -> None:
        self._items = items
        self._events = events
        self._permissions = permissions

    async def answer(self, method: str, params: Message) -> Message:
        """Answer a request of Codex: its approvals are questions to the parent or a person."""
        why = text_of(params.get("reason"))
        match method:
            case "item/commandExecution/requestApproval":
                asked = {"command": params.get("command"), "cwd": params.get("cwd")}
                return {"decision": await self._decision(SHELL, asked, why)}
            case "item/fileChange/requestApproval":
                paths = self._items.changes.get(text_of(params.get("itemId")), [])
                root = {"grantRoot": params["grantRoot"]} if params.get("grantRoot") else {}
                return {"decision": await self._decision(PATCH, {"paths": paths, **root}, why)}
            case "item/permissions/requestApproval":
                wanted = members(params.get("permissions"))
                granted = await self._decision("more permissions", wanted, why) == "accept"
                return {"permissions": wanted if granted else {}, "scope": "turn"}
            case "mcpServer/elicitation/request":
                return await self._elicited(params)
            case _:
                self._events.warn(f"Codex asked for {method}, which nobody can answer here.")
                raise ProtocolError(NO_METHOD, "Nobody can answer this here; use the tool ask_parent.")

    async def _elicited(self, params: Message) -> Message:
        meta = members(params.get("_meta"))
        server = text_of(params.get("serverName"))
        if meta.get("codex_approval_kind") != "mcp_tool_call":
            self._events.warn(f"The MCP server {server} asked a person for something, which was declined.")
            return {"action": "decline"}
        tool = mcp_tool(server, text_of(meta.get("tool_name")))
        decision = await self._decision(tool, meta.get("tool_params"), "")
        return {"action": decision, "content": {}}

    async def _decision(self, tool: str, arguments: Any, why: str) -> str:
        permission = await self._permissions.ask(tool, arguments, why)
        return "accept" if permission.allowed else "decline"
