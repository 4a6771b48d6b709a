"""Agents of any make: a program carries out the run, and speaks its own protocol on its pipes.

How to add a runner:

1. Write a dialect, a file next to `command.py`: a class that keeps `program.Dialect`. It returns how the
   program is started (`launch`), speaks with it until it knows how the run ended (`converse`), and interrupts
   it. It reports all that happens to `program.ProgramEvents`: these become the journal, the log, the preview,
   the usage and the partial result, the same for every program. Before a tool is used that the agent file
   does not allow, it asks `toolbox/run_context.py`.
2. Add a row to `program_runner.py` (its class) and to `extensions/__init__.py`, and its name to
   `run/agent_definition.py` (`RunnerName`).
3. Add a row to `program_checks.py`: the keys of agent files that it can keep, and how it is installed.

Everything else is done for it by `program.ProgramRunner` and `program_runner.py`: the process and its end,
the idle limit, working time, the child's server, the check of a structured result, the sandbox, and the
conversation that is continued. Everything that a program sends is data: a dialect checks the type of each
field that it reads, passes unknown events on by `ProgramEvents.other`, and never judges an end by an exit
code or by a word of success alone.
"""
