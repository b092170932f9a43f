"""Which schemas the source can fill, and what they are in Arrow."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from pymq.errors import ConfigurationError
from pyspark_pymq.source.columns import (
    COLUMN_SETS,
    COLUMNS,
    arrow_schema,
    check_schema,
    chosen_columns,
    default_schema,
)
from pyspark_pymq.source.option_checks import source_options
from pyspark_pymq.values.ddl import struct_of_ddl
from pyspark_pymq.values.formats import BODIES, ValueFormat
from pyspark_pymq.values.spark_types import misfit


def test_default_schema() -> None:
    usual = ["topic", "queueId", "queueOffset", "body", "tags", "keys"]
    usual += ["bornTimestamp", "storeTimestamp"]
    assert default_schema(properties=False).fieldNames() == usual
    assert default_schema(properties=True).fieldNames() == [*usual, "properties"]
    assert default_schema(properties=True).simpleString().endswith("map<string,string>>")


def test_the_names_of_spark_s_kafka_source() -> None:
    """Names, order and types as in Spark's structured-streaming-kafka-integration guide."""
    assert default_schema(("kafka",), properties=False).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )


def test_columns_and_sets_of_them() -> None:
    usual, kafka = COLUMN_SETS["pymq"], COLUMN_SETS["kafka"]
    assert chosen_columns(["pymq", "brokerName", "msgId"]) == (*usual, "brokerName", "msgId")
    assert chosen_columns(["body", "pymq"]) == ("body", *(c for c in usual if c != "body"))
    assert chosen_columns(["kafka", "topic"]) == kafka
    for wrong, hint in (("msgID", "did you mean msgId?"), ("zzz", "Expected pymq or kafka")):
        with pytest.raises(ConfigurationError, match="option columns") as caught:
            chosen_columns(["pymq", wrong])
        assert repr(wrong) in str(caught.value) and hint in str(caught.value)


def test_arrow_types_are_what_spark_compares_with() -> None:
    """Spark refuses batches whose schema is not equal to what it makes of its own."""
    from pyspark.sql.pandas.types import to_arrow_schema

    for schema in (
        default_schema(properties=True),
        default_schema(("kafka",), properties=True),
        spark.StructType().add("body", "binary", False).add("queueOffset", "long", False),
        spark.StructType([spark.StructField(n, COLUMNS[n].spark_type) for n in COLUMNS]),
    ):
        wanted = to_arrow_schema(schema, timezone="UTC")
        assert arrow_schema(schema).equals(wanted, check_metadata=False)


TEXT, BYTES = spark.StringType(), spark.BinaryType()


@pytest.mark.parametrize(
    ("given", "pieces"),
    [
        (("Body", BYTES), ["'Body'", "did you mean body?", "queueOffset bigint"]),
        (("body", TEXT), ["body is string, expected binary", "cast"]),
        (("queueId", spark.LongType()), ["queueId is bigint, expected int"]),
        (("properties", spark.MapType(TEXT, BYTES)), ["expected map<string,string>"]),
        (("tags", TEXT, False), ["tags is NOT NULL"]),
        (("key", BYTES, False), ["key is NOT NULL"]),
        (("value", TEXT), ["value is string, expected binary"]),
        (("nonsense", TEXT), ["no column 'nonsense'. Columns", "topic string"]),
        (("BODY", BYTES), ["'BODY'", "did you mean body?"]),
        (("queueoffset", spark.LongType()), ["did you mean queueOffset?"]),
    ],
)
def test_schemas_that_cannot_be_filled(given: tuple[Any, ...], pieces: list[str]) -> None:
    schema = spark.StructType([spark.StructField(*given)])
    with pytest.raises(ConfigurationError) as caught:
        check_schema(schema)
    for piece in pieces:
        assert piece in str(caught.value)


def test_a_column_cannot_be_named_twice() -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        check_schema(spark.StructType().add("body", "binary").add("body", "binary"))


JSON = source_options(
    {"nameserver": "a:1", "subscribe": "x", "valueformat": "json", "valueschema": "a int, b string"}
).values
UNTYPED = ValueFormat(name="json")
STRINGS = ValueFormat(name="string")


def test_values_take_the_place_of_bodies() -> None:
    plain = default_schema(properties=True)
    for values, name, kind in (
        (STRINGS, "body", "string"),
        (JSON, "value", "struct<a:int,b:string>"),
    ):
        found = default_schema(properties=True, values=values)
        at = plain.names.index("body")
        assert found.names == [*plain.names[:at], name, *plain.names[at + 1 :]]
        assert found[name].dataType.simpleString() == kind
        check_schema(found, values)
    with pytest.raises(ConfigurationError, match="valueFormat=json needs the type.*valueSchema"):
        default_schema(properties=False, values=UNTYPED)


def test_values_of_the_users_schema() -> None:
    for values, ddl in (
        (JSON, "body binary, value struct<a int, b string>"),
        (UNTYPED, "body binary, value struct<x map<string,int>>, queueId int"),
        (STRINGS, "body binary"),
        (STRINGS, "body string, tags string"),
    ):
        schema = struct_of_ddl(ddl)
        check_schema(schema, values)
        assert arrow_schema(schema).equals(to_arrow(schema), check_metadata=False)
    strict = spark.StructType().add("a", spark.IntegerType(), False)
    for values, kind, pieces in (
        (JSON, struct_of_ddl("a int"), ["value has the fields a, expected a, b", "options say"]),
        (JSON, struct_of_ddl("a bigint, b string"), ["value.a is bigint, expected int"]),
        (JSON, TEXT, ["value is string, expected struct<a:int,b:string>"]),
        (UNTYPED, TEXT, ["value is string, expected a struct"]),
        (UNTYPED, strict, ["value.a is NOT NULL", "JSON may lack any field"]),
        (UNTYPED, spark.StructType().add("d", spark.VarcharType(3)), ["value.d is varchar(3)"]),
        (BODIES, struct_of_ddl("a int"), ["expected binary", "valueFormat to json"]),
    ):
        with pytest.raises(ConfigurationError) as caught:
            check_schema(spark.StructType().add("value", kind), values)
        for piece in pieces:
            assert piece in str(caught.value)
    with pytest.raises(ConfigurationError, match="value is NOT NULL, but bad records"):
        schema = spark.StructType().add("value", struct_of_ddl("a int"), False)
        check_schema(schema, UNTYPED, null_bodies=True)


def to_arrow(schema: spark.StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def test_all_types_of_values_are_what_spark_compares_with() -> None:
    inner = spark.StructType().add("x", spark.IntegerType(), False).add("y", spark.NullType())
    schema = (
        struct_of_ddl(
            "a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h string, "
            "i binary, j date, k timestamp, l timestamp_ntz, m decimal(20,3), n array<array<int>>, "
            "o map<string,array<string>>, p struct<x map<int,struct<y date>>>"
        )
        .add("q", spark.ArrayType(inner, False), False)
        .add("r", spark.MapType(TEXT, inner, False))
    )
    assert arrow_schema(schema).equals(to_arrow(schema), check_metadata=False)
    assert misfit(schema, schema, "value") is None


def test_null_bodies_need_a_column_that_takes_them() -> None:
    for name in ("body", "value"):
        schema = spark.StructType().add(name, "binary", nullable=False)
        check_schema(schema)
        with pytest.raises(ConfigurationError, match=f"column {name} .* corruptBodies"):
            check_schema(schema, null_bodies=True)
