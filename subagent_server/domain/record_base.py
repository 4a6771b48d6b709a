"""The base class of every record that is stored or shown, and the types of times and amounts of money.

The records themselves are in `records.py`.
"""

import json
from datetime import datetime
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, PlainSerializer
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticSerializationError

from subagent_server.domain.times import timestamp


def _with_room(moment: datetime) -> datetime:
    """Refuse the first and the last year: in another time zone they may not exist. Raises ValueError."""
    if not datetime.min.year < moment.year < datetime.max.year:
        raise ValueError("the year is out of range")
    return moment


def _printable(amount: Decimal) -> Decimal:
    """Refuse an amount that fills a page when written out, such as 1E+999999. Raises ValueError."""
    exponent = amount.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -_MOST_DIGITS or amount.adjusted() > _MOST_DIGITS:
        raise ValueError("the amount is out of range")
    return amount


_MOST_DIGITS = 60
"""Before or behind the point of an amount of money."""

Moment = Annotated[AwareDatetime, AfterValidator(_with_room), PlainSerializer(timestamp, return_type=str)]
Money = Annotated[
    Decimal, AfterValidator(_printable), PlainSerializer(lambda amount: f"{amount:f}", return_type=str)
]


class Record(BaseModel):
    """The base of everything that is stored or shown: frozen, camelCase outside, snake_case inside."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", serialize_by_alias=True
    )

    def to_json(self) -> bytes:
        """Return the record as a file holds it: indented JSON without the fields that are empty."""
        return encoded(self, exclude_none=True)


def encoded(record: BaseModel, *, exclude_none: bool = False, exclude_unset: bool = False) -> bytes:
    """Return a record as indented JSON. Half a surrogate pair, which UTF-8 cannot hold, becomes `?`."""
    try:
        text = record.model_dump_json(exclude_none=exclude_none, exclude_unset=exclude_unset, indent=1)
    except PydanticSerializationError:
        data = record.model_dump(mode="json", exclude_none=exclude_none, exclude_unset=exclude_unset)
        text = json.dumps(data, ensure_ascii=False, indent=1)
    return text.encode("utf-8", "replace") + b"\n"
