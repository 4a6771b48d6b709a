"""Amounts of money as people read them: in dollars, with as many digits as matter."""

from decimal import Decimal, InvalidOperation

_EXACT = Decimal("0.0001")


def dollars(amount: object) -> str:
    """Return an amount in USD to a hundredth of a cent, `$0.0123`; what is no number is shown as it is."""
    try:
        value = Decimal(str(amount))
        if 0 < value < _EXACT:
            return f"<${_EXACT}"
        return f"${value.quantize(_EXACT).normalize():f}"
    except InvalidOperation:
        return f"${amount}"
