"""Review every changed file side by side, and keep the findings that a vote confirms."""

import subprocess
from typing import Literal, TypedDict

from subagent import agents, gather, log, phase

AGENTS = ["critic", "judge"]
LIMITS = {"budgetUsd": "5.00", "timeoutSeconds": 3600}


class Finding(TypedDict):
    file: str
    problem: str
    severity: Literal["low", "medium", "high"]
    votes: int


def run(files: list[str] | None = None, since: str = "HEAD~1", votes: int = 3) -> list[Finding]:
    if files is None:
        command = ["git", "diff", "--name-only", "--diff-filter=d", since]
        files = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    phase("review")
    calls = [agents.critic.call(prompt=f"Review {file}.", inputs=[file], label=file) for file in files]
    found = gather(*calls, limit=8)
    phase("vote")
    kept: list[Finding] = []
    for file, finding in zip(files, found, strict=True):
        prompt = f"{file}: {finding['problem']}"
        verdicts = gather(*[agents.judge.call(prompt=prompt, inputs=[file]) for _ in range(votes)])
        yes = sum(verdict["holds"] for verdict in verdicts)
        if 2 * yes > votes:
            kept.append(
                {"file": file, "problem": finding["problem"], "severity": finding["severity"], "votes": yes}
            )
    log(f"{len(kept)} of {len(files)} findings hold")
    return kept
