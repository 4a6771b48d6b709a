"""Looks at the last commit from several sides at once, and says what to fix first."""

from subagent import agents, ask, gather, phase

AGENTS = ["looker"]

LOOK = "Look at the last commit (git show HEAD) for {side} only. Name the worst in a sentence."


def run() -> str:
    sides = ["correctness", "clarity", "tests"]
    phase("look")
    found = gather(*[agents.looker.call(prompt=LOOK.format(side=side), label=side) for side in sides])
    first = ask("Which side comes first?", sides)
    phase("judge")
    views = "\n".join(f"{side}: {view}" for side, view in zip(sides, found, strict=True))
    return agents.looker(prompt=f"Say what to fix first, with an eye on {first}.\n{views}", label="judge")
