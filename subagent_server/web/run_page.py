"""Everything about one run that the page shows beside its log."""

import asyncio
import threading
from typing import Any

from subagent_server.domain.errors import SubagentError
from subagent_server.domain.records import RunMeta
from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.service.kept_files import conversation, output_names, read_output
from subagent_server.service.kept_programs import kept_programs
from subagent_server.service.merge_run import run_diff
from subagent_server.service.next_calls import Commands
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import is_over
from subagent_server.service.sandbox_mark import sandbox_mark
from subagent_server.service.stats import stats
from subagent_server.service.views import message_view, run_view
from subagent_server.web.markdown import tree_of

MAX_PROMPT_CHARACTERS = 100_000
MAX_MESSAGES = 500
MAX_BLOCK_CHARACTERS = 20_000
MAX_PROGRAMS = 100
MAX_PROGRAM_CHARACTERS = 100_000
MAX_FILES = 500
MAX_DIFF_CHARACTERS = 400_000
DIFF_SECONDS = 10.0
"""How long git may compare for the page."""

Json = dict[str, Any]


class RunPage:
    """The facts of runs, as JSON objects."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service = service
        self._caller = caller
        self._comparing = threading.Lock()

    async def facts(self, run_id: str) -> Json:
        """Return what the run was asked, how it stands, its questions, and its result as a tree of elements.

        Raises:
            InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
        """
        facts = await asyncio.to_thread(self._facts, run_id)
        result = facts["view"].get("result")
        facts["resultTree"] = await tree_of(result) if result else None
        return facts

    def _facts(self, run_id: str) -> Json:
        store = self._service.store
        observed = open_run(self._service, run_id, self._caller)
        meta, run = observed.meta, store.paths.run(run_id)
        view = run_view(store, observed, Commands(_command), self._caller)
        return {
            "view": view.to_wire(),
            "created": _moment(meta.created_at),
            "ended": _moment(meta.ended_at),
            "over": is_over(run, meta.status, is_marked=run_id in store.live_ids()),
            "parentRunId": meta.parent_run_id,
            "children": store.children_of(run_id),
            "questions": [message_view(each).model_dump(mode="json") for each in meta.messages],
            "sandbox": sandbox_mark(run),
            "request": self._request(meta),
            "programs": run.code.exists(),
            "files": output_names(self._service, run_id)[:MAX_FILES],
            "directory": str(run.directory),
        }

    def _request(self, meta: RunMeta) -> Json:
        try:
            request = self._service.store.read_request(meta.run_id)
        except SubagentError as error:
            return {"error": error.sentence}
        return {
            "prompt": request.prompt[:MAX_PROMPT_CHARACTERS],
            "cwd": request.cwd,
            "inputs": list(request.inputs),
            "model": request.agent.get("model"),
        }

    def conversation(self, run_id: str) -> list[Json]:
        """Return the last messages between the run and its model, long texts cut. Raises as `facts` does."""
        return [_cut(each) for each in conversation(self._service, run_id, MAX_MESSAGES, self._caller)]

    def changes(self, run_id: str) -> Json:
        """Return what a run has changed in its worktree, as a patch that ends with a whole line.

        Only one patch is made at a time, because its cost for git depends on the files of the run.

        Raises:
            NotMerged: it has no worktree.
            GitFailed; and as `facts` does.
        """
        with self._comparing:
            patch = run_diff(self._service, run_id, self._caller, seconds=DIFF_SECONDS)
        if len(patch) <= MAX_DIFF_CHARACTERS:
            return {"diff": patch, "cut": False}
        return {"diff": patch[: patch.rfind("\n", 0, MAX_DIFF_CHARACTERS) + 1], "cut": True}

    def programs(self, run_id: str) -> list[Json]:
        """Return the last programs of code mode with their calls and output. Raises as `facts` does."""
        open_run(self._service, run_id, self._caller)
        programs = list(kept_programs(self._service.store.paths.run(run_id)))[-MAX_PROGRAMS:]
        return [
            program.to_wire()
            | {
                "code": program.code[:MAX_PROGRAM_CHARACTERS],
                "output": program.output[:MAX_PROGRAM_CHARACTERS],
            }
            for program in programs
        ]

    def file(self, run_id: str, name: str) -> bytes:
        """Return a file that a tool has printed. Raises as `facts` does, and BadArgument if it is missing."""
        return read_output(self._service, run_id, name, self._caller)

    def costs(self) -> Json:
        """Return what all runs together have cost, by agent and by day."""
        sums = stats(self._service.store)
        return {
            "total": sums.total.to_wire(),
            "agents": {name: one.to_wire() for name, one in sums.by_agent.items()},
            "days": {day: one.to_wire() for day, one in sums.by_day.items()},
        }


def _command(*words: str) -> str:
    return " ".join(["subagent", *words])


def _moment(value: Any) -> str | None:
    return None if value is None else value.isoformat()


def _cut(value: Any) -> Any:
    """Return JSON with its long texts cut."""
    if isinstance(value, str):
        left = len(value) - MAX_BLOCK_CHARACTERS
        return value if left <= 0 else f"{value[:MAX_BLOCK_CHARACTERS]}\n… {left} characters more"
    if isinstance(value, list):
        return [_cut(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _cut(each) for key, each in value.items()}
    return value
