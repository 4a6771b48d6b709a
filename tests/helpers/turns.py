"""What a scripted model says, in few words: the turns of a simulator's script."""

from typing import Any

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
