"""Typed headers <-> the flat string map that is sent as ``extFields``.

A header is a dataclass whose fields give their wire spelling only if it is not the camelCase of
their own name::

    @dataclass(slots=True, kw_only=True)
    class QueueRequest(Header):
        topic: str
        queue_id: int                               # "queueId"
        broker_name: str | None = wire("bname", default=None)

Absent fields are ``None`` (or the declared default); ``None`` is never written. Unknown
fields on the wire are ignored, as every RocketMQ peer does.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from pymq.errors import RemoteProtocolError

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1
_EXPECTED = "a whole number of at most 64 bits"


def wire(name: str, **options: Any) -> Any:
    """Return a dataclass field that is sent as ``name``; options as for ``dataclasses.field``."""
    return dataclasses.field(metadata={"wire": name}, **options)


def parse_int(text: str) -> int:
    """Return a wire integer; raises ValueError outside a signed 64-bit range."""
    number = int(text)
    if not INT64_MIN <= number <= INT64_MAX:
        raise ValueError(f"{number} does not fit into 64 bits")
    return number


def parse_bool(text: str) -> bool:
    """Return a wire boolean; everything but "true" is false, as in Java's ``parseBoolean``."""
    return text.lower() == "true"


def camel(name: str) -> str:
    """Return the Java spelling of one of our field names: ``queue_id`` -> ``queueId``."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


_PARSERS: dict[type, Callable[[str], object]] = {int: parse_int, bool: parse_bool, str: str}


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    attribute: str
    wire: str
    parse: Callable[[str], object]
    required: bool


def _value_type(annotation: Any) -> type:
    if isinstance(annotation, types.UnionType):
        annotation = next(a for a in typing.get_args(annotation) if a is not types.NoneType)
    assert annotation in _PARSERS, f"a header field cannot be {annotation}"
    return typing.cast(type, annotation)


@functools.cache
def _plan(kind: type["Header"]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(kind)
    return tuple(
        _Field(
            attribute=field.name,
            wire=field.metadata.get("wire") or camel(field.name),
            parse=_PARSERS[_value_type(hints[field.name])],
            required=field.default is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    )


class Header:
    """Base of all typed headers: reads from and writes to the string map."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @classmethod
    def from_fields(cls, fields: Mapping[str, str] | None) -> Self:
        """Return the header in a string map.

        Raises:
            RemoteProtocolError: a required field is missing, or a number is malformed.
        """
        source = fields or {}
        values: dict[str, object] = {}
        for field in _plan(cls):  # type: ignore[arg-type]  # a class is hashable
            text = source.get(field.wire)
            if text is None:
                if field.required:
                    raise RemoteProtocolError(
                        f"{cls.__name__}: field {field.wire!r} is missing, found {sorted(source)}"
                    )
                continue
            try:
                values[field.attribute] = field.parse(text)
            except ValueError as error:
                raise RemoteProtocolError(
                    f"{cls.__name__}: field {field.wire!r} is {text[:64]!r}, expected {_EXPECTED}"
                ) from error
        return cls(**values)

    def to_fields(self) -> dict[str, str]:
        """Return the string map, without the fields that are ``None``."""
        fields = {}
        for field in _plan(type(self)):  # type: ignore[arg-type]  # a class is hashable
            value = getattr(self, field.attribute)
            if value is None:
                continue
            if value is True or value is False:
                fields[field.wire] = "true" if value else "false"
            else:
                fields[field.wire] = str(value)
        return fields
