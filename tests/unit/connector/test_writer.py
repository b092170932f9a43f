"""The sink: which columns it takes, where rows go, what is sent together."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource
from tests.unit.connector.fake import FakeBroker

from pymq.client.sockets import batch_targets
from pymq.errors import (
    BrokerError,
    ConfigurationError,
    ConnectionFailed,
    LocalProtocolError,
    RouteNotFound,
)
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.hashes import java_hash
from pymq.protocol.message import decode_properties
from pymq.protocol.record import Record, decode_record
from pymq.protocol.sink_decisions import StagedRuns
from pymq.protocol.unique_keys import month_around
from pyspark_pymq.option_values import Delivery
from pyspark_pymq.sink import writer
from pyspark_pymq.sink.digest import Digest
from pyspark_pymq.sink.exactly_once import Staged
from pyspark_pymq.sink.home import SinkHome
from pyspark_pymq.sink.identity import BatchIdentity, of_job
from pyspark_pymq.sink.options import SinkOptions
from pyspark_pymq.sink.plan import SinkPlan
from pyspark_pymq.sink.send_task import SendTask
from pyspark_pymq.sink.writer import PymqBatchWriter, PymqStreamWriter, Written

#: What is written exactly once: ``tests/spark/test_exactly_once.py``.
NO_TOPIC = SinkOptions(
    name_servers=("a:1",), retry_timeout_s=0.1, delivery=Delivery.AT_LEAST_ONCE
)
OPTIONS = replace(NO_TOPIC, topic="orders")
#: What a task without rows reports.
NO_ROWS = Staged(BatchIdentity("s", "q", "r", 0, 0), None, StagedRuns(), Digest())


#: What a message for topic "orders" without tags and keys takes beside its body: as a record,
#: and as an entry.
OVERHEAD_BYTES = {True: 91 + len("orders") + 42, False: 22 + 42}


def queue(number: int, topic: str = "orders", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic, broker, number)


@pytest.fixture(params=[True, False], ids=["records", "entries"])
def broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    """A pymq broker, or one of RocketMQ's."""
    fake = FakeBroker({queue(number): [] for number in range(4)}, takes_records=request.param)
    monkeypatch.setattr(writer, "BulkClient", fake.client)
    yield fake
    assert fake.open_clients == 0


def stored(broker: FakeBroker) -> dict[MessageQueue, list[Record]]:
    filled = {key: items for key, items in broker.queues.items() if items}
    return {key: [decode_record(item) for item in items] for key, items in filled.items()}


def write(batches: list[pa.RecordBatch], options: SinkOptions = OPTIONS) -> Written:
    columns = {name: name for name in batches[0].schema.names}
    if options.topic is not None:
        columns.pop("topic", None)
    return PymqBatchWriter(options, columns).write(iter(batches))


# ------------------------------------------------------------------------------ where rows go


def test_rows_become_messages(broker: FakeBroker) -> None:
    keys = pa.array(
        [["k1", "k2"], None, []], pa.list_(pa.field("element", pa.string(), nullable=False))
    )
    batch = pa.RecordBatch.from_pydict(
        {
            "body": pa.array(["a", "b", ""]),
            "tags": pa.array(["T", None, "U"]),
            "keys": keys,
            "properties": pa.array([[("x", "1")], None, []], pa.map_(pa.string(), pa.string())),
        }
    )
    done = write([batch])
    assert done.rows == 3 and done.sent_bytes > 0
    ((key, messages),) = stored(broker).items()
    assert key.topic == "orders"
    assert [message.body for message in messages] == [b"a", b"b", b""]
    properties = [decode_properties(message.properties) for message in messages]
    assert len({found.pop("UNIQ_KEY") for found in properties}) == 3
    assert properties == [{"TAGS": "T", "KEYS": "k1 k2", "x": "1"}, {}, {"TAGS": "U"}]


def test_keys_with_nulls_in_them(broker: FakeBroker) -> None:
    write([pa.RecordBatch.from_pydict({"body": ["a"], "keys": [["k1", None, "k2"]]})])
    ((message,),) = stored(broker).values()
    assert decode_properties(message.properties)["KEYS"] == "k1 k2"


def test_large_loads_take_turns_between_queues(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A little less than one batch takes.
    limit = 40 * (200 + OVERHEAD_BYTES[broker.takes_records]) - 500
    monkeypatch.setattr(batch_targets, "TURN_BYTES", limit)
    batches = [
        pa.RecordBatch.from_pydict({"body": [bytes([number]) * 200 for _ in range(40)]})
        for number in range(8)
    ]
    assert write(batches).rows == 320
    found = stored(broker)
    assert {key: len(messages) for key, messages in found.items()} == {
        queue(number): 80 for number in range(4)
    }
    # One request for one batch: its messages stay together and in order.
    assert [message.body[0] for message in found[queue(0)]] == [0] * 40 + [4] * 40


def test_requests_are_bounded(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(OPTIONS, message_bytes_max=4096)
    write([pa.RecordBatch.from_pydict({"body": [bytes(1000)] * 10})], options)
    assert [call[0] for call in broker.calls] == ["send"] * 4
    with pytest.raises(LocalProtocolError, match=r"row 1 of the task, for topic orders: .*4096"):
        write([pa.RecordBatch.from_pydict({"body": [b"", bytes(4096)]})], options)


def test_rows_with_a_queue_go_there_in_order(broker: FakeBroker) -> None:
    ids = [3, None, 0, 3, 0, 3, None]
    batch = pa.RecordBatch.from_pydict(
        {"body": [b"%d" % n for n in range(7)], "queueId": pa.array(ids, pa.int32())}
    )
    PymqBatchWriter(OPTIONS, {"body": "body", "queueId": "queueId"}).write(iter([batch]))
    bodies = {
        key.queue_id: [int(message.body) for message in messages]
        for key, messages in stored(broker).items()
    }
    assert bodies[3][:3] == [0, 3, 5] or bodies[3][-3:] == [0, 3, 5]
    assert [n for n in bodies[0] if n in (2, 4)] == [2, 4]
    assert sorted(n for found in bodies.values() for n in found) == list(range(7))


@pytest.mark.parametrize("nobody", [None, ""])
@pytest.mark.parametrize("named", ["by column", "by key"])
@pytest.mark.parametrize("brokers", ["ab", "ba"])
def test_rows_of_a_queue_keep_their_order_whether_they_name_its_broker_or_not(
    broker: FakeBroker, named: str, brokers: str, nobody: str | None
) -> None:
    first = queue(3, broker="broker-a")
    if brokers == "ba":  # and now both have such a queue
        broker.queues[queue(3, broker="broker-b")] = []
    table: dict[str, object] = {"body": [b"%d" % n for n in range(7)]}
    if named == "by column":
        table |= {"queueId": [3] * 6 + [0], "brokerName": [nobody, "broker-a"] * 3 + [nobody]}
    else:
        queues = sorted(broker.queues)
        keys = (str(n) for n in range(100) if queues[abs(java_hash(str(n))) % len(queues)] == first)
        key = next(keys)
        ids = pa.array([3, None] * 3 + [0], pa.int32())
        table |= {"queueId": ids, "shardingKey": [None, key] * 3 + [None]}
        if nobody is not None:
            table["brokerName"] = [nobody] * 7
    write([pa.RecordBatch.from_pydict(table)])
    found = {key: [int(one.body) for one in some] for key, some in stored(broker).items()}
    assert found == {first: list(range(6)), queue(0): [6]}


def test_a_row_that_names_another_broker_leaves_the_others_alone(broker: FakeBroker) -> None:
    """Those without a name go to the first broker that has such a queue, as ever."""
    broker.queues[queue(3, broker="broker-b")] = []
    table = {"body": ["a", "b"], "queueId": [3, 3], "brokerName": ["broker-b", None]}
    write([pa.RecordBatch.from_pydict(table)])
    assert {key.broker_name: len(items) for key, items in stored(broker).items()} == {
        "broker-a": 1,
        "broker-b": 1,
    }
    one = pa.RecordBatch.from_pydict({"body": ["c"], "queueId": [9], "brokerName": [""]})
    with pytest.raises(LocalProtocolError, match="no queue 9"):
        write([one])


def test_rows_with_a_topic_go_there(broker: FakeBroker) -> None:
    broker.queues[queue(0, "other")] = []
    names = ["other", "orders", "other"]
    batch = pa.RecordBatch.from_pydict({"body": ["a", "b", "c"], "topic": names})
    write([batch], NO_TOPIC)
    found = {key.topic: [m.body for m in messages] for key, messages in stored(broker).items()}
    assert found == {"other": [b"a", b"c"], "orders": [b"b"]}
    write([batch])  # the option comes first
    assert sum(len(m) for key, m in stored(broker).items() if key.topic == "orders") == 4


def test_the_broker_of_a_queue_can_be_chosen(broker: FakeBroker) -> None:
    broker.queues[queue(0, broker="broker-b")] = []
    batch = pa.RecordBatch.from_pydict(
        {"body": ["a", "b"], "queueId": [0, 0], "brokerName": ["broker-b", None]}
    )
    write([batch])
    assert {key.broker_name: len(items) for key, items in stored(broker).items()} == {
        "broker-a": 1,
        "broker-b": 1,
    }


def test_rows_that_cannot_be_sent(broker: FakeBroker) -> None:
    cases = [
        ({"body": ["a"], "queueId": [9]}, OPTIONS, r"no queue 9; there are broker-a/0"),
        ({"body": ["a", "b"], "topic": ["orders", None]}, NO_TOPIC, "no topic: set the option"),
        ({"body": [None], "topic": pa.array([None], pa.string())}, NO_TOPIC, "body is null"),
        ({"body": ["a", None]}, OPTIONS, r"row 1 of the task, for topic orders: body is null"),
        ({"body": ["a"], "tags": ["x\x01"]}, OPTIONS, r"row 0 .*tags.*U\+0001"),
    ]
    for columns, options, text in cases:
        with pytest.raises(LocalProtocolError, match=text):
            write([pa.RecordBatch.from_pydict(columns)], options)
    with pytest.raises(ConfigurationError, match="broker's own"):
        write([pa.RecordBatch.from_pydict({"body": ["a"], "topic": ["%RETRY%g"]})], NO_TOPIC)
    with pytest.raises(RouteNotFound, match="nowhere"):
        write([pa.RecordBatch.from_pydict({"body": ["a"], "topic": ["nowhere"]})], NO_TOPIC)
    assert stored(broker) == {}


def test_requests_are_sent_while_rows_come(broker: FakeBroker) -> None:
    """A task holds a few requests of what Spark gives it, not all."""
    batches = (pa.RecordBatch.from_pydict({"body": [bytes(1000)] * 10}) for _ in range(50))
    write_one = PymqBatchWriter(OPTIONS, {"body": "body"})
    assert write_one.write(batches) == Written(
        500, 500 * (1000 + OVERHEAD_BYTES[broker.takes_records])
    )
    assert [call[0] for call in broker.calls] == ["send"] * 50


def test_rows_are_numbered_through_the_task(broker: FakeBroker) -> None:
    good = pa.RecordBatch.from_pydict({"body": ["a"] * 5, "topic": ["orders"] * 5})
    bad = pa.RecordBatch.from_pydict({"body": ["b", None, "c"], "topic": ["x", "orders", "x"]})
    with pytest.raises(LocalProtocolError, match="row 6 of the task, for topic orders"):
        write([good, bad], NO_TOPIC)


def test_a_refusal_ends_the_task(broker: FakeBroker) -> None:
    broker.errors = [BrokerError.of(16, "no", peer="a:1", request="send")]
    with pytest.raises(BrokerError, match="code 16"):
        write([pa.RecordBatch.from_pydict({"body": ["a"]})])


def test_a_broker_that_stays_away_ends_the_task(broker: FakeBroker) -> None:
    broker.errors = [ConnectionFailed("away")]
    with pytest.raises(ConnectionFailed, match="away") as caught:
        write([pa.RecordBatch.from_pydict({"body": ["a"]})])
    assert "retryTimeoutMs" in caught.value.__notes__[-1]  # what the user can do


def test_a_task_without_rows(broker: FakeBroker) -> None:
    empty = pa.RecordBatch.from_pydict({"body": pa.array([], pa.string())})
    assert PymqBatchWriter(OPTIONS, {"body": "body"}).write(iter([])) == Written(0, 0)
    assert write([empty]) == Written(0, 0)
    assert broker.calls == []


# ------------------------------------------------------------------------------- as Spark sees


def test_writers_travel(broker: FakeBroker) -> None:
    for kind in (PymqBatchWriter, PymqStreamWriter):
        copy = pickle.loads(pickle.dumps(kind(OPTIONS, {"body": "body"})))
        assert isinstance(copy, kind)
    assert pickle.loads(pickle.dumps(Written(3, 5))) == Written(3, 5)
    assert isinstance(copy, datasource.DataSourceStreamWriter)
    assert isinstance(Written(0, 0), datasource.WriterCommitMessage)


def test_commit_and_abort_never_raise(caplog: pytest.LogCaptureFixture) -> None:
    messages = [Written(1, 2), None]
    PymqBatchWriter(OPTIONS, {}).commit(messages)
    PymqBatchWriter(OPTIONS, {}).abort(messages)
    PymqStreamWriter(OPTIONS, {}).commit(messages, 3)
    PymqStreamWriter(OPTIONS, {}).abort([], 3)
    # What the task that failed had sent nobody knows: Spark passes None for it.
    assert "1 messages of tasks that ended are stored, and perhaps some of the" in caplog.text
    caplog.clear()
    PymqBatchWriter(OPTIONS, {}).abort([*messages, NO_ROWS])  # says nothing of how others write
    assert "1 messages of tasks that ended are stored" in caplog.text


SENT, STAGED, UNKNOWN = "is sent again", "nobody will see what its tasks staged", "is not known"


@pytest.mark.parametrize(
    ("options", "messages", "text"),
    [
        ({"delivery": Delivery.EXACTLY_ONCE}, [], STAGED),
        ({"delivery": None, "txn_app_id": "app"}, [None], STAGED),
        ({"delivery": Delivery.AT_LEAST_ONCE}, [None], SENT),
        ({"delivery": None}, [None], UNKNOWN),
        ({"delivery": None}, [NO_ROWS, None], UNKNOWN),
        ({"delivery": None}, [Written(3, 5), NO_ROWS], "3 messages of tasks that ended are stored"),
    ],
)
def test_what_became_of_the_rows_of_a_job_that_failed(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any], messages: list[Any], text: str
) -> None:
    """Also if no task ended, whose report would tell how rows are written."""
    given = replace(OPTIONS, **options)
    PymqBatchWriter(given, {}).abort(messages)
    PymqStreamWriter(given, {}).abort(messages, 3)
    for line, what in zip(caplog.messages, ("batch write", "micro-batch 3"), strict=True):
        assert line.startswith(f"{what} failed: ") and text in line
        assert text == STAGED or STAGED not in line
        assert text not in (STAGED, UNKNOWN) or "0 messages" not in line


def test_what_became_of_the_rows_is_known_where_it_was_planned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By the driver: the broker of a batch write, and that there is no topic."""
    options = replace(OPTIONS, delivery=None)
    chosen = PymqBatchWriter(options, {})
    chosen._home = SinkHome("a", "a:1")
    lost = SinkPlan(missing="no topic orders")
    chosen.abort([None])
    PymqBatchWriter(options, {}, lost).abort([None])
    PymqStreamWriter(options, {}, lost).abort([NO_ROWS, None], 0)
    staged, *missing = caplog.messages
    assert STAGED in staged
    for line in missing:
        assert "no topic to write to" in line and "no topic orders" in line


def test_a_name_without_a_number() -> None:
    """Where Spark tells no number the error says so, also to one who is in ``foreachBatch``."""
    options = replace(OPTIONS, delivery=Delivery.EXACTLY_ONCE, txn_app_id="app")
    with pytest.raises(ConfigurationError) as caught:
        of_job(options, "job", 0)
    for text in ("txnVersion is missing", "foreachBatch", "Spark Connect", "for_thread"):
        assert text in str(caught.value)


def test_ids_have_the_time_since_the_month_began(broker: FakeBroker) -> None:
    client = broker.client(("a:1",))
    now_ms = 1_698_796_800_500
    task = SendTask(client, OPTIONS, {"body": "body"}, wall_s=lambda: now_ms / 1000)  # type: ignore[arg-type]
    task.run([pa.RecordBatch.from_pydict({"body": ["a"]})])
    client.close()
    ((message,),) = stored(broker).values()
    unique_key = decode_properties(message.properties)["UNIQ_KEY"]
    assert int(unique_key[20:28], 16) == now_ms - month_around(now_ms)[0]


def test_send_task_numbers_queues_from_where_it_is_told(broker: FakeBroker) -> None:
    client = broker.client(("a:1",))
    task = SendTask(client, OPTIONS, {"body": "body"}, first_queue=6)  # type: ignore[arg-type]
    task.run([pa.RecordBatch.from_pydict({"body": ["a"]})])
    assert task.rows == 1
    client.close()
    assert list(stored(broker)) == [queue(2)]
