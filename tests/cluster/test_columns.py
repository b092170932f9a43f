"""Messages as columns over loopback: batches of the pull consumer, ranges, and what is sent."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.bench import columns
from tests.cluster import column_scenarios
from tests.cluster.running import run
from tests.cluster.scenarios import DEADLINE_S, TIMEOUT_S
from tests.readme import PROJECT
from tests.spark.two_brokers import TwoBrokers, numbers

from pymq import (
    BlockingClient,
    ConfigurationError,
    LocalProtocolError,
    Producer,
    PymqError,
    Reader,
    RowsNotSent,
    blocking,
)
from pymq.testing.cluster import Cluster


@pytest.mark.parametrize("scenario", column_scenarios.ALL, ids=lambda one: one.__name__)
def test_scenario(
    scenario: Callable[[str, str], Awaitable[None]], pymq_cluster: Cluster, topic: str
) -> None:
    run(scenario(pymq_cluster.name_server, topic))


def test_the_blocking_faces(pymq_cluster: Cluster, topic: str) -> None:
    name_server = pymq_cluster.name_server
    frame = pd.DataFrame({"topic": [topic, "other"] * 50, "body": [b"%d" % n for n in range(100)]})
    with blocking.Producer(name_server, timeout_s=TIMEOUT_S) as producer:
        receipts = producer.send_columns(frame)
    assert receipts.is_stored.all() and len(receipts) == 100
    table = receipts.to_arrow()
    assert table.column("message_id").to_pylist() == [one.decode() for one in receipts.message_id]
    with blocking.Reader(name_server) as reader:
        frames = [batch.to_pandas("body", "queue_id") for batch in reader.read(topic)]
        bodies = [bytes(one) for part in frames for one in part["body"]]
        assert sorted(bodies) == sorted(b"%d" % n for n in range(0, 100, 2))
        for _ in reader.read("other"):  # left early
            break
        assert sum(map(len, reader.read("other"))) == 50
    consumer = blocking.PullConsumer(name_server, "g", from_where="earliest").subscribe("other")
    with consumer:
        left = 50
        for batch in consumer.batches(timeout_s=30):
            left -= len(batch)
            if left <= 0:
                break
        assert left == 0 and consumer.poll(1, timeout_s=0.2) == []


def test_polars_both_ways(pymq_cluster: Cluster, topic: str) -> None:
    """Nulls, bytes that are no text, times and dictionaries; what is read is sent on as it is."""
    polars = pytest.importorskip("polars")
    name_server = pymq_cluster.name_server
    bodies = [b"%d \xff" % number for number in range(100)]
    frame = polars.DataFrame(
        {
            "topic": [topic] * 100,
            "body": bodies,
            "tags": ["a", None] * 50,
            "keys": [f"k{number} all" for number in range(100)],
        },
        schema_overrides={"topic": polars.Categorical},
    )
    with blocking.Producer(name_server) as producer, blocking.Reader(name_server) as reader:
        assert producer.send_columns(frame).is_stored.all()
        read = polars.concat([batch.to_polars() for batch in reader.read(topic)])
        assert sorted(read["body"]) == sorted(bodies) and read.height == 100
        assert read["tags"].null_count() == 50 and set(read["tags"].drop_nulls()) == {"a"}
        assert str(read["store_timestamp"].dtype.time_zone) == "UTC"
        copy = read.select("body", "tags", "keys").with_columns(topic=polars.lit(f"{topic}2"))
        assert producer.send_columns(copy).is_stored.all()
        part = copy.filter(polars.col("tags") == "a").slice(10, 20)
        assert len(producer.send_columns(part)) == 20
    found = pymq_cluster.messages(f"{topic}2")
    assert len(found) == 120 and {one.keys[1] for one in found} == {"all"}


WRONG_TABLES: list[tuple[Any, str | None, type[Exception], str]] = [
    ([1, 2], "topic", ConfigurationError, "expected an Arrow table"),
    ({"tags": ["a"]}, "topic", ConfigurationError, "body is missing"),
    ({"body": [b"a"]}, None, ConfigurationError, "topic is missing"),
    ({"body": [b"a"], "topic": ["t"]}, "topic", ConfigurationError, "expected one of them"),
    ({"body": [b"a"], "tag": ["t"]}, "topic", ConfigurationError, "no column 'tag'"),
    ({"body": [1]}, "topic", ConfigurationError, "body is int64, expected binary"),
    ({"body": [b"a", b"b"], "tags": ["t"]}, "topic", ConfigurationError, "no table of messages"),
    (pa.table([[b"a"]] * 2, ["body"] * 2), "topic", ConfigurationError, "body is there twice"),
    ({"body": [b"a"], "properties": ["a=b"]}, "topic", ConfigurationError, "properties: .*mapping"),
    ({"body": [b"a"], "properties": [{"a": 1}]}, "topic", ConfigurationError, "no table of messa"),
    ({"body": [b"a"], "flag": [2**70]}, "topic", ConfigurationError, "no table of messages"),
    ({"body": [b"a"], "flag": [2**40]}, "topic", LocalProtocolError, "column flag"),
    ({"body": [b"a"] * 2, "topic": ["t", None]}, None, LocalProtocolError, "row 1: topic is null"),
    ({"body": [b"a"], "topic": [None]}, None, LocalProtocolError, "row 0: topic is null"),
    ({"body": [b"a", None]}, "topic", LocalProtocolError, "row 1: body is null or empty"),
    ({"body": [None]}, "topic", LocalProtocolError, "row 0: body is null or empty"),
    ({"body": [b"a", b""]}, "topic", LocalProtocolError, "row 1: body is null or empty"),
    ({"body": [b"a"], "tags": ["a||b"]}, "topic", LocalProtocolError, "row 0: tags 'a||b'"),
    ({"body": [b"a"], "tags": ["a\x01"]}, "topic", LocalProtocolError, "separates properties"),
    ({"body": [b"a"] * 2, "keys": [["a"], ["a b"]]}, "topic", LocalProtocolError, "row 1: key"),
    ({"body": [b"a"] * 2, "keys": [None, ["", "b"]]}, "topic", LocalProtocolError, "row 1: key ''"),
    ({"body": [b"a"], "properties": [{"TAGS": "x"}]}, "topic", LocalProtocolError, "the system"),
    ({"body": [b"a"], "properties": [{"TIMER_DELAY_MS": "5"}]}, "topic", LocalProtocolError, "one"),
    ({"body": [b"a"], "properties": [{"p": "\x02"}]}, "topic", LocalProtocolError, "separates"),
    ({"body": [b"a" * (5 << 20)]}, "topic", LocalProtocolError, "row 0: message of"),
    ({"body": [b"a"]}, "bad topic", LocalProtocolError, "' '"),
]


def test_wrong_tables_are_refused_with_a_reason(pymq_cluster: Cluster, topic: str) -> None:
    async def test() -> None:
        async with Producer(pymq_cluster.name_server) as producer:
            for table, to, error, text in WRONG_TABLES:
                with pytest.raises(error, match=text):
                    await producer.send_columns(table, topic=to)
            assert len(await producer.send_columns({"body": []}, topic=topic)) == 0
        async with Reader(pymq_cluster.name_server) as reader:
            with pytest.raises(ConfigurationError, match="where='now'"):
                await anext(reader.read(topic, "now"))

    run(test())
    with BlockingClient(pymq_cluster.name_server) as client:
        assert set(client.bounds(client.read_queues(topic)).values()) == {(0, 0)}


def test_pymq_brokers_get_records_and_others_batches(pymq_cluster: Cluster, topic: str) -> None:
    async def test() -> None:
        bodies = [b"%d" % n for n in range(100)]
        async with Producer(pymq_cluster.name_server) as producer:
            await producer.send_columns({"body": bodies, "flag": [1] * 100}, topic=topic)
            takers = producer._parts.sender.kinds.takers
            assert list(takers.values()) == [True]
            for channel in takers:
                takers[channel] = False  # as the official ones answer
            await producer.send_columns({"body": bodies, "flag": [1] * 100}, topic=topic)

            async def all_take_records(_: object) -> bool:
                return True

            producer._take_records = all_take_records  # as it said before another one was there
            await producer.send_columns({"body": bodies, "flag": [1] * 100}, topic=topic)
        async with Reader(pymq_cluster.name_server) as reader:
            batches = [batch async for batch in reader.read(topic)]
        got = [body for batch in batches for body in batch["body"]]
        assert sorted(got) == sorted(3 * bodies)
        assert {flag for batch in batches for flag in batch["flag"].tolist()} == {1}

    run(test())


def test_a_connection_that_is_new_is_asked_before_records_go_over_it(
    pymq_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make batches of them, one by one in the event loop, is for brokers that refuse them."""

    async def test() -> None:
        async with Producer(pymq_cluster.name_server) as producer:
            await producer.send_columns({"body": [b"1"]}, topic=topic)
            takers = producer._parts.sender.kinds.takers
            ((first, _),) = takers.items()

            async def is_lost_behind_the_question(_: object) -> bool:
                first.abort()
                return True

            producer._take_records = is_lost_behind_the_question
            await producer.send_columns({"body": [b"2"]}, topic=topic)
            assert [takes for channel, takes in takers.items() if channel is not first] == [True]

    monkeypatch.setattr("pymq.client.sending.column_sends.as_batch", lambda _: 1 / 0)
    run(test())
    assert sorted(one.body for one in pymq_cluster.messages(topic)) == [b"1", b"2"]


def test_a_row_that_is_too_large_only_as_a_record_is_sent(
    pymq_cluster: Cluster, topic: str
) -> None:
    """As ``send`` does, whose request has no room for what a record has besides."""
    large = b"x" * ((4 << 20) - 130)
    with blocking.Producer(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as producer:
        receipts = producer.send_columns({"body": [b"small", large]}, topic=topic)
    assert receipts.is_stored.all()
    assert sorted(len(one.body) for one in pymq_cluster.messages(topic)) == [5, len(large)]


def test_a_bad_row_far_behind_leaves_receipts(
    pymq_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymq.columns.table.ROWS_MAX", 100)
    bodies: list[bytes | None] = [b"%d" % n for n in range(250)]
    bodies[249] = None
    with (
        blocking.Producer(pymq_cluster.name_server) as producer,
        pytest.raises(RowsNotSent, match="50 of 250 rows.*row 249: body is null") as failure,
    ):
        producer.send_columns({"body": bodies}, topic=topic)
    receipts = failure.value.receipts
    assert receipts.is_stored.tolist() == [True] * 200 + [False] * 50
    assert set(receipts.status[200:]) == {"FAILED"}
    assert (failure.value.outcome_known, failure.value.retriable) == (True, False)


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string())], ids=str)
def test_nulls_among_keys_are_left_out(
    pymq_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    monkeypatch.setattr("pymq.columns.table.ROWS_MAX", 2)
    keys = [["a", None, "b"], [None], None, [], ["c"]]
    table = pa.table({"body": [b"%d" % n for n in range(5)], "keys": pa.array(keys, kind)})
    with blocking.Producer(pymq_cluster.name_server) as producer:
        producer.send_columns(table, topic=topic)
    found = {one.body: list(one.keys) for one in pymq_cluster.messages(topic)}
    assert found == {b"0": ["a", "b"], b"1": [], b"2": [], b"3": [], b"4": ["c"]}


def test_what_is_beneath_a_null_map_is_not_looked_at(pymq_cluster: Cluster, topic: str) -> None:
    maps = pa.MapArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), ["TAGS", "b"], ["1", "2"], mask=pa.array([True, False])
    )
    with blocking.Producer(pymq_cluster.name_server) as producer:
        producer.send_columns({"body": [b"0", b"1"], "properties": maps}, topic=topic)
    found = {one.body: (one.tags, one.properties.get("b")) for one in pymq_cluster.messages(topic)}
    assert found == {b"0": (None, None), b"1": (None, "2")}


WITHOUT = """
import sys
sys.modules[{package!r}] = None
import pymq
from pymq import ConfigurationError, blocking
with blocking.Reader(sys.argv[1]) as reader, blocking.Producer(sys.argv[1]) as producer:
    for call in (lambda: [b.to_arrow() for b in reader.read("topic")],
                 lambda: producer.send_columns({{"body": [b"x"]}}, topic="topic")):
        try:
            call()
        except ConfigurationError as error:
            assert "pip install 'pymq-rocketmq[columns]'" in str(error), error
        else:
            raise SystemExit("it worked")
"""


@pytest.mark.parametrize("package", ["numpy", "pyarrow"])
def test_a_missing_package_is_named(pymq_cluster: Cluster, topic: str, package: str) -> None:
    with blocking.Producer(pymq_cluster.name_server) as producer:
        producer.send_columns({"body": [b"x"]}, topic=topic)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(package=package), pymq_cluster.name_server],
        env={"PYTHONPATH": str(PROJECT / "broker")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_rows_whose_broker_is_killed_are_told(tmp_path: Path) -> None:
    """What is reported as stored is there, what surely failed is not, and sending goes on."""

    async def test(bed: TwoBrokers) -> None:
        bed.create_topic("T")
        stored: set[tuple[str, int, int, bytes]] = set()
        maybe: set[bytes] = set()
        failed: set[bytes] = set()
        # Until the broker is killed, all that is sent has an answer.
        async with Producer(bed.name_server, timeout_s=TIMEOUT_S) as producer:

            def note(receipts: Any, bodies: list[bytes]) -> None:
                columns = (receipts.status, receipts.broker_name, receipts.queue_id)
                for body, status, name, queue_id, offset in zip(
                    bodies, *columns, receipts.queue_offset, strict=True
                ):
                    if offset >= 0:
                        stored.add((str(name), int(queue_id), int(offset), body))
                    else:
                        (maybe if status == "UNKNOWN" else failed).add(body)

            async def send(first: int) -> None:
                bodies = [b"%d-" % n + b"x" * 2000 for n in range(first, first + 2000)]
                try:
                    note(await producer.send_columns({"body": bodies}, topic="T"), bodies)
                except RowsNotSent as error:
                    note(error.receipts, bodies)
                except PymqError:
                    failed.update(bodies)

            for round_number in range(12):
                sending = asyncio.ensure_future(send(round_number * 2000))
                if round_number == 3:
                    await asyncio.to_thread(bed.broker("broker-b").kill)
                if round_number == 8:
                    await asyncio.to_thread(bed.start, "broker-b")
                await sending
        there = {tuple(one) for one in bed.stored("T")}
        assert stored <= there
        bodies = [one[3] for one in there]
        assert not failed & set(bodies)
        known = {one[3] for one in stored}
        assert set(bodies) <= known | maybe
        assert len(stored) >= 11 * 2000

    with TwoBrokers(tmp_path) as bed:
        run(test(bed))


def test_a_range_is_read_while_a_broker_restarts(tmp_path: Path) -> None:
    async def test(bed: TwoBrokers) -> None:
        bed.create_topic("T")
        bed.send("T", numbers(4000))
        got = []
        async with Reader(bed.name_server, deadline_s=DEADLINE_S) as reader:
            restarting = None
            async for batch in reader.read("T"):
                got += zip(
                    batch["broker_name"].tolist(),
                    batch["queue_id"].tolist(),
                    batch["queue_offset"].tolist(),
                    batch["body"],
                    strict=True,
                )
                if restarting is None:
                    restarting = asyncio.ensure_future(asyncio.to_thread(bed.restart, "broker-b"))
            assert restarting is not None
            await restarting
        assert sorted(got) == [tuple(one) for one in bed.acknowledged("T")]

    with TwoBrokers(tmp_path) as bed:
        run(test(bed))


def test_columns_are_numpy(pymq_cluster: Cluster, topic: str) -> None:
    with blocking.Producer(pymq_cluster.name_server) as producer:
        batch = pa.RecordBatch.from_pydict({"body": ["a", "bc"], "tags": ["t", None]})
        producer.send_columns(batch, topic=topic)
    with blocking.Reader(pymq_cluster.name_server) as reader:
        (got,) = reader.read(topic)
    assert got["store_timestamp"].dtype == np.dtype("datetime64[ms]")
    assert got["body"].lengths.tolist() == [1, 2] and got["body"][1] == b"bc"
    assert list(got["tags"]) == [b"t", None] and got["tags"][1:].strings() == [None]
    assert got.to_arrow().schema.names[:3] == ["topic", "broker_name", "queue_id"]
    with pytest.raises(KeyError, match="there are topic"):
        got["nothing"]
    with pytest.raises(ConfigurationError, match="no column 'nothing'"):
        got.to_arrow("nothing")


def test_the_benchmark_runs(pymq_cluster: Cluster) -> None:
    sent, read = columns.measure(pymq_cluster.name_server, size=16, count=500, rounds=2)
    assert sent > 0 and read > 0
