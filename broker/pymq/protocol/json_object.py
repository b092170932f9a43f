"""Dataclasses <-> the JSON objects of bodies and state files.

A body is a dataclass whose fields give their wire spelling only if it is not the camelCase of their
own name::

    @dataclass(slots=True, kw_only=True)
    class QueueData(JsonObject):
        broker_name: str
        read_queue_count: int = wire("readQueueNums", default=0)

Annotations say how a member is read and written: ``int``, ``float``, ``str``, ``bool``,
another ``JsonObject``, ``Any`` (as parsed), ``X | None``, ``list[X]``, ``tuple[X, ...]``,
``frozenset[X]`` (written sorted), and ``dict[K, X]`` with ``K`` a ``str``, an ``int`` or a
``JsonObject`` (written as fastjson's object-keyed map).

As in Java, unknown members are ignored, missing and null ones keep the default, and ``None`` is
never written. Members are written in alphabetical order, as fastjson does.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any, ClassVar, Self

from pymq.errors import RemoteProtocolError
from pymq.protocol import fastjson
from pymq.protocol.headers.codec import INT64_MAX, INT64_MIN, camel

_Convert = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    attribute: str
    wire: str
    read: _Convert
    #: None: the value is its own JSON form.
    write: _Convert | None
    required: bool


class JsonObject:
    """Base of all bodies: reads from and writes to JSON."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the object of a parsed JSON value.

        Raises:
            RemoteProtocolError: it is not an object, lacks a required member, or has a member
                of the wrong type.
        """
        if type(value) is not dict:
            raise RemoteProtocolError(f"{cls.__name__}: {value!r:.80}, expected an object")
        values: dict[str, Any] = {}
        for member in _plan(cls):  # type: ignore[arg-type]  # a class is hashable
            found = value.get(member.wire)
            if found is None:
                if member.required:
                    raise RemoteProtocolError(
                        f"{cls.__name__}: member {member.wire!r} is missing, found "
                        f"{sorted(value)!r:.200}"
                    )
                continue
            try:
                values[member.attribute] = member.read(found)
            except RemoteProtocolError as error:
                raise RemoteProtocolError(f"{cls.__name__}.{member.wire}: {error}") from error
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value for ``fastjson.dump``, without members that are ``None``."""
        result: dict[str, Any] = {}
        for member in _plan(type(self)):  # type: ignore[arg-type]  # a class is hashable
            value = getattr(self, member.attribute)
            if value is not None:
                result[member.wire] = value if member.write is None else member.write(value)
        return result

    @classmethod
    def decode(cls, data: bytes | memoryview | str) -> Self:
        """Return the object of a JSON text.

        Raises:
            RemoteProtocolError: the text is not JSON, or not this object.
        """
        return cls.from_json(fastjson.parse(data))

    def encode(self) -> bytes:
        """Return the JSON text, as sent in a body."""
        return fastjson.dump(self.to_json())


@functools.cache
def _plan(kind: type[JsonObject]) -> tuple[_Member, ...]:
    hints = typing.get_type_hints(kind)
    members = [
        _Member(
            attribute=field.name,
            wire=field.metadata.get("wire") or camel(field.name),
            read=_reader(hints[field.name]),
            write=_writer(hints[field.name]),
            required=(
                field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING
            ),
        )
        for field in dataclasses.fields(kind)
    ]
    return tuple(sorted(members, key=lambda member: member.wire))


def _wrong(found: Any, expected: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{found!r:.80}, expected {expected}")


def _read_int(found: Any) -> int:
    if isinstance(found, str):
        try:
            found = int(found)
        except ValueError as error:
            raise _wrong(found, "a number") from error
    if type(found) is not int or not INT64_MIN <= found <= INT64_MAX:
        raise _wrong(found, "a 64-bit number")
    return found


def _read_float(found: Any) -> float:
    if type(found) is not float and type(found) is not int:
        raise _wrong(found, "a number")
    try:
        return float(found)
    except OverflowError as error:
        raise _wrong(found, "a number") from error


def _read_bool(found: Any) -> bool:
    if found is True or found is False:
        return bool(found)
    if isinstance(found, str) and found.lower() in ("true", "false"):
        return found.lower() == "true"
    raise _wrong(found, "true or false")


def _read_str(found: Any) -> str:
    if type(found) is str:
        return found
    if type(found) is int:
        return str(found)
    raise _wrong(found, "a string")


def _as_parsed(found: Any) -> Any:
    return found


_SCALARS: dict[Any, _Convert] = {
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    str: _read_str,
    Any: _as_parsed,
}


def _without_none(annotation: Any) -> Any:
    if isinstance(annotation, types.UnionType):
        return next(a for a in typing.get_args(annotation) if a is not types.NoneType)
    return annotation


def _reader(annotation: Any) -> _Convert:
    annotation = _without_none(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if isinstance(annotation, type) and issubclass(annotation, JsonObject):
        return annotation.from_json
    container, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if container is dict:
        return _map_reader(arguments[0], _reader(arguments[1]))
    assert container in (list, tuple, frozenset), f"a body member cannot be {annotation}"
    return _array_reader(container, _reader(arguments[0]))


def _array_reader(container: Callable[[list[Any]], Any], read: _Convert) -> _Convert:
    def read_array(found: Any) -> Any:
        if type(found) is not list:
            raise _wrong(found, "an array")
        return container([read(entry) for entry in found if entry is not None])

    return read_array


def _map_reader(key_type: Any, read: _Convert) -> _Convert:
    if issubclass(key_type, JsonObject):

        def read_object_keys(found: Any) -> dict[Any, Any]:
            pairs = fastjson.object_pairs(found)
            return {key_type.from_json(k): read(v) for k, v in pairs if v is not None}

        return read_object_keys
    read_key = _SCALARS[key_type]

    def read_map(found: Any) -> dict[Any, Any]:
        if type(found) is not dict:
            raise _wrong(found, "an object")
        return {read_key(k): read(v) for k, v in found.items() if v is not None}

    return read_map


def _to_json(value: JsonObject) -> dict[str, Any]:
    return value.to_json()


def _writer(annotation: Any) -> _Convert | None:
    annotation = _without_none(annotation)
    if annotation is float:
        return float  # Java expects a fraction where it reads a double
    if annotation in _SCALARS:
        return None
    if isinstance(annotation, type) and issubclass(annotation, JsonObject):
        return _to_json
    container, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if container is dict:
        return _map_writer(arguments[0], _writer(arguments[1]))
    write = _writer(arguments[0])
    arrange = sorted if container is frozenset else list
    if write is None:
        return arrange
    return lambda entries: [write(entry) for entry in arrange(entries)]


def _map_writer(key_type: Any, write: _Convert | None) -> _Convert | None:
    write_value = write or _as_parsed
    if issubclass(key_type, JsonObject):
        return lambda entries: fastjson.ObjectMap(
            [(key.to_json(), write_value(value)) for key, value in entries.items()]
        )
    if write is None:
        return None
    return lambda entries: {key: write_value(value) for key, value in entries.items()}
