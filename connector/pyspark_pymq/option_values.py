"""Text of the options -> values: what is common to all, and the plain ones.

Every error names the option in its usual spelling, what was given, and what would be right.
"""

import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from pymq.client.cluster.config import parse_name_servers
from pymq.client.cluster.network import Network
from pymq.errors import ConfigurationError, PymqError
from pymq.filter.sql92 import parse
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.names import check_group, check_topic
from pyspark_pymq.offsets import COMMITTED, EARLIEST, LATEST, Bound, named, position_from_json

T = TypeVar("T")

#: Option -> the field of the dataclass it fills, and the function that reads its text.
Table = Mapping[str, tuple[str, Callable[[str], Any]]]

#: What Spark itself puts among the options of a sink.
_SPARKS = {"checkpointlocation", "queryname"}
#: What Spark makes of load("orders") and start("orders").
_PATHS = {"path", "paths"}
#: Spark's methods that are mistaken for options, which would do nothing.
_METHODS = ("trigger", "outputMode", "mode", "partitionBy", "schema", "format")
#: What Spark adds to the options of CREATE TABLE, which it then passes twice.
_TABLE = "provider"
_OF_TABLE = "option."
#: What Spark 4.0 to 4.3 do with a table in a catalog.
_NO_OPTIONS = (
    ". There are no options at all: Spark does not pass those of CREATE TABLE to a Python data "
    "source when the table is used. Use CREATE TEMPORARY VIEW v USING pymq OPTIONS (…) to read, or "
    "add WITH (…) after the table's name"
)
_EXAMPLES = {
    "nameServer": '.option("nameServer", "127.0.0.1:9876")',
}
#: Python's own ``int`` takes more: ``1_000``, and the digits of every script.
_WHOLE = re.compile("[+-]?[0-9]+")
#: More digits than a whole number of 64 bits has, with room for leading zeros.
_DIGITS_MAX = 100
#: Brokers count in 64 bits, and so does Spark.
LONG_MAX = (1 << 63) - 1
#: In the names of options whose values must not be told.
_SECRET = re.compile("key|secret|pass|pas+w|ps?w[or]*d|token|jaas|cred|auth")
#: Longest name of a sink.
NAME_MAX = 255
#: Clients wait less than a day.
DAY_MS = 86_400_000


class Delivery(StrEnum):
    """What a sink promises about its rows."""

    EXACTLY_ONCE = "exactlyOnce"
    AT_LEAST_ONCE = "atLeastOnce"


def given_options(options: Mapping[str, str]) -> dict[str, str]:
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


def read_options(
    options: Mapping[str, str],
    table: Table,
    *,
    required: Collection[str],
    side: str,
    others: Collection[str] = (),
) -> dict[str, Any]:
    """Return the values of the options that are given, by field.

    Args:
        options: what Spark passes.
        table: all options there are.
        required: those that must be given.
        side: what they are options of, for errors.
        others: options of the other side, for errors.

    Raises:
        ConfigurationError: an option is unknown, missing or malformed.
    """
    given = given_options(options)
    _check_names(given, table, side=side, others=others)
    found = {}
    for name, (field, read) in table.items():
        text = given.get(name.lower())
        if text is not None:
            try:
                found[field] = read(text)
            except (ValueError, PymqError) as error:
                raise ConfigurationError(f"option {name}={text!r} is wrong: {error}") from error
        elif name in required:
            raise ConfigurationError(
                f"option {name} is missing: the pymq {side} needs it, for example "
                f"{_EXAMPLES[name]}{'' if given else _NO_OPTIONS}"
            )
    return found


def _check_names(
    given: Mapping[str, str], known: Collection[str], *, side: str, others: Collection[str]
) -> None:
    spelling = {name.lower(): name for name in known}
    of_others = {name.lower(): name for name in others}
    methods = {name.lower(): name for name in _METHODS}
    for name, value in given.items():
        if name in spelling or name in _SPARKS or name.startswith("spark."):
            continue
        other = of_others.get(name)
        near = difflib.get_close_matches(name, spelling, n=1, cutoff=0.6)
        if other is not None:
            hint = f"{other} belongs to the {'sink' if side == 'source' else 'source'}."
        elif name in _PATHS:
            topics = {"source": "subscribe", "sink": "topic"}.get(side, "subscribe or topic")
            hint = f"it has no paths, topics are named with the option {topics}."
        elif name in methods:
            other = methods[name]
            hint = f"{other} is a method of Spark's reader or writer: call .{other}(…) on it."
        elif near:
            hint = f"did you mean {spelling[near[0]]}?"
        else:
            hint = "no option has a name like it."
        # An option that is known elsewhere is no secret; of one meant for another connector the
        # value may be, and this ends up in logs.
        told = "" if other is None and _SECRET.search(name) else f"={value!r}"
        raise ConfigurationError(
            f"option {other or name}{told} is unknown to the pymq {side}: {hint} "
            f"It knows {', '.join(sorted(known))}"
        )


def like(name: str, known: Iterable[str]) -> str | None:
    """Return which of some names is meant, in whatever case it is written; None: no idea."""
    spelling = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), spelling, n=1)
    return spelling[near[0]] if near else None


# ------------------------------------------------------------------------------ from text


def name_servers(text: str) -> tuple[str, ...]:
    """``host:port``, several separated by ``;`` or ``,``."""
    return parse_name_servers(text)


def broker_address_map(text: str) -> Network:
    """``ADVERTISED=REACHED``, several separated by ``,``: where brokers are reached."""
    pairs: dict[str, str] = {}
    for item in _items(text, ",", "ADVERTISED=REACHED, separated by ,"):
        advertised, _, reached = (part.strip() for part in item.partition("="))
        if not (advertised and reached) or advertised in pairs:
            raise ValueError(
                f"found {item!r:.80}, expected ADVERTISED=REACHED once for each address, such as "
                "172.17.0.3:10911=127.0.0.1:10911"
            )
        pairs[advertised] = reached
    return Network(broker_address_map=pairs)


def topic(text: str) -> str:
    """A topic."""
    check_topic(text.strip())
    return text.strip()


def topics(text: str) -> tuple[str, ...]:
    """Topics, separated by ``,``."""
    return tuple(topic(name) for name in _items(text, ",", "topics, separated by ,"))


def group(text: str) -> str:
    """A consumer group."""
    check_group(text.strip())
    return text.strip()


def broker(text: str) -> str:
    """Name of a broker."""
    return name(text)


def name(text: str) -> str:
    """Up to 255 characters, all of them printable."""
    found = text.strip()
    if not 0 < len(found) <= NAME_MAX or not found.isprintable():
        raise ValueError(f"expected 1..{NAME_MAX} printable characters")
    return found


def delivery(text: str) -> Delivery:
    """``exactlyOnce`` or ``atLeastOnce``."""
    return one_of(text, {one.value.lower(): one for one in Delivery}, list(Delivery))


def brokers(text: str) -> tuple[str, ...]:
    """Names of brokers, separated by ``,``."""
    return _items(text, ",", "names of brokers, separated by ,")


def tags(text: str) -> tuple[str, ...]:
    """Tags, separated by ``||``; none for ``*``, which means all messages."""
    found = _items(text, "||", "tags separated by ||, or * for all")
    return () if "*" in found else found


def sql(text: str) -> str:
    """An SQL92 expression over properties, as brokers evaluate it."""
    parse(text)
    return text


def columns(text: str) -> tuple[str, ...]:
    """Columns, or sets of them, separated by ``,``."""
    return _items(text, ",", "pymq, kafka, or columns separated by ,")


def metadata(text: str) -> str:
    """What is read instead of messages."""
    return one_of(text, {"topics": "topics"})


def _items(text: str, separator: str, expected: str) -> tuple[str, ...]:
    """Return the different items of a list."""
    found = tuple(filter(None, (part.strip() for part in text.split(separator))))
    if not found:
        raise ValueError(f"expected {expected}")
    return tuple(dict.fromkeys(found))


def flag(text: str) -> bool:
    """``true`` or ``false``."""
    return one_of(text, {"true": True, "false": False})


def null_or_fail(text: str) -> bool:
    """``null`` (true) or ``fail``."""
    return one_of(text, {"fail": False, "null": True})


def one_of(text: str, meanings: Mapping[str, T], shown: Iterable[str] = ()) -> T:
    """One of some words, in whatever case; what it means.

    Args:
        text: the word.
        meanings: by word, in lower case.
        shown: the words as an error has them.
    """
    word = text.strip().lower()
    if word not in meanings:
        raise ValueError(f"expected {' or '.join(shown or meanings)}")
    return meanings[word]


def count(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return what reads a whole number between two others."""
    limit = LONG_MAX if most is None else most
    expected = f"expected a whole number, at least {least}"
    if most is not None:
        expected = f"expected a whole number, {least}..{most}"

    def read(text: str) -> int:
        value = whole(text)
        if value is None or value < least:
            raise ValueError(expected)
        if value > limit:
            raise ValueError(f"expected a whole number, {least}..{limit}")
        return value

    return read


def whole(text: str) -> int | None:
    """Return the whole number in a text of ASCII digits, perhaps with a sign; else None."""
    found = text.strip()
    return int(found) if len(found) <= _DIGITS_MAX and _WHOLE.fullmatch(found) else None


def duration_s(least_ms: int) -> Callable[[str], float]:
    """Return what reads milliseconds, as seconds."""
    read_ms = count(least_ms, DAY_MS - 1)
    return lambda text: read_ms(text) / 1000


def starting(text: str) -> Bound:
    """Where to start; queues that JSON does not name start at their earliest message."""
    if text.strip().lower() == "group":
        return Bound(COMMITTED)
    return _bound(text, EARLIEST, "earliest, latest, group")


def ending(text: str) -> Bound:
    """Where to end; queues that JSON does not name end at their latest message."""
    found = _bound(text, LATEST, "latest")
    if found == Bound(EARLIEST) or any(offset == EARLIEST for _, offset in found.named):
        raise ValueError("nothing can end at the earliest message; expected latest or JSON")
    return found


def _bound(text: str, unnamed: int, words: str) -> Bound:
    match text.strip().lower():
        case "earliest":
            return Bound(EARLIEST)
        case "latest":
            return Bound(LATEST)
    return Bound(unnamed, tuple(_offsets(text, words)))


def _offsets(text: str, words: str) -> list[tuple[MessageQueue, int]]:
    try:
        value = json.loads(text, object_pairs_hook=json_object)
    except ValueError as error:
        expected = f'expected {words} or JSON like {{"topic": {{"broker": {{"0": 17}}}}}}'
        raise ValueError(f"{expected} ({error})") from error
    offsets = position_from_json(value).offsets
    for queue, offset in offsets.items():
        if not EARLIEST <= offset <= LONG_MAX:
            raise ValueError(
                f"{named(queue)}: {offset} found, expected an offset, 0..{LONG_MAX}, -1 (latest) "
                f"or -2 (earliest)"
            )
    return sorted(offsets.items())


def json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Of a name that is given twice Python would keep the last only."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"{twice!r} is named twice")
    return members
