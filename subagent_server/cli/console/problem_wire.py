"""What is wrong with an agent file, for programs: `agents --json` and `doctor --json` say it alike."""

from typing import Any

from subagent_server.catalog.problems import Problem


def problem_wire(problem: Problem) -> dict[str, Any]:
    """Return the JSON object of a problem."""
    return {
        "file": str(problem.path),
        "line": problem.line,
        "kind": problem.kind,
        "reason": problem.reason,
        "agent": problem.agent,
    }
