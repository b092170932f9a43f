"""What a task reads: exactly its ranges, or an error that says what is missing."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.connector.fake import FakeBroker, record

from pymq.errors import ConnectionFailed, OffsetOutOfRange, RemoteProtocolError
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq import read_task, retrying
from pyspark_pymq.offsets import QueueRange
from pyspark_pymq.options import SourceOptions
from pyspark_pymq.read_task import read_ranges
from pyspark_pymq.source_columns import default_schema

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
    batches = list(read_ranges(options(**changed), schema, ranges))
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
    batches = list(read_ranges(options(), schema, [QueueRange(Q0, 100, 120)]))
    assert [batch.num_rows for batch in batches] == [20]
    monkeypatch.setattr(read_task, "DECODED_BYTES_MIN", 1)
    batches = list(read_ranges(options(), schema, [QueueRange(Q0, 100, 120)]))
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 3, 3, 3, 2]


def test_nothing_is_asked_before_the_first_row_is_wanted(broker: FakeBroker) -> None:
    rows = read_ranges(options(), default_schema(properties=False), [QueueRange(Q0, 100, 120)])
    assert broker.open_clients == 0
    next(rows)
    rows.close()  # type: ignore[attr-defined]


def test_tags(broker: FakeBroker) -> None:
    table = read(QueueRange(Q0, 100, 120), tags=("A", "C"))
    assert set(table["tags"].to_pylist()) == {"A", "C"} and table.num_rows == 13
    assert {call[4] for call in broker.calls} == {"A || C"}
    assert read(QueueRange(Q0, 100, 120), tags=("none",)).num_rows == 0


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


def test_what_only_a_slave_lacks_is_waited_for(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is the start, the end, or something between, and whatever may be lost."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            broker.only_slaves.clear()

    monkeypatch.setattr(retrying, "pause", pause)
    whole = list(broker.queues[Q0])
    for lose, offset in (
        (lambda: broker.trim(Q0, 105), None),
        (lambda: broker.queues[Q0].__delitem__(slice(12, None)), 112),
        (lambda: broker.queues[Q0].__setitem__(4, b""), 104),
    ):
        broker.only_slaves.add(Q0.broker_name)
        pauses.clear()
        lose()
        table = read(QueueRange(Q0, 100, 120), fail_on_data_loss=False)
        assert len(pauses) == 3 and ("doubt", "orders") in broker.calls
        assert offset not in table["queueOffset"].to_pylist()
        broker.queues[Q0], broker.first[Q0] = list(whole), 100
    broker.only_slaves.add(Q0.broker_name)
    broker.trim(Q0, 105)
    monkeypatch.setattr(retrying, "pause", lambda _: None)
    for lenient in (True, False):
        with pytest.raises(OffsetOutOfRange, match="Only a slave of broker broker-a answers"):
            read(QueueRange(Q0, 100, 120), fail_on_data_loss=lenient, retry_timeout_s=0.2)


def test_offsets_must_ascend(broker: FakeBroker) -> None:
    broker.queues[Q1][3] = record(b"twice", {"TAGS": "C"}, queue_id=1, queue_offset=2)
    for tags in ((), ("B", "C")):
        with pytest.raises((RemoteProtocolError, OffsetOutOfRange)):
            read(QueueRange(Q1, 0, 20), tags=tags)
