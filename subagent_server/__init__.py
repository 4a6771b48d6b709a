"""An MCP server that lets a parent agent hand focused work to subagents and stay in charge of it.

Where to begin reading:

1. `domain/states.py`: the statuses of a run and what may follow what; `domain/apply.py`, the one step.
2. `store/runs.py`: a run is a directory, and one function writes its state.
3. `service/start.py`: a verb checks everything, makes the directory, and has the run started.
4. `launch/shim.py` and `worker/life.py`: the two processes of a run, from its slot to exactly one outcome.
5. `server/` and `cli/`: the doors, which parse, call a verb of `service/`, and present its answer.

`docs/architecture.md` has the rooms, the floors on which they stand, and the words.
"""

__version__ = "0.1.0"
