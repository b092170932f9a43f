"""Which DataFrames the sink can write."""

import pytest
from pyspark.sql import types as spark

from pymq.errors import ConfigurationError
from pyspark_pymq.options import SinkOptions
from pyspark_pymq.sink_columns import check_columns

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
    )
    assert check_columns(everything, NO_TOPIC) == {name: name for name in everything.names}
    assert "topic" not in check_columns(everything, OPTIONS)  # the option comes first
    assert check_columns(schema(value=TEXT), OPTIONS) == {"body": "value"}


@pytest.mark.parametrize(
    ("columns", "options", "pieces"),
    [
        ({"bdy": TEXT}, OPTIONS, ["'bdy'", "did you mean body?", "tags string", "select()"]),
        ({"xyz": TEXT}, OPTIONS, ["no column 'xyz'. select()"]),
        ({"BODY": TEXT}, OPTIONS, ["'BODY'", "did you mean body?"]),
        ({"tags": TEXT}, OPTIONS, ["body is missing"]),
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
