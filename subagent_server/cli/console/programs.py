"""The programs of a run on a terminal: the code in colours, its calls, its output."""

from typing import Any

from subagent_server.cli.console.colours import coloured, has_colours
from subagent_server.cli.console.text import escape_lines, one_line
from subagent_server.service.kept_programs import KeptProgram
from subagent_server.store.log_format import one_line as arguments_line

_OUTCOMES = {0: ("✔ done", "green"), 1: ("✘ failed", "red"), 2: ("✘ died", "red"), 3: ("✘ torn", "red")}
_UNKNOWN = ("? cut off", "yellow")
_INDENT = "    "


def program_text(program: KeptProgram) -> str:
    """Return one program for people."""
    words, colour = _UNKNOWN if program.outcome is None else _OUTCOMES.get(program.outcome, _UNKNOWN)
    parts = [f"program {program.number}  {coloured(words, colour)}", _highlighted(program.code)]
    ends = {call.get("call"): call for call in program.calls if "isError" in call}
    begun = [call for call in program.calls if "function" in call and "isError" not in call]
    parts += [_call_text(call, ends.get(call.get("call"))) for call in begun]
    parts += [escape_lines(program.output, _INDENT)] if program.output.strip() else []
    return "\n".join(parts)


def _call_text(call: dict[str, Any], end: dict[str, Any] | None) -> str:
    mark = "?" if end is None else "✗" if end.get("isError") else "←"
    brought = "" if end is None else f"  {mark} {one_line(str(end.get('text', '')))[:160]}"
    head = f"→ {call.get('call')}. {call.get('function')} {arguments_line(call.get('arguments'))}"
    return f"{one_line(head)}{brought or '  ? its end is not known'}"


def _highlighted(code: str) -> str:
    """Return the code, escaped, in colours if the terminal has them."""
    text = escape_lines(code.strip("\n"))
    if not has_colours():
        return escape_lines(text, _INDENT)
    from rich.console import Console  # only where it is shown
    from rich.syntax import Syntax

    console = Console(force_terminal=True, color_system="standard", width=10_000)
    with console.capture() as captured:
        console.print(Syntax(text, "python", theme="ansi_dark", background_color="default"), soft_wrap=True)
    return "\n".join(f"{_INDENT}{line.rstrip()}" for line in captured.get().rstrip("\n").split("\n"))
