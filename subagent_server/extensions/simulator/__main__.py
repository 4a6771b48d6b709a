"""`python -m subagent_server.extensions.simulator SCRIPT [--port N] [--record FILE]`, until a signal."""

import argparse
import signal
import sys
from pathlib import Path

from subagent_server.extensions.simulator.model_server import Simulator
from subagent_server.run.errors import CallerError, SubagentError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_USAGE, _ENVIRONMENT = 2, 6


def main(arguments: list[str] | None = None) -> int:
    """Serve a script; print `listening on URL` when ready. Returns 0, 2 (bad script) or 6 (machine)."""
    options = _parser().parse_args(arguments)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # before any thread, so that they reach `sigwait`
    try:
        with Simulator(options.script, options.port, options.record) as simulator:
            print(f"listening on {simulator.base_url}", flush=True)
            signal.sigwait(_SIGNALS)
    except SubagentError as error:
        print(error.sentence, file=sys.stderr)
        return _USAGE if isinstance(error, CallerError) else _ENVIRONMENT
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m subagent_server.extensions.simulator",
        description="Play a scripted Messages API on loopback.",
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="a YAML or JSON file")
    parser.add_argument("--port", type=int, default=0, help="0, the default, picks a free one")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append every request as a line of JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
