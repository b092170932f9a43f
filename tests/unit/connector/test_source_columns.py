"""Which schemas the source can fill, and what they are in Arrow."""

from typing import Any

import pytest
from pyspark.sql import types as spark

from pymq.errors import ConfigurationError
from pyspark_pymq.source_columns import (
    COLUMNS,
    DEFAULT_COLUMNS,
    arrow_schema,
    check_schema,
    default_schema,
)


def test_default_schema() -> None:
    assert default_schema(properties=False).fieldNames() == list(DEFAULT_COLUMNS)
    assert default_schema(properties=True).fieldNames() == [*DEFAULT_COLUMNS, "properties"]
    assert default_schema(properties=True).simpleString().endswith("map<string,string>>")


def test_arrow_types_are_what_spark_compares_with() -> None:
    """Spark refuses batches whose schema is not equal to what it makes of its own."""
    from pyspark.sql.pandas.types import to_arrow_schema

    for schema in (
        default_schema(properties=True),
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


def test_null_bodies_need_a_column_that_takes_them() -> None:
    schema = spark.StructType().add("body", "binary", nullable=False)
    check_schema(schema)
    with pytest.raises(ConfigurationError, match="corruptBodies"):
        check_schema(schema, null_bodies=True)
