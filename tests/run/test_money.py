"""How amounts of money are shown."""

from decimal import Decimal

import pytest

from subagent_server.run.states import dollars


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        ("0", "$0"),
        ("0.00001", "<$0.0001"),
        ("0.01234567", "$0.0123"),
        (Decimal("0.0300"), "$0.03"),
        ("12", "$12"),
        ("1E+3", "$1000"),
        ("lots", "$lots"),
        (None, "$None"),
    ],
)
def test_an_amount_is_shown_to_a_hundredth_of_a_cent(amount: object, shown: str) -> None:
    assert dollars(amount) == shown
