"""Small trees of runs; `make soak` has one of 1 + 5 + 25."""

import math
from pathlib import Path

import pytest

from tests.soak.trees import DEEDS, grown_and_ended


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("deed", "width"), [("stop", 2), ("kill the worker", 1), ("kill worker and shim", 1)]
)
def test_however_the_first_run_of_a_tree_ends_all_below_end_say_why_and_are_counted(
    tmp_path: Path, deed: str, width: int
) -> None:
    assert not grown_and_ended(tmp_path / "world", width, DEEDS[deed], math.inf)
