"""What a service may answer instead of what it was asked for."""

from dataclasses import dataclass

#: Of what was found, in characters; the rest of a long value helps nobody.
FOUND_LENGTH_MAX = 200


class ShopError(Exception):
    """Something that callers are told of."""


@dataclass(eq=False)
class Refused(ShopError):
    """The request is wrong, or comes too late: repeating it will not help.

    Attributes:
        status: of HTTP, 400 to 499.
        field: which field of the request, in camelCase; a dotted path for inner ones.
        found: its value.
        expected: what would be accepted.
    """

    status: int
    field: str
    found: object
    expected: str

    def __str__(self) -> str:
        return f"{self.field}: found {shown(self.found)}, expected {self.expected}"


class Unavailable(ShopError):
    """Somebody needed for it does not answer now: the same request may succeed later."""


def shown(value: object) -> str:
    """Return a value as text that fits into JSON, whatever it is: ``nan``, lone surrogates.

    It also fits into a column of every database: PostgreSQL has no NUL in text.
    """
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "backslashreplace").decode().replace("\0", r"\x00")
    return text if len(text) <= FOUND_LENGTH_MAX else f"{text[:FOUND_LENGTH_MAX]}..."
