"""Problems of agent files, as `subagent agents` and `subagent doctor` print them."""

from typing import Any

from subagent_server.catalog.problems import Problem
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.text import one_line


def problem_wire(problem: Problem) -> dict[str, Any]:
    """Return the JSON object of a problem."""
    return {
        "file": str(problem.path),
        "line": problem.line,
        "kind": problem.kind,
        "reason": problem.reason,
        "agent": problem.agent,
    }


def problem_line(session: Session, problem: Problem) -> str:
    """Return a problem on one line: file, line number, kind and reason."""
    line = "" if problem.line is None else f":{problem.line}"
    return one_line(f"{session.shown(problem.path)}{line}: {problem.kind}: {problem.reason}")
