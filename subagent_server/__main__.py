"""`python -m subagent_server` is `subagent`."""

import os
import sys


def main() -> int:
    """Run the command line of this process and return its exit code."""
    _open_streams()
    if sys.platform != "linux":  # the modules do not even load: they name what only Linux has
        why = f"It needs Linux, and this is {sys.platform}: use a machine or a container with it, or WSL."
        os.write(2, f"subagent: {why}\n".encode())
        return 6  # `ExitCode.ENVIRONMENT`, which may not be loaded
    try:
        from subagent_server.cli import main as command_line  # here, because a full machine fails in imports

        return command_line()
    except KeyboardInterrupt:  # amid the imports, which take most of the time of a short command
        os.write(2, b"subagent: interrupted.\n")
        return 130  # `ExitCode.INTERRUPTED`
    except Exception as error:
        from subagent_server.run.stderr import lack_of_room

        sentence = lack_of_room(error)
        if sentence is None:
            raise
        os.write(2, f"subagent: {sentence}\n".encode())
        return 6


def _open_streams() -> None:
    """Open what the caller has closed: its number would be that of the next file, and others write into it.

    Before anything is imported: a library that `ctypes` needs opens a file (libffi 3.5).
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


if __name__ == "__main__":
    sys.exit(main())
