"""Text of the options that say which topics are read, where to start and end, and how long to wait.

``format_options`` has those about values, ``option_values`` the others.
"""

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.names import check_topic
from pyspark_pymq.offsets import EARLIEST, LATEST, At, Bound, queue_members
from pyspark_pymq.option_values import DAY_MS, json_object, one_of, whole
from pyspark_pymq.source.topic_choice import AssignedQueue

_UNITS_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"([0-9]{1,18})\s*([a-z]*)")
#: Less are seconds: in milliseconds it is March 1973, in seconds the year 5138.
MILLISECONDS_MIN = 100_000_000_000
_EXPECTED_TIME = "expected milliseconds since 1970, or a time like 2026-01-31T09:30:00+01:00"
_QUEUES = "expected queue ids like [0, 1], or an object of them by broker"


# ------------------------------------------------------------------------------------- topics


def pattern(text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"expected a regular expression of Python ({error})") from error
    if not text:
        raise ValueError("expected a regular expression that matches whole names, such as orders.*")
    return text


def assigned(text: str) -> frozenset[AssignedQueue]:
    """Queues in JSON: ``{"topic": {"broker": [0, 1]}}``; ``{"topic": [0, 1]}`` on every broker."""
    expected = 'expected JSON like {"topic": {"broker": [0, 1]}} or {"topic": [0, 1]}'
    try:
        value = json.loads(text, object_pairs_hook=json_object)
    except ValueError as error:
        raise ValueError(f"{expected} ({error})") from error
    if not isinstance(value, dict) or not value:
        raise ValueError(expected)
    found: set[AssignedQueue] = set()
    for topic, brokers in value.items():
        check_topic(topic)
        by_broker = brokers if isinstance(brokers, dict) else {"": brokers}
        if not by_broker or (isinstance(brokers, dict) and "" in brokers):
            raise ValueError(f"topic {topic}: {brokers!r} found, {_QUEUES}")
        for broker, numbers in by_broker.items():
            if not isinstance(numbers, list) or not numbers:
                raise ValueError(f"topic {topic}: {numbers!r} found, {_QUEUES}")
            for number in numbers:
                if type(number) is not int or number < 0:
                    raise ValueError(f"topic {topic}: {number!r} found, {_QUEUES}")
                found.add(AssignedQueue(topic, broker, number))
    return frozenset(found)


# -------------------------------------------------------------------------------------- times


def timestamp(text: str) -> At:
    """Milliseconds since 1970, or ISO 8601 with an offset from UTC."""
    number = whole(text)
    return _at(text.strip() if number is None or number < 0 else number)


def _at(value: Any) -> At:
    if type(value) is int and value >= 0:
        if 0 < value < MILLISECONDS_MIN:
            raise ValueError(
                f"{value} found, which looks like seconds; {_EXPECTED_TIME}. (In milliseconds it "
                f"would be {At(value)}: write that if it is meant)"
            )
        if value > 253_402_300_799_999:  # the year 9999
            raise ValueError(f"{value} found, {_EXPECTED_TIME}")
        return At(value)
    try:
        moment = datetime.fromisoformat(value)
        since_1970_s = moment.timestamp()
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise ValueError(f"{value!r} found, {_EXPECTED_TIME}") from error
    if moment.tzinfo is None:
        raise ValueError(f"{value!r} has no offset from UTC; add one, such as Z or +01:00")
    if since_1970_s < 0:
        raise ValueError(f"{value!r} found, {_EXPECTED_TIME}")
    return At(round(1000 * since_1970_s))


def starting_times(text: str) -> Bound:
    """Moments by queue; queues that are not named start at their earliest message."""
    return Bound(EARLIEST, _times(text))


def ending_times(text: str) -> Bound:
    """Moments by queue; queues that are not named end at their latest message."""
    return Bound(LATEST, _times(text))


def _times(text: str) -> tuple[tuple[MessageQueue, At], ...]:
    expected = 'expected JSON like {"topic": {"broker": {"0": 1767225600000}}}'
    try:
        value = json.loads(text, object_pairs_hook=json_object)
    except ValueError as error:
        raise ValueError(f"{expected} ({error})") from error
    found = {}
    for queue, member in queue_members(value):
        if not isinstance(member, (int, str)) or isinstance(member, bool):
            raise ConfigurationError(f"{member!r} found, {expected}")
        found[queue] = _at(member)
    if not found:
        raise ValueError(f"no queue is named; {expected}")
    return tuple(sorted(found.items()))


def error_or_latest(text: str) -> bool:
    """``error`` (true) or ``latest``."""
    return one_of(text, {"error": True, "latest": False})


def fallback(text: str) -> int | None:
    """``earliest``, ``latest``, or ``fail``, which is None."""
    return one_of(text, {"earliest": EARLIEST, "latest": LATEST, "fail": None})


def long_duration_s(least_ms: int) -> Callable[[str], float]:
    """Return what reads a duration such as ``15m``, ``90s`` or milliseconds, as seconds."""

    def read(text: str) -> float:
        found = _DURATION.fullmatch(text.strip().lower())
        unit_ms = _UNITS_MS.get(found[2]) if found else None
        if found is None or unit_ms is None or not least_ms <= int(found[1]) * unit_ms < DAY_MS:
            raise ValueError(
                f"expected a duration like 15m, 90s or 1500 (milliseconds), at least {least_ms} ms "
                f"and less than 24h"
            )
        return int(found[1]) * unit_ms / 1000

    return read
