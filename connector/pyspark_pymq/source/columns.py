"""The columns the source has, and which of them a user asks for.

A user's schema names any of them, in any order. Without one the option ``columns`` does, as a list
of columns and of these sets of columns:

``pymq`` (the default): what most queries need and what costs little. Each column costs the way from
Python into the JVM, row by row, which is more than decoding costs, and a string more than a number.
``brokerName`` and ``msgId`` were 27 % of the time that ten columns took from Arrow batches to
Spark's ``noop`` (bodies of 100 B), and a map of three ``properties`` costs as much as the default
columns together. So these three are there when asked for.

``kafka``: the columns of Spark's Kafka source. ``partition`` is the queue's number. Each broker of
a topic numbers its queues from 0, so two brokers have the same partitions and offsets: only
together with ``brokerName`` do they say which message it is. ``timestamp`` is when the broker
stored the message, by which offsets are looked up, and ``timestampType`` therefore always 1
(LogAppendTime); the producer's time is ``bornTimestamp``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark

from pymq.columns.record_rows import RecordRows
from pymq.errors import ConfigurationError
from pyspark_pymq.option_values import like
from pyspark_pymq.values.formats import BODIES, STRING, ValueFormat
from pyspark_pymq.values.json_rows import check_json_type
from pyspark_pymq.values.spark_types import arrow_type, as_nullable, misfit

_Rows = TypeVar("_Rows")


@dataclass(frozen=True, slots=True)
class Column(Generic[_Rows]):
    """One column that can be filled from some rows."""

    spark_type: spark.DataType
    fill: Callable[[_Rows], pa.Array]
    may_be_null: bool = False


#: By name; how they are filled does not matter here.
Columns = Mapping[str, Column[Any]]

_TEXT = spark.StringType()
_INT = spark.IntegerType()
_LONG = spark.LongType()
_BINARY = spark.BinaryType()
_TIME = spark.TimestampType()
#: Kafka's TimestampType.LOG_APPEND_TIME.
_LOG_APPEND_TIME = 1


def _number(name: str) -> Callable[[RecordRows], pa.Array]:
    return lambda rows: pa.array(rows.field(name))


def _same_int(value: Callable[[RecordRows], int]) -> Callable[[RecordRows], pa.Array]:
    return lambda rows: pa.array(np.full(rows.count, value(rows), np.int32))


def _text_of(name: str) -> Column[RecordRows]:
    return Column(_TEXT, lambda rows: rows.one_property(name), may_be_null=True)


COLUMNS: Mapping[str, Column[RecordRows]] = {
    "topic": Column(_TEXT, lambda rows: rows.constant(rows.queue.topic)),
    "brokerName": Column(_TEXT, lambda rows: rows.constant(rows.queue.broker_name)),
    "queueId": Column(_INT, _same_int(lambda rows: rows.queue.queue_id)),
    "queueOffset": Column(_LONG, _number("queue_offset")),
    "body": Column(_BINARY, RecordRows.bodies),
    "tags": _text_of("TAGS"),
    "keys": _text_of("KEYS"),
    "msgId": Column(_TEXT, RecordRows.message_ids),
    # Whatever the producer said; what the broker's clock says is always a time.
    "bornTimestamp": Column(_TIME, lambda rows: rows.times("born_timestamp"), may_be_null=True),
    "storeTimestamp": Column(_TIME, lambda rows: rows.times("store_timestamp")),
    "bornHost": Column(_TEXT, RecordRows.born_hosts),
    "flag": Column(_INT, _number("flag")),
    "sysFlag": Column(_INT, _number("sys_flag")),
    "reconsumeTimes": Column(_INT, _number("reconsume_times")),
    "properties": Column(spark.MapType(_TEXT, _TEXT), RecordRows.property_maps),
    # Names of Spark's Kafka source.
    "key": Column(_BINARY, lambda rows: rows.property_bytes("KEYS"), may_be_null=True),
    "value": Column(_BINARY, RecordRows.bodies),
    "partition": Column(_INT, _same_int(lambda rows: rows.queue.queue_id)),
    "offset": Column(_LONG, _number("queue_offset")),
    "timestamp": Column(_TIME, lambda rows: rows.times("store_timestamp")),
    "timestampType": Column(_INT, _same_int(lambda rows: _LOG_APPEND_TIME)),
}
BODY_COLUMNS = frozenset({"body", "value"})
#: What is read when nothing else is asked for.
USUAL = "pymq"
COLUMN_SETS: Mapping[str, tuple[str, ...]] = {
    USUAL: (
        *("topic", "queueId", "queueOffset", "body"),
        *("tags", "keys", "bornTimestamp", "storeTimestamp"),
    ),
    "kafka": ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
}


def chosen_columns(items: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that a list of columns and sets of columns stands for, each once.

    Raises:
        ConfigurationError: there is no such column or set.
    """
    found: dict[str, None] = {}
    for item in items:
        if item in COLUMN_SETS:
            found |= dict.fromkeys(COLUMN_SETS[item])
        elif item in COLUMNS:
            found[item] = None
        else:
            near = like(item, (*COLUMN_SETS, *COLUMNS))
            raise ConfigurationError(
                f"option columns: there is no {item!r}{f', did you mean {near}?' if near else '.'} "
                f"Expected {' or '.join(COLUMN_SETS)}, or columns separated by ','; these are: "
                f"{', '.join(COLUMNS)}"
            )
    return tuple(found)


def default_schema(
    columns: Iterable[str] = (USUAL,), *, properties: bool, values: ValueFormat = BODIES
) -> spark.StructType:
    """Return the schema of the source when the user gives none.

    Args:
        columns: columns and sets of columns, as the option names them.
        properties: add the map of all properties, which costs as much as the other columns.
        values: what bodies mean; the values take the place of the bodies.

    Raises:
        ConfigurationError: the type of the values is not known.
    """
    names = list(chosen_columns([*columns, *(["properties"] if properties else [])]))
    kinds = {name: COLUMNS[name].spark_type for name in names}
    if values.name == STRING:
        kinds |= dict.fromkeys(BODY_COLUMNS, _TEXT)
    if values.has_struct:
        if values.value_type is None:
            raise ConfigurationError(
                "valueFormat=json needs the type of the values: set the option valueSchema, for "
                "example to 'id bigint, name string', or name the columns with .schema(…), for "
                "example 'queueOffset bigint, value struct<id bigint, name string>'"
            )
        kinds["value"] = values.value_type
        if "value" not in names and "body" in names:
            names[names.index("body")] = "value"
    return schema_of({name: kinds[name] for name in names})


def schema_of(kinds: Mapping[str, spark.DataType]) -> spark.StructType:
    """Return the schema that has some columns."""
    return spark.StructType([spark.StructField(name, kind, True) for name, kind in kinds.items()])


def check_schema(
    schema: spark.StructType,
    values: ValueFormat = BODIES,
    *,
    known: Columns = COLUMNS,
    null_bodies: bool = False,
) -> None:
    """Check that the source can fill a user's schema: any of its columns, in any order.

    Args:
        schema: the user's, or the default one.
        values: what bodies mean.
        known: the columns there are.
        null_bodies: bodies that cannot be decoded are to be null.

    Raises:
        ConfigurationError: a column is unknown, doubled, or of another type.
    """
    expected = {name: [column.spark_type] for name, column in known.items()}
    if values.name == STRING:
        expected |= {name: [_TEXT, _BINARY] for name in BODY_COLUMNS}
    if values.has_struct:
        expected["value"] = [values.value_type or spark.StructType()]
    valid = ", ".join(f"{name} {_told(kinds)}" for name, kinds in expected.items())
    seen = set()
    for given in schema.fields:
        if given.name not in expected:
            near = like(given.name, expected)
            hint = f", did you mean {near}?" if near else "."
            raise ConfigurationError(
                f"schema: there is no column {given.name!r}{hint} Columns of the pymq source "
                f"are: {valid}"
            )
        if given.name in seen:
            raise ConfigurationError(f"schema: column {given.name} is named twice")
        seen.add(given.name)
        kinds = expected[given.name]
        if given.name == "value" and values.has_struct:
            _check_value(given.dataType, values)
        elif given.dataType.simpleString() not in (kind.simpleString() for kind in kinds):
            is_struct = given.name == "value" and isinstance(given.dataType, spark.StructType)
            raise ConfigurationError(
                f"schema: column {given.name} is {given.dataType.simpleString()}, expected "
                f"{_told(kinds)}; read it so, and cast afterwards"
                f"{', or set the option valueFormat to json or avro' if is_struct else ''}. "
                f"Columns are: {valid}"
            )
        if not given.nullable and known[given.name].may_be_null:
            raise ConfigurationError(
                f"schema: column {given.name} is NOT NULL, but messages without it exist"
            )
        if not given.nullable and null_bodies and given.name in BODY_COLUMNS:
            raise ConfigurationError(
                f"schema: column {given.name} is NOT NULL, but bad records (badRecords=null, "
                "corruptBodies=null) are null"
            )


def _told(kinds: list[spark.DataType]) -> str:
    """Return the types a column may have."""
    if kinds == [spark.StructType()]:
        return "struct<…>"
    return " or ".join(kind.simpleString() for kind in kinds)


def _check_value(given: spark.DataType, values: ValueFormat) -> None:
    """Check the type that a schema wants values to have."""
    if values.value_type is not None:
        lost = misfit(given, values.value_type, "value")
        if lost is not None:
            raise ConfigurationError(
                f"schema: column {lost}; the options say that values are "
                f"{values.value_type.simpleString()}"
            )
        return
    if not isinstance(given, spark.StructType):
        raise ConfigurationError(
            f"schema: column value is {given.simpleString()}, expected a struct: name the fields "
            "of the values, for example value struct<id bigint, name string>"
        )
    try:
        check_json_type(given, "value")
    except ValueError as error:
        raise ConfigurationError(f"schema: column {error}") from error
    lost = misfit(given, as_nullable(given), "value")
    if lost is not None:
        raise ConfigurationError(f"schema: column {lost}: JSON may lack any field")


def arrow_schema(schema: spark.StructType) -> pa.Schema:
    """Return the Arrow schema that Spark compares batches with: same order, same nullability."""
    return pa.schema(
        [pa.field(given.name, arrow_type(given.dataType), given.nullable) for given in schema]
    )
