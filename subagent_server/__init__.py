"""An MCP server that lets a parent agent hand focused work to subagents and stay in charge of it.

Where to begin reading:

1. `run/states.py`: the statuses of a run and what may follow what; `run/transitions.py`, the one step.
2. `run/store.py`: a run is a directory, and one function writes its state.
3. `verbs/start.py`: a verb checks everything, makes the directory, and has the run started.
4. `process/shim.py` and `worker/supervisor.py`: the two processes of a run, from its slot to one outcome.
5. `server/` and `cli/`: the doors, which parse, call a verb of `verbs/`, and present its answer.

`docs/architecture.md` has the rooms, their floors, and the words.
"""

__version__ = "0.1.0"
