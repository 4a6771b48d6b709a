"""The programs that the zygote forks: the shim of a run, which forks its own worker, and the command line."""

from subagent_server.cli import main as command_line
from subagent_server.forkserver.child import ForkedProcess, ForkedProgram
from subagent_server.host import dumpable
from subagent_server.launch import shim
from subagent_server.launch.forked_worker import ForkedWorker
from subagent_server.worker.__main__ import main as worker


def run_shim(process: ForkedProcess, arguments: list[str]) -> int:
    """Supervise a run, as `launch/shim.py` does if it is started plainly."""
    return shim.main(arguments, ForkedWorker(process.title, worker))


def run_command(process: ForkedProcess, arguments: list[str]) -> int:
    """Run a command line, as `subagent` does if it is started plainly."""
    dumpable.let_others_in()  # the zygote is not dumpable, and a program that was just executed is
    return command_line(arguments, leave=process.leave)


PROGRAMS: dict[str, ForkedProgram] = {"shim": run_shim, "command": run_command}
