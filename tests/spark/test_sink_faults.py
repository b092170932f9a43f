"""The sink while brokers restart, die and freeze: nothing that was committed is missing afterwards.

Most of it runs the writer's own functions against two brokers that are processes, without Spark.
Faults happen between two Arrow batches, in the generator from which a task takes its rows.
"""

import collections
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types
from tests.cluster.played import closed_address
from tests.spark.two_brokers import DEADLINE_S, EXPIRY_S, NAMES, TwoBrokers, wait_until

from pymq.client.sockets import batch_pipeline
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ConfigurationError, DurabilityUnknown, RouteNotFound
from pymq.store.files import Files
from pymq.testing import Cluster
from pyspark_pymq.data_source import PymqSource
from pyspark_pymq.sink.options import sink_options
from pyspark_pymq.sink.plan import NO_PLAN, SinkPlan, _plans_of_this_process, plan_sink
from pyspark_pymq.sink.send_task import REQUESTS_IN_FLIGHT
from pyspark_pymq.sink.writer import PymqBatchWriter

BATCH_ROWS = 50
#: For brokers that freeze. One that is there may have to wait for as long, and then is sent again
#: what was in flight.
SILENT = {"requestTimeoutMs": "2000"}
FROZEN_COPIES = 2 * REQUESTS_IN_FLIGHT
#: What is written exactly once: ``test_exactly_once``.
AT_LEAST_ONCE = {"delivery": "atLeastOnce"}
BODY = spark_types.StructType().add("body", "string")
BOUND = spark_types.StructType().add("body", "string").add("queueId", "integer")


class Sink:
    """Tasks of the sink into a topic of a bed; what Spark does with writers is done here, too."""

    def __init__(self, bed: TwoBrokers, topic: str, **options: str) -> None:
        self._bed = bed
        self.topic = topic
        self.options = {
            "nameServer": bed.name_server,
            "topic": topic,
            **AT_LEAST_ONCE,
            "requestTimeoutMs": "30000",  # of brokers that are there, or come back
            **options,
        }

    def planned(self, schema: spark_types.StructType = BODY) -> PymqBatchWriter:
        """Return a writer as it arrives at an executor."""
        writer = PymqSource(self.options).writer(schema, False)
        return pickle.loads(pickle.dumps(writer))  # type: ignore[no-any-return]

    def stored(self) -> collections.Counter[bytes]:
        return collections.Counter(one.body for one in self._bed.stored(self.topic))

    def check(self, batch_count: int, *, most_copies: int = 0) -> None:
        """All rows are there; at most this many batches are there twice; queues are in order."""
        found = self.stored()
        rows = [b"%d" % number for number in range(batch_count * BATCH_ROWS)]
        assert set(found) == set(rows)
        assert sum(found.values()) <= len(rows) + most_copies * BATCH_ROWS
        queues: dict[tuple[str, int], list[int]] = collections.defaultdict(list)
        for one in self._bed.stored(self.topic):
            queues[one.broker, one.queue_id].append(int(one.body))
        for numbers in queues.values():
            first = list(dict.fromkeys(numbers))
            assert first == sorted(first)


def batches(
    count: int, between: dict[int, Callable[[], object]] | None = None, queue_id: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of rows that are numbered through; before some of them something happens."""
    for number in range(count):
        if between and number in between:
            between[number]()
        first = number * BATCH_ROWS
        columns = {"body": pa.array([str(first + row) for row in range(BATCH_ROWS)])}
        if queue_id is not None:
            columns["queueId"] = pa.array([queue_id] * BATCH_ROWS, pa.int32())
        yield pa.RecordBatch.from_pydict(columns)


def in_background(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    """Each test plans as if in a process of its own."""
    _plans_of_this_process.cache_clear()
    yield
    _plans_of_this_process.cache_clear()


# ---------------------------------------------------------------------------------- restarts


def test_a_task_that_starts_while_all_brokers_restart(two_brokers: TwoBrokers) -> None:
    """Name servers know neither brokers nor topic then; the driver's route does."""
    two_brokers.create_topic("T")
    sink = Sink(two_brokers, "T")
    writer = sink.planned()
    for name in ("broker-a", "broker-b"):
        two_brokers.stop(name)
    # Planned in between, in the process of the micro-batch before, and in a new one.
    again = sink.planned()
    _plans_of_this_process.cache_clear()
    without = sink.planned()
    back = in_background(lambda: [two_brokers.start(f"broker-{name}") for name in "ab"])
    assert writer.write(batches(10)).rows == 10 * BATCH_ROWS
    back.join()
    sink.check(10)
    for one in (again, without):
        assert one.write(batches(1)).rows == BATCH_ROWS


@pytest.mark.parametrize("queue_id", [None, 1])
def test_a_broker_that_is_killed_and_started_again(
    two_brokers: TwoBrokers, queue_id: int | None
) -> None:
    two_brokers.create_topic("T")
    sink = Sink(two_brokers, "T")
    schema = BODY if queue_id is None else BOUND
    faults = {
        20: lambda: two_brokers.kill("broker-a"),
        40: lambda: two_brokers.start("broker-a"),
        60: lambda: two_brokers.restart("broker-b"),
    }
    written = sink.planned(schema).write(batches(80, faults, queue_id))
    assert written.rows == 80 * BATCH_ROWS
    sink.check(80, most_copies=2 * REQUESTS_IN_FLIGHT)


def test_rows_for_a_broker_that_restarts_wait_for_it(two_brokers: TwoBrokers) -> None:
    two_brokers.create_topic("T", on=["broker-a"])
    sink = Sink(two_brokers, "T")
    threads: list[threading.Thread] = []

    def fail() -> None:
        two_brokers.kill("broker-a")
        threads.append(in_background(lambda: two_brokers.start("broker-a")))

    sink.planned().write(batches(30, {10: fail, 20: fail}))
    for thread in threads:
        thread.join()
    sink.check(30, most_copies=2 * REQUESTS_IN_FLIGHT)


# -------------------------------------------------------------------------------------- frozen


def test_one_frozen_broker_of_two(two_brokers: TwoBrokers) -> None:
    two_brokers.create_topic("T")
    sink = Sink(two_brokers, "T", **SILENT)
    two_brokers.freeze("broker-a")
    sink.planned().write(batches(40))
    two_brokers.thaw("broker-a")
    assert {one.broker for one in two_brokers.stored("T")} == {"broker-b"}
    sink.check(40, most_copies=FROZEN_COPIES)
    thaw = {80: lambda: two_brokers.thaw("broker-b"), 50: lambda: two_brokers.freeze("broker-b")}
    sink.planned().write(batches(100, thaw))
    sink.check(100, most_copies=40 + FROZEN_COPIES)


def test_rows_for_a_frozen_broker_outlast_it(tmp_path: Path) -> None:
    """The name server forgets the broker meanwhile, and learns of it again."""
    with TwoBrokers(tmp_path / "bed", expiry_s=EXPIRY_S) as bed:
        bed.create_topic("T", on=["broker-a"])
        sink = Sink(bed, "T", **SILENT)
        threads = []

        def thaw_later() -> None:
            bed.wait_route("broker-a", gone=True)
            bed.thaw("broker-a")

        def freeze() -> None:
            bed.freeze("broker-a")
            threads.append(in_background(thaw_later))

        sink.planned().write(batches(40, {20: freeze}))
        threads[0].join()
        bed.wait_route("broker-a")
        sink.check(40, most_copies=FROZEN_COPIES)


def test_rows_with_the_number_of_a_queue_go_elsewhere_when_routes_say_so(tmp_path: Path) -> None:
    with TwoBrokers(tmp_path / "bed", expiry_s=EXPIRY_S) as bed:
        bed.create_topic("T")
        sink = Sink(bed, "T", **SILENT)
        freeze = {20: lambda: bed.freeze("broker-a")}
        sink.planned(BOUND).write(batches(40, freeze, queue_id=2))
        bed.thaw("broker-a")
        bed.wait_route("broker-a")
        assert {one.queue_id for one in bed.stored("T")} == {2}
        sink.check(40, most_copies=FROZEN_COPIES)


# ------------------------------------------------------------------------- planning, durability


def test_a_topic_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    """That is found out when the job is planned, and not waited for."""
    with Cluster(broker={"auto_create_topic": False}) as cluster:
        options = {**AT_LEAST_ONCE, "nameServer": cluster.name_server, "topic": "nowhere"}
        plan = plan_sink(sink_options(options))
        assert plan.missing is not None and "'nowhere'" in plan.missing
        assert not caplog.text  # it is an error: nothing is tried, and nothing is waited for
        with pytest.raises(RouteNotFound, match="'nowhere'.*pymq topic create nowhere"):
            PymqSource(options).writer(BODY, False).write(batches(1))
        with pytest.raises(ConfigurationError, match="broker"):
            plan_sink(sink_options({**options, "nameServer": cluster.broker_address}))
        # A name server that gives no answer may know it.
        both = f"{cluster.name_server};{closed_address()}"
        assert plan_sink(sink_options({**options, "nameServer": both})) == NO_PLAN
        cluster.stop_broker()
        # Nothing can be said while no broker is there.
        assert plan_sink(sink_options(options)) == NO_PLAN


def test_name_servers_that_are_away_do_not_hold_up_each_micro_batch(
    two_brokers: TwoBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark plans the sink for each of them, and for its commit."""
    bed = two_brokers
    bed.create_topic("known")
    options = sink_options({"nameServer": bed.name_server, "topic": "known"})
    now_s = 1000.0

    def planned() -> SinkPlan:
        return plan_sink(options, monotonic_s=lambda: now_s)

    plan = planned()
    assert plan.routes
    bed.name_server_process.stop()
    for _ in range(3):
        assert planned() == plan
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("topic known: no new route, the old one is used")
    bed.name_server_process.start()
    for name in NAMES:
        bed.wait_route(name)
    bed.create_topic("known", queue_count=6)
    assert planned() == plan
    now_s += 31
    assert planned() != plan


def test_a_topic_is_created_by_the_first_row() -> None:
    with Cluster() as cluster:
        options = {**AT_LEAST_ONCE, "nameServer": cluster.name_server, "topic": "new"}
        assert plan_sink(sink_options(options)) == NO_PLAN
        assert PymqSource(options).writer(BODY, False).write(batches(1)).rows == BATCH_ROWS
        assert plan_sink(sink_options(options)).routes


class HangingDisk:
    """Syncs of the log wait while it hangs; else none does, however busy this machine's disk is."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()

    def fdatasync(self, fd: int) -> None:
        if "commitlog" in Path(f"/proc/self/fd/{fd}").resolve().parts:
            assert self.goes_on.wait(DEADLINE_S)


def test_a_disk_that_does_not_confirm_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are stored and not secured: that is no success, and few copies are made."""
    disk = HangingDisk()
    monkeypatch.setattr(Files, "fsync", lambda _, fd: disk.fdatasync(fd))
    monkeypatch.setattr(batch_pipeline, "UNSECURED_PAUSE_S", 0.05)
    with Cluster(flush="sync", broker={"sync_flush_timeout_ms": 50}) as cluster:
        options = {**AT_LEAST_ONCE, "nameServer": cluster.name_server, "topic": "T"}
        patient = PymqSource(options).writer(BODY, False)
        writer = PymqSource({**options, "retryTimeoutMs": "1000"}).writer(BODY, False)
        assert isinstance(writer, PymqBatchWriter)
        patient.write(batches(1))  # makes the log's first file
        try:
            disk.goes_on.clear()
            with pytest.raises(DurabilityUnknown, match=r"FLUSH_DISK_TIMEOUT.*syncFlushTimeout"):
                writer.write(batches(5))
            soon = threading.Timer(0.3, disk.goes_on.set)
            soon.start()
            assert patient.write(batches(5)).rows == 5 * BATCH_ROWS
            soon.join()
        finally:
            disk.goes_on.set()
        with BlockingClient(cluster.name_server) as client:
            ends = client.bounds(client.read_queues("T")).values()
        # Pauses double from 0.05 s to the second's end, twice; and what was in flight with it.
        assert sum(end for _, end in ends) <= 2 * (8 + REQUESTS_IN_FLIGHT) * BATCH_ROWS


def test_messages_of_more_than_four_mebibytes() -> None:
    large = pa.RecordBatch.from_pydict({"body": [bytes(6 << 20), b"x" * 100]})
    schema = spark_types.StructType().add("body", "binary")
    with Cluster(store_settings={"message_bytes_max": 8 << 20}) as cluster:
        options = {**AT_LEAST_ONCE, "nameServer": cluster.name_server, "topic": "T"}
        writer = PymqSource({**options, "maxMessageSize": str(8 << 20)}).writer(schema, False)
        assert writer.write(iter([large])).rows == 2
    with Cluster() as cluster:
        options["nameServer"] = cluster.name_server
        writer = PymqSource({**options, "maxMessageSize": str(8 << 20)}).writer(schema, False)
        with pytest.raises(Exception, match="maxMessageSize") as refused:
            writer.write(iter([large]))
        assert "is the broker's maxMessageSize as large?" in refused.value.__notes__[-1]


# ---------------------------------------------------------------------------- in a real Spark


@pytest.mark.spark
def test_a_query_outlives_its_brokers(
    spark: SparkSession, two_brokers: TwoBrokers, tmp_path: Path
) -> None:
    """Rows come all the time while brokers restart, die and freeze; what is committed is there."""
    bed, rows_per_s = two_brokers, 500
    bed.create_topic("T")
    rows = spark.readStream.format("rate").option("rowsPerSecond", rows_per_s).load()
    writer = rows.selectExpr("cast(value as string) as body").writeStream.format("pymq")
    writer.options(nameServer=bed.name_server, topic="T", **SILENT, **AT_LEAST_ONCE)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="100 milliseconds").start()

    def committed_batches(count: int) -> None:
        def last() -> int:
            assert query.exception() is None, query.exception()
            progress = query.lastProgress
            return -1 if progress is None else progress.batchId

        wanted = last() + count
        wait_until(lambda: last() >= wanted, f"{count} more batches committed")

    try:
        committed_batches(3)
        bed.restart("broker-a")
        committed_batches(2)
        bed.kill("broker-b")
        committed_batches(2)
        bed.start("broker-b")
        committed_batches(2)
        for name in ("broker-a", "broker-b"):
            bed.stop(name)  # now a task starts, and name servers know nothing
        for name in ("broker-a", "broker-b"):
            bed.start(name)
        committed_batches(2)
        bed.freeze("broker-a")
        committed_batches(3)
        bed.thaw("broker-a")
        committed_batches(2)
        assert query.lastProgress is not None
        end_s = int(query.lastProgress.sources[0].endOffset)
    finally:
        query.stop()
    found = Sink(bed, "T").stored()
    assert end_s > 0
    assert {b"%d" % number for number in range(end_s * rows_per_s)} <= set(found)
    # Twice in one fault, and few meet several; a slow machine has some of its own.
    assert max(found.values()) <= 8
