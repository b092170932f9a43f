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

from collections.abc import Mapping
from dataclasses import dataclass

from pymq.errors import ConfigurationError
from pymq.protocol.framing import FRAME_BYTES_MAX
from pymq.protocol.names import TOOLS_GROUP
from pyspark_pymq import option_values as values
from pyspark_pymq.offsets import EARLIEST, Bound

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

#: Longer than the 120 s after which name servers drop a silent broker from their routes: rows of
#: which only the number of the queue is given go to another one from then on.
RETRY_MS = 180_000
#: RocketMQ ``maxMessageSize`` where nobody has changed it.
MESSAGE_BYTES_DEFAULT = 4 << 20
#: No peer takes a larger frame (RocketMQ ``com.rocketmq.remoting.frameMaxLength``), whatever the
#: broker's maxMessageSize; the rest is for a frame's header, and for what a pull adds.
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX - (64 << 10)


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
    given = values.GivenOptions(options, SOURCE_OPTIONS, side="source", others=SINK_OPTIONS)
    topics = given.read("subscribe", values.topics)
    partitions_min = given.read("minPartitions", values.count(1), 1)
    partitions_max = given.read("maxPartitions", values.count(1), None)
    if partitions_max is not None and partitions_max < partitions_min:
        raise ConfigurationError(
            f"option maxPartitions={partitions_max} is below minPartitions={partitions_min}"
        )
    starting = given.read("startingOffsets", values.bound(topics, EARLIEST), None)
    ending = given.read("endingOffsets", values.ending(topics), None)
    values.check_order(starting, ending)
    return SourceOptions(
        name_servers=given.read("nameServer", values.name_servers),
        topics=topics,
        starting=starting,
        ending=ending,
        offsets_max=given.read("maxOffsetsPerTrigger", values.count(1), None),
        fail_on_data_loss=given.read("failOnDataLoss", values.flag, True),
        null_corrupt_bodies=given.read("corruptBodies", values.fail_or_null, False),
        expected_brokers=given.read("expectedBrokers", values.brokers, ()),
        tags=given.read("tags", values.tags, ()),
        include_properties=given.read("includeProperties", values.flag, False),
        consumer_group=given.read("consumerGroup", values.group, TOOLS_GROUP),
        partitions_min=partitions_min,
        partitions_max=partitions_max,
        pull_bytes=given.read("pullBytes", values.count(1024, 64 << 20), 8 << 20),
        request_timeout_s=given.read("requestTimeoutMs", values.count(1), 3_000) / 1000,
        retry_timeout_s=given.read("retryTimeoutMs", values.count(100), RETRY_MS) / 1000,
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return the options of a sink.

    Raises:
        ConfigurationError: an option is unknown, missing or malformed.
    """
    given = values.GivenOptions(options, SINK_OPTIONS, side="sink", others=SOURCE_OPTIONS)
    return SinkOptions(
        name_servers=given.read("nameServer", values.name_servers),
        topic=given.read("topic", values.topic, None),
        message_bytes_max=given.read(
            "maxMessageSize", values.count(1024, MESSAGE_BYTES_MAX), MESSAGE_BYTES_DEFAULT
        ),
        request_timeout_s=given.read("requestTimeoutMs", values.count(1), 10_000) / 1000,
        retry_timeout_s=given.read("retryTimeoutMs", values.count(100), RETRY_MS) / 1000,
    )


def check_options(options: Mapping[str, str]) -> None:
    """Check what can be checked before it is known whether to read or to write.

    Spark tells a data source its options first, and its direction later, in some cases not
    before the query runs; a misspelt option shall not wait for that.

    Raises:
        ConfigurationError: an option is unknown, missing or malformed.
    """
    names = values.by_name(options).keys()
    for own, others, parse in (
        (SOURCE_OPTIONS, SINK_OPTIONS, source_options),
        (SINK_OPTIONS, SOURCE_OPTIONS, sink_options),
    ):
        if names & {name.lower() for name in own} - {name.lower() for name in others}:
            parse(options)
            return
    both = (*SOURCE_OPTIONS, *SINK_OPTIONS)
    given = values.GivenOptions(options, both, side="source or sink", others=())
    given.read("nameServer", values.name_servers)
