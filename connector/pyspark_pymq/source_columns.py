"""The columns the source has, and which of them a schema asks for."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark

from pymq.errors import ConfigurationError
from pyspark_pymq.option_values import like
from pyspark_pymq.record_rows import STRING_MAP, TIMESTAMP, RecordRows


@dataclass(frozen=True, slots=True)
class Column:
    """One column the source can fill."""

    spark_type: spark.DataType
    arrow_type: pa.DataType
    fill: Callable[[RecordRows], pa.Array]
    may_be_null: bool = False


def _number(name: str) -> Callable[[RecordRows], pa.Array]:
    return lambda rows: pa.array(rows.field(name))


def _text_of(name: str) -> Column:
    return Column(
        spark.StringType(), pa.string(), lambda rows: rows.one_property(name), may_be_null=True
    )


_STRING = (spark.StringType(), pa.string())
_INT = (spark.IntegerType(), pa.int32())
_TIME = (spark.TimestampType(), TIMESTAMP)

DEFAULT_COLUMNS: dict[str, Column] = {
    "topic": Column(*_STRING, RecordRows.topics),
    "brokerName": Column(*_STRING, lambda rows: rows.constant(rows.queue.broker_name)),
    # Records of a queue that collects other queues' messages hold those queues' ids.
    "queueId": Column(
        *_INT, lambda rows: pa.array(np.full(rows.count, rows.queue.queue_id, np.int32))
    ),
    "queueOffset": Column(spark.LongType(), pa.int64(), _number("queue_offset")),
    "body": Column(spark.BinaryType(), pa.binary(), RecordRows.bodies),
    "tags": _text_of("TAGS"),
    "keys": _text_of("KEYS"),
    "msgId": Column(*_STRING, RecordRows.message_ids),
    "bornTimestamp": Column(*_TIME, lambda rows: rows.times("born_timestamp")),
    "storeTimestamp": Column(*_TIME, lambda rows: rows.times("store_timestamp")),
}
COLUMNS: dict[str, Column] = DEFAULT_COLUMNS | {
    "bornHost": Column(*_STRING, RecordRows.born_hosts),
    "flag": Column(*_INT, _number("flag")),
    "sysFlag": Column(*_INT, _number("sys_flag")),
    "reconsumeTimes": Column(*_INT, _number("reconsume_times")),
    "properties": Column(
        spark.MapType(spark.StringType(), spark.StringType()), STRING_MAP, RecordRows.property_maps
    ),
}


def default_schema(*, properties: bool) -> spark.StructType:
    """Return the schema of the source when the user gives none.

    Args:
        properties: add the map of all properties, which costs as much as the other columns.
    """
    names = [*DEFAULT_COLUMNS, *(["properties"] if properties else [])]
    return spark.StructType(
        [spark.StructField(name, COLUMNS[name].spark_type, True) for name in names]
    )


def check_schema(schema: spark.StructType, *, null_bodies: bool = False) -> None:
    """Check that the source can fill a user's schema: any of its columns, in any order.

    Args:
        schema: the user's, or the default one.
        null_bodies: bodies that cannot be decompressed are to be null.

    Raises:
        ConfigurationError: a column is unknown, doubled, or of another type.
    """
    valid = ", ".join(f"{name} {c.spark_type.simpleString()}" for name, c in COLUMNS.items())
    seen = set()
    for given in schema.fields:
        column = COLUMNS.get(given.name)
        if column is None:
            near = like(given.name, COLUMNS)
            hint = f", did you mean {near}?" if near else "."
            raise ConfigurationError(
                f"schema: there is no column {given.name!r}{hint} Columns of the pymq source "
                f"are: {valid}"
            )
        if given.name in seen:
            raise ConfigurationError(f"schema: column {given.name} is named twice")
        seen.add(given.name)
        if given.dataType.simpleString() != column.spark_type.simpleString():
            raise ConfigurationError(
                f"schema: column {given.name} is {given.dataType.simpleString()}, expected "
                f"{column.spark_type.simpleString()}; read it so, and cast afterwards. Columns "
                f"are: {valid}"
            )
        if not given.nullable and column.may_be_null:
            raise ConfigurationError(
                f"schema: column {given.name} is NOT NULL, but messages without it exist"
            )
        if not given.nullable and null_bodies and given.name == "body":
            raise ConfigurationError("schema: column body is NOT NULL, but corruptBodies is null")


def arrow_schema(schema: spark.StructType) -> pa.Schema:
    """Return the Arrow schema that Spark compares batches with: same order, same nullability."""
    fields = []
    for given in schema.fields:
        arrow_type = COLUMNS[given.name].arrow_type
        if isinstance(given.dataType, spark.MapType):
            value = pa.field("value", pa.string(), nullable=given.dataType.valueContainsNull)
            arrow_type = pa.map_(pa.string(), value)
        fields.append(pa.field(given.name, arrow_type, nullable=given.nullable))
    return pa.schema(fields)
