"""Columns of delays: what becomes of them, which rows go how, and what is refused."""

import datetime
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.connector.fake import FakeBroker, FakeClient
from tests.unit.connector.test_sink_values import NO_TOPIC, OPTIONS, queue, stored, write

from pymq.client.cluster.routes import Route
from pymq.client.operations import PreparedMessage, Send
from pymq.client.sending.preencoded_records import BrokerKind
from pymq.client.sockets.batch_targets import BatchTarget
from pymq.client.sockets.delayed_sends import DelayedMessage, DelayedSend
from pymq.client.sockets.staging import Stage
from pymq.errors import ConfigurationError, LocalProtocolError, NoPermission
from pymq.protocol.codes import MQ_VERSION, MQ_VERSION_TIMERS, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.message import decode_properties
from pymq.protocol.record import decode_records
from pymq.protocol.records_body import RecordsBody
from pymq.protocol.sink_bodies import StagedRun
from pyspark_pymq.sink.delays import as_ms
from pyspark_pymq.sink.send_task import SendTask

MAP = pa.map_(pa.string(), pa.string())


@pytest.fixture(params=[True, False], ids=["records", "entries"])
def broker(request: pytest.FixtureRequest) -> Iterator[FakeBroker]:
    """A pymq broker, or one of RocketMQ's."""
    fake = FakeBroker({queue(number): [] for number in range(4)}, takes_records=request.param)
    yield fake
    assert fake.open_clients == 0


def ints(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int32())


def times(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64())


def told(broker: FakeBroker) -> dict[bytes, tuple[str | None, str | None]]:
    """Return level and time of each message that was stored, by its body."""
    found = {}
    for messages in stored(broker).values():
        for message in messages:
            properties = decode_properties(message.properties)
            found[message.body] = properties.get("DELAY"), properties.get("TIMER_DELIVER_MS")
    return found


def test_rows_are_delayed_as_they_say(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: Counter[type] = Counter()
    store = FakeClient.store

    def store_and_count(self: FakeClient, at: Any, body: Any) -> None:
        kinds[type(body)] += 1
        store(self, at, body)

    monkeypatch.setattr(FakeClient, "store", store_and_count)
    table = {
        "body": [b"a", b"b", b"c", b"d", b"e", b"f", b""],
        "tags": ["t", None, "t", "é", "t", "t", None],
        "flag": ints(0, 1, 2, -1, 4, 5, 6),
        "queueId": ints(1, 1, 1, 1, 1, 1, 1),
        "delayLevel": ints(None, 3, 0, 25, None, 3, None),
        "deliverTimestamp": times(None, None, None, None, 1_800_000_000_123, None, -7),
    }
    write(broker, table)
    assert told(broker) == {
        b"a": (None, None),
        b"b": ("3", None),
        b"c": (None, None),
        b"d": ("25", None),
        b"e": (None, "1800000000123"),
        b"f": ("3", None),
        b"": (None, "-7"),
    }
    (messages,) = stored(broker).values()
    flags = {one.body: one.flag for one in messages}
    assert flags == {b"a": 0, b"b": 1, b"c": 2, b"d": -1, b"e": 4, b"f": 5, b"": 6}
    tags = {one.body: decode_properties(one.properties).get("TAGS") for one in messages}
    assert tags[b"d"] == "é" and tags[b"b"] is None
    ids = {decode_properties(one.properties)["UNIQ_KEY"] for one in messages}
    assert len(ids) == len(messages)
    # Those of one level keep their order; those without a delay are one batch.
    order = [one.body for one in messages]
    assert order.index(b"b") < order.index(b"f")
    assert kinds.pop(DelayedMessage) == 5 and sum(kinds.values()) == 1


def test_rows_of_several_topics(broker: FakeBroker) -> None:
    broker.queues[queue(0, "other")] = []
    table = {
        "body": [b"a", b"b", b"c"],
        "topic": ["other", "orders", "other"],
        "delayLevel": ints(1, 2, None),
    }
    write(broker, table, NO_TOPIC)
    assert sorted(one.body for one in stored(broker)[queue(0, "other")]) == [b"a", b"c"]
    assert told(broker) == {b"a": ("1", None), b"b": ("2", None), b"c": (None, None)}


def test_times_are_never_cut_short() -> None:
    zone = datetime.UTC
    given = [
        datetime.datetime(2027, 1, 15, 8, 0, 0, 123000, zone),
        datetime.datetime(2027, 1, 15, 8, 0, 0, 123001, zone),
        None,
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, zone),
    ]
    for unit in ("us", "ns"):
        found = as_ms(pa.array(given, pa.timestamp(unit, "UTC"))).to_pylist()
        assert found == [1800000000123, 1800000000124, None, 0]
    assert as_ms(times(-5, 0, 100_000_000_000, None)).to_pylist() == [-5, 0, 100_000_000_000, None]


def test_delays_in_maps(broker: FakeBroker) -> None:
    """Which columns come before; without columns they are refused."""
    properties = pa.array(
        [
            [("DELAY", "9"), ("a", "1")],
            [("TIMER_DELIVER_MS", "9"), ("TIMER_OUT_MS", "8"), ("TIMER_DELAY_SEC", "7")],
            [("TIMER_DELAY_MS", "6")],
        ],
        MAP,
    )
    table: dict[str, Any] = {"body": [b"a", b"b", b"c"], "properties": properties}
    with pytest.raises(LocalProtocolError, match="delayLevel and deliverTimestamp"):
        write(broker, table)
    write(broker, table | {"delayLevel": ints(2, 1, None)})
    assert told(broker) == {b"a": ("2", None), b"b": ("1", None), b"c": (None, None)}
    for messages in stored(broker).values():
        for message in messages:
            names = decode_properties(message.properties).keys()
            assert not {"TIMER_OUT_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"} & names
    halves = pa.array([[("TRAN_MSG", "true")]], MAP)
    with pytest.raises(LocalProtocolError, match="transactional messages"):
        write(broker, {"body": [b"a"], "properties": halves, "delayLevel": ints(1)})


@pytest.mark.parametrize(
    ("columns", "pieces"),
    [
        (
            {"delayLevel": ints(0, 2), "deliverTimestamp": times(0, -77)},
            ["row 1 of the task, for topic orders", "delayLevel 2", "-77 ms", "one of them"],
        ),
        ({"delayLevel": ints(1, -3)}, ["row 1", "delayLevel -3", "from 1"]),
        (
            {"deliverTimestamp": ints(None, 1_800_000_000)},
            ["deliverTimestamp 1800000000", "milliseconds"],
        ),
    ],
)
def test_rows_that_are_refused(
    broker: FakeBroker, columns: dict[str, pa.Array], pieces: list[str]
) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        write(broker, {"body": [b"a", b"b"], **columns})
    for piece in pieces:
        assert piece in str(caught.value)
    assert not stored(broker)


def test_what_is_staged_has_one_delay_in_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    staged: list[tuple[BatchTarget, RecordsBody]] = []

    class Pipeline:
        def takes_records(self, target: BatchTarget) -> bool:
            return True

        def send(self, target: BatchTarget, body: RecordsBody) -> None:
            staged.append((target, body))

        def flush(self) -> None:
            pass

    class Client:
        def staging_pipeline(self, part: int, on_staged: Any, **settings: Any) -> Pipeline:
            return Pipeline()

        def route(self, topic: str) -> Route:
            return Route(topic, (queue(0),), (), {})

    task = SendTask(Client(), OPTIONS, columns_of(staged_table(0)), stage_at="broker-a")  # type: ignore[arg-type]
    task.run(pa.RecordBatch.from_pydict(staged_table(first)) for first in (0, 100))
    assert task.digest.rows == 200
    found: dict[tuple[str | None, str | None], list[int]] = {}
    for _, body in staged:
        records = list(decode_records(bytes(body.body)))
        kinds = {
            (properties.get("DELAY"), "t" if "TIMER_DELIVER_MS" in properties else None)
            for properties in (decode_properties(one.properties) for one in records)
        }
        assert len(kinds) == 1 and len(records) == body.record_count
        found.setdefault(kinds.pop(), []).extend(int(one.body) for one in records)
    assert len(staged) == 4  # gathered over both batches
    assert found == {
        (None, None): list(range(0, 200, 4)),
        ("1", None): list(range(1, 200, 4)),
        ("2", None): list(range(2, 200, 4)),
        (None, "t"): list(range(3, 200, 4)),
    }


def staged_table(first: int) -> dict[str, Any]:
    rows = np.arange(first, first + 100)
    levels = [(None, 1, 2, None)[row % 4] for row in rows.tolist()]
    return {
        "body": [b"%d" % row for row in rows],
        "delayLevel": ints(*levels),
        "deliverTimestamp": times(*(-row if row % 4 == 3 else None for row in rows.tolist())),
    }


def columns_of(table: dict[str, Any]) -> dict[str, str]:
    return {name: name for name in table}


def sent(what: str = "row 3, with deliverTimestamp 5") -> DelayedSend:
    message = DelayedMessage("orders", b"x", "", None, what=what, has_time=True)
    prepared = PreparedMessage("orders", b"x", "", None)
    return DelayedSend(Send(prepared, queue(0), group="g", now_ms=0), message)


def test_a_refused_delay_names_its_row() -> None:
    answer = Command(ResponseCode.MESSAGE_ILLEGAL, {}, b"", "not bigger than the max delay 9ms")
    with pytest.raises(LocalProtocolError, match="row 3, with deliverTimestamp 5.*delay 9ms"):
        sent().result(answer, peer="a:1")
    with pytest.raises(NoPermission):
        sent().result(Command(ResponseCode.NO_PERMISSION, {}), peer="a:1")


@pytest.mark.parametrize("version", [0, 407, MQ_VERSION_TIMERS - 1, MQ_VERSION_TIMERS, MQ_VERSION])
def test_times_need_a_broker_that_knows_them(version: int) -> None:
    for has_time in (True, False):
        message = DelayedMessage("orders", b"x", "", None, what="row 3", has_time=has_time)
        if has_time and version < MQ_VERSION_TIMERS:
            with pytest.raises(ConfigurationError) as caught:
                message.check_broker(BrokerKind(False, version), "'b' (a:1)")
            for piece in ("row 3", "'b' (a:1)", f"version {version}", "at once", "delay levels"):
                assert piece in str(caught.value)
        else:
            message.check_broker(BrokerKind(False, version), "'b' (a:1)")


def test_empty_bodies_need_a_pymq_broker() -> None:
    message = DelayedMessage("orders", b"", "", None, what="row 3")
    message.check_broker(BrokerKind(True, MQ_VERSION), "'b' (a:1)")
    with pytest.raises(LocalProtocolError, match=r"row 3: its body is empty.*'b' \(a:1\)"):
        message.check_broker(BrokerKind(False, MQ_VERSION), "'b' (a:1)")


def test_where_a_delayed_run_is_staged_is_what_the_broker_says() -> None:
    prepared = PreparedMessage("orders", b"x", "", None, batch=True)
    send = Send(prepared, queue(2), group="g", now_ms=0)
    stage = Stage(send, RecordsBody(memoryview(b"x"), b"s", 3), 7)
    fields = {"physicalOffset": "100", "bytes": "50"}
    plain = stage.result(Command(0, fields), peer="a:1").run
    assert plain == StagedRun(
        topic="orders", queue_id=2, physical_offset=100, size_bytes=50, count=3, part=7
    )
    parked = stage.result(Command(0, {**fields, "topic": "S", "queueId": "0"}), peer="a:1").run
    assert (parked.topic, parked.queue_id) == ("S", 0)


