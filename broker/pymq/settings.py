"""Configuration dataclass <-> RocketMQ's ``.properties`` text.

A component's configuration names the key of each field that a file may set::

    @dataclass(frozen=True, slots=True, kw_only=True)
    class NamesrvConfig:
        port: int = setting("listenPort", default=9876)
        flush: Flush = setting("flushDiskType", default=Flush.SYNC)
        segment_bytes: int = setting("mappedFileSizeCommitLog", "mapedFileSizeCommitLog", ...)

Fields without a key are set by code only. Several components may be filled from one file: each
takes its own keys, and ``review_keys`` reports those that nobody took.

Text is parsed by the rules of ``java.util.Properties``: ``#`` and ``!`` begin a comment line; a
key ends at the first ``=``, ``:`` or blank; a backslash at the end of a line continues it and
elsewhere escapes (``\\t \\n \\r \\f \\uXXXX``, any other character stands for itself).
"""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from pymq.errors import ConfigurationError
from pymq.known_keys import ROCKETMQ_KEYS

Config = TypeVar("Config")

_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_KEY = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_SPECIAL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {"\\": "\\\\"} | {char: f"\\{letter}" for letter, char in _SPECIAL.items()}
_KEY_END = re.compile(r"[=:#! ]")
_UNSAFE = re.compile(r"[\\\t\n\r\f]|[^ -~]")
_INTEGER = re.compile(r"[+-]?[0-9]+")
#: Stands for a secret wherever settings are shown.
HIDDEN = "******"
_LIST_SEPARATOR = re.compile(r"[;,]")


# ------------------------------------------------------------------------------------ the text


def parse_properties(text: str, *, source: str = "properties") -> dict[str, str]:
    """Return the keys and values of a properties text; the last of several equal keys wins.

    Values keep their trailing blanks, as in Java.

    Args:
        text: the whole text.
        source: where it comes from, for error messages.

    Raises:
        ConfigurationError: a ``\\u`` without four hexadecimal digits, or half a surrogate pair.
    """
    properties: dict[str, str] = {}
    lines = iter(enumerate(_LINE_END.split(text), 1))
    for number, natural in lines:
        line = natural.lstrip(_BLANKS)
        if not line or line[0] in "#!" or line == "\\":  # a lone backslash continues nothing
            continue
        pieces = [line]
        while _is_continued(pieces[-1]):
            _, following = next(lines, (0, ""))
            pieces[-1] = pieces[-1][:-1]
            pieces.append(following.lstrip(_BLANKS))
        line = "".join(pieces)
        key = _KEY.match(line)
        assert key is not None  # it matches the empty string, too
        try:
            properties[_unescape(key[1])] = _unescape(line[key.end() :])
        except ValueError as error:
            raise ConfigurationError(f"{source}, line {number}: {error}") from error
    return properties


def _is_continued(line: str) -> bool:
    # Also of a line that goes on another one, which is left with an even number of them.
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_unescape_one, text)
    try:
        # Java escapes UTF-16 units: two of them may make one character.
        return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise ValueError(f"{text!r:.80} contains half a UTF-16 surrogate pair") from error


def _unescape_one(found: re.Match[str]) -> str:
    escaped = found[1]
    if len(escaped) == 5:
        return chr(int(escaped[1:], 16))
    if escaped == "u":
        rest = found.string[found.start() : found.start() + 6]
        raise ValueError(f"{rest!r}: expected \\u and four hexadecimal digits")
    return _SPECIAL.get(escaped, escaped)


def format_properties(properties: Mapping[str, str]) -> str:
    """Return the text of ``key=value`` lines, in the mapping's order, that reads back the same.

    Pure ASCII: Java brokers read files as Latin-1, and escapes are safe with both.
    """
    return "".join(
        f"{_escape_key(key)}={_escape_value(value)}\n" for key, value in properties.items()
    )


def _escape_key(key: str) -> str:
    return _KEY_END.sub(r"\\\g<0>", _UNSAFE.sub(_escape_one, key))


def _escape_value(value: str) -> str:
    escaped = _UNSAFE.sub(_escape_one, value)
    return f"\\{escaped}" if value[:1] == " " else escaped  # a leading blank would be skipped


def _escape_one(found: re.Match[str]) -> str:
    char = found[0]
    if char in _ESCAPED:
        return _ESCAPED[char]
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


# ------------------------------------------------------------------------------- the dataclass


def setting(
    key: str,
    *aliases: str,
    parse: Callable[[str], Any] | None = None,
    format: Callable[[Any], str] | None = None,
    live: bool = False,
    secret: bool = False,
    **options: Any,
) -> Any:
    """Return a dataclass field that a properties file sets under ``key``.

    Args:
        key: RocketMQ's name for it.
        aliases: older spellings, read but never written.
        parse: text to value, for types that ``from_properties`` does not know or values that are
            written in another way; raises ValueError saying what it expected.
        format: the inverse of ``parse``.
        live: may it change while the component runs? See ``take_over``.
        secret: is it for nobody's eyes? ``to_properties`` and ``repr`` hide it.
        options: those of ``dataclasses.field``.
    """
    metadata: dict[str, Any] = {"key": key, "aliases": aliases}
    if parse is not None:
        metadata["parse"] = parse
    if format is not None:
        metadata["format"] = format
    if live:
        metadata["live"] = True
    if secret:
        metadata["format"] = lambda value: HIDDEN
        options["repr"] = False
    return dataclasses.field(metadata=metadata, **options)


def _keyed_fields(config_class: Any) -> list[tuple[dataclasses.Field[Any], str]]:
    return [
        (field, field.metadata["key"])
        for field in dataclasses.fields(config_class)
        if "key" in field.metadata
    ]


def keys_of(*config_classes: type) -> set[str]:
    """Return every key, with aliases, that the configuration classes read."""
    return {
        name
        for config_class in config_classes
        for field, key in _keyed_fields(config_class)
        for name in (key, *field.metadata.get("aliases", ()))
    }


def from_properties(
    config_class: type[Config], properties: Mapping[str, str], *, source: str
) -> Config:
    """Return the configuration that the properties describe; absent keys keep the default.

    Blanks around a value are dropped. A key wins over its alias.

    Args:
        config_class: a dataclass whose fields were made by ``setting``, or carry its metadata.
        properties: as returned by ``parse_properties``; other keys are ignored.
        source: file name, for error messages.

    Raises:
        ConfigurationError: a value is not of its field's type, or the class refuses it.
    """
    values = _parsed(config_class, properties, source)
    try:
        return config_class(**values)
    except (ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"{source}: {error}") from error


def _parsed(
    config_class: type[Any], properties: Mapping[str, str], source: str
) -> dict[str, Any]:
    """Return field -> value for the properties that are given."""
    hints = typing.get_type_hints(config_class)
    values: dict[str, Any] = {}
    for field, key in _keyed_fields(config_class):
        names = (key, *field.metadata.get("aliases", ()))
        name = next((name for name in names if name in properties), None)
        if name is None:
            continue
        parse = field.metadata.get("parse") or _parser(hints[field.name])
        try:
            values[field.name] = parse(properties[name].strip())
        except (ValueError, ConfigurationError) as error:
            raise ConfigurationError(f"{source}: {name}={properties[name]!r}: {error}") from error
    return values


def live_keys(*config_classes: type) -> set[str]:
    """Return the keys of all fields that may change while a component runs."""
    return {
        key
        for config_class in config_classes
        for field, key in _keyed_fields(config_class)
        if field.metadata.get("live")
    }


def with_changes(config: Config, properties: Mapping[str, str], *, source: str) -> Config:
    """Return a copy of a configuration with some settings changed.

    Args:
        config: a dataclass whose fields were made by ``setting``, or carry its metadata.
        properties: what changes; keys of other classes are ignored.
        source: for error messages.

    Raises:
        ConfigurationError: a value is not of its field's type, or the class refuses it.
    """
    values = _parsed(type(config), properties, source)
    try:
        return dataclasses.replace(config, **values)  # type: ignore[type-var]
    except (ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"{source}: {error}") from error


def take_over(config: Config, changed: Config) -> None:
    """Change the live settings of a configuration that is in use.

    The one exception to "a configuration never changes": whoever has it asks for these fields
    whenever they count, and copies none of them.

    Args:
        config: in use.
        changed: what ``with_changes`` returned for it.
    """
    for field, _ in _keyed_fields(config):
        if field.metadata.get("live"):
            object.__setattr__(config, field.name, getattr(changed, field.name))


def to_properties(config: Any) -> dict[str, str]:
    """Return the properties that describe a configuration, in the order of its fields.

    Fields without a key, and those that are ``None``, are left out.
    """
    properties = {}
    for field, key in _keyed_fields(config):
        value = getattr(config, field.name)
        if value is not None:
            properties[key] = field.metadata.get("format", _format)(value)
    return properties


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple):
        return ";".join(map(str, value))
    return str(value)


def _parser(annotation: Any) -> Callable[[str], Any]:
    """Return text -> value for a field's type; its errors say what they expected."""
    if isinstance(annotation, types.UnionType):
        (kind,) = (a for a in typing.get_args(annotation) if a is not types.NoneType)
        parse = _parser(kind)
        return lambda text: parse(text) if text else None
    if typing.get_origin(annotation) is tuple:
        assert typing.get_args(annotation) == (str, ...), f"a setting cannot be {annotation}"
        return _parse_list
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum_parser(annotation)
    assert annotation in _PARSERS, f"a setting cannot be {annotation}: give it a parse="
    return _PARSERS[annotation]


def _parse_int(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError("expected a whole number, like 65536")
    return int(text)


def _parse_float(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError("expected a number, like 0.75") from error


def _parse_bool(text: str) -> bool:
    # Java silently takes everything else as false: `yes` would disable the setting.
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def parse_path(text: str) -> Path:
    """Return a path: also the ``parse`` of an optional one that must not be given without a value.

    Raises:
        ValueError: the text is empty.
    """
    if not text:
        raise ValueError("expected a path")
    return Path(text)


def _parse_list(text: str) -> tuple[str, ...]:
    members = (member.strip() for member in _LIST_SEPARATOR.split(text))
    return tuple(member for member in members if member)


def _enum_parser(kind: type[Enum]) -> Callable[[str], Enum]:
    by_name = {member.name.lower(): member for member in kind}

    def parse(text: str) -> Enum:
        if text.lower() not in by_name:
            raise ValueError(f"expected one of {', '.join(member.name for member in kind)}")
        return by_name[text.lower()]

    return parse


_PARSERS: dict[Any, Callable[[str], Any]] = {
    bool: _parse_bool,
    float: _parse_float,
    int: _parse_int,
    Path: parse_path,
    str: str,
}


# ------------------------------------------------------------------------------ remaining keys


def review_keys(
    properties: Collection[str], used: set[str]
) -> tuple[list[str], list[tuple[str, str | None]]]:
    """Classify the keys of a file that no configuration class takes.

    Args:
        properties: the keys of the file, or a mapping with these keys.
        used: as returned by ``keys_of`` for all classes filled from the file.

    Returns:
        (ignored, unknown): keys that RocketMQ has but pymq does not use; and keys that neither
        knows, each with the closest known key, ``None`` if none is close.
    """
    left = sorted(set(properties) - used)
    ignored = [key for key in left if key in ROCKETMQ_KEYS]
    known = {key.lower(): key for key in sorted(ROCKETMQ_KEYS | used)}
    unknown = []
    for key in left:
        if key not in ROCKETMQ_KEYS:
            near = difflib.get_close_matches(key.lower(), known, n=1)
            unknown.append((key, known[near[0]] if near else None))
    return ignored, unknown
