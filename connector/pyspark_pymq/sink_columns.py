"""The columns the sink takes, and the topics it can write to."""

from pyspark.sql import types as spark

from pymq.errors import ConfigurationError, LocalProtocolError
from pymq.protocol.names import NO_SEND_TOPICS, check_topic, is_retry_topic
from pyspark_pymq.option_values import like
from pyspark_pymq.options import SinkOptions

_TEXT = "string"
_BODY = "string or binary"
_NUMBER = "int or bigint"
_KEYS = "string or array<string>"
_MAP = "map<string,string>"
#: Column -> its types. ``value`` is another name of ``body``, as the Kafka sink calls it.
SINK_COLUMNS = {
    "body": _BODY,
    "value": _BODY,
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": _KEYS,
    "properties": _MAP,
    "queueId": _NUMBER,
    "brokerName": _TEXT,
}
_ACCEPTED = {
    _TEXT: {"string"},
    _BODY: {"string", "binary"},
    _NUMBER: {"tinyint", "smallint", "int", "bigint"},
    _KEYS: {"string", "array<string>"},
    _MAP: {"map<string,string>"},
}


def check_columns(schema: spark.StructType, options: SinkOptions) -> dict[str, str]:
    """Return, for each of the sink's columns that a DataFrame has, what it calls it.

    Raises:
        ConfigurationError: a column is unknown, has another type, or one is missing.
    """
    valid = ", ".join(f"{name} {types}" for name, types in SINK_COLUMNS.items())
    found: dict[str, str] = {}
    for given in schema.fields:
        types = SINK_COLUMNS.get(given.name)
        if types is None:
            near = like(given.name, SINK_COLUMNS)
            hint = f", did you mean {near}?" if near else "."
            raise ConfigurationError(
                f"the pymq sink has no column {given.name!r}{hint} select() what is to be "
                f"written under these names: {valid}"
            )
        actual = given.dataType.simpleString()
        if actual.startswith(("varchar", "char")):
            actual = "string"
        if actual not in _ACCEPTED[types]:
            raise ConfigurationError(
                f"column {given.name} is {actual}, expected {types}: cast it"
            )
        name = "body" if given.name == "value" else given.name
        if name in found:
            raise ConfigurationError(f"columns {found[name]} and {given.name} are the same")
        found[name] = given.name
    if "body" not in found:
        raise ConfigurationError(
            f"column body is missing, which the pymq sink needs; columns are: {valid}"
        )
    if options.topic is None and "topic" not in found:
        raise ConfigurationError(
            "no topic to write to: set the option topic, or add a column topic"
        )
    if "brokerName" in found and "queueId" not in found:
        raise ConfigurationError("column brokerName chooses the broker of a queueId: add queueId")
    if options.topic is not None:
        found.pop("topic", None)  # the option comes first
        check_target(options.topic)
    return found


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
