"""`python -m tests.soak --rounds N --seed N`: exit code 0, or 1 with the list of what should not be."""

import argparse
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.soak.soak import Plan, soak


def main(arguments: list[str] | None = None) -> int:
    """Run one soak and print what came of it. Its directory is kept where something was found."""
    options = _parser().parse_args(arguments)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"soak: seed {seed}, {options.rounds} rounds", flush=True)
    home = Path(tempfile.mkdtemp(prefix="subagent-soak-"))
    verdict = soak(Plan(seed=seed, rounds=options.rounds, readers=options.readers), home)
    print(verdict.report())
    if verdict.findings:
        print(f"everything is in {home}; the same dice again: make soak ROUNDS={options.rounds} SEED={seed}")
        return 1
    shutil.rmtree(home)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Kill at random and judge.")
    parser.add_argument("--rounds", type=int, default=60, help="how many kills from outside (default 60)")
    parser.add_argument("--seed", type=int, default=None, help="of all dice; a random one is printed")
    parser.add_argument("--readers", type=int, default=1, help="who only look; 0 is a machine nobody watches")
    return parser


if __name__ == "__main__":
    sys.exit(main())
