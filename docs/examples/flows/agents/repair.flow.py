"""Fix problems one after the other: each in a worktree, tested there, and merged before the next begins."""

from subagent import agents, ask, merge, phase

AGENTS = ["fixer"]
LIMITS = {"budgetUsd": "10.00", "timeoutSeconds": 7200}


def run(problems: list[str], attempts: int = 2) -> list[str]:
    done: list[str] = []
    for number, problem in enumerate(problems, start=1):
        phase(f"problem {number}")
        for attempt in range(attempts):
            again = "" if attempt == 0 else " An attempt before left the tests red: find out why first."
            call = agents.fixer.start(prompt=f"{problem}{again}", label=f"problem {number}")
            result = call.result()
            if result["passed"]:
                done.append(f"{result['summary']} ({merge(call)})")
                break
        else:
            if ask(f"Nothing has fixed: {problem}. Go on with the others?", ["yes", "no"]) != "yes":
                break
    return done
