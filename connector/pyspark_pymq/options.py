"""The options of source and sink. No network: a mistyped one is found at ``load()``/``start()``.

Source                    default              meaning
------------------------  -------------------  --------------------------------------------------
nameServer                (required)           ``host:port``, several separated by ``;`` or ``,``
subscribe                 (required)           topics, separated by ``,``
startingOffsets           latest / earliest    stream / batch; or JSON, as below
endingOffsets             latest               batch only; or JSON
maxOffsetsPerTrigger      no limit             most messages of a micro-batch
failOnDataLoss            true                 false: log, continue at the next offset there is
tags                      ``*``                ``A || B``: only messages with one of these tags
includeProperties         false                adds the column ``properties``
corruptBodies             fail                 null: what cannot be decompressed is null
expectedBrokers           none                 brokers, separated by ``,``, without whose queues
                                               a batch, or a new stream, does not start
consumerGroup             TOOLS_CONSUMER       what the broker's permissions and statistics see
minPartitions             1                    fewest tasks of a batch, if it has as many rows
maxPartitions             no limit             most tasks of a batch
pullBytes                 8388608              bytes to ask for at once
requestTimeoutMs          3000                 wait for one answer
retryTimeoutMs            180000               keep trying this long while a broker is away;
                                               name servers forget a silent one after 120 s

Sink                      default              meaning
------------------------  -------------------  --------------------------------------------------
nameServer                (required)           as above
topic                     column ``topic``     overrides the column
maxMessageSize            4194304              as the broker's: bounds a message and a request
requestTimeoutMs          10000                wait for one answer
retryTimeoutMs            180000               keep trying this long while a broker is away, or does
                                               not secure what it stores

Offsets in JSON: ``{"topic": {"broker": {"0": 17, "1": -2}}}``; -2 is the earliest, -1 the latest.
An end offset from a query's progress can be pasted. A queue that is not named starts at its
earliest message and ends at its latest one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pymq.errors import ConfigurationError, LocalProtocolError
from pymq.filter.tags import check_tags
from pymq.protocol.framing import FRAME_BYTES_MAX
from pymq.protocol.names import TOOLS_GROUP
from pyspark_pymq import option_values as values
from pyspark_pymq.offsets import Bound, named

#: Longer than the 120 s after which name servers drop a silent broker from their routes: rows of
#: which only the number of the queue is given go to another one from then on.
RETRY_S = 180.0
#: RocketMQ ``maxMessageSize`` where nobody has changed it.
MESSAGE_BYTES_DEFAULT = 4 << 20
#: No peer takes a larger frame (RocketMQ ``com.rocketmq.remoting.frameMaxLength``), whatever the
#: broker's maxMessageSize; the rest is for a frame's header, and for what a pull adds.
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX - (64 << 10)

_SHARED: values.Table = {
    "nameServer": ("name_servers", values.name_servers),
    "requestTimeoutMs": ("request_timeout_s", values.duration_s(1)),
    "retryTimeoutMs": ("retry_timeout_s", values.duration_s(100)),
}
SOURCE_OPTIONS: values.Table = {
    **_SHARED,
    "subscribe": ("topics", values.topics),
    "startingOffsets": ("starting", values.starting),
    "endingOffsets": ("ending", values.ending),
    "maxOffsetsPerTrigger": ("offsets_max", values.count(1)),
    "failOnDataLoss": ("fail_on_data_loss", values.flag),
    "corruptBodies": ("null_corrupt_bodies", values.null_or_fail),
    "expectedBrokers": ("expected_brokers", values.brokers),
    "tags": ("tags", values.tags),
    "includeProperties": ("include_properties", values.flag),
    "consumerGroup": ("consumer_group", values.group),
    "minPartitions": ("partitions_min", values.count(1)),
    "maxPartitions": ("partitions_max", values.count(1)),
    "pullBytes": ("pull_bytes", values.count(1024, 64 << 20)),
}
SINK_OPTIONS: values.Table = {
    **_SHARED,
    "topic": ("topic", values.topic),
    "maxMessageSize": ("message_bytes_max", values.count(1024, MESSAGE_BYTES_MAX)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the user asked of the source; see the table above.

    Raises:
        ConfigurationError: two options contradict each other.
    """

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
    retry_timeout_s: float = RETRY_S

    @property
    def tag_expression(self) -> str:
        """The tags as brokers are asked for them."""
        return " || ".join(self.tags) or "*"

    def __post_init__(self) -> None:
        try:
            check_tags(",".join(self.topics), self.tag_expression)
        except LocalProtocolError as error:
            raise ConfigurationError(f"option tags: {error}") from error
        if self.partitions_max is not None and self.partitions_max < self.partitions_min:
            raise ConfigurationError(
                f"option maxPartitions={self.partitions_max} is below "
                f"minPartitions={self.partitions_min}"
            )
        starts = dict(self.starting.named if self.starting is not None else ())
        ends = dict(self.ending.named if self.ending is not None else ())
        for option, queues in (("startingOffsets", starts), ("endingOffsets", ends)):
            for queue in queues:
                if queue.topic not in self.topics:
                    raise ConfigurationError(
                        f"option {option}: topic {queue.topic!r} is not among "
                        f"subscribe={','.join(self.topics)}"
                    )
        for queue, end in ends.items():
            if 0 <= end < starts.get(queue, 0):
                raise ConfigurationError(
                    f"option endingOffsets: {named(queue)} ends at {end}, but startingOffsets "
                    f"begins there at {starts[queue]}; expected an end at or after the start"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What the user asked of the sink; see the table above."""

    name_servers: tuple[str, ...]
    topic: str | None = None
    message_bytes_max: int = MESSAGE_BYTES_DEFAULT
    request_timeout_s: float = 10.0
    retry_timeout_s: float = RETRY_S


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the options of a source.

    Raises:
        ConfigurationError: an option is unknown, missing or malformed.
    """
    required = ("nameServer", "subscribe")
    given = values.read_options(
        options, SOURCE_OPTIONS, required=required, side="source", others=SINK_OPTIONS
    )
    return SourceOptions(**given)


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return the options of a sink.

    Raises:
        ConfigurationError: an option is unknown, missing or malformed.
    """
    given = values.read_options(
        options, SINK_OPTIONS, required=("nameServer",), side="sink", others=SOURCE_OPTIONS
    )
    return SinkOptions(**given)


def check_options(options: Mapping[str, str]) -> None:
    """Check what can be checked before it is known whether to read or to write.

    Spark tells a data source its options first and its direction later, in some cases not before
    the query runs; a misspelt option must not wait for that.

    Raises:
        ConfigurationError: an option is unknown, missing or malformed.
    """
    given = values.given_options(options).keys()
    for_source = given & _only_in(SOURCE_OPTIONS, SINK_OPTIONS)
    for_sink = given & _only_in(SINK_OPTIONS, SOURCE_OPTIONS)
    if for_source and not for_sink:
        source_options(options)
    elif for_sink and not for_source:
        sink_options(options)
    else:
        both = {**SOURCE_OPTIONS, **SINK_OPTIONS}
        values.read_options(options, both, required=("nameServer",), side="source or sink")


def _only_in(table: values.Table, other: values.Table) -> set[str]:
    return {name.lower() for name in table if name not in other}
