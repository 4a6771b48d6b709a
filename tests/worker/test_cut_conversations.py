"""A conversation whose files were cut anywhere goes on as one that the API takes, and nothing is made up."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from subagent_server.extensions.simulator import Simulator
from subagent_server.loop.loop import Loop
from subagent_server.loop.model import Model, ModelSettings
from subagent_server.loop.resume import NOT_BEGUN, UNKNOWN, Opening, Resumed, calls_of, resume, sendable
from subagent_server.run import processes, transitions
from subagent_server.run.history import PreviousRun
from subagent_server.run.journal import RunJournal, Transcript
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import Failure, LaunchInfo
from subagent_server.run.store import RunStore
from subagent_server.worker.previous_run import read_previous_runs
from tests.helpers.api_checks import check_messages
from tests.helpers.pace import Alone
from tests.helpers.runs import RUN_ID, STARTED, T0, start_run
from tests.helpers.scale import times
from tests.helpers.turns import calls, says, use
from tests.loop.scripted_run import ScriptedRun, ScriptedTool, echo

MODEL = "claude-test"
TURNS = [
    {**calls(use("work", what="one"), use("work", what="two"), text="Both."), "thinking": "Two at once: ü."},
    {**calls(use("ordered", what="three"), use("ordered", what="four"), use("no")), "thinking": "On."},
    says("All done."),
]


class WrittenRun(ScriptedRun):
    """A run whose files are real. `written` has the sizes of transcript and journal after each step."""

    def __init__(self, run: RunPaths) -> None:
        super().__init__()
        self.begun: list[str] = []
        self.written: list[tuple[int, int]] = [(0, 0)]
        self._run = run
        self._journal, self._transcript = RunJournal(run), Transcript(run)

    def record(self, kind: str, **facts: Any) -> None:
        self._journal.append(kind, T0, facts)
        self._note()

    def remember(self, message: dict[str, Any], stop_reason: str | None = None) -> None:
        self._transcript.append(message | {"stopReason": stop_reason})
        self._note()

    def _note(self) -> None:
        self.written.append((_size(self._run.transcript.path), _size(self._run.events.path)))


def _cut(path: Path, whole: bytes, size: int) -> None:
    """Leave so many bytes of a file. Cheap if it only shrinks: overwriting waits for the disk."""
    if _size(path) < size:
        path.unlink()
        path.write_bytes(whole)
    os.truncate(path, size)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class Recorded:
    """A run that has worked to its end, and its files as a cut leaves them."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.run = store.paths.run(RUN_ID)
        here = LaunchInfo(host=processes.host_name(), boot_id=processes.boot_id())
        start_run(store, RUN_ID, STARTED, launch=here)
        self.writer = WrittenRun(self.run)
        with Simulator({"turns": TURNS}) as simulator:
            asyncio.run(self._work(simulator.base_url))
        failure = Failure(code="crashed", message="It was killed.")
        store.update(RUN_ID, transitions.RunFailed(failure=failure), T0)
        self.transcript = self.run.transcript.path.read_bytes()
        self.journal = self.run.events.path.read_bytes()

    async def _work(self, base_url: str) -> None:
        tools = [ScriptedTool("work", echo), ScriptedTool("ordered", echo, sequential=True)]
        model = Model(ModelSettings(model=MODEL, api_key="key", base_url=base_url), Alone())
        loop = Loop(self.writer, model, [{"type": "text", "text": "Work."}], tools, 10)
        first = {"role": "user", "content": [{"type": "text", "text": "Look at it."}]}
        self.writer.record("run_started", model=MODEL)
        self.writer.remember(first)
        try:
            assert (await loop.work([first])).text == "All done."
        finally:
            await model.aclose()

    def resumed(self, transcript: int, journal: int, **opening: Any) -> Resumed:
        """Return the conversation as it is carried on when so many bytes of the files are left."""
        _cut(self.run.transcript.path, self.transcript, transcript)
        _cut(self.run.events.path, self.journal, journal)
        return self.carried_on(read_previous_runs(self.store, RUN_ID), **opening)

    def carried_on(self, past: list[PreviousRun], **opening: Any) -> Resumed:
        """Return the conversation as it is carried on, after the API has been asked whether it takes it."""
        found = asyncio.run(resume(past, Opening(**{"words": [], "model": MODEL, **opening})))
        check_messages(sendable(found.messages), allow_prefill=found.outcome is not None)
        return found

    def moments(self) -> Iterator[tuple[int, int]]:
        """Yield the sizes of both files at each byte that was written, the last one first."""
        steps = self.writer.written
        yield steps[-1]
        for before, after in zip(steps[-2::-1], steps[:0:-1], strict=True):
            yield from ((after[0], size) for size in reversed(range(before[1], after[1])))
            yield from ((size, before[1]) for size in reversed(range(before[0], after[0])))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """A run with thoughts, calls at the same time, calls in order, and one of a tool that is not there."""
    home = tmp_path_factory.mktemp("recorded")
    yield Recorded(RunStore(home / "runs"))
    shutil.rmtree(home)


def results_of(resumed: Resumed) -> dict[str, str]:
    """Return the text of each result by the id of its call."""
    blocks = (block for m in resumed.messages if m["role"] == "user" for block in m["content"])
    return {b["tool_use_id"]: b["content"][0]["text"] for b in blocks if b["type"] == "tool_result"}


def test_after_a_kill_at_any_byte_each_call_has_its_result_or_is_reported_as_not_begun_or_unknown(
    recorded: Recorded,
) -> None:
    complete = results_of(recorded.resumed(*recorded.writer.written[-1]))
    counts = dict.fromkeys(("given", "not begun", "unknown"), 0)
    for transcript, journal in list(recorded.moments())[:: times(9, 1)]:
        resumed = recorded.resumed(transcript, journal)
        written = recorded.journal[:journal]
        assert "lost" not in str(resumed.messages)
        for call_id, text in results_of(resumed).items():
            begun = f'"type":"tool_call","toolCallId":"{call_id}"'.encode() in written
            if text == complete[call_id]:
                counts["given"] += 1
            elif text == NOT_BEGUN:
                counts["not begun"] += 1
                assert not _whole_line(written, call_id, "tool_call")
            else:
                counts["unknown"] += 1
                assert text.startswith(UNKNOWN) and begun
                assert not _whole_line(written, call_id, "tool_result")
        known = {block["id"] for message in resumed.messages for block in _calls(message)}
        assert known == set(results_of(resumed))
    assert all(counts.values()), counts


def test_files_cut_independently_give_a_conversation_that_reports_calls_whose_messages_are_lost(
    recorded: Recorded,
) -> None:
    whole = len(recorded.transcript), len(recorded.journal)
    for size in reversed(range(0, whole[0], times(9, 1))):
        found = recorded.resumed(size, whole[1])
        assert found.messages[0]["content"][0]["text"] == "Look at it."
        said = str(found.messages)
        assert all(word in said for word in ("one", "two", "three", "four")), "no call is forgotten"
    for size in reversed(range(0, whole[1], times(9, 1))):
        assert recorded.resumed(whole[0], size).outcome is not None, (
            "a message in the transcript needs no journal"
        )


def test_a_last_message_that_was_written_ends_the_run_with_it_and_a_new_prompt_goes_on_after_it(
    recorded: Recorded,
) -> None:
    whole = len(recorded.transcript), len(recorded.journal)
    found = recorded.resumed(*whole)
    assert found.outcome is not None and found.outcome.text == "All done."
    transcript = recorded.run.transcript.path
    transcript.write_bytes(recorded.transcript.replace(b"All done.", b"All done.\\n[CONTRACT COMPLETE]"))
    found = recorded.carried_on(read_previous_runs(recorded.store, RUN_ID), by_contract=True)
    assert found.outcome is not None and found.outcome.text == found.outcome.summary == "All done."
    transcript.write_bytes(recorded.transcript)
    words = [{"type": "text", "text": "And now?"}]
    found = recorded.resumed(*whole, words=words)
    assert found.outcome is None and found.messages[-1] == {"role": "user", "content": words}
    thinks = {
        model: "'signature'" in str(recorded.resumed(*whole, model=model).messages)
        for model in (MODEL, "another")
    }
    assert thinks == {MODEL: True, "another": False}, "no other model takes the thoughts of one"


def test_after_a_restart_of_the_machine_a_call_that_seems_not_begun_is_unknown(recorded: Recorded) -> None:
    second_line = recorded.transcript.index(b"\n", recorded.transcript.index(b"\n") + 1) + 1
    assert set(results_of(recorded.resumed(second_line, 0)).values()) == {NOT_BEGUN}
    (past,) = read_previous_runs(recorded.store, RUN_ID)
    restarted = recorded.carried_on([replace(past, tells_all=False)])
    assert set(results_of(restarted).values()) == {UNKNOWN} and len(restarted.unknown) == 2


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    return calls_of(message) if message["role"] == "assistant" else []


def _whole_line(written: bytes, call_id: str, kind: str) -> bool:
    start = f'"type":"{kind}","toolCallId":"{call_id}"'.encode()
    at = written.find(start)
    return at >= 0 and b"\n" in written[at:]
