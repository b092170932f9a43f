"""The options of the source, read from text and checked: also whether they contradict each other.

Each check raises ``ConfigurationError``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pymq.errors import ConfigurationError, LocalProtocolError
from pymq.filter.tags import check_tags
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.names import LMQ_PREFIX
from pyspark_pymq.format_options import FAIL, NULL, SIDE_TOPIC
from pyspark_pymq.offsets import COMMITTED, EARLIEST, At, Bound, named
from pyspark_pymq.option_tables import RETRY_S, SINK_OPTIONS, SOURCE_OPTIONS
from pyspark_pymq.option_values import read_options
from pyspark_pymq.source.columns import chosen_columns
from pyspark_pymq.source.options import SourceOptions

#: Options that do nothing without another one: both, and the field of the first.
_NEEDS_OTHER = (
    ("topicRefreshMs", "topic_refresh_s", "subscribePattern", ("topic_pattern",)),
    ("maxTriggerDelay", "trigger_delay_s", "minOffsetsPerTrigger", ("offsets_min",)),
    (
        "startingOffsetsByTimestampStrategy",
        "is_strict_about_times",
        "startingTimestamp or startingOffsetsByTimestamp",
        ("starting_at", "starting_times"),
    ),
)

#: Fields of the options that count where the queues are read, and not their messages.
_OF_QUEUES = {
    *("metadata", "name_servers", "request_timeout_s", "retry_timeout_s"),
    *("topics", "topic_pattern", "assigned", "expected_brokers", "consumer_group"),
}


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the options of a source.

    Raises:
        ConfigurationError: an option is unknown, missing or malformed, or does nothing.
    """
    given = read_options(
        options, SOURCE_OPTIONS, required=("nameServer",), side="source", others=SINK_OPTIONS
    )
    _check_needed(given)
    _check_given(given)
    found = SourceOptions(**given)
    for check in _CHECKS:
        check(found)
    return found


def _check_needed(given: Mapping[str, Any]) -> None:
    for option, field, needed, others in _NEEDS_OTHER:
        if field in given and not given.keys() & set(others):
            raise ConfigurationError(
                f"option {option} does nothing without {needed}: add that, or remove {option}"
            )
    if "group_fallback" in given and given.get("starting") != Bound(COMMITTED):
        raise ConfigurationError(
            "option groupOffsetFallback does nothing without startingOffsets=group: add that, or "
            "remove groupOffsetFallback"
        )


def _check_given(given: Mapping[str, Any]) -> None:
    """Check what only the user's own words tell, who may have said what is the default.

    Args:
        given: values of the options the user gave, by field.
    """
    for name, (field, _) in SOURCE_OPTIONS.items():
        if "metadata" in given and field in given and field not in _OF_QUEUES:
            raise ConfigurationError(
                f"option {name} is about messages, and metadata={given['metadata']} reads none: "
                "remove one of them"
            )
    null_corrupt, bad_records = given.get("null_corrupt_bodies"), given.get("bad_records", FAIL)
    if null_corrupt is not None and bad_records not in (FAIL, NULL if null_corrupt else FAIL):
        raise ConfigurationError(
            f"option corruptBodies={'null' if null_corrupt else 'fail'} contradicts "
            f"badRecords={bad_records}, which counts for bodies that cannot be decompressed, too: "
            "remove corruptBodies"
        )
    request_s, retry_s = given.get("request_timeout_s", 0), given.get("retry_timeout_s", RETRY_S)
    if request_s > retry_s:
        raise ConfigurationError(
            f"option requestTimeoutMs={1000 * request_s:.0f} is above "
            f"retryTimeoutMs={1000 * retry_s:.0f}: an answer would be waited for longer than a "
            "broker may be away"
        )


def _check_choice(options: SourceOptions) -> None:
    given = [
        name
        for name, value in (
            ("subscribe", options.topics),
            ("subscribePattern", options.topic_pattern),
            ("assign", options.assigned),
        )
        if value
    ]
    if not given:
        raise ConfigurationError(
            "option subscribe is missing: the pymq source needs it, for example .option("
            '"subscribe", "orders"); or subscribePattern, or assign'
        )
    if len(given) > 1:
        raise ConfigurationError(
            f"options {' and '.join(given)} are given; expected exactly one of subscribe, "
            f"subscribePattern and assign: remove the others"
        )
    for name, topic in (
        *(("subscribe", topic) for topic in options.topics),
        ("subscribePattern", (options.topic_pattern or "").replace("\\", "")),
        *(("assign", queue.topic) for queue in sorted(options.assigned)),
    ):
        if topic.startswith(LMQ_PREFIX):
            raise ConfigurationError(
                f"option {name}: {topic} is a light queue ({LMQ_PREFIX}), which has no route and "
                "no offsets of its own: subscribe the topics that its messages were sent to"
            )
    broad = {(queue.topic, queue.queue_id) for queue in options.assigned if not queue.broker_name}
    for queue in options.assigned:
        if queue.broker_name and (queue.topic, queue.queue_id) in broad:
            raise ConfigurationError(f"option assign: {queue} is assigned twice")
    brokers = {queue.broker_name for queue in options.assigned}
    absent = sorted(set(options.expected_brokers) - brokers)
    if options.assigned and "" not in brokers and absent:
        raise ConfigurationError(
            f"option expectedBrokers names {', '.join(absent)}, of which assign names no queue: it "
            f"would be waited for in vain. Expected some of {', '.join(sorted(brokers))}"
        )


def _check_filters(options: SourceOptions) -> None:
    if options.sql is not None and options.tags:
        raise ConfigurationError(
            f"options sql and tags exclude each other: name the tags in the expression, "
            f"TAGS IN ({', '.join(map(repr, options.tags))}) AND ({options.sql:.200})"
        )
    for tag in options.tags:
        if "|" in tag:
            raise ConfigurationError(
                f"option tags: {tag[:80]!r} would be one tag; several are separated by '||'. If "
                f"messages have this very tag, use the option sql: TAGS = {tag[:80]!r}"
            )
    try:
        check_tags(str(options.choice), options.tag_expression)
    except LocalProtocolError as error:
        raise ConfigurationError(
            f"option tags={options.tag_expression[:200]!r} is an SQL expression, expected tags "
            "joined by '||': give it as the option sql instead"
        ) from error


def _check_columns(options: SourceOptions) -> None:
    chosen_columns(options.columns)


def _check_values(options: SourceOptions) -> None:
    assert options.values is not None  # it raises what is wrong
    topic = options.bad_records_topic
    if (topic is None) is (options.bad_records == SIDE_TOPIC):
        raise ConfigurationError(
            f"option badRecords={options.bad_records}, badRecordsTopic={topic}: bad records go "
            "to a topic with badRecords=sideTopic and badRecordsTopic, set both or neither"
        )
    if topic is not None and options.choice.takes_topic(topic):
        raise ConfigurationError(
            f"option badRecordsTopic={topic!r} is one of {options.choice}: "
            "its bad records would be read and sent there again and again; name another topic"
        )


def _check_limits(options: SourceOptions) -> None:
    if options.partitions_max is not None and options.partitions_max < options.partitions_min:
        raise ConfigurationError(
            f"option maxPartitions={options.partitions_max} is below "
            f"minPartitions={options.partitions_min}"
        )
    least, most = options.offsets_min, options.offsets_max
    if least is not None and most is not None and least > most:
        raise ConfigurationError(
            f"option minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}"
        )


def _check_group(options: SourceOptions) -> None:
    if options.start(EARLIEST) == Bound(COMMITTED) and not options.has_group:
        raise ConfigurationError(
            "option startingOffsets=group: expected the option consumerGroup, too: the group "
            "whose committed offsets are meant"
        )
    if options.commits_offsets and not options.has_group:
        raise ConfigurationError(
            "option commitOffsetsToBroker=true needs the option consumerGroup: the group whose "
            "progress it is, one of this query alone"
        )


def _check_positions(options: SourceOptions) -> None:
    choice = options.choice
    for option, bound in (
        ("startingOffsets", options.starting),
        ("startingOffsetsByTimestamp", options.starting_times),
        ("endingOffsets", options.ending),
        ("endingOffsetsByTimestamp", options.ending_times),
    ):
        for queue, _ in bound.named if bound is not None else ():
            if not choice.takes_topic(queue.topic):
                raise ConfigurationError(
                    f"option {option}: topic {queue.topic!r} is not among {choice}"
                )
            if not choice.takes(queue):
                raise ConfigurationError(f"option {option}: {named(queue)} is not among {choice}")
    _check_order(options.start(EARLIEST), options.end())


def _check_order(start: Bound, end: Bound) -> None:
    """Check that nothing ends before it starts, as far as that can be known.

    Raises:
        ConfigurationError: something does.
    """
    starts, ends = dict(start.named), dict(end.named)
    queues: Sequence[MessageQueue | None] = [None, *sorted({*starts, *ends})]
    for queue in queues:
        first = start.unnamed if queue is None else starts.get(queue, start.unnamed)
        last = end.unnamed if queue is None else ends.get(queue, end.unnamed)
        what = "reading" if queue is None else named(queue)
        if isinstance(first, At) and isinstance(last, At):
            if last.timestamp_ms < first.timestamp_ms:
                raise ConfigurationError(
                    f"option endingTimestamp: {what} is to start at {first} and to end at {last}, "
                    f"which is before; expected an end at or after the start"
                )
        elif not isinstance(first, At) and not isinstance(last, At) and 0 <= last < first:
            raise ConfigurationError(
                f"option endingOffsets: {what} ends at {last}, but startingOffsets begins there at "
                f"{first}; expected an end at or after the start"
            )


_CHECKS = (
    _check_choice,
    _check_filters,
    _check_columns,
    _check_values,
    _check_limits,
    _check_group,
    _check_positions,
)
