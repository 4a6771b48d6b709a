"""What a scripted model says, in few words: the turns of a simulator's script."""

from itertools import count
from typing import Any

from subagent_server.extensions.simulator.model_request import opaque

Turn = dict[str, Any]


def use(tool: str, **arguments: Any) -> Turn:
    """Return one tool call, for `calls`."""
    return {"name": tool, "input": arguments}


def calls(*uses: Turn, **more: Any) -> Turn:
    """Return a turn that makes these calls at once."""
    return {"tool_use": list(uses), **more}


def call(tool: str, **arguments: Any) -> Turn:
    """Return a turn that makes one call."""
    return calls(use(tool, **arguments))


def says(text: str, **more: Any) -> Turn:
    """Return a turn that ends the work with this text."""
    return {"text": text, **more}


def asks(question: str, *options: str) -> Turn:
    """Return a turn that asks the parent one question."""
    return call("ask_parent", question=question, **({"options": list(options)} if options else {}))


def shell(command: str) -> Turn:
    """Return a turn that runs a command."""
    return call("bash", command=command)


def tool_results(body: Any) -> list[str]:
    """Return the texts of the tool results in the last message of a request."""
    last = body["messages"][-1]["content"]
    results = [block for block in last if block["type"] == "tool_result"]
    return ["".join(part.get("text", "") for part in block["content"]) for block in results]


# -- the tools that the API runs itself

_numbers = count()


def secret_of(url: Any, title: Any) -> str:
    """Return the text of a result that only the API can read, and that has to come back unchanged."""
    return opaque("page", url, title)


def search(query: str, *pages: tuple[str, str], error: str | None = None, seconds: float = 0) -> list[Turn]:
    """Return the blocks of a web search that finds these pages, by address and title."""
    found: Any = [
        {"type": "web_search_result", "url": url, "title": title, "encrypted_content": secret_of(url, title)}
        for url, title in pages
    ]
    if error is not None:
        found = {"type": "web_search_tool_result_error", "error_code": error}
    return _server_call("web_search", {"query": query}, found, seconds)


def fetch(url: str, text: str = "A page.") -> list[Turn]:
    """Return the blocks of the fetch of a page."""
    source = {"type": "text", "media_type": "text/plain", "data": text}
    document = {"type": "document", "source": source, "title": "", "citations": {"enabled": False}}
    page = {"type": "web_fetch_result", "url": url, "content": document}
    return _server_call("web_fetch", {"url": url}, page, 0)


def cites(text: str, url: str, title: str = "") -> Turn:
    """Return a block of text that cites a page."""
    cited = {
        "type": "web_search_result_location",
        "url": url,
        "title": title,
        "cited_text": "",
        "encrypted_index": secret_of(url, title),
    }
    return {"raw": {"type": "text", "text": text, "citations": [cited]}}


def used(**uses: int) -> Turn:
    """Return the usage of a turn in which the API has used its own tools so often."""
    counts = {f"{name}_requests": uses.get(name, 0) for name in ("web_search", "web_fetch")}
    return {"server_tool_use": counts}


def _server_call(name: str, given: Turn, found: Any, seconds: float) -> list[Turn]:
    call_id = f"srvtoolu_{next(_numbers)}"
    result = {"type": f"{name}_tool_result", "tool_use_id": call_id, "content": found}
    return [
        {"raw": {"type": "server_tool_use", "id": call_id, "name": name, "input": given}},
        {"raw": result, "seconds": seconds},
    ]
