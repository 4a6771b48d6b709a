"""`python -m subagent_server` is `subagent`."""

import os
import sys


def main() -> int:
    """Run the command line of this process and return its exit code."""
    try:
        from subagent_server.cli import main as command_line  # here, because a full machine fails in imports

        return command_line()
    except Exception as error:
        from subagent_server.run.stderr import lack_of_room

        sentence = lack_of_room(error)
        if sentence is None:
            raise
        os.write(2, f"subagent: {sentence}\n".encode())
        return 6  # `ExitCode.ENVIRONMENT`, which may not be loaded


if __name__ == "__main__":
    sys.exit(main())
