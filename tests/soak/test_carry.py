"""A few kills; `make soak-continue` does hundreds."""

from pathlib import Path

import pytest

from tests.soak.carry import carry


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_run_that_is_killed_and_carried_on_does_everything_once_and_comes_to_the_same(
    tmp_path: Path,
) -> None:
    verdict = carry(4, seed=2, home=tmp_path)
    assert not verdict.findings, verdict.report()
    assert verdict.counts.total() > 0
