"""An MCP server of a shop with as many tools as wanted, for `code_tokens.py`. Standard library only.

`python shop_server.py TOOLS`. Three tools answer; the others are there to be listed.
"""

import json
import sys
from typing import Any

ITEMS, OWNERS = 50, 10
_WORDS = "How it is to be done, in the words of the department that asked for it"
_NUMBER = {"type": "integer", "description": "Number of it"}


def tools(count: int) -> list[dict[str, Any]]:
    """Return the definitions of `count` tools, each about as long as those of public servers."""
    listed = [
        _tool("list_items", "List the numbers of all items in the shop, with the numbers of their owners."),
        _tool("list_owners", "List the owners of items, with their names."),
        _tool("get_item", "Return all that is known of an item: owner, price and history.", item=_NUMBER),
    ]
    parts = {f"part_{number}": {"type": "string", "description": _WORDS} for number in range(3)}
    for number in range(count - len(listed)):
        words = f"Change the entries of department {number}; it takes effect on the next day."
        listed.append(_tool(f"update_{number}", words, entry=_NUMBER, **parts))
    return listed


def _tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties][:1]}
    return {"name": name, "description": description, "inputSchema": schema}


def answer(tool: str, arguments: dict[str, Any]) -> Any:
    """Return what a tool finds."""
    if tool == "list_items":
        return [{"item": item, "owner": item % OWNERS} for item in range(ITEMS)]
    if tool == "list_owners":
        return [{"owner": owner, "name": f"Owner number {owner} of the shop"} for owner in range(OWNERS)]
    item = arguments["item"]
    history = ["sold", "bought"] * 9
    return {"item": item, "price": 7 * item % 101, "words": "A thing of many uses. " * 12, "history": history}


def result(method: str, parameters: dict[str, Any], listed: list[dict[str, Any]]) -> Any:
    """Return the answer to a request; None to one that is not known."""
    match method:
        case "initialize":
            server = {"name": "shop", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            return {"tools": listed}
        case "tools/call":
            found = answer(parameters["name"], parameters["arguments"])
            return {"content": [{"type": "text", "text": json.dumps(found)}]}
        case _:
            return None


def main(count: int) -> None:
    """Serve on stdin and stdout."""
    listed = tools(count)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            found = result(message["method"], message.get("params", {}), listed)
            unknown = {"error": {"code": -32601, "message": "unknown"}}
            rest = unknown if found is None else {"result": found}
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **rest}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
