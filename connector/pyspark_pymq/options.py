"""Option text -> frozen dataclasses. No network: a typing error shows at ``load()``/``start()``.

Spark hands options over as texts under lower-cased names. Every error names the option in its
usual spelling, what was given, and what would be right.

Source                    default              meaning
------------------------  -------------------  --------------------------------------------------
nameServer                (required)           ``host:port``, several separated by ``;`` or ``,``
subscribe                 (required)           topics, separated by ``,``
startingOffsets           latest / earliest    stream / batch; or JSON, as below
endingOffsets             latest               batch only; or JSON
maxOffsetsPerTrigger      no limit             messages a micro-batch has at most
failOnDataLoss            true                 false: log, go on at the next offset there is
tags                      ``*``                ``A || B``: only messages with one of these tags
includeProperties         false                adds the column ``properties``
corruptBodies             fail                 null: what cannot be decompressed is null
expectedBrokers           none                 brokers, separated by ``,``, without whose queues
                                               a batch, or a new stream, does not begin
consumerGroup             TOOLS_CONSUMER       what the broker's permissions and statistics see
minPartitions             1                    tasks a batch is cut into, if it has the rows
maxPartitions             no limit
pullBytes                 8388608              bytes asked for at once
requestTimeoutMs          3000                 wait for one answer
retryTimeoutMs            180000               keep trying this long while a broker is away;
                                               name servers forget a silent one after 120 s

Sink                      default              meaning
------------------------  -------------------  --------------------------------------------------
nameServer                (required)
topic                     column ``topic``     overrides the column
maxMessageSize            4194304              as the broker's: bounds a message and a request
requestTimeoutMs          10000
retryTimeoutMs            180000               keep trying this long while a broker is away, or does
                                               not secure what it stores

Offsets in JSON: ``{"topic": {"broker": {"0": 17, "1": -2}}}``; -2 is the earliest, -1 the latest.
What a query's progress shows as an end offset can be pasted. A queue that is not named starts
at its earliest and ends at its latest message.
"""

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pymq.errors import ConfigurationError, LocalProtocolError, PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.framing import FRAME_BYTES_MAX
from pymq.protocol.names import (
    NO_SEND_TOPICS,
    TOOLS_GROUP,
    check_group,
    check_topic,
    is_retry_topic,
)
from pyspark_pymq.offsets import EARLIEST, LATEST, Bound, named, position_from_json

_SHARED = ("nameServer", "requestTimeoutMs", "retryTimeoutMs")
SOURCE_OPTIONS = (
    *_SHARED,
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "corruptBodies",
    "expectedBrokers",
    "tags",
    "includeProperties",
    "consumerGroup",
    "minPartitions",
    "maxPartitions",
    "pullBytes",
)
SINK_OPTIONS = (*_SHARED, "topic", "maxMessageSize")

#: What Spark itself puts among the options of a source or sink.
_SPARKS = {
    *("checkpointlocation", "path", "paths", "queryname", "outputmode", "mode", "trigger"),
    *("partitionby", "__paths__", "schema", "triggerinterval"),
}
#: Longer than the 120 s after which name servers drop a silent broker from their routes: rows of
#: which only the number of the queue is given go to another one from then on.
RETRY_MS = 180_000
#: RocketMQ ``maxMessageSize`` where nobody has changed it.
MESSAGE_BYTES_DEFAULT = 4 << 20
#: No peer takes a larger frame (RocketMQ ``com.rocketmq.remoting.frameMaxLength``), whatever the
#: broker's maxMessageSize; the rest is for a frame's header, and for what a pull adds.
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX - (64 << 10)
#: Among the options that Spark hands over for CREATE TABLE: the table's own are all there twice.
_TABLE = "provider"
_OF_TABLE = "option."


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the user asked of the source; see the table above."""

    name_servers: tuple[str, ...]
    topics: tuple[str, ...]
    starting: Bound | None = None  # None: stream and batch have different defaults
    ending: Bound | None = None
    offsets_max: int | None = None
    fail_on_data_loss: bool = True
    null_corrupt_bodies: bool = False
    expected_brokers: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()  # none: all messages
    include_properties: bool = False
    consumer_group: str = TOOLS_GROUP
    partitions_min: int = 1
    partitions_max: int | None = None
    pull_bytes: int = 8 << 20
    request_timeout_s: float = 3.0
    retry_timeout_s: float = RETRY_MS / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What the user asked of the sink; see the table above."""

    name_servers: tuple[str, ...]
    topic: str | None = None
    message_bytes_max: int = MESSAGE_BYTES_DEFAULT
    request_timeout_s: float = 10.0
    retry_timeout_s: float = RETRY_MS / 1000


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the options of a source.

    Raises:
        ConfigurationError: an option is unknown, missing or malformed.
    """
    texts = _Texts(options, SOURCE_OPTIONS, side="source", others=SINK_OPTIONS)
    topics = texts.read("subscribe", _names)
    partitions_min = texts.read("minPartitions", _count(1), 1)
    partitions_max = texts.read("maxPartitions", _count(1), None)
    if partitions_max is not None and partitions_max < partitions_min:
        raise ConfigurationError(
            f"option maxPartitions={partitions_max} is below minPartitions={partitions_min}"
        )
    starting = texts.read("startingOffsets", _bound(topics, EARLIEST), None)
    ending = texts.read("endingOffsets", _ending(topics), None)
    _check_order(starting, ending)
    return SourceOptions(
        name_servers=texts.read("nameServer", _name_servers),
        topics=topics,
        starting=starting,
        ending=ending,
        offsets_max=texts.read("maxOffsetsPerTrigger", _count(1), None),
        fail_on_data_loss=texts.read("failOnDataLoss", _flag, True),
        null_corrupt_bodies=texts.read("corruptBodies", _fail_or_null, False),
        expected_brokers=texts.read("expectedBrokers", _brokers, ()),
        tags=texts.read("tags", _tags, ()),
        include_properties=texts.read("includeProperties", _flag, False),
        consumer_group=texts.read("consumerGroup", _group, TOOLS_GROUP),
        partitions_min=partitions_min,
        partitions_max=partitions_max,
        pull_bytes=texts.read("pullBytes", _count(1024, 64 << 20), 8 << 20),
        request_timeout_s=texts.read("requestTimeoutMs", _count(1), 3_000) / 1000,
        retry_timeout_s=texts.read("retryTimeoutMs", _count(100), RETRY_MS) / 1000,
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return the options of a sink.

    Raises:
        ConfigurationError: an option is unknown, missing or malformed.
    """
    texts = _Texts(options, SINK_OPTIONS, side="sink", others=SOURCE_OPTIONS)
    return SinkOptions(
        name_servers=texts.read("nameServer", _name_servers),
        topic=texts.read("topic", _topic, None),
        message_bytes_max=texts.read(
            "maxMessageSize", _count(1024, MESSAGE_BYTES_MAX), MESSAGE_BYTES_DEFAULT
        ),
        request_timeout_s=texts.read("requestTimeoutMs", _count(1), 10_000) / 1000,
        retry_timeout_s=texts.read("retryTimeoutMs", _count(100), RETRY_MS) / 1000,
    )


def check_options(options: Mapping[str, str]) -> None:
    """Check what can be checked before it is known whether to read or to write.

    Spark tells a data source its options first, and its direction later, in some cases not
    before the query runs; a misspelt option shall not wait for that.

    Raises:
        ConfigurationError: an option is unknown, missing or malformed.
    """
    given = _by_name(options).keys()
    for own, others, parse in (
        (SOURCE_OPTIONS, SINK_OPTIONS, source_options),
        (SINK_OPTIONS, SOURCE_OPTIONS, sink_options),
    ):
        if given & {name.lower() for name in own} - {name.lower() for name in others}:
            parse(options)
            return
    texts = _Texts(options, (*SOURCE_OPTIONS, *SINK_OPTIONS), side="source or sink", others=())
    texts.read("nameServer", _name_servers)


def check_target(topic: str) -> None:
    """Accept a topic that batches may be sent to.

    Raises:
        ConfigurationError: its name is illegal, or the broker keeps it for itself.
    """
    try:
        check_topic(topic)
    except LocalProtocolError as error:
        raise ConfigurationError(str(error)) from error
    if topic in NO_SEND_TOPICS or is_retry_topic(topic):
        raise ConfigurationError(f"topic {topic} is the broker's own: batches cannot be sent to it")


# ------------------------------------------------------------------------------- from text

_REQUIRED: Any = object()


def _by_name(options: Mapping[str, str]) -> dict[str, str]:
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


class _Texts:
    """The options one side knows, by name; refuses all others."""

    def __init__(
        self,
        options: Mapping[str, str],
        known: tuple[str, ...],
        *,
        side: str,
        others: tuple[str, ...],
    ) -> None:
        self._values = _by_name(options)
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


def _name_servers(text: str) -> tuple[str, ...]:
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


def _topic(text: str) -> str:
    check_topic(text.strip())
    return text.strip()


def _group(text: str) -> str:
    check_group(text.strip())
    return text.strip()


def _names(text: str) -> tuple[str, ...]:
    names = tuple(_topic(part) for part in text.split(",") if part.strip())
    if not names:
        raise ValueError("expected topics, separated by ,")
    return tuple(dict.fromkeys(names))


def _fail_or_null(text: str) -> bool:
    match text.strip().lower():
        case "fail":
            return False
        case "null":
            return True
    raise ValueError("expected fail or null")


def _brokers(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, (part.strip() for part in text.split(","))))
    if not names:
        raise ValueError("expected names of brokers, separated by ,")
    return tuple(dict.fromkeys(names))


def _tags(text: str) -> tuple[str, ...]:
    tags = tuple(filter(None, (part.strip() for part in text.split("||"))))
    if not tags:
        raise ValueError("expected tags separated by ||, or * for all")
    return () if "*" in tags else tuple(dict.fromkeys(tags))


def _flag(text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError("expected true or false")


def _count(least: int, most: int | None = None) -> Callable[[str], int]:
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


def _bound(topics: tuple[str, ...], unnamed: int) -> Callable[[str], Bound]:
    def parse(text: str) -> Bound:
        match text.strip().lower():
            case "earliest":
                return Bound(EARLIEST)
            case "latest":
                return Bound(LATEST)
        return Bound(unnamed, tuple(_offsets(text, topics)))

    return parse


def _ending(topics: tuple[str, ...]) -> Callable[[str], Bound]:
    def parse(text: str) -> Bound:
        bound = _bound(topics, LATEST)(text)
        if bound == Bound(EARLIEST) or any(offset == EARLIEST for _, offset in bound.named):
            raise ValueError("nothing can end at the earliest message; expected latest or JSON")
        return bound

    return parse


def _check_order(starting: Bound | None, ending: Bound | None) -> None:
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
