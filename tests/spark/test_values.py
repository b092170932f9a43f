"""Values in a real Spark: written and read in each format, and bad records in all modes."""

import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pymq.client.cluster.config import ClientConfig
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.hashes import java_hash
from pymq.protocol.message import Message
from pymq.testing import Cluster

pytestmark = pytest.mark.spark

DDL = (
    "id bigint, name string, price double, part decimal(20,4), at timestamp, local timestamp_ntz, "
    "day date, tags array<string>, counts map<string,int>, raw binary, small float, ok boolean, "
    "inner struct<x int, y: array<struct<z string>>>"
)
UTC = datetime.timezone.utc  # noqa: UP017
ROWS = [
    (
        n,
        None if n % 5 == 0 else f'é"\\\n\t{n}',
        n / 3,
        Decimal(n).scaleb(-4) if n % 2 else Decimal("-1234567890123456.7891"),
        datetime.datetime(2024, 2, 29, 12, 30, n % 60, 123456, UTC),
        datetime.datetime(1, 1, 1) if n % 3 else None,
        datetime.date(9999, 12, 31),
        ["a", None, str(n)] if n % 4 else None,
        {"k": n, "none": None} if n % 7 else {},
        bytes([0, 255, n % 256]),
        0.1,
        n % 2 == 0,
        None if n % 6 == 0 else (n, [(None,), ("z",)]),
    )
    for n in range(300)
]
AVRO = {
    "type": "record",
    "name": "tests.Everything",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": ["double", "null"]},
        {
            "name": "part",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "local",
            "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}],
        },
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "tags", "type": ["null", {"type": "array", "items": ["null", "string"]}]},
        {"name": "counts", "type": {"type": "map", "values": ["null", "int"]}},
        {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 3}},
        {"name": "small", "type": "float"},
        {"name": "ok", "type": "boolean"},
        {
            "name": "inner",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Inner",
                    "fields": [
                        {"name": "x", "type": ["null", "int"]},
                        {
                            "name": "y",
                            "type": [
                                "null",
                                {
                                    "type": "array",
                                    "items": {
                                        "type": "record",
                                        "name": "Z",
                                        "fields": [{"name": "z", "type": ["null", "string"]}],
                                    },
                                },
                            ],
                        },
                    ],
                },
            ],
        },
    ],
}


@pytest.fixture
def read(spark: SparkSession, cluster: Cluster, topic: str) -> Callable[..., DataFrame]:
    def read(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("pymq")
        reader.options(**{"nameServer": cluster.name_server, "subscribe": topic, **options})
        return (reader if schema is None else reader.schema(schema)).load()

    return read


@pytest.fixture
def write(cluster: Cluster, topic: str) -> Callable[..., None]:
    def write(rows: DataFrame, **options: str) -> None:
        writer = rows.write.format("pymq").mode("append")
        writer.options(**{"nameServer": cluster.name_server, "topic": topic, **options}).save()

    return write


@pytest.fixture
def everything(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, DDL)


def as_value(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("struct(*) AS value", "cast(id AS string) AS keys")


def compared(rows: DataFrame) -> list[str]:
    return sorted(repr(row.asDict(recursive=True)) for row in rows.collect())


def test_json_written_is_json_read(
    everything: DataFrame, read: Callable[..., DataFrame], write: Callable[..., None]
) -> None:
    write(as_value(everything), valueFormat="json")
    found = read(valueFormat="json", valueSchema=DDL)
    assert found.columns[3] == "value" and "body" not in found.columns
    assert compared(found.select("value.*")) == compared(everything)
    assert found.where("cast(value.id AS string) = keys").count() == len(ROWS)
    # Spark's own reader makes the same of the bodies, as far as it knows their forms.
    kinds = "id bigint, name string, price double, tags array<string>, counts map<string,int>"
    bodies = read(valueFormat="string")
    assert dict(bodies.dtypes)["body"] == "string"
    theirs = bodies.selectExpr(f"from_json(body, '{kinds}') AS v").select("v.*")
    assert compared(theirs) == compared(everything.select(*theirs.columns))


def test_values_and_bodies_of_the_users_schema(
    everything: DataFrame, read: Callable[..., DataFrame], write: Callable[..., None]
) -> None:
    write(as_value(everything), valueFormat="json")
    columns = "value struct<inner struct<x int>, id bigint>, queueId int, body binary"
    rows = read(columns, valueFormat="json").collect()
    assert len(rows) == len(ROWS)
    for row in rows:
        plain = json.loads(row.body)
        assert row.value.id == plain["id"]
        assert (row.value.inner and row.value.inner.x) == plain.get("inner", {}).get("x")


def test_avro_written_is_avro_read(
    everything: DataFrame,
    read: Callable[..., DataFrame],
    write: Callable[..., None],
    tmp_path: Path,
) -> None:
    path = tmp_path / "everything.avsc"
    path.write_text(json.dumps(AVRO))
    write(as_value(everything), valueFormat="avro", avroSchema=json.dumps(AVRO))
    found = read(valueFormat="avro", avroSchemaFile=str(path))
    path.unlink()  # what was read at load() is enough
    assert compared(found.select("value.*")) == compared(everything)
    value = found.schema["value"].dataType
    assert not value["id"].nullable and value["name"].nullable
    # The types are those of the data, and so all of it can be written again.
    write(found.select("value"), valueFormat="avro", avroSchema=json.dumps(AVRO))
    assert read().count() == 2 * len(ROWS)


def test_strings(
    spark: SparkSession, read: Callable[..., DataFrame], write: Callable[..., None]
) -> None:
    texts = ["", "é", "日本", "x" * 3000]
    write(spark.createDataFrame([(text,) for text in texts], "body string"), valueFormat="string")
    rows = read(valueFormat="string").collect()
    assert sorted(row.body for row in rows) == sorted(texts)
    raw = read("body binary", valueFormat="string").collect()
    assert sorted(row.body.decode() for row in raw) == sorted(texts)


GOOD, BAD = b'{"id": 1}', (b'{"id": "x"}', b"\xff", b"not json", b'{"id": 1}{"id": 2}')


@pytest.fixture
def mixed(client: BlockingClient, topic: str) -> list[Any]:
    """A topic with good and bad messages."""
    results = []
    for queue in client.write_queues(topic):
        messages = [
            Message(topic, body, tags="T", keys="k", properties={"colour": "é"}, flag=7)
            for body in [GOOD, *BAD, GOOD]
        ]
        results.append(client.send_batch(queue, messages))
    return results


def test_a_bad_record_fails_the_job(
    read: Callable[..., DataFrame], mixed: list[Any], topic: str
) -> None:
    found = read(valueFormat="json", valueSchema="id int")
    with pytest.raises(PySparkException) as caught:
        found.collect()
    for piece in (f"of {topic} on broker-a", "offset 1", "value.id is the string 'x'", "sideTopic"):
        assert piece in str(caught.value)
    # Who does not read values does not meet them.
    assert read("queueId int", valueFormat="json").count() == 6 * len(mixed)


def test_bad_records_are_null(read: Callable[..., DataFrame], mixed: list[Any]) -> None:
    found = read(valueFormat="json", valueSchema="id int", badRecords="null")
    rows = found.orderBy("queueId", "queueOffset").collect()
    assert [row.value and row.value.id for row in rows] == [1, None, None, None, None, 1] * len(
        mixed
    )
    assert {row.tags for row in rows} == {"T"}
    rows = read("body string", valueFormat="string", badRecords="null").collect()
    assert sum(row.body is None for row in rows) == len(mixed)


def test_bad_avro_is_null_whatever_its_fields(
    read: Callable[..., DataFrame], client: BlockingClient, topic: str
) -> None:
    """Fields that are never null in the schema have nothing to show where the value is null."""
    schema = json.dumps(
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "id", "type": "long"},
                {"name": "name", "type": "string"},
                {"name": "tags", "type": {"type": "array", "items": "string"}},
            ],
        }
    )
    good = b"\x02\x02x\x02\x02t\x00"  # 1, "x", ["t"]
    queue = client.write_queues(topic)[0]
    client.send_batch(queue, [Message(topic, body) for body in (b"\xff", good, good + b"!", good)])
    found = read(valueFormat="avro", avroSchema=schema, badRecords="null").orderBy("queueOffset")
    assert not found.schema["value"].dataType["id"].nullable
    rows = [row.value for row in found.collect()]
    assert rows == [None, (1, "x", ["t"]), None, (1, "x", ["t"])]
    counted = found.selectExpr("count(value)", "count(value.id)", "sum(size(value.tags))")
    assert counted.collect() == [(2, 2, 2)]
    assert found.where("value.name IS NULL").count() == 2


def test_bad_records_on_a_side_topic(
    read: Callable[..., DataFrame],
    client: BlockingClient,
    topic: str,
    mixed: list[Any],
) -> None:
    side = f"{topic}-side"
    client.write_queues(side)
    found = read(
        valueFormat="json", valueSchema="id int", badRecords="sideTopic", badRecordsTopic=side
    )
    assert [row.value.id for row in found.collect()] == [1, 1] * len(mixed)
    aside = read(subscribe=side, columns="pymq,msgId,properties").collect()
    assert len(aside) == len(BAD) * len(mixed)
    plain = read(columns="pymq,msgId,properties").collect()
    originals = {(str(row.queueId), str(row.queueOffset)): row for row in plain}
    for row in aside:
        properties = row.properties
        place = properties["BAD_RECORD_QUEUE_ID"], properties["BAD_RECORD_QUEUE_OFFSET"]
        original = originals.pop(place)
        assert (row.body, row.tags, row.keys, row.msgId) == (
            original.body, "T", "k", original.msgId
        )  # fmt: skip
        assert properties["colour"] == "é"
        assert properties["BAD_RECORD_TOPIC"] == topic
        assert properties["BAD_RECORD_BROKER"] == "broker-a"
        reason = {b"\xff": "not UTF-8", b"not json": "not JSON"}.get(bytes(row.body), "")
        assert properties["BAD_RECORD_REASON"].startswith(reason)
    # Spark 4.0 hands over bytearrays.
    assert {bytes(row.body) for row in originals.values()} == {GOOD}


def test_a_bad_record_that_is_larger_than_any_message(
    read: Callable[..., DataFrame], cluster: Cluster, topic: str
) -> None:
    """It was sent compressed, and is put aside so."""
    side, body = f"{topic}-side", b"not json " * 800_000
    names = (cluster.name_server,)
    config = ClientConfig(name_servers=names, body_bytes_max=len(body))
    with BlockingClient(names, config=config) as client:
        client.write_queues(side)
        client.send(Message(topic, body))
    options = {"valueFormat": "json", "valueSchema": "id int"}
    assert read(**options, badRecords="sideTopic", badRecordsTopic=side).count() == 0
    (row,) = read(subscribe=side, columns="body,properties").collect()
    assert row.body == body
    assert row.properties["BAD_RECORD_REASON"].startswith("not JSON")


def test_decimals_beyond_their_type(
    read: Callable[..., DataFrame], client: BlockingClient, topic: str
) -> None:
    """They are bad records like others, and not an error of whoever gets the rows."""
    side = f"{topic}-side"
    client.write_queues(side)
    beyond = [b'{"price":100000000}', b'{"price":"1e8"}']
    queue = client.write_queues(topic)[0]
    good = Message(topic, b'{"price":99999999.99}')
    client.send_batch(queue, [good, *(Message(topic, body) for body in beyond), good])
    options = {"valueFormat": "json", "valueSchema": "price decimal(10, 2)"}
    with pytest.raises(PySparkException, match="offset 1 .*value.price is the number 100000000"):
        read(**options).collect()
    price = Decimal("99999999.99")
    rows = read(**options, badRecords="null").orderBy("queueOffset").collect()
    assert [row.value and row.value.price for row in rows] == [price, None, None, price]
    left = read(**options, badRecords="sideTopic", badRecordsTopic=side).collect()
    assert [row.value.price for row in left] == [price, price]
    aside = read(subscribe=side, columns="body").collect()
    assert sorted(bytes(row.body) for row in aside) == sorted(beyond)


def test_a_stream_of_values(
    spark: SparkSession,
    read: Callable[..., DataFrame],
    write: Callable[..., None],
    cluster: Cluster,
    topic: str,
    tmp_path: Path,
) -> None:
    write(spark.range(100).selectExpr("struct(id) AS value"), valueFormat="json")
    out = f"{topic}-out"
    schema = json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "twice", "type": ["null", "long"]}]}
    )
    options = {"nameServer": cluster.name_server}
    source = spark.readStream.format("pymq").options(
        subscribe=topic,
        startingOffsets="earliest",
        valueFormat="json",
        valueSchema="id bigint",
        **options,
    )
    sink = (
        source.load()
        .selectExpr("struct(2 * value.id AS twice) AS value", "cast(value.id AS string) AS key")
        .writeStream.format("pymq")
        .options(topic=out, valueFormat="avro", avroSchema=schema, **options)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    sink.trigger(availableNow=True).start().awaitTermination()
    rows = read(subscribe=out, valueFormat="avro", avroSchema=schema).collect()
    assert sorted((int(row.keys), row.value.twice) for row in rows) == [
        (n, 2 * n) for n in range(100)
    ]


def test_sharding_keys_flags_and_ids(
    spark: SparkSession, read: Callable[..., DataFrame], write: Callable[..., None]
) -> None:
    rows = (
        spark.range(500)
        .repartition(4)
        .selectExpr(
            "cast(id AS string) AS body",
            "if(id % 10 = 9, null, concat('schlüssel-', id % 30)) AS shardingKey",
            "cast(id - 250 AS int) AS flag",
            "id AS order_number",
        )
    )
    write(rows, dedupKey="order_number")
    columns = "body binary, queueId int, flag int, msgId string, properties map<string,string>"
    found = read(columns).collect()
    assert len(found) == 500
    for row in found:
        number = int(row.body)
        assert row.flag == number - 250 and row.msgId == str(number)
        key = row.properties.get("__SHARDINGKEY")
        assert key == (None if number % 10 == 9 else f"schlüssel-{number % 30}")
        if key is not None:
            assert row.queueId == abs(java_hash(key)) % 4


def test_wrong_values_say_why(
    spark: SparkSession, read: Callable[..., DataFrame], write: Callable[..., None]
) -> None:
    struct = spark.range(2).selectExpr("struct(id, cast('nan' AS double) AS x) AS value")
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
    cases: list[tuple[DataFrame, dict[str, str], str]] = [
        (struct, {}, "set the option valueFormat to json or avro"),
        (struct, {"valueFormat": "json"}, "value.x is nan; JSON has no such number"),
        (struct, {"valueFormat": "avro"}, "set the option avroSchema"),
        (struct, {"valueFormat": "avro", "avroSchema": schema}, "has the fields id, x, expected"),
        (struct, {"valueFormat": "avro", "avroSchema": "{"}, "it is not JSON"),
        (spark.range(1).selectExpr("id AS value"), {"valueFormat": "json"}, "it is a struct"),
        (
            spark.sql("SELECT 'a' AS body, -3 AS delayLevel"),
            {},
            "delayLevel -3, expected 0 or null",
        ),
        (spark.sql("SELECT 'a' AS body"), {"dedupKey": "id"}, "no column of this name"),
    ]
    for rows, options, text in cases:
        with pytest.raises(PySparkException) as caught:
            write(rows, **options)
        assert text in str(caught.value)
    with pytest.raises(PySparkException, match="valueSchema, for example"):
        read(valueFormat="json")
