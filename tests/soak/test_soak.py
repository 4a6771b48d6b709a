"""A handful of kills and an upgrade; `make soak` does hundreds."""

from pathlib import Path

import pytest

from tests.soak.soak import Plan, soak


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_after_a_handful_of_kills_and_an_upgrade_nothing_is_lost_nothing_pretended_and_nothing_left(
    tmp_path: Path,
) -> None:
    verdict = soak(Plan(seed=1, rounds=5, servers=1, live_target=4), tmp_path)
    assert not verdict.findings, verdict.report()
    assert (verdict.kills.total(), verdict.upgrades) == (5, 1)
    assert verdict.counts.total() > 0, "there were runs"
