"""What a task reads: exactly its ranges, or an error that says what is missing."""

import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.connector.fake import FakeBroker, FakeClient, record

from pymq.errors import (
    BrokerError,
    ConnectionFailed,
    OffsetOutOfRange,
    RemoteProtocolError,
    RouteNotFound,
)
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.compression import Compression, compression_flags
from pymq.protocol.message import decode_properties, encode_properties
from pymq.protocol.record import decode_record, pack_host
from pyspark_pymq import retrying
from pyspark_pymq.offsets import QueueRange
from pyspark_pymq.source import read_task
from pyspark_pymq.source.columns import check_schema, default_schema
from pyspark_pymq.source.options import SourceOptions
from pyspark_pymq.source.read_task import read_ranges
from pyspark_pymq.values.ddl import struct_of_ddl

Q0, Q1 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    fake = FakeBroker(first={Q0: 100})
    for queue in (Q0, Q1):
        fake.add(queue, *((b"%d" % n, {"TAGS": "ABC"[n % 3]}) for n in range(20)))
    monkeypatch.setattr(read_task, "BulkClient", fake.client)
    yield fake
    assert fake.open_clients == 0


def options(**changed: Any) -> SourceOptions:
    return SourceOptions(name_servers=("a:1",), topics=("orders",), **changed)


def read(*ranges: QueueRange, **changed: Any) -> pa.Table:
    schema = default_schema(properties=False)
    batches = list(read_ranges(options(**changed), schema, ranges, (), {}))
    return pa.Table.from_batches(batches, read_task.arrow_schema(schema))


def test_exactly_the_ranges(broker: FakeBroker) -> None:
    table = read(QueueRange(Q0, 103, 111), QueueRange(Q1, 0, 1), QueueRange(Q1, 5, 5))
    assert table["queueOffset"].to_pylist() == [*range(103, 111), 0]
    assert table["queueId"].to_pylist() == [0] * 8 + [1]
    assert table["body"].to_pylist() == [b"%d" % n for n in [*range(3, 11), 0]]


def test_again_gives_the_same(broker: FakeBroker) -> None:
    first = read(QueueRange(Q0, 100, 120))
    broker.pull_count = 7
    assert read(QueueRange(Q0, 100, 120)).equals(first)
    broker.exact_end = False
    assert read(QueueRange(Q0, 100, 118)).equals(first.slice(0, 18))


def test_small_answers_are_decoded_together(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = default_schema(properties=False)
    batches = list(read_ranges(options(), schema, [QueueRange(Q0, 100, 120)], (), {}))
    assert [batch.num_rows for batch in batches] == [20]
    monkeypatch.setattr(read_task, "DECODED_BYTES_MIN", 1)
    batches = list(read_ranges(options(), schema, [QueueRange(Q0, 100, 120)], (), {}))
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 3, 3, 3, 2]


def test_nothing_is_asked_before_the_first_row_is_wanted(broker: FakeBroker) -> None:
    schema = default_schema(properties=False)
    rows = read_ranges(options(), schema, [QueueRange(Q0, 100, 120)], (), {})
    assert broker.open_clients == 0
    next(rows)
    rows.close()  # type: ignore[attr-defined]


def test_tags(broker: FakeBroker) -> None:
    table = read(QueueRange(Q0, 100, 120), tags=("A", "C"))
    assert set(table["tags"].to_pylist()) == {"A", "C"} and table.num_rows == 13
    assert {call[4] for call in broker.calls} == {"A || C"}
    assert read(QueueRange(Q0, 100, 120), tags=("none",)).num_rows == 0


def test_sql(broker: FakeBroker) -> None:
    """Gaps are what was asked for, also at the end of a range."""
    table = read(QueueRange(Q0, 100, 120), sql="TAGS IN ('A', 'C')")
    assert set(table["tags"].to_pylist()) == {"A", "C"} and table.num_rows == 13
    assert read(QueueRange(Q0, 100, 120), sql="TAGS = 'none'").num_rows == 0
    assert read(QueueRange(Q0, 119, 120), sql="TAGS = 'A'").num_rows == 0
    broker.queues[Q0][4] = b""
    assert read(QueueRange(Q0, 100, 120), sql="TAGS IS NOT NULL").num_rows == 19


def test_a_refused_filter_says_what_to_do(broker: FakeBroker) -> None:
    remark = "The broker does not support consumer to filter message by SQL92"
    broker.errors = [BrokerError.of(1, remark, peer="a:1", request="a pull")]
    with pytest.raises(BrokerError, match="SQL92") as caught:
        read(QueueRange(Q0, 100, 120), sql="a > 1")
    note = caught.value.__notes__[-1]
    assert "option sql='a > 1'" in note and "enablePropertyFilter=true" in note
    assert "broker broker-a" in note


def test_the_clients_errors_pass(broker: FakeBroker) -> None:
    broker.errors = [ConnectionFailed("away")]
    with pytest.raises(ConnectionFailed, match="away") as caught:
        read(QueueRange(Q0, 100, 120))
    assert "retryTimeoutMs" in caught.value.__notes__[-1]  # what the user can do


def test_the_start_is_gone(broker: FakeBroker) -> None:
    broker.trim(Q0, 110)
    with pytest.raises(OffsetOutOfRange, match=r"queue 0 of orders on broker-a.*100\.\.109"):
        read(QueueRange(Q0, 100, 120))
    table = read(QueueRange(Q0, 100, 120), QueueRange(Q1, 0, 2), fail_on_data_loss=False)
    assert table["queueOffset"].to_pylist() == [*range(110, 120), 0, 1]
    broker.trim(Q0, 120)
    assert read(QueueRange(Q0, 100, 115), fail_on_data_loss=False).num_rows == 0


def test_the_end_moved_back(broker: FakeBroker) -> None:
    with pytest.raises(OffsetOutOfRange, match="ends at 120, messages were expected up to 130"):
        read(QueueRange(Q0, 100, 130))
    table = read(QueueRange(Q0, 105, 130), fail_on_data_loss=False)
    assert table["queueOffset"].to_pylist() == list(range(105, 120))
    assert read(QueueRange(Q0, 125, 130), fail_on_data_loss=False).num_rows == 0


def test_a_gap_is_a_loss(broker: FakeBroker) -> None:
    broker.queues[Q0][4] = b""
    with pytest.raises(OffsetOutOfRange, match="1 of 20 messages from 100 on .* first at 104"):
        read(QueueRange(Q0, 100, 120))
    assert read(QueueRange(Q0, 100, 120), fail_on_data_loss=False).num_rows == 19
    assert read(QueueRange(Q0, 100, 120), tags=("A",)).num_rows == 7


@pytest.mark.parametrize("acts", [False, True])
def test_what_only_a_slave_lacks_is_waited_for(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, acts: bool
) -> None:
    """Whether it is the start, the end, or something between, and whatever may be lost.

    Also of one that acts for its master, which routes have in its place.
    """
    slaves = broker.acting if acts else broker.only_slaves
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            slaves.clear()

    monkeypatch.setattr(retrying, "pause", pause)
    whole = list(broker.queues[Q0])
    for lose, offset in (
        (lambda: broker.trim(Q0, 105), None),
        (lambda: broker.queues[Q0].__delitem__(slice(12, None)), 112),
        (lambda: broker.queues[Q0].__setitem__(4, b""), 104),
    ):
        slaves.add(Q0.broker_name)
        pauses.clear()
        lose()
        table = read(QueueRange(Q0, 100, 120), fail_on_data_loss=False)
        assert len(pauses) == 3 and ("doubt", "orders") in broker.calls
        assert offset not in table["queueOffset"].to_pylist()
        broker.queues[Q0], broker.first[Q0] = list(whole), 100
    slaves.add(Q0.broker_name)
    broker.trim(Q0, 105)
    monkeypatch.setattr(retrying, "pause", lambda _: None)
    for lenient in (True, False):
        with pytest.raises(OffsetOutOfRange, match="Only a slave of broker broker-a answers"):
            read(QueueRange(Q0, 100, 120), fail_on_data_loss=lenient, retry_timeout_s=0.2)


def test_what_a_replica_lacks_is_read_from_its_master(broker: FakeBroker) -> None:
    """Whether the master has it or not, and whatever else the task reads."""
    there = list(broker.queues[Q0])
    broker.replicas = {Q0: [*there[:4], b"", *there[5:]], Q1: list(broker.queues[Q1])}
    ranges = QueueRange(Q0, 100, 120), QueueRange(Q1, 0, 20)
    table = read(*ranges)
    assert table["queueOffset"].to_pylist() == [*range(100, 120), *range(20)]
    broker.queues[Q1][3] = b""  # which says that it is the replica that was asked
    assert read(*ranges).equals(table)
    with pytest.raises(OffsetOutOfRange, match="1 of 20 messages from 0 on .* first at 3"):
        read(*ranges, reads_replicas=False)
    broker.queues[Q0][4] = b""
    with pytest.raises(OffsetOutOfRange, match="1 of 20 messages from 100 on .* first at 104"):
        read(*ranges)


def test_offsets_must_ascend(broker: FakeBroker) -> None:
    broker.queues[Q1][3] = record(b"twice", {"TAGS": "C"}, queue_id=1, queue_offset=2)
    for tags in ((), ("B", "C")):
        with pytest.raises((RemoteProtocolError, OffsetOutOfRange)):
            read(QueueRange(Q1, 0, 20), tags=tags)


# ------------------------------------------------------------------------------- bad records

SIDE = MessageQueue("aside", "broker-a", 0)
JSON_BODIES = [b'{"a": 1}', b"junk", b"\xff", b'{"a": 2}']


@pytest.fixture
def mixed(broker: FakeBroker) -> FakeBroker:
    """A queue with bad records among good ones, one of them only seemingly compressed."""
    broker.queues = {Q1: [], SIDE: []}
    for number, body in enumerate([*JSON_BODIES, b"packed"]):
        delayed = {"TAGS": "T", "KEYS": "k", "UNIQ_KEY": f"id{number}", "DELAY": "3", "WAIT": "x"}
        stored = record(
            body,
            delayed,
            queue_id=1,
            queue_offset=number,
            flag=-7,
            sys_flag=int(body == b"packed"),
        )
        broker.queues[Q1].append(stored)
    broker.takes_records = False
    return broker


def read_json(columns: str = "queueOffset bigint, value struct<a int>", **changed: Any) -> pa.Table:
    schema = struct_of_ddl(columns)
    checked = options(value_format="json", **changed)
    check_schema(schema, checked.values, null_bodies=checked.has_null_bodies)
    batches = list(read_ranges(checked, schema, [QueueRange(Q1, 0, 5)], (), {}))
    return pa.Table.from_batches(batches, read_task.arrow_schema(schema))


def test_a_bad_record_fails_the_task(mixed: FakeBroker) -> None:
    mixed.pull_count = 5
    with pytest.raises(RemoteProtocolError, match="offset 4 of queue 1 of orders.*corruptBodies"):
        read_json()
    for null_corrupt in (True, False):
        with pytest.raises(RemoteProtocolError) as caught:
            mixed.queues[Q1][4] = mixed.queues[Q1][4] if null_corrupt else record(queue_offset=4)
            read_json(null_corrupt_bodies=null_corrupt)
        for piece in ("offset 1 of queue 1 of orders on broker-a: not JSON", "badRecordsTopic"):
            assert piece in str(caught.value)
    # Who does not read values meets no bad ones.
    assert read_json("queueOffset bigint").num_rows == 5


def test_bad_records_are_null(mixed: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    table = read_json("value struct<a int>, body binary, tags string", bad_records="null")
    assert table["value"].to_pylist() == [{"a": 1}, None, None, {"a": 2}, None]
    assert table["body"].to_pylist() == [*JSON_BODIES, None]
    assert table["tags"].to_pylist() == ["T"] * 5
    (line,) = caplog.messages
    assert line.startswith("3 bodies cannot be decoded and are null (badRecords=null), first that")
    assert "offset 1 of queue 1 of orders on broker-a (not JSON" in line


def test_bad_records_go_to_a_side_topic(
    mixed: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    aside = {"bad_records": "sideTopic", "bad_records_topic": "aside"}
    for times in (1, 2):  # a task that is repeated sends them again
        table = read_json(**aside)
        assert table.to_pylist() == [
            {"queueOffset": 0, "value": {"a": 1}}, {"queueOffset": 3, "value": {"a": 2}}
        ]  # fmt: skip
        copies = [decode_record(item) for item in mixed.queues[SIDE]]
        assert [copy.body for copy in copies] == [b"junk", b"\xff", b"packed"] * times
    assert {copy.flag for copy in copies} == {-7}
    for copy, offset, reason in zip(
        copies[3:],
        (1, 2, 4),
        ("not JSON: Expecting", "not UTF-8", "cannot be decompressed: zlib"),
        strict=True,
    ):
        properties = decode_properties(copy.properties)
        assert properties.pop("BAD_RECORD_REASON").startswith(reason)
        assert properties == {
            "TAGS": "T",
            "KEYS": "k",
            "UNIQ_KEY": f"id{offset}",
            "BAD_RECORD_TOPIC": "orders",
            "BAD_RECORD_BROKER": "broker-a",
            "BAD_RECORD_QUEUE_ID": "1",
            "BAD_RECORD_QUEUE_OFFSET": str(offset),
        }
    assert "3 bodies cannot be decoded and are left out and stored in topic aside" in caplog.text


def test_a_copy_leaves_to_its_broker_what_brokers_add(mixed: FakeBroker) -> None:
    """A broker adds them to whatever is in a batch, and then they would be there twice."""
    added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    text = encode_properties({"a": "1", **added, "b": "2"})
    mixed.queues[Q1][1] = record(b"junk", text, queue_id=1, queue_offset=1)
    assert read_json(bad_records="sideTopic", bad_records_topic="aside").num_rows == 2
    copy, *_ = [decode_record(item) for item in mixed.queues[SIDE]]
    names = [name for name in decode_properties(copy.properties) if "BAD_RECORD" not in name]
    assert names == ["a", "b"]


def test_a_copy_has_values_that_no_client_of_ours_would_send(mixed: FakeBroker) -> None:
    """As U+0001 in one, which brokers store: only the first of an entry separates."""
    text = b"a\x01x\x01y\x02a\x01\x02\x01b\x02c\x02UNIQ_KEY\x01id\x02"
    text += b"BAD_RECORD_TOPIC\x01old\x02d\x01\xc3\xa9"
    for large in (b"", b"x" * (2 << 20)):  # in a batch, and alone
        mixed.queues[SIDE] = []
        mixed.queues[Q1][1] = record(b"junk" + large, text, queue_id=1, queue_offset=1)
        assert read_json(bad_records="sideTopic", bad_records_topic="aside").num_rows == 2
        (copy,) = [one for one in map(decode_record, mixed.queues[SIDE]) if b"junk" in one.body]
        properties = decode_properties(copy.properties)
        assert properties["a"] == "x\x01y" and properties["d"] == "é"
        assert properties["UNIQ_KEY"] == "id" and properties["BAD_RECORD_TOPIC"] == "orders"
        assert copy.properties.count(b"BAD_RECORD_TOPIC") == 1


FULL = 32_767 - 60  # what a broker adds is in a stored message, too


@pytest.mark.parametrize(
    ("properties", "kept", "reason"),
    [
        ({"TAGS": "T", "a": "x" * (FULL - 2000)}, {"TAGS", "a"}, "value.a is the"),
        ({"TAGS": "T", "a": "x" * 32_400, "b": "c"}, {"TAGS", "b"}, "(without properties: a) val"),
        ({"KEYS": "k" * (FULL - 9), "a": "b"}, set(), "(without properties: a, KEYS) value"),
        (
            {f"p{n}": "é" * 20 for n in range(700)} | {"UNIQ_KEY": "u" * 100},
            {"UNIQ_KEY"} | {f"p{n}" for n in range(50)},
            "(without properties: p",
        ),
    ],
    ids=["fitting", "large one", "keys", "many"],
)
@pytest.mark.parametrize("body_bytes", [100, 2 << 20])
def test_a_copy_has_as_many_properties_as_there_is_room_for(
    mixed: FakeBroker, properties: dict[str, str], kept: set[str], reason: str, body_bytes: int
) -> None:
    body = b'{"a": "%s"}' % ("標" * 500).encode() + b" " * body_bytes
    mixed.queues[Q1][1] = record(body, properties, queue_id=1, queue_offset=1)
    assert read_json(bad_records="sideTopic", bad_records_topic="aside").num_rows == 2
    (copy,) = [one for one in map(decode_record, mixed.queues[SIDE]) if one.body == body]
    assert len(copy.properties) <= FULL
    found = decode_properties(copy.properties)
    assert found["BAD_RECORD_REASON"].startswith(reason)
    assert found["BAD_RECORD_QUEUE_OFFSET"] == "1"
    names = {name for name in found if "BAD_RECORD" not in name}
    assert kept <= names <= set(properties)
    assert all(found[name] == properties[name] for name in names)
    assert len(names) == len(kept) or len(copy.properties) > FULL - 1000


def test_large_bad_records_go_to_the_side_topic_alone(mixed: FakeBroker) -> None:
    """And compressed if they were: in a batch they would be larger than what a broker takes."""
    large = b"{not json " * 200_000
    flags = compression_flags(Compression.ZLIB)
    properties = {"TAGS": "T", "UNIQ_KEY": "id", "DELAY": "3"}
    bodies = [(large, 0), (zlib.compress(large), flags), (b"junk", 0), (zlib.compress(b"x"), 1)]
    mixed.queues[Q1] = [
        record(body, properties, queue_id=1, queue_offset=n, sys_flag=sys_flag | 0x10, flag=7,
               born_host=pack_host("::1", 5))
        for n, (body, sys_flag) in enumerate([*bodies, *bodies[:1]])
    ]  # fmt: skip
    assert read_json(bad_records="sideTopic", bad_records_topic="aside").num_rows == 0
    copies = [decode_record(item) for item in mixed.queues[SIDE]]
    told = [decode_properties(copy.properties) for copy in copies]
    found = {
        int(properties["BAD_RECORD_QUEUE_OFFSET"]): (copy.body, copy.sys_flag)
        for copy, properties in zip(copies, told, strict=True)
    }
    assert found == {
        0: (large, 0),
        1: (zlib.compress(large), flags),
        2: (b"junk", 0),
        3: (b"x", 0),
        4: (large, 0),
    }
    assert {copy.flag for copy in copies} == {7}
    assert all(p["UNIQ_KEY"] == "id" and p["TAGS"] == "T" and "DELAY" not in p for p in told)


def test_a_side_topic_that_cannot_be_written_fails_the_task(mixed: FakeBroker) -> None:
    del mixed.queues[SIDE]
    with pytest.raises(RouteNotFound) as caught:
        read_json(bad_records="sideTopic", bad_records_topic="aside")
    assert "bad records, which go to topic aside" in caught.value.__notes__[0]


def test_bodies_that_cannot_be_decompressed_are_bad_in_any_format(mixed: FakeBroker) -> None:
    schema = struct_of_ddl("body binary")
    aside = options(bad_records="sideTopic", bad_records_topic="aside")
    batches = list(read_ranges(aside, schema, [QueueRange(Q1, 0, 5)], (), {}))
    assert [body for batch in batches for body in batch["body"].to_pylist()] == JSON_BODIES
    assert len(mixed.queues[SIDE]) == 1


@pytest.mark.parametrize("acts", [False, True])
def test_a_master_that_is_back_while_a_slaves_answers_are_joined(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, acts: bool
) -> None:
    """What was read before is the slave's, whoever the master is when that is asked."""
    slaves = broker.acting if acts else broker.only_slaves
    slaves.add(Q0.broker_name)
    kept, broker.queues[Q0][4] = broker.queues[Q0][4], b""
    pull_range = FakeClient.pull_range

    def then_the_master(self: FakeClient, *args: Any, **options: Any) -> Iterator[Any]:
        for chunk in pull_range(self, *args, **options):
            yield chunk
            if chunk.next_offset > 104:
                slaves.clear()
                broker.queues[Q0][4] = kept

    monkeypatch.setattr(FakeClient, "pull_range", then_the_master)
    monkeypatch.setattr(retrying, "pause", lambda _: None)
    assert read(QueueRange(Q0, 100, 120), fail_on_data_loss=False).num_rows == 20
