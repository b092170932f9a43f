"""Batch reads and writes in a real Spark."""

import json
from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.testing import Cluster

pytestmark = pytest.mark.spark


@pytest.fixture
def reader(spark: SparkSession, cluster: Cluster, topic: str) -> DataFrameReader:
    options = {"nameServer": cluster.name_server, "subscribe": topic}
    return spark.read.format("pymq").options(**options)


@pytest.fixture
def write(cluster: Cluster, topic: str) -> Callable[..., None]:
    def write(rows: DataFrame, **options: str) -> None:
        writer = rows.write.format("pymq").mode("append")
        writer.options(**{"nameServer": cluster.name_server, "topic": topic, **options}).save()

    return write


def test_what_is_written_is_read(
    spark: SparkSession, reader: DataFrameReader, write: Callable[..., None], topic: str
) -> None:
    rows = spark.range(1000).selectExpr(
        "case when id % 7 = 0 then '' else repeat(cast(id as string), 30) end as body",
        "if(id % 5 = 0, null, concat('tag-', id % 3)) as tags",
        "if(id % 2 = 0, array('k', cast(id as string)), null) as keys",
        "map('id', cast(id as string), 'letter', 'é') as properties",
    )
    write(rows)
    found = reader.option("includeProperties", "true").load().selectExpr(
        "cast(body as string) as body",
        "tags",
        "split(keys, ' ') as keys",
        "map_filter(properties, (k, v) -> k in ('id', 'letter')) as properties",
    )
    assert sorted(map(repr, found.collect())) == sorted(map(repr, rows.collect()))
    ids = reader.option("columns", "topic,msgId,bornTimestamp,storeTimestamp").load().collect()
    assert len({row.msgId for row in ids}) == 1000
    assert all(row.topic == topic and row.bornTimestamp <= row.storeTimestamp for row in ids)


def test_a_range_gives_the_same_rows_again(
    reader: DataFrameReader, send: Callable[..., None], topic: str
) -> None:
    send(topic, [b"%d" % number for number in range(400)])
    once = sorted(map(repr, reader.load().collect()))
    assert len(once) == 400
    send(topic, [b"later"])
    ends = {topic: {"broker-a": dict.fromkeys("0123", 100)}}
    reader.option("endingOffsets", json.dumps(ends))
    again = reader.option("minPartitions", "7").option("pullBytes", "4096").load()
    assert again.rdd.getNumPartitions() == 7
    assert sorted(map(repr, again.collect())) == once


def test_columns_of_the_users_schema(
    reader: DataFrameReader, send: Callable[..., None], topic: str
) -> None:
    send(topic, [b"x"] * 3, tags="T")
    names = (
        "sysFlag int, properties map<string,string>, body binary not null, bornHost string, "
        "reconsumeTimes int, queueOffset bigint, flag int, tags string"
    )
    for row in reader.schema(names).load().collect():
        assert (row.sysFlag, row.flag, row.reconsumeTimes, row.body) == (0, 0, 0, b"x")
        assert row.properties["TAGS"] == row.tags == "T"
        assert row.bornHost.startswith("127.0.0.1:")
    assert reader.schema("queueOffset bigint").load().count() == 3


def test_tags(reader: DataFrameReader, send: Callable[..., None], topic: str) -> None:
    """The broker compares hashes, to which "Aa" and "BB" are one."""
    for tag in ("Aa", "BB", "C"):
        send(topic, [tag.encode()] * 20, tags=tag)
    bodies = [row.body for row in reader.option("tags", "Aa || C").load().collect()]
    assert sorted(bodies) == [b"Aa"] * 20 + [b"C"] * 20


def test_nothing_to_read_or_write(
    spark: SparkSession, reader: DataFrameReader, write: Callable[..., None], topic: str
) -> None:
    write(spark.createDataFrame([("only",)], "body string"))
    write(spark.createDataFrame([], "body string"))
    assert reader.load().count() == 1
    options = {"startingTimestamp": "3000-01-01T00:00:00Z"}
    options["startingOffsetsByTimestampStrategy"] = "latest"
    assert reader.options(**options).load().count() == 0


def test_rows_choose_topic_and_queue(
    spark: SparkSession, client: BlockingClient, write: Callable[..., None], cluster: Cluster
) -> None:
    rows = spark.createDataFrame(
        [(b"%d" % n, f"chosen-{n % 2}", n % 3) for n in range(60)],
        "value binary, topic string, queueId int",
    )
    client.write_queues("chosen-0")
    rows.write.format("pymq").mode("append").option("nameServer", cluster.name_server).save()
    for name, parity in (("chosen-0", 0), ("chosen-1", 1)):
        options = {"nameServer": cluster.name_server, "subscribe": name}
        found = spark.read.format("pymq").options(**options).load().collect()
        assert sorted(int(row.body) for row in found) == list(range(parity, 60, 2))
        assert all(int(row.body) % 3 == row.queueId for row in found)


@pytest.mark.parametrize(
    ("options", "pieces"),
    [
        ({"subscibe": "x"}, ["subscibe", "did you mean subscribe?"]),
        ({"nameServer": "localhost"}, ["nameServer", "host:port"]),
        ({"startingOffsets": "soon"}, ["startingOffsets", "earliest, latest"]),
    ],
    ids=["unknown", "address", "offsets"],
)
def test_wrong_options_fail_at_load(
    reader: DataFrameReader, options: dict[str, str], pieces: list[str]
) -> None:
    with pytest.raises(PySparkException) as caught:
        reader.options(**options).load()
    for piece in pieces:
        assert piece in str(caught.value)


def test_a_start_at_the_latest_is_refused(reader: DataFrameReader) -> None:
    with pytest.raises(PySparkException, match="startingOffsets=latest is for streams"):
        reader.option("startingOffsets", "latest").load().count()


def test_wrong_writes_say_why(spark: SparkSession, write: Callable[..., None]) -> None:
    cases = [
        (spark.createDataFrame([("a", 1)], "body string, tag int"), {}, "did you mean tags?"),
        (spark.createDataFrame([(1,)], "body int"), {}, "expected string or binary"),
        (spark.createDataFrame([("a",), (None,)], "body string").coalesce(1), {}, "body is null"),
        (spark.createDataFrame([("a" * 2000,)], "body string"), {"maxMessageSize": "1024"}, "1024"),
        (spark.createDataFrame([("a",)], "body string"), {"maxMesageSize": "1"}, "maxMessageSize"),
    ]
    for rows, options, text in cases:
        with pytest.raises(PySparkException) as caught:
            write(rows, **options)
        assert text in str(caught.value)


def test_overwrite_is_refused(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    writer = spark.range(1).selectExpr("'a' as body").write.format("pymq").mode("overwrite")
    options = {"nameServer": cluster.name_server, "topic": topic}
    with pytest.raises(PySparkException, match="would have to delete the messages"):
        writer.options(**options).save()


def test_tables_in_sql(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    """Spark knows a table's options while it is made, and forgets them then."""
    given = f"nameServer '{cluster.name_server}'"
    spark.sql(f"CREATE TABLE messages USING pymq OPTIONS ({given}, subscribe '{topic}')")
    spark.sql(f"CREATE TABLE target (body STRING) USING pymq OPTIONS ({given}, topic '{topic}')")
    try:
        insert = "INSERT INTO target {} VALUES ('a'), ('b')"
        spark.sql(insert.format(f"WITH ({given}, topic = '{topic}')"))
        read = spark.sql(f"SELECT body FROM messages WITH ({given}, subscribe = '{topic}')")
        assert sorted(row.body for row in read.collect()) == [b"a", b"b"]
        for statement in ("SELECT * FROM messages", insert.format("")):
            with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
                spark.sql(statement).collect()
    finally:
        spark.sql("DROP TABLE messages")
        spark.sql("DROP TABLE target")
    view = f"CREATE TEMPORARY VIEW view USING pymq OPTIONS ({given}, subscribe '{topic}')"
    spark.sql(view)
    assert spark.sql("SELECT * FROM view").count() == 2
