"""The log of an evaluation: JSON lines, its facts first, then each trial. `--resume` goes on from it.

A log is kept for each evaluation in the state directory of the user, or where `--log` says.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from pathlib import Path
from typing import Any

from subagent_server.agents.yaml_reader import Unreadable, read_text
from subagent_server.extensions.evals.eval_file import BadEvalFile, EvalCase
from subagent_server.extensions.evals.trials import Trial, TrialKey, TrialResult
from subagent_server.run.errors import StorageFailed

SUFFIX = ".jsonl"


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


class EvalLog:
    """A log that is being written: every line is complete, whenever the process ends."""

    def __init__(self, path: Path, facts: Mapping[str, Any], before: Iterable[TrialResult]) -> None:
        """Begin a log with the trials that are not repeated. Raises StorageFailed."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise StorageFailed(path, error.strerror or str(error)) from error
        self._write(facts)
        for result in before:
            self.add(result)

    def __enter__(self) -> "EvalLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, result: TrialResult) -> None:
        """Add a trial. Raises StorageFailed."""
        self._write({**wire_of(result), "caseDigest": digest_of_case(result.trial.case)})

    def _write(self, facts: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(facts, ensure_ascii=True) + "\n")
            self._file.flush()
        except OSError as error:
            raise StorageFailed(self.path, error.strerror or str(error)) from error


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the trials of a log, or of what `--json` printed; a last line that is cut is left out.

    Raises:
        BadEvalFile.
    """
    try:
        text = read_text(path)
    except Unreadable as error:
        raise BadEvalFile(path, error.reason, error.line) from error
    rows: list[Any] = []
    try:
        rows = json.loads(text)["runs"]
    except (ValueError, RecursionError, KeyError, TypeError):
        for line in text.splitlines():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
    trials = [each for each in rows if isinstance(each, dict) and isinstance(each.get("case"), str)]
    if not trials and not (rows and isinstance(rows[0], dict) and "planned" in rows[0]):
        raise BadEvalFile(path, "it is no log of an evaluation, and no output of `subagent eval --json`")
    return trials


def result_of(row: Mapping[str, Any], place: int) -> TrialResult:
    """Return a trial as a log has it; its case has the name only."""
    case = EvalCase(name=str(row["case"])[:100] or "-", prompt="-")
    model, number = row.get("model"), row.get("number")
    trial = Trial(
        case,
        str(row.get("agent", "-")),
        model if isinstance(model, str) else None,
        number if isinstance(number, int) else 1,
        place,
    )
    seconds, problems = row.get("seconds"), row.get("problems")
    return TrialResult(
        trial,
        str(row["runId"]) if "runId" in row else None,
        tuple(map(str, problems)) if isinstance(problems, list) else (),
        float(seconds) if isinstance(seconds, int | float) else None,
        _money(row.get("costUsd")),
        costs_more=bool(row.get("atLeast")),
        is_skipped=row.get("notBegun") is True,
        is_error=row.get("error") is True,
    )


def done_before(rows: Iterable[Mapping[str, Any]], trials: Sequence[Trial]) -> dict[TrialKey, TrialResult]:
    """Return the trials that need no repetition: they ended, and their case is as it was."""
    found: dict[TrialKey, TrialResult] = {}
    planned = {trial.key: trial for trial in trials}
    for row in rows:
        result = result_of(row, 0)
        trial = planned.get(result.trial.key)
        if trial is None or result.is_skipped or result.is_error or result.run_id is None:
            continue
        if row.get("caseDigest") == digest_of_case(trial.case):
            kept = {name: value for name, value in vars(result).items() if name != "trial"}
            found[trial.key] = TrialResult(trial=trial, **kept)
    return found


def digest_of_case(case: EvalCase) -> str:
    """Return a short text that differs for cases that ask or expect something else."""
    return blake2b(case.model_dump_json().encode("utf-8", "replace"), digest_size=8).hexdigest()


def wire_of(result: TrialResult) -> dict[str, Any]:
    """Return a trial for `--json` and for the log."""
    trial = result.trial
    return {
        "case": trial.case.name,
        "agent": trial.agent,
        **({"model": trial.model} if trial.model is not None else {}),
        "number": trial.number,
        **({"runId": result.run_id} if result.run_id is not None else {}),
        **({"notBegun": True} if result.is_skipped else {"passed": result.passed}),
        **({"error": True} if result.is_error else {}),
        "problems": list(result.problems),
        **({"costUsd": f"{result.cost_usd:f}"} if result.cost_usd is not None else {}),
        **({"atLeast": ["costUsd"]} if result.cost_usd is not None and result.costs_more else {}),
        **({"seconds": round(result.seconds, 3)} if result.seconds is not None else {}),
    }


def _money(value: object) -> Decimal | None:
    try:
        amount = Decimal(str(value)) if value is not None else None
    except InvalidOperation:
        return None
    return amount if amount is not None and amount.is_finite() else None
