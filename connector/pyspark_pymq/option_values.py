"""Option text -> values. Every error names the option in its usual spelling, and what is right."""

import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any

from pymq.errors import ConfigurationError, PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.names import check_group, check_topic
from pyspark_pymq.offsets import EARLIEST, LATEST, Bound, named, position_from_json

#: What Spark itself puts among the options of a source or sink.
_SPARKS = {
    *("checkpointlocation", "path", "paths", "queryname", "outputmode", "mode", "trigger"),
    *("partitionby", "__paths__", "schema", "triggerinterval"),
}
#: Among the options that Spark hands over for CREATE TABLE: the table's own are all there twice.
_TABLE = "provider"
_OF_TABLE = "option."

_REQUIRED: Any = object()


def by_name(options: Mapping[str, str]) -> dict[str, str]:
    """Return what the user gave, under lower-cased names.

    For ``CREATE TABLE … USING pymq OPTIONS (…)`` Spark mixes the table's properties (``provider``,
    ``owner``, those of TBLPROPERTIES) with its options, and repeats these as ``option.name``.
    """
    given = {name.lower(): value for name, value in options.items()}
    if _TABLE not in given:
        return given
    return {
        name.removeprefix(_OF_TABLE): value
        for name, value in given.items()
        if name.startswith(_OF_TABLE)
    }


class GivenOptions:
    """The options one side knows, by name; refuses all others."""

    def __init__(
        self,
        options: Mapping[str, str],
        known: tuple[str, ...],
        *,
        side: str,
        others: tuple[str, ...],
    ) -> None:
        self._values = by_name(options)
        self._side = side
        spelling = {name.lower(): name for name in known}
        of_others = {name.lower(): name for name in others}
        for name, value in self._values.items():
            if name in spelling or name in _SPARKS or name.startswith("spark."):
                continue
            other = of_others.get(name)
            near = difflib.get_close_matches(name, spelling, n=1, cutoff=0.6)
            if other is not None:
                hint = f"{other} belongs to the {'sink' if side == 'source' else 'source'}"
            elif near:
                hint = f"did you mean {spelling[near[0]]}?"
            else:
                hint = "there is none like it"
            raise ConfigurationError(
                f"option {other or name}={value!r} is unknown to the pymq {side}: {hint}; "
                f"it knows {', '.join(sorted(known))}"
            )

    def read(self, name: str, parse: Callable[[str], Any], default: Any = _REQUIRED) -> Any:
        """Return an option's value.

        Raises:
            ConfigurationError: it is missing and has no default, or malformed.
        """
        text = self._values.get(name.lower())
        if text is None:
            if default is _REQUIRED:
                raise ConfigurationError(
                    f"option {name} is missing: the pymq {self._side} needs it, for example "
                    f"{_EXAMPLES[name]}{'' if self._values else _NO_OPTIONS}"
                )
            return default
        try:
            return parse(text)
        except (ValueError, PymqError) as error:
            raise ConfigurationError(f"option {name}={text!r} is wrong: {error}") from error


#: What Spark 4.0 to 4.3 do with a table in a catalog.
_NO_OPTIONS = (
    ". There are no options at all: Spark does not hand those of CREATE TABLE to a Python data "
    "source when the table is used. Use CREATE TEMPORARY VIEW v USING pymq OPTIONS (…) to read, or "
    "add WITH (…) behind the table's name"
)
_EXAMPLES = {
    "nameServer": '.option("nameServer", "127.0.0.1:9876")',
    "subscribe": '.option("subscribe", "orders")',
}


def name_servers(text: str) -> tuple[str, ...]:
    addresses = tuple(filter(None, (part.strip() for part in text.replace(",", ";").split(";"))))
    if not addresses:
        raise ValueError("expected host:port, several separated by ; or ,")
    for address in addresses:
        host, colon, port = address.rpartition(":")
        good = host and colon and port.isdecimal() and 0 < int(port) < 65536
        if not good or "/" in host or (":" in host and not host.startswith("[")):
            raise ValueError(
                f"{address!r} is no address, expected host:port (9876 is the usual port), "
                f"several separated by ; or ,"
            )
    return addresses


def topic(text: str) -> str:
    check_topic(text.strip())
    return text.strip()


def group(text: str) -> str:
    check_group(text.strip())
    return text.strip()


def topics(text: str) -> tuple[str, ...]:
    names = tuple(topic(part) for part in text.split(",") if part.strip())
    if not names:
        raise ValueError("expected topics, separated by ,")
    return tuple(dict.fromkeys(names))


def fail_or_null(text: str) -> bool:
    match text.strip().lower():
        case "fail":
            return False
        case "null":
            return True
    raise ValueError("expected fail or null")


def brokers(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, (part.strip() for part in text.split(","))))
    if not names:
        raise ValueError("expected names of brokers, separated by ,")
    return tuple(dict.fromkeys(names))


def tags(text: str) -> tuple[str, ...]:
    tags = tuple(filter(None, (part.strip() for part in text.split("||"))))
    if not tags:
        raise ValueError("expected tags separated by ||, or * for all")
    return () if "*" in tags else tuple(dict.fromkeys(tags))


def flag(text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError("expected true or false")


def count(least: int, most: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        wanted = f"expected a whole number, at least {least}"
        if most is not None:
            wanted = f"expected a whole number, {least}..{most}"
        try:
            value = int(text)
        except ValueError as error:
            raise ValueError(wanted) from error
        if value < least or (most is not None and value > most):
            raise ValueError(wanted)
        return value

    return parse


def bound(topics: tuple[str, ...], unnamed: int) -> Callable[[str], Bound]:
    def parse(text: str) -> Bound:
        match text.strip().lower():
            case "earliest":
                return Bound(EARLIEST)
            case "latest":
                return Bound(LATEST)
        return Bound(unnamed, tuple(_offsets(text, topics)))

    return parse


def ending(topics: tuple[str, ...]) -> Callable[[str], Bound]:
    def parse(text: str) -> Bound:
        found = bound(topics, LATEST)(text)
        if found == Bound(EARLIEST) or any(offset == EARLIEST for _, offset in found.named):
            raise ValueError("nothing can end at the earliest message; expected latest or JSON")
        return found

    return parse


def check_order(starting: Bound | None, ending: Bound | None) -> None:
    starts = dict(starting.named if starting is not None else ())
    for queue, end in ending.named if ending is not None else ():
        if 0 <= end < starts.get(queue, 0):
            raise ConfigurationError(
                f"option endingOffsets: {named(queue)} ends at {end}, but startingOffsets begins "
                f"there at {starts[queue]}; expected an end at or behind the start"
            )


def _offsets(text: str, topics: tuple[str, ...]) -> list[tuple[MessageQueue, int]]:
    wanted = 'expected earliest, latest or JSON like {"topic": {"broker": {"0": 17}}}'
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{wanted} ({error})") from error
    position = position_from_json(value).offsets
    for queue, offset in position.items():
        if queue.topic not in topics:
            raise ValueError(f"topic {queue.topic!r} is not among subscribe={','.join(topics)}")
        if offset < EARLIEST:
            raise ValueError(
                f"offset {offset} of {queue}: expected 0 or more, -1 (latest) or -2 (earliest)"
            )
    return sorted(position.items())
