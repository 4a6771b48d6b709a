"""The words of a progress notification: what the awaited runs do now, on one line.

Tested in `tests/server/test_wait_for_runs.py`.
"""

from collections.abc import Iterable

from subagent_server.domain.errors import SubagentError
from subagent_server.domain.limits import cut
from subagent_server.domain.records import RunMeta
from subagent_server.domain.states import Status
from subagent_server.domain.visible import visible
from subagent_server.service.run_row import elapsed_seconds, waits_for_slot
from subagent_server.store.latest import latest_step
from subagent_server.store.runs import RunStore

MAX_SHOWN_RUNS = 3
MAX_NAME_CHARACTERS = 40
MAX_STEP_CHARACTERS = 120


def progress_words(store: RunStore, run_ids: Iterable[str]) -> str:
    """Return what these runs do, as far as they can be read; runs that have ended are left out."""
    metas = [meta for run_id in sorted(run_ids) if (meta := _at_work(store, run_id)) is not None]
    if not metas:
        return "still waiting"
    told = [_words(store, meta) for meta in metas[:MAX_SHOWN_RUNS]]
    if len(metas) == 1:
        return told[0]
    more = [f"and {len(metas) - len(told)} more"] if len(metas) > len(told) else []
    return f"{len(metas)} at work: {'; '.join([*told, *more])}"


def _at_work(store: RunStore, run_id: str) -> RunMeta | None:
    try:
        meta = store.read(run_id)
    except SubagentError:
        return None  # the answer of the call says so
    return None if meta.status.is_terminal else meta


def _words(store: RunStore, meta: RunMeta) -> str:
    name = _line(meta.agent_name, MAX_NAME_CHARACTERS)
    if meta.label:
        name += f" ({_line(meta.label, MAX_NAME_CHARACTERS)})"
    seconds = elapsed_seconds(meta.created_at, None)
    return f"{name}, {seconds:.0f} s{_step(store, meta)}"


def _step(store: RunStore, meta: RunMeta) -> str:
    """Return what a run does: its question, its place in the line, or the last step in its journal."""
    if meta.pending:
        return f": asks {_line(meta.pending[0].question_content, MAX_STEP_CHARACTERS)}"
    if meta.status is Status.READY:
        waits = waits_for_slot(store.paths, meta.run_id, meta.status)
        return ": waits for a slot" if waits else ": is being started"
    turn, words = latest_step(store.paths.run(meta.run_id))
    step = "" if turn is None else f", turn {turn}"
    return f"{step}: {_line(words, MAX_STEP_CHARACTERS)}" if words else step


def _line(text: str, most: int) -> str:
    """Return the beginning of a text that anybody may have written, on one line."""
    return cut(visible(cut(" ".join(text[: 2 * most].split()), most)), most)
