"""The columns the sink takes."""

from pyspark.sql import types as spark

from pymq.errors import ConfigurationError
from pyspark_pymq.format_options import check_target
from pyspark_pymq.option_values import like
from pyspark_pymq.sink.options import SinkOptions
from pyspark_pymq.values.formats import AVRO, BINARY, ValueFormat
from pyspark_pymq.values.json_rows import check_json_type
from pyspark_pymq.values.spark_types import misfit

_TEXT = "string"
_BODY = "string or binary"
_STRUCT = "struct<…>"
_NUMBER = "int or bigint"
_FLAG = "int"
_LEVEL = "int"
_TIME = "timestamp or bigint"
_KEYS = "string or array<string>"
_MAP = "map<string,string>"
_ID = "string or bigint"
#: Column -> its types.
SINK_COLUMNS = {
    "body": _BODY,
    "value": _BODY,
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": _KEYS,
    "key": _KEYS,
    "properties": _MAP,
    "shardingKey": _TEXT,
    "queueId": _NUMBER,
    "brokerName": _TEXT,
    "flag": _FLAG,
    "delayLevel": _LEVEL,
    "deliverTimestamp": _TIME,
}
#: Other names of columns, as the Kafka sink calls them.
_ALIASES = {"value": "body", "key": "keys"}
_ACCEPTED = {
    _TEXT: {"string"},
    _BODY: {"string", "binary"},
    _NUMBER: {"tinyint", "smallint", "int", "bigint"},
    _FLAG: {"tinyint", "smallint", "int"},
    _TIME: {"timestamp", "bigint"},
    _KEYS: {"string", "array<string>"},
    _MAP: {"map<string,string>"},
    _ID: {"string", "tinyint", "smallint", "int", "bigint"},
}
#: What somebody may expect to be called like one of the columns of delays.
_DELAYS = {
    "delay",
    "delayms",
    "delayseconds",
    "delaytime",
    "delaytimelevel",
    "delivertime",
    "deliveryms",
    "deliverytime",
    "deliverytimestamp",
}


def check_columns(schema: spark.StructType, options: SinkOptions) -> dict[str, str]:
    """Return, for each of the sink's columns that a DataFrame has, what it calls it.

    The column of option dedupKey is found as ``dedupKey``, and may be one of the others, too.

    Raises:
        ConfigurationError: a column is unknown, has another type, or one is missing.
    """
    valid = ", ".join(f"{name} {_types(name, options.values)}" for name in SINK_COLUMNS)
    found: dict[str, str] = {}
    for given in schema.fields:
        if given.name == options.dedup_column:
            _check_type(given, _ID)
            found["dedupKey"] = given.name
        if given.name not in SINK_COLUMNS:
            if given.name != options.dedup_column:
                raise _unknown(given.name, valid)
            continue
        name = _ALIASES.get(given.name, given.name)
        if name == "body":
            _check_value(given, options.values)
        else:
            _check_type(given, SINK_COLUMNS[given.name])
        if name in found:
            raise ConfigurationError(f"columns {found[name]} and {given.name} are the same")
        found[name] = given.name
    _check_found(found, options, valid)
    if options.topic is not None:
        found.pop("topic", None)  # the option comes first
        check_target(options.topic)
    return found


def _check_found(found: dict[str, str], options: SinkOptions, valid: str) -> None:
    """Check that the columns are all that are needed."""
    if "body" not in found:
        raise ConfigurationError(
            f"column body is missing, which the pymq sink needs; columns are: {valid}"
        )
    if options.dedup_column is not None and "dedupKey" not in found:
        raise ConfigurationError(
            f"option dedupKey={options.dedup_column!r}: there is no column of this name"
        )
    if options.topic is None and "topic" not in found:
        raise ConfigurationError(
            "no topic to write to: set the option topic, or add a column topic"
        )
    if "brokerName" in found and "queueId" not in found:
        raise ConfigurationError("column brokerName chooses the broker of a queueId: add queueId")


def _unknown(name: str, valid: str) -> ConfigurationError:
    if name.replace("_", "").lower() in _DELAYS:
        hint = (
            ": delayed messages have a delayLevel, or a deliverTimestamp, such as "
            "timestampadd(SECOND, 90, now())."
        )
    else:
        near = like(name, SINK_COLUMNS)
        hint = f", did you mean {near}?" if near else "."
    return ConfigurationError(
        f"the pymq sink has no column {name!r}{hint} select() what is to be written under these "
        f"names: {valid}"
    )


def _types(name: str, values: ValueFormat) -> str:
    is_struct = values.has_struct and _ALIASES.get(name, name) == "body"
    return _STRUCT if is_struct else SINK_COLUMNS[name]


def _check_type(given: spark.StructField, types: str) -> None:
    actual = given.dataType.simpleString()
    if actual.startswith(("varchar", "char")):
        actual = "string"
    if actual not in _ACCEPTED[types]:
        raise ConfigurationError(f"column {given.name} is {actual}, expected {types}: cast it")


def _check_value(given: spark.StructField, values: ValueFormat) -> None:
    """Check the column that becomes the bodies."""
    is_struct = isinstance(given.dataType, spark.StructType)
    if not values.has_struct:
        if is_struct:
            raise ConfigurationError(
                f"column {given.name} is {given.dataType.simpleString():.200}, expected {_BODY}: "
                "set the option valueFormat to json or avro"
            )
        _check_type(given, _BODY)
        return
    if not is_struct:
        raise ConfigurationError(
            f"column {given.name} is {given.dataType.simpleString():.200}, but with "
            f"valueFormat={values.name} it is a struct: put what a value has into one, struct(…) "
            f"AS {given.name}; for bodies that are encoded already set valueFormat to {BINARY}"
        )
    try:
        if values.name == AVRO:
            assert values.value_type is not None
            wrong = misfit(given.dataType, values.value_type, given.name, any_order=True)
            if wrong is not None:
                raise ConfigurationError(f"column {wrong}, as its Avro schema says: cast it")
        else:
            check_json_type(given.dataType, given.name)
    except ValueError as error:
        raise ConfigurationError(f"column {error}") from error
