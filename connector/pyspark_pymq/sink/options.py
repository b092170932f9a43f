"""What the user asked of the sink; ``option_tables`` explains each option."""

from collections.abc import Mapping
from dataclasses import dataclass

from pymq.client.cluster.network import PLAIN, Network
from pymq.errors import ConfigurationError
from pyspark_pymq.option_tables import (
    MESSAGE_BYTES_DEFAULT,
    RETRY_S,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
)
from pyspark_pymq.option_values import Delivery, read_options
from pyspark_pymq.values.formats import BINARY, ValueFormat, value_format


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What the user asked of the sink; see ``option_tables``.

    Raises:
        ConfigurationError: two options contradict each other.
    """

    name_servers: tuple[str, ...]
    topic: str | None = None
    delivery: Delivery | None = None  # None: what the brokers can do
    sink_broker: str | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None
    value_format: str = BINARY
    avro_schema: str | None = None
    avro_schema_file: str | None = None  # what is in it
    dedup_column: str | None = None
    message_bytes_max: int = MESSAGE_BYTES_DEFAULT
    network: Network = PLAIN
    request_timeout_s: float = 10.0
    retry_timeout_s: float = RETRY_S

    def __post_init__(self) -> None:
        assert self.values is not None  # it raises what is wrong
        of_sinks = {
            "sinkBroker": self.sink_broker,
            "txnAppId": self.txn_app_id,
            "txnVersion": self.txn_version,
        }
        for name, value in of_sinks.items():
            if value is not None and self.delivery == Delivery.AT_LEAST_ONCE:
                raise ConfigurationError(
                    f"option {name}={value} is for delivery=exactlyOnce, and delivery=atLeastOnce "
                    "is given: leave one of them out"
                )
        if self.txn_version is not None and self.txn_app_id is None:
            raise ConfigurationError(
                f"option txnVersion={self.txn_version} counts the writes of an application: name "
                "that with txnAppId"
            )

    @property
    def must_be_exact(self) -> bool:
        """Whether brokers that cannot write exactly once are an error."""
        return self.delivery == Delivery.EXACTLY_ONCE or self.txn_app_id is not None

    @property
    def values(self) -> ValueFormat:
        """What bodies become."""
        return value_format(
            self.value_format, avro_schema=self.avro_schema, file_schema=self.avro_schema_file
        )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return the options of a sink.

    Raises:
        ConfigurationError: an option is unknown, missing or malformed.
    """
    given = read_options(
        options, SINK_OPTIONS, required=("nameServer",), side="sink", others=SOURCE_OPTIONS
    )
    return SinkOptions(**given)
