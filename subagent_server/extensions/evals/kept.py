"""The log of an evaluation: JSON lines, its facts first, then each trial. `--resume` continues from it.

A log is kept for each evaluation in the state directory of the user, or at the path of `--log`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from subagent_server.agents.yaml_reader import Unreadable, read_text
from subagent_server.extensions.evals.eval_file import BadEvalFile
from subagent_server.extensions.evals.trials import Trial, TrialKey, TrialResult
from subagent_server.run import locks
from subagent_server.run.durable import as_object
from subagent_server.run.errors import CallerError, shorten, storing
from subagent_server.run.files import Entry, held_open

SUFFIX = ".jsonl"
MAX_LOG_BYTES = 64 << 20
"""Some 200,000 trials."""


def logs_of(state: Path, file: Path) -> Path:
    """Return the directory of the logs of an evaluation file."""
    name = blake2b(str(file.resolve()).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    return state / "evals" / f"{file.stem[:40]}-{name}"


def new_log(folder: Path) -> Path:
    """Return the path of a log that begins now; it sorts behind all earlier ones."""
    return folder / f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}{SUFFIX}"


def newest_log(folder: Path) -> Path | None:
    """Return the log of the last evaluation of a file, or None."""
    return max(folder.glob(f"*{SUFFIX}"), default=None)


class AtWork(CallerError):
    """An evaluation that is not over cannot be resumed."""

    code = "wrong_state"


@contextmanager
def held(log: Path) -> Iterator[None]:
    """Hold the log that an evaluation resumes: another one would pay for the same trials.

    Raises:
        AtWork: its evaluation is not over, or another one resumes it.
        StorageFailed.
    """
    with storing(log):
        descriptor = locks.take(Entry.at(log))
    if descriptor is None:
        name = shorten(str(log), 200)
        raise AtWork(f"The evaluation of {name} is still at work: wait for its end, or end it by Ctrl-C.")
    with held_open(descriptor):
        yield


class EvalLog:
    """A log that is being written, and held: every line is complete, whenever the process ends."""

    def __init__(self, path: Path, facts: Mapping[str, Any], before: Iterable[TrialResult]) -> None:
        """Begin a log with the trials that are not repeated. Raises StorageFailed."""
        self.path = path
        begun = path.with_name(f".{path.name}.tmp")  # `path` may be the only log of what is not repeated
        with storing(path):
            # Private, with the directories above: runs refuse a state directory that is open to others.
            for directory in reversed(path.parents):
                directory.mkdir(exist_ok=True, mode=0o700)
            begun.unlink(missing_ok=True)  # of a command that was killed, or a link that a run has planted
            self._file = begun.open("x", encoding="utf-8")
            locks.lock(self._file.fileno())
        self._write(facts)
        for result in before:
            self.add(result)
        with storing(path):
            begun.replace(path)

    def __enter__(self) -> "EvalLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, result: TrialResult) -> None:
        """Add a trial. Raises StorageFailed."""
        self._write(result.to_wire(with_digest=True))

    def _write(self, facts: Mapping[str, Any]) -> None:
        with storing(self.path):
            self._file.write(json.dumps(facts, ensure_ascii=True) + "\n")
            self._file.flush()


def read_log(path: Path, of: Path | None = None) -> tuple[list[TrialResult], str | None]:
    """Return the trials of a log, or of what `--json` printed, and when it began, as far as it is in there.

    A last line that is cut is left out. `of` is the evaluation file whose log it has to be, because to resume
    it drops other trials. Its name alone counts: a CI job has another directory each time.

    Raises:
        BadEvalFile.
    """
    try:
        text = read_text(path, MAX_LOG_BYTES)
    except Unreadable as error:
        raise BadEvalFile(path, error.reason, error.line) from error
    whole = as_object(text)
    rows = [whole] if whole is not None else list(filter(None, map(as_object, text.splitlines())))
    first = rows[0] if rows else {}
    if "planned" not in first and "runs" not in first:
        raise BadEvalFile(path, "it is no log of an evaluation, and no output of `subagent eval --json`")
    other = Path(str(first.get("evaluation", ""))).name
    if of is not None and other not in ("", of.name):
        raise BadEvalFile(path, f"it is the log of another one, {shorten(other)}: name that, or another log")
    trials = []
    runs = first.get("runs")
    for row in runs if isinstance(runs, list) else rows[1:]:
        with suppress(ValidationError):
            trials.append(TrialResult.model_validate(row))
    began = first.get("began")
    return trials, began if isinstance(began, str) else None


def done_before(rows: Iterable[TrialResult], trials: Iterable[Trial]) -> dict[TrialKey, TrialResult]:
    """Return the trials that need no repetition: they ended, and their case is as it was."""
    digests = {trial.key: trial.digest for trial in trials}
    return {
        row.key: row
        for row in rows
        if row.run_id is not None and not row.error and digests.get(row.key) == row.case_digest
    }
