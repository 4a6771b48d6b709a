"""`python -m tests.soak --rounds N --seed N`: exit code 0, or 1 with the list of what should not be."""

import argparse
import os
import random
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from _pytest.outcomes import Skipped

from tests.helpers import bubblewrap
from tests.soak.cuts import cut_and_look
from tests.soak.soak import Plan, soak
from tests.soak.trees import DEEDS, GRACE_SECONDS, grown_and_ended

_WIDTH, _CUTS = 5, 5
"""Runs below each of a tree, and power cuts amid worktrees."""


def main() -> int:
    """Run one soak and print what came of it. Its directory is kept where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Kill at random and judge.")
    parser.add_argument("--rounds", type=int, default=60, help="how many kills from outside (default 60)")
    parser.add_argument("--seed", type=int, default=None, help="of all dice; a random one is printed")
    options = parser.parse_args()
    os.environ.update(bubblewrap.settings())  # this process reads runs, too, and settles their worktrees
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"soak: seed {seed}, {options.rounds} rounds", flush=True)
    home = Path(tempfile.mkdtemp(prefix="subagent-soak-"))
    verdict = soak(Plan(seed=seed, rounds=options.rounds), home)
    print(verdict.report())
    verdict.findings += trees(home)
    verdict.findings += cuts(home, seed)
    if verdict.findings:
        print(f"everything is in {home}; the same dice again: make soak ROUNDS={options.rounds} SEED={seed}")
        return 1
    shutil.rmtree(home)
    return 0


def trees(home: Path) -> list[str]:
    """End trees of runs in every way, print how it went, and return what should not be."""
    found: list[str] = []
    for number, (name, deed) in enumerate(DEEDS.items()):
        wrong = grown_and_ended(home / f"tree-{number}", _WIDTH, deed, GRACE_SECONDS + 2)
        print(f"a tree of 1 + {_WIDTH} + {_WIDTH**2} runs, {name}: {len(wrong)} violations", flush=True)
        found += [f"tree, {name}: {each}" for each in wrong]
    for finding in found:
        print(f"VIOLATION {finding}")
    return found


def cuts(home: Path, seed: int) -> list[str]:
    """Cut the power amid worktrees and merges, print how it went, and return what should not be."""
    chance = random.Random(f"{seed}/cuts")
    found: list[str] = []
    ends = merges = 0
    try:
        for each in range(_CUTS):
            wrong, before = cut_and_look(home / f"cut-{each}", chance)
            found += [f"power cut {each}: {what}" for what in wrong]
            ends, merges = ends + len(before.ended), merges + len(before.merged)
    except Skipped as error:
        print(f"no power was cut: {error}", flush=True)
        return found
    print(
        f"{_CUTS} power cuts, {ends} ends and {merges} merges acknowledged: {len(found)} violations",
        flush=True,
    )
    for finding in found:
        print(f"VIOLATION {finding}")
    return found


if __name__ == "__main__":
    sys.exit(main())
