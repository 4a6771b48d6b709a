"""What the model reads about programs: how to write one, and the functions it may call. Pure."""

from subagent_server.toolkit.code_mode.calls import Functions

_RULES = """\
Run a program in Python {version}. One program does what would take many tool calls: it loops, filters and \
joins results, and only what it prints comes back to you.

- Write a script (the value of a last expression is shown), or define `run()` or `async def run()`.
- The functions below are tools. Call them with keyword arguments and without `await`; side by side with \
`gather(lambda: f(a=1), lambda: f(a=2))`, which returns the results in order.
- A tool that fails raises `ToolError`. A result of type `Text` is a `str`; `.json()` gives its value.
- Each program is a new process: variables do not last, files do. Nothing can be installed.
- Calls take effect as they are made, also if the program fails later.{ask}
"""
_ASK = """
- `ask_parent(question="...", options=["..."])` asks your parent and returns the answer; no time passes \
meanwhile."""


def described(functions: Functions, version: str, stub_characters: int) -> str:
    """Return the description of the tool, with at most so many characters of stubs."""
    rules = _RULES.format(version=version, ask=_ASK if functions.ask is not None else "")
    text = functions.catalogue.text(stub_characters)
    return f"{rules}\n```python\n{text}\n```" if text else rules
