"""What the user asked of the source; ``option_tables`` explains each option."""

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql.types import StructType

from pymq.client.cluster.network import PLAIN, Network
from pymq.errors import ConfigurationError
from pymq.protocol.names import TOOLS_GROUP
from pyspark_pymq.format_options import FAIL, NULL
from pyspark_pymq.offsets import EARLIEST, LATEST, At, Bound, Place, named
from pyspark_pymq.option_tables import RETRY_S
from pyspark_pymq.source.columns import USUAL, check_schema, default_schema
from pyspark_pymq.source.topic_choice import AssignedQueue, TopicChoice
from pyspark_pymq.values.formats import BINARY, ValueFormat, value_format


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the user asked of the source; see ``option_tables``.

    Raises:
        ConfigurationError: two options contradict each other.
    """

    name_servers: tuple[str, ...]
    topics: tuple[str, ...] = ()  # one of these three
    topic_pattern: str | None = None
    assigned: frozenset[AssignedQueue] = frozenset()
    topic_refresh_s: float = 30.0
    starting: Bound | None = None  # None: stream and batch have different defaults
    starting_at: At | None = None
    starting_times: Bound | None = None
    is_strict_about_times: bool = True
    group_fallback: int | None = EARLIEST  # None: fail
    ending: Bound | None = None
    ending_at: At | None = None
    ending_times: Bound | None = None
    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int | None = None
    trigger_delay_s: float = 900.0
    fail_on_data_loss: bool = True
    value_format: str = BINARY
    value_schema: StructType | None = None
    avro_schema: str | None = None
    avro_schema_file: str | None = None  # what is in it
    bad_records: str = FAIL
    bad_records_topic: str | None = None
    null_corrupt_bodies: bool = False
    expected_brokers: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()  # none: all messages
    sql: str | None = None
    columns: tuple[str, ...] = (USUAL,)
    include_properties: bool = False
    metadata: str | None = None  # None: messages
    consumer_group: str = TOOLS_GROUP
    commits_offsets: bool = False
    partitions_min: int = 1
    partitions_max: int | None = None
    task_rows_max: int | None = None
    pull_bytes: int = 8 << 20
    reads_replicas: bool = True
    network: Network = PLAIN
    request_timeout_s: float = 3.0
    retry_timeout_s: float = RETRY_S

    @property
    def tag_expression(self) -> str:
        """The tags as brokers are asked for them."""
        return " || ".join(self.tags) or "*"

    @property
    def is_filtered(self) -> bool:
        """Whether the broker leaves messages out, so that offsets have gaps."""
        return bool(self.tags) or self.sql is not None

    @property
    def has_group(self) -> bool:
        """Whether the user named a consumer group."""
        return self.consumer_group != TOOLS_GROUP

    @property
    def values(self) -> ValueFormat:
        """What bodies mean."""
        return value_format(
            self.value_format,
            value_type=self.value_schema,
            avro_schema=self.avro_schema,
            file_schema=self.avro_schema_file,
        )

    @property
    def has_null_bodies(self) -> bool:
        """Say whether there may be rows without a body."""
        return self.null_corrupt_bodies or self.bad_records == NULL

    def default_schema(self) -> StructType:
        """Return the columns of messages that are read when the user gives no schema.

        Raises:
            ConfigurationError: the type of the values is not known.
        """
        return default_schema(self.columns, properties=self.include_properties, values=self.values)

    def check_schema(self, schema: StructType) -> None:
        """Check the columns of messages that are to be read.

        Raises:
            ConfigurationError: the source cannot fill them, or another option names others.
        """
        check_schema(schema, self.values, null_bodies=self.has_null_bodies)
        if self.columns != (USUAL,) and schema.names != self.default_schema().names:
            raise ConfigurationError(
                f"option columns={','.join(self.columns)} and a schema with other columns, "
                f"{', '.join(schema.names)}, contradict each other: remove one of them"
            )

    @property
    def choice(self) -> TopicChoice:
        """Which topics and queues are read."""
        return TopicChoice(self.topics, self.topic_pattern, self.assigned)

    def start(self, default: Place) -> Bound:
        """Return where a new query starts, by the option that counts.

        Args:
            default: if none is given.
        """
        if self.starting_at is not None:
            return Bound(self.starting_at)
        return self.starting_times or self.starting or Bound(default)

    def end(self) -> Bound:
        """Return where reading ends, by the option that counts."""
        if self.ending_at is not None:
            return Bound(self.ending_at)
        return self.ending_times or self.ending or Bound(LATEST)

    def overridden(self) -> Iterator[str]:
        """Yield which options are given, and do nothing beside another one."""
        starts = {
            "startingTimestamp": self.starting_at,
            "startingOffsetsByTimestamp": self.starting_times,
            "startingOffsets": self.starting,
        }
        ends = {
            "endingTimestamp": self.ending_at,
            "endingOffsetsByTimestamp": self.ending_times,
            "endingOffsets": self.ending,
        }
        for options in (starts, ends):
            first, *others = [name for name, value in options.items() if value is not None] or [""]
            if others:
                yield f"{first} takes precedence over {' and '.join(others)}, which does nothing"

    def trigger_limits(self) -> str:
        """Return which limits of micro-batches are given, for the log; none: an empty string."""
        limits = {
            "maxOffsetsPerTrigger": self.offsets_max,
            "maxBytesPerTrigger": self.bytes_max,
            "minOffsetsPerTrigger": self.offsets_min,
        }
        return ", ".join(name for name, limit in limits.items() if limit is not None)

    def check_for_batch(self) -> None:
        """Check what only a stream can do.

        Raises:
            ConfigurationError: a batch is to start at the latest messages.
        """
        start = self.start(EARLIEST)
        if start.unnamed == LATEST:
            raise ConfigurationError(
                "option startingOffsets=latest is for streams (spark.readStream): a batch would "
                "read nothing. Use earliest, JSON or startingTimestamp, or leave it out"
            )
        for queue, place in start.named:
            if place == LATEST:
                raise ConfigurationError(
                    f"option startingOffsets: {named(queue)} is to start at -1 (latest), which "
                    f"only streams can do: a batch would read nothing of it. Name an offset, or -2 "
                    f"(earliest); to leave the queue out, use assign"
                )

    def check_for_stream(self) -> None:
        """Check what only a batch can do.

        Raises:
            ConfigurationError: a stream is to end at the latest messages.
        """
        end = self.end()
        if end is self.ending and (end.unnamed, end.named) == (LATEST, ()):
            raise ConfigurationError(
                "option endingOffsets=latest is for batch reads (spark.read): a stream would have "
                "another end each time it is started. To end one where its topics end now, use "
                "trigger(availableNow=True)"
            )
        for queue, place in end.named:
            if place == LATEST:
                raise ConfigurationError(
                    f"option endingOffsets: {named(queue)} is to end at -1 (latest), which only "
                    f"batch reads can do. Leave the queue out, and a stream reads it without an "
                    f"end; or use trigger(availableNow=True)"
                )
