"""Exact amounts: ``Decimal`` in Python, two decimal places, never a float.

SQLite has no decimals, so there a column holds cents as integers; sums and comparisons in SQL stay
exact. PostgreSQL and MariaDB have ``NUMERIC(18, 2)``. In JSON amounts are strings, ``"12.50"``,
because readers of JSON numbers usually make floats of them; numbers are accepted, too.
"""

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer
from sqlalchemy import BigInteger, Dialect, Numeric
from sqlalchemy.types import TypeDecorator, TypeEngine

CENT = Decimal("0.01")
ZERO = Decimal("0.00")
#: What text is an amount: a regular expression of Python and of Java.
PATTERN = r"[0-9]{1,12}(\.[0-9]{1,2})?"
_TEXT = re.compile(PATTERN)


def text(amount: Decimal) -> str:
    """Return an amount as it stands in JSON and in messages."""
    return f"{amount:.2f}"


def _given(value: object) -> object:
    """Refuse what ``Decimal`` takes for a number and nobody means as an amount."""
    if isinstance(value, bool) or (isinstance(value, str) and not _TEXT.fullmatch(value)):
        raise ValueError('an amount such as "12.50"')
    return value


#: An amount in a request or an answer: at least 0, less than 10^12, at most two decimal places.
Amount = Annotated[
    Decimal,
    BeforeValidator(_given),
    Field(ge=0, max_digits=14, decimal_places=2),
    AfterValidator(lambda value: (value + 0).quantize(CENT)),
    PlainSerializer(text, return_type=str),
]


class Money(TypeDecorator[Decimal]):
    """A column of amounts."""

    impl = Numeric(18, 2)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(BigInteger())
        return dialect.type_descriptor(Numeric(18, 2))

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        cents = Decimal(value).scaleb(2)
        if cents != cents.to_integral_value():
            raise ValueError(f"amount {value}: more than two decimal places")
        return int(cents) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> Decimal | None:
        if value is None:
            return None
        if dialect.name == "sqlite":
            return Decimal(int(value)).scaleb(-2)
        return Decimal(value).quantize(CENT)
