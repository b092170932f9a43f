"""Columns of the sink beyond the plain ones: values, sharding keys, flags, ids."""

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.connector.fake import FakeBroker

from pymq.errors import ConfigurationError, ConnectionFailed, LocalProtocolError, RouteNotFound
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.hashes import java_hash
from pymq.protocol.message import decode_properties
from pymq.protocol.record import Record, decode_record
from pyspark_pymq import retrying
from pyspark_pymq.sink.options import SinkOptions
from pyspark_pymq.sink.send_task import SendTask
from pyspark_pymq.values.ddl import struct_of_ddl
from pyspark_pymq.values.spark_types import arrow_type

RECORD = """{"type": "record", "name": "R", "fields": [
    {"name": "a", "type": "long"}, {"name": "b", "type": ["null", "double"]}]}"""
OPTIONS = SinkOptions(name_servers=("a:1",), topic="orders")
NO_TOPIC = SinkOptions(name_servers=("a:1",))


def queue(number: int, topic: str = "orders", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic, broker, number)


@pytest.fixture(params=[True, False], ids=["records", "entries"])
def broker(request: pytest.FixtureRequest) -> Iterator[FakeBroker]:
    """A pymq broker, or one of RocketMQ's."""
    fake = FakeBroker({queue(number): [] for number in range(4)}, takes_records=request.param)
    yield fake
    assert fake.open_clients == 0


def stored(broker: FakeBroker) -> dict[MessageQueue, list[Record]]:
    filled = {key: items for key, items in broker.queues.items() if items}
    return {key: [decode_record(item) for item in items] for key, items in filled.items()}


def write(
    broker: FakeBroker,
    table: dict[str, Any],
    options: SinkOptions = OPTIONS,
    columns: dict[str, str] | None = None,
    times: int = 1,
) -> None:
    client = broker.client(("a:1",))
    try:
        task = SendTask(client, options, columns or {name: name for name in table})  # type: ignore[arg-type]
        task.run([pa.RecordBatch.from_pydict(table)] * times)
    finally:
        client.close()



@given(st.lists(st.none() | st.text(max_size=6), min_size=1, max_size=60), st.integers(1, 5))
def test_rows_of_a_key_go_to_its_queue_in_order(keys: list[str | None], count: int) -> None:
    names = ("broker-b", "broker-a")
    fake = FakeBroker({queue(n, broker=name): [] for name in names for n in range(count)})
    bodies = [b"%d" % n for n in range(len(keys))]
    keys = [key if key is None else re.sub("[\x01\x02]", "", key) for key in keys]
    write(fake, {"body": bodies, "shardingKey": pa.array(keys, pa.string())})
    queues = sorted(fake.queues)
    seen = []
    for at, messages in stored(fake).items():
        numbers = [int(message.body) for message in messages]
        with_key = [n for n in numbers if keys[n]]
        assert with_key == sorted(with_key)
        for number, message in zip(numbers, messages, strict=True):
            key = keys[number]
            assert decode_properties(message.properties).get("__SHARDINGKEY") == (key or None)
            if key:
                assert at == queues[abs(java_hash(key)) % len(queues)]
        seen += numbers
    assert sorted(seen) == list(range(len(keys)))


def test_a_queue_id_comes_before_a_key(broker: FakeBroker) -> None:
    broker.queues[queue(0, "other")] = []
    table = {
        "body": ["a", "b", "c", "d"],
        "topic": ["orders", "other", "orders", "orders"],
        "shardingKey": ["k1", "k1", "k1", None],
        "queueId": pa.array([None, None, 3, 3], pa.int32()),
    }
    write(broker, table, NO_TOPIC)
    wanted = {queue(abs(java_hash("k1")) % 4): [b"a"], queue(3): [b"c", b"d"]}
    found = {key: [m.body for m in messages] for key, messages in stored(broker).items()}
    assert found == wanted | {queue(0, "other"): [b"b"]}


def test_queues_of_keys_are_waited_for(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retrying, "pause", lambda _: None)
    broker.errors = [ConnectionFailed("away"), RouteNotFound("no route")]
    write(broker, {"body": ["a"], "shardingKey": ["k"]})
    assert sum(map(len, stored(broker).values())) == 1
    assert "asking for the queues of topic orders failed, retrying" in caplog.text
    with pytest.raises(ConfigurationError, match="broker's own"):
        write(broker, {"body": ["a"], "topic": ["%RETRY%g"], "shardingKey": ["k"]}, NO_TOPIC)


def test_flags(broker: FakeBroker) -> None:
    flags = [0, None, -1, 1 << 30, -(1 << 31)]
    write(broker, {"body": ["x"] * 5, "flag": pa.array(flags, pa.int32())})
    ((_, messages),) = stored(broker).items()
    assert [message.flag for message in messages] == [0, 0, *flags[2:]]


def test_ids_of_a_column(broker: FakeBroker) -> None:
    options = SinkOptions(name_servers=("a:1",), topic="orders", dedup_column="n")
    columns = {"body": "body", "dedupKey": "n", "properties": "properties"}
    maps = pa.array([[("UNIQ_KEY", "theirs"), ("a", "b")], None], pa.map_(pa.string(), pa.string()))

    def run(ids: pa.Array) -> None:
        write(broker, {"body": ["x", "y"], "n": ids, "properties": maps}, options, columns)

    run(pa.array([-5, 1 << 62]))
    ((_, messages),) = stored(broker).items()
    assert [decode_properties(message.properties) for message in messages] == [
        {"UNIQ_KEY": "-5", "a": "b"}, {"UNIQ_KEY": str(1 << 62)}
    ]  # fmt: skip
    for missing in (None, ""):
        with pytest.raises(LocalProtocolError, match="row 1 of the task.* dedupKey is null or emp"):
            run(pa.array(["a", missing]))


@pytest.mark.parametrize("values", [{"value_format": "json"}, {"value_format": "avro"}])
def test_values_become_bodies(broker: FakeBroker, values: dict[str, str]) -> None:
    if values["value_format"] == "avro":
        values |= {"avro_schema": RECORD}
    options = SinkOptions(name_servers=("a:1",), **values)  # type: ignore[arg-type]
    columns = {"body": "value", "topic": "topic", "queueId": "queueId"}

    def run(rows: list[Any], ids: list[int]) -> None:
        kind = pa.struct([("a", pa.int64()), ("b", pa.float64())])
        table = {"value": pa.array(rows, kind), "topic": ["orders"] * len(rows), "queueId": ids}
        write(broker, table, options, columns, times=2)

    rows = [{"a": n, "b": n / 2 if n % 2 else None} for n in range(4)]
    run(rows, [1, 0, 1, 0])
    decoder = options.values.decoder(
        struct_of_ddl("a bigint, b double"), arrow_type(struct_of_ddl("a bigint, b double"))
    )
    for key, messages in stored(broker).items():
        found = decoder.decode(pa.array([message.body for message in messages], pa.binary()))
        assert found.values.to_pylist() == [row for row in rows if row["a"] % 2 != key.queue_id] * 2
    with pytest.raises(LocalProtocolError, match=r"row 1 of the task, for topic orders: body is"):
        run([rows[0], None], [1, 0])
    if "avro_schema" in values:
        with pytest.raises(LocalProtocolError, match=r"row 1 of the task.*: value.a is null"):
            run([rows[0], {"b": 1.0}], [1, 0])
    else:
        with pytest.raises(LocalProtocolError, match=r"row 1 of the task.*value.b is nan"):
            run([rows[0], {"b": float("nan")}], [1, 0])
