"""JSON as RocketMQ's Java side writes it: standard JSON plus three extensions of fastjson.

::

    {0:"10.0.0.1:10911"}                     bare integer keys: read as the string "0"
    {{"queueId":0,"topic":"T"}:{"n":5}}      objects as keys: read as an ``ObjectMap``
    {"$ref":"$.a[0]"}                        "the same object as there", also in key position

We write integer keys quoted (every Java parser takes both), objects as keys (the only form that
every Java parser takes), and never a ``$ref``.

A ``$ref`` is replaced by the object that it refers to if that object is complete before it, the
only case that fastjson writes for a shared object. A reference to an enclosing object (``@``,
``..``, ``$``, a path to a parent) would make the value contain itself; it is left as it is on the
wire, ``{"$ref": "..."}``, and so is a dangling one. References to what has references in it double
a value with each few bytes of text, so there is a limit (``EXPANDED_MAX``).

Source: Alibaba fastjson 1.2, used by RocketMQ RemotingSerializable and ConfigManager.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pymq.errors import LocalProtocolError, RemoteProtocolError

#: Deepest nesting of objects and arrays that is read.
DEPTH_MAX = 100
#: The same of our own files, whatever took requests that nested deeper. Python's recursion may end
#: before that: where the text is not standard JSON, at about half of it.
FILE_DEPTH_MAX = 1000
#: Most members of a value, those of references counted each time, unless its text is longer.
EXPANDED_MAX = 1_000_000

_encode_compact = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False
).encode
_encode_pretty = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False, indent="\t"
).encode
_decode_at = json.JSONDecoder().raw_decode
#: What becomes of half a surrogate pair: an escape, which reads back as the same.
_HALVES = "backslashreplace"
_BLANK = re.compile(r"[ \t\r\n]*")
_BARE_KEY = re.compile(r"-?[0-9]{1,19}")
_PLAIN_STRING = re.compile(r'"([^"\\\x00-\x1f]*)"')
_TOO_DEEP = "nested too deep"
_PATH = re.compile(r"\$(?:\.[^.\[\]]+|\[[0-9]{1,9}\])*")
_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")


@dataclass(slots=True)
class ObjectMap:
    """A map whose keys are objects: (key, value) pairs in their order in the JSON text."""

    pairs: list[tuple[Any, Any]] = field(default_factory=list)


def parse(text: bytes | memoryview | str, *, depth_max: int = DEPTH_MAX) -> Any:
    """Return the value of a JSON text in fastjson's dialect.

    Objects become a ``dict`` with string keys, except those with an object among their keys, which
    become an ``ObjectMap``. An empty object is always a ``dict``.

    Args:
        text: the whole text.
        depth_max: deepest nesting of objects and arrays, unless Python's recursion ends before.

    Raises:
        RemoteProtocolError: the text is not such JSON, or nested too deep, or its references make
            too much of it.
    """
    try:
        plain = text if isinstance(text, str) else str(text, "utf-8")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"JSON of {len(text)} B is not UTF-8: {error}") from error
    try:
        try:
            value = json.loads(plain)
        except json.JSONDecodeError:
            value = _Parser(plain, depth_max).document()
        else:
            if plain.count("[") + plain.count("{") > depth_max:
                _check_depth(value, depth_max)
        if '"$ref"' in plain:
            value = _Resolver(value, depth_max, max(EXPANDED_MAX, len(plain))).resolve()
    except RecursionError as error:  # at which depth, nobody knows
        raise RemoteProtocolError(f"JSON of {len(plain)} characters: {_TOO_DEEP}") from error
    except ValueError as error:
        raise RemoteProtocolError(
            f"JSON of {len(plain)} characters cannot be read: {error}"
        ) from error
    return value


def _too_deep(depth_max: int) -> str:
    return f"{_TOO_DEEP}, expected at most {depth_max} levels"


def _check_depth(value: Any, depth_max: int) -> None:
    """Raise ValueError if what Python's parser made is nested too deep: it has no such limit."""
    level = [value]
    for _ in range(depth_max):
        # A visit of one after the other costs twice as much; a value has few levels.
        level = [
            member
            for one in level
            for member in (one.values() if type(one) is dict else one)
            if type(member) is dict or type(member) is list
        ]
        if not level:
            return
    raise ValueError(_too_deep(depth_max))


def object_pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the (key object, value) pairs of an object-keyed map, as ``parse`` returned it.

    Also takes the variant in which each key is a string that contains the object's JSON.

    Raises:
        RemoteProtocolError: the value is not a map, or a key is not an object.
    """
    if isinstance(value, ObjectMap):
        return value.pairs
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{value!r:.80}, expected a map")
    return [(parse(key), member) for key, member in value.items()]


def dump(value: Any) -> bytes:
    """Return compact JSON: UTF-8, integer keys quoted, ``ObjectMap`` keys as bare objects.

    Raises:
        LocalProtocolError: the value contains something that has no form in JSON.
    """
    try:
        return _encode_compact(value).encode(errors=_HALVES)
    except TypeError:  # Most likely an ObjectMap; the C encoder is the fast path.
        return b"".join(parts(value))
    except (ValueError, RecursionError) as error:
        raise _no_form(value, error) from error


def parts(value: Any) -> Iterator[bytes]:
    """Yield what ``dump`` returns, a part after the other.

    Raises:
        LocalProtocolError: as ``dump``.
    """
    try:
        for part in _parts(value):
            yield part.encode(errors=_HALVES)
    except (TypeError, ValueError, RecursionError) as error:
        raise _no_form(value, error) from error


def _no_form(value: Any, error: Exception) -> LocalProtocolError:
    return LocalProtocolError(f"{value!r:.80} has no JSON form: {error}")


def dump_pretty(value: Any) -> str:
    """Return JSON as in RocketMQ's state files: TAB indentation, no blank after a colon.

    Raises:
        LocalProtocolError: the value contains something that has no form in JSON.
    """
    try:
        text = _encode_pretty(value)
        return text if text.isascii() else text.encode(errors=_HALVES).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError(f"{value!r:.80} has no JSON form: {error}") from error


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, ObjectMap):
        mark = "{"
        for key, member in value.pairs:  # there may be 65,536
            yield mark
            yield from _plain_parts(key)
            yield ":"
            yield from _plain_parts(member)
            mark = ","
        yield "}" if value.pairs else "{}"
    elif isinstance(value, dict):
        mark = "{"
        for key, member in value.items():
            # The encoder turns a number used as a key into a string.
            yield mark + _encode_compact({key: 0})[1:-2]
            yield from _parts(member)
            mark = ","
        yield "}" if value else "{}"
    elif isinstance(value, (list, tuple)):
        mark = "["
        for member in value:
            yield mark
            yield from _parts(member)
            mark = ","
        yield "]" if value else "[]"
    else:
        yield _encode_compact(value)


def _plain_parts(value: Any) -> Iterator[str]:
    """Yield the one part of what has no ``ObjectMap`` in it."""
    try:
        yield _encode_compact(value)
    except TypeError:
        yield from _parts(value)


class _Parser:
    """Recursive-descent parser of one text; raises ValueError if it is not the dialect."""

    def __init__(self, text: str, depth_max: int) -> None:
        self._text = text
        self._depth_max = depth_max
        self._at = 0

    def document(self) -> Any:
        value = self._value(0)
        if self._next() != "":
            raise self._wrong("the end")
        return value

    def _next(self) -> str:
        """Skip blanks and return the character that follows, "" at the end."""
        found = _BLANK.match(self._text, self._at)
        assert found is not None  # the pattern also matches the empty string
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    def _wrong(self, expected: str) -> ValueError:
        found = self._text[self._at : self._at + 16]
        return ValueError(f"character {self._at}: {found!r}, expected {expected}")

    def _value(self, depth: int) -> Any:
        first = self._next()
        if first == "{":
            return self._object(depth + 1)
        if first == "[":
            return self._array(depth + 1)
        if first == "":
            raise self._wrong("a value")
        return self._scalar()

    def _scalar(self) -> Any:
        plain = _PLAIN_STRING.match(self._text, self._at)
        if plain is not None:
            self._at = plain.end()
            return plain[1]
        value, self._at = _decode_at(self._text, self._at)
        return value

    def _enter(self, depth: int) -> None:
        if depth > self._depth_max:
            raise self._wrong(f"at most {self._depth_max} levels")
        self._at += 1

    def _array(self, depth: int) -> list[Any]:
        self._enter(depth)
        members: list[Any] = []
        if self._next() == "]":
            self._at += 1
            return members
        while True:
            members.append(self._value(depth))
            mark = self._next()
            if mark not in (",", "]"):
                raise self._wrong("',' or ']'")
            self._at += 1
            if mark == "]":
                return members

    def _object(self, depth: int) -> Any:
        self._enter(depth)
        if self._next() == "}":
            self._at += 1
            return {}
        pairs: list[tuple[Any, Any]] = []
        plain = True
        while True:
            key = self._key(depth)
            plain = plain and isinstance(key, str)
            if self._next() != ":":
                raise self._wrong("':'")
            self._at += 1
            pairs.append((key, self._value(depth)))
            mark = self._next()
            if mark not in (",", "}"):
                raise self._wrong("',' or '}'")
            self._at += 1
            if mark == "}":
                return dict(pairs) if plain else ObjectMap(pairs)

    def _key(self, depth: int) -> Any:
        first = self._next()
        if first == "{":
            return self._object(depth + 1)
        if first == '"':
            return self._scalar()
        bare = _BARE_KEY.match(self._text, self._at)
        if bare is None:
            raise self._wrong("a key: a string, an integer or an object")
        self._at = bare.end()
        return bare[0]


_SCALAR = 0, 1


class _Resolver:
    """Replaces references, in the order of the text, by objects completed before them.

    Only complete objects are inserted, so that the result cannot contain itself.
    """

    def __init__(self, root: Any, depth_max: int, count_max: int) -> None:
        self._root = root
        self._depth_max = depth_max
        self._count_max = count_max
        #: Id of an object -> how deep it is nested, and its members at all depths.
        self._complete: dict[int, tuple[int, int]] = {}

    def resolve(self) -> Any:
        return self._walk(self._root)

    def _walk(self, value: Any) -> Any:
        if isinstance(value, dict):
            if len(value) == 1 and isinstance(path := value.get("$ref"), str):
                return self._target(path, value)
            for key, member in value.items():
                if isinstance(member, (dict, list, ObjectMap)):
                    value[key] = self._walk(member)
            self._completed(value, value.values())
        elif isinstance(value, list):
            value[:] = [self._walk(member) for member in value]
            self._completed(value, value)
        elif isinstance(value, ObjectMap):
            pairs, value.pairs = value.pairs, []
            for key, member in pairs:
                value.pairs.append((self._walk(key), self._walk(member)))
            self._completed(value, itertools.chain.from_iterable(value.pairs))
        return value

    def _completed(self, value: Any, members: Iterable[Any]) -> None:
        depth, count = 0, 0
        for member in members:
            of_member = self._complete.get(id(member), _SCALAR)
            depth = max(depth, of_member[0])
            count += of_member[1]
        if depth >= self._depth_max:
            raise ValueError(_too_deep(self._depth_max))
        if count > self._count_max:
            raise ValueError(
                f"its references make more than {self._count_max} members (EXPANDED_MAX) of it"
            )
        self._complete[id(value)] = depth + 1, count + 1

    def _target(self, path: str, reference: Any) -> Any:
        if not _PATH.fullmatch(path):
            return reference
        found = self._root
        for step in _PATH_STEP.finditer(path):
            found = self._member(found, step[1], step[2])
        return found if id(found) in self._complete else reference

    def _member(self, parent: Any, name: str | None, index: str | None) -> Any:
        if index is not None:
            inside = isinstance(parent, list) and int(index) < len(parent)
            return parent[int(index)] if inside else None
        if isinstance(parent, dict):
            return parent.get(name)
        if isinstance(parent, ObjectMap) and name == "null" and len(parent.pairs) == 1:
            # fastjson calls every object key "null" in paths: unambiguous only if there is one.
            return parent.pairs[0][0]
        return None
