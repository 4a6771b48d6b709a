"""What people and programs see does not change by accident: documents made from the code, and file schemas.

After a change that is meant, `make docs` writes the documents anew, and
`SNAPSHOTS=write .venv/bin/pytest tests/test_surface.py` the schemas.
"""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from subagent_server.cli.console.app import subagent
from tests.helpers.generated import GENERATED
from tests.helpers.processes import REPOSITORY

SNAPSHOTS = REPOSITORY / "tests/surface"


def is_as_before(name: str, now: str) -> None:
    """Compare a text with its snapshot, or write the snapshot."""
    path: Path = SNAPSHOTS / name
    if os.environ.get("SNAPSHOTS") == "write":
        path.write_text(now, encoding="utf-8")
    assert now.splitlines() == path.read_text(encoding="utf-8").splitlines(), f"{path} differs"


def said(*words: str) -> str:
    """Return what a command prints, which must succeed."""
    done = CliRunner().invoke(subagent, words, prog_name="subagent", terminal_width=100)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("document", GENERATED, ids=lambda path: path.name)
def test_a_document_made_from_the_code_is_current(document: Path) -> None:
    now = document.read_text(encoding="utf-8").splitlines() if document.exists() else []
    assert now == GENERATED[document]().splitlines(), (
        f"{document.name} is not what the code says now. If the change is meant, write the page anew with "
        "`make docs` (or `.venv/bin/python -m tests.helpers.generated`) and commit it."
    )


def test_the_schemas_of_files_are_as_before() -> None:
    for what in ("meta", "request", "result"):
        is_as_before(f"{what}.schema.json", said("schema", what))
