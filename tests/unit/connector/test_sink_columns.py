"""Which DataFrames the sink can write."""

from typing import Any

import pytest
from pyspark.sql import types as spark

from pymq.errors import ConfigurationError
from pyspark_pymq.sink.columns import check_columns
from pyspark_pymq.sink.options import SinkOptions
from pyspark_pymq.values.ddl import struct_of_ddl

TEXT, BYTES = spark.StringType(), spark.BinaryType()
MAP = spark.MapType(TEXT, TEXT)
OPTIONS = SinkOptions(name_servers=("a:1",), topic="orders")
NO_TOPIC = SinkOptions(name_servers=("a:1",))


def schema(**columns: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in columns.items()])


def test_columns() -> None:
    everything = schema(
        body=BYTES,
        topic=TEXT,
        tags=TEXT,
        keys=spark.ArrayType(TEXT),
        properties=MAP,
        queueId=spark.LongType(),
        brokerName=TEXT,
        shardingKey=TEXT,
        flag=spark.IntegerType(),
        delayLevel=spark.IntegerType(),
        deliverTimestamp=spark.TimestampType(),
    )
    assert check_columns(everything, NO_TOPIC) == {name: name for name in everything.names}
    assert "topic" not in check_columns(everything, OPTIONS)  # the option comes first
    assert check_columns(schema(value=TEXT, key=TEXT), OPTIONS) == {"body": "value", "keys": "key"}


def options(**changed: Any) -> SinkOptions:
    return SinkOptions(name_servers=("a:1",), topic="orders", **changed)


RECORD = """{"type": "record", "name": "R", "fields": [
    {"name": "a", "type": "long"}, {"name": "b", "type": ["null", "string"]}]}"""
STRUCT = struct_of_ddl("b string, a bigint")


def test_values() -> None:
    avro = {"value_format": "avro", "avro_schema": RECORD}
    for given in (options(value_format="json"), options(**avro)):
        assert check_columns(schema(value=STRUCT), given) == {"body": "value"}
        assert check_columns(schema(body=STRUCT), given) == {"body": "body"}
    for given, kind, pieces in (
        (options(), STRUCT, ["struct<b:string,a:bigint>", "valueFormat to json or avro"]),
        (options(value_format="json"), TEXT, ["value is string", "valueFormat=json", "struct(…)"]),
        (
            options(value_format="json"),
            spark.StructType().add("x", spark.MapType(spark.IntegerType(), TEXT)),
            ["value.x is map<int,string>", "keys of JSON objects are strings"],
        ),
        (options(**avro), struct_of_ddl("a int, b string"), ["value.a is int, expected bigint"]),
        (options(**avro), struct_of_ddl("a bigint"), ["fields a, expected a, b"]),
    ):
        with pytest.raises(ConfigurationError) as caught:
            check_columns(schema(value=kind), given)
        for piece in pieces:
            assert piece in str(caught.value)


def test_a_column_of_ids() -> None:
    given = options(dedup_column="order")
    wanted = {"dedupKey": "order", "body": "body"}
    assert check_columns(schema(order=spark.LongType(), body=TEXT), given) == wanted
    both = {"dedupKey": "keys", "keys": "keys", "body": "body"}
    assert check_columns(schema(keys=TEXT, body=TEXT), options(dedup_column="keys")) == both
    with pytest.raises(ConfigurationError, match="dedupKey='order': there is no column"):
        check_columns(schema(body=TEXT), given)
    with pytest.raises(ConfigurationError, match="order is binary, expected string or bigint"):
        check_columns(schema(order=BYTES, body=TEXT), given)


@pytest.mark.parametrize(
    ("columns", "options", "pieces"),
    [
        ({"bdy": TEXT}, OPTIONS, ["'bdy'", "did you mean body?", "tags string", "select()"]),
        ({"xyz": TEXT}, OPTIONS, ["no column 'xyz'. select()"]),
        ({"BODY": TEXT}, OPTIONS, ["'BODY'", "did you mean body?"]),
        ({"tags": TEXT}, OPTIONS, ["body is missing"]),
        ({"body": TEXT, "delayLevel": TEXT}, OPTIONS, ["delayLevel is string, expected int"]),
        ({"body": TEXT, "delayLevel": spark.LongType()}, OPTIONS, ["delayLevel is bigint"]),
        (
            {"body": TEXT, "deliverTimestamp": spark.IntegerType()},
            OPTIONS,
            ["deliverTimestamp is int, expected timestamp or bigint: cast it"],
        ),
        (
            {"body": TEXT, "deliverTimestamp": spark.TimestampNTZType()},
            OPTIONS,
            ["deliverTimestamp is timestamp_ntz", "cast it"],
        ),
        ({"body": TEXT, "delaylevel": spark.IntegerType()}, OPTIONS, ["did you mean delayLevel?"]),
        (
            {"body": TEXT, "delay_seconds": spark.IntegerType()},
            OPTIONS,
            ["'delay_seconds'", "deliverTimestamp, such as", "delayLevel int"],
        ),
        ({"body": TEXT, "key": TEXT, "keys": TEXT}, OPTIONS, ["columns key and keys are the same"]),
        ({"body": TEXT, "flag": spark.LongType()}, OPTIONS, ["flag is bigint, expected int"]),
        ({"body": TEXT, "value": BYTES}, OPTIONS, ["body and value are the same"]),
        ({"body": spark.LongType()}, OPTIONS, ["body is bigint", "string or binary", "cast"]),
        ({"body": TEXT, "keys": MAP}, OPTIONS, ["keys", "string or array<string>"]),
        ({"body": TEXT, "queueId": TEXT}, OPTIONS, ["queueId is string", "int or bigint"]),
        ({"body": TEXT}, NO_TOPIC, ["no topic", "option topic", "column topic"]),
        ({"body": TEXT, "brokerName": TEXT}, OPTIONS, ["queueId"]),
        ({"body": TEXT}, SinkOptions(name_servers=("a:1",), topic="%RETRY%g"), ["%RETRY%g"]),
        (
            {"body": TEXT},
            SinkOptions(name_servers=("a:1",), topic="SCHEDULE_TOPIC_XXXX"),
            ["broker's own"],
        ),
    ],
)
def test_columns_that_cannot_be_written(
    columns: dict[str, spark.DataType], options: SinkOptions, pieces: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_columns(schema(**columns), options)
    for piece in pieces:
        assert piece in str(caught.value)
