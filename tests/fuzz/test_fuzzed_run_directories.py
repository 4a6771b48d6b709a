"""Run directories in which something else than the store has written: any file, and any kind of file."""

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subagent_server.process.launcher import LocalLauncher
from subagent_server.run.errors import SubagentError
from subagent_server.run.processes import host_tag
from subagent_server.run.store import RunStore
from subagent_server.server.resources import list_documents, parse_address, read_document
from subagent_server.settings import read_settings
from subagent_server.verbs.access import USER
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.examine import examine
from subagent_server.verbs.get_logs import get_logs
from subagent_server.verbs.list_runs import RunList, stats, trees_of
from subagent_server.verbs.questions import open_questions, reply
from subagent_server.verbs.remove import Age, prune, remove
from subagent_server.verbs.service import Service, open_service
from subagent_server.worker.previous_run import read_previous_runs
from tests.faults.canaries import SECRET, Outside, changed
from tests.faults.planted import BASES, SHAPES, write_run
from tests.fuzz.dice import FUZZED, JSON, is_plain, mutated
from tests.helpers.truth import check_status

pytestmark = pytest.mark.fuzz

MUTATED, OTHER = "20260101-mutated", "20261122-other"
HANG_SECONDS = 20
FILES = (
    *("request.json", "run.meta.json", "run.meta.lock", "run.meta.spare", "result.json", "payload.gz"),
    *("events.jsonl", "run.log", "transcript.jsonl", "live.lock", "shim.json", "exit.json", "children"),
    *("inputs", "inputs/01-note.txt", f"wake.{host_tag()}.4711", *["run.meta.json"] * 3),
)
JSON_FILES = tuple(name for name in FILES if name.endswith(".json"))

Change = tuple[str, str, Any]
"""A file, and what becomes of it."""


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """Draw what becomes of one file: other bytes, another value in it, another kind, or nothing at all."""
    kind = draw(st.sampled_from(["bytes", "bytes", "value", "value", "shape", "gone"]))
    if kind == "value":
        return draw(st.sampled_from(JSON_FILES)), kind, (draw(st.integers(0, 60)), draw(odd_values))
    if kind == "shape":
        return draw(st.sampled_from(FILES)), kind, draw(st.sampled_from(sorted(SHAPES)))
    return draw(st.sampled_from(FILES)), kind, draw(st.randoms(use_true_random=False))


odd_values = JSON | st.sampled_from(
    [
        10**400,
        -1,
        1e308,
        float("nan"),
        float("inf"),
        "\ud800",
        "\x1b[31m\u202e",
        "0001-01-01T00:00:00+14:00",
        "x" * 10_000,
    ]
)
"""What a field may hold that nobody expects in it."""


@FUZZED
@given(st.sampled_from(BASES), st.lists(changes(), min_size=1, max_size=3), st.data())
def test_a_mutated_run_gives_right_answers_or_sentences_and_reaches_nothing_outside(
    base: str, made: list[Change], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory(dir=_quick_place()) as name, Outside(Path(name, "outside")) as outside:
        home = Path(name)
        RunStore(home / "runs").make_root()
        run = write_run(home / "runs", MUTATED, base, home)
        write_run(home / "runs", OTHER, "completed", home)
        for change in made:
            _apply(run, change, outside, data)
        before = outside.snapshot()
        with _bounded():
            told = _ask_everything(_service(home))
        assert changed(before, outside.snapshot()) == {}
        assert SECRET not in told


def _ask_everything(service: Service) -> str:
    """Call every verb that reads, then those that remove; return all that they say."""
    store = service.store
    streams = ("log", "events", "result", "payload")
    uris = [f"run://{MUTATED}/{kind}" for kind in ("meta", "log", "result")]
    rows = [row.to_wire() for row in RunList(store).every()]
    assert OTHER in [row["runId"] for row in rows]
    verbs: list[Callable[[], object]] = [
        lambda: rows,
        lambda: check_status(service, MUTATED).to_wire(),
        lambda: check_status(service, MUTATED, "q1").to_wire(),
        *(lambda stream=stream: get_logs(service, MUTATED, stream) for stream in streams),
        *(lambda uri=uri: read_document(service, parse_address(uri), USER) for uri in uris),
        lambda: list_documents(service, USER),
        lambda: trees_of(service, [MUTATED]),
        lambda: open_questions(service, USER),
        lambda: stats(store),
        lambda: list(examine(store, [MUTATED], {"A_KEY": SECRET})),
        lambda: read_previous_runs(store, MUTATED),
        lambda: reply(service, MUTATED, "yes"),
        lambda: stop(service, MUTATED),
        lambda: list(prune(store, Age(), dry_run=True)),
        lambda: remove(store, MUTATED),
    ]
    return "\n".join(_said(verb) for verb in verbs)


def _said(verb: Callable[[], object]) -> str:
    try:
        return repr(verb())
    except SubagentError as error:
        assert is_plain(error.sentence), error.sentence
        return error.sentence


def _apply(run: Path, change: Change, outside: Outside, data: st.DataObject) -> None:
    name, kind, what = change
    path = run / name
    if kind == "shape" and path.parent.is_dir():
        SHAPES[what](path, outside)
    elif kind == "gone" and path.is_file() and not path.is_symlink():
        path.unlink()
    elif path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 20:
        content = path.read_bytes()
        new = data.draw(mutated(content)) if kind == "bytes" else _with_value(content, *what)
        path.write_bytes(new)


def _with_value(content: bytes, number: int, value: Any) -> bytes:
    """Put a value at the place of this number in a JSON document."""
    try:
        document = json.loads(content)
    except ValueError:
        return content
    places = list(_places(document))
    if places:
        holder, key = places[number % len(places)]
        holder[key] = value
    return json.dumps(document).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)


@contextmanager
def _bounded() -> Iterator[None]:
    """Raise in the middle of what never ends: a FIFO that nobody writes into holds a reader for ever."""

    def over(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"not over after {HANG_SECONDS} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _service(home: Path) -> Service:
    environment = {"SUBAGENT_RUNS": str(home / "runs"), "SUBAGENT_WARM": "0"}
    return open_service(read_settings(environment=environment, cwd=home), LocalLauncher())


def _quick_place() -> str | None:
    """A directory in memory, if there is one: 10,000 examples write a million files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
