"""Queries that write exactly once, in a real Spark: what fails, and what is there afterwards.

Each test copies numbered messages from a topic to another, with faults, and reads the second one.
"""

import logging
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.administration import admin_of
from tests.spark.copies import ROWS, Copy, copy_of, read_all
from tests.spark.faulty_sink import FAULTS, OUTAGES, OVER
from tests.spark.readers import HAS_LIMITS
from tests.spark.two_brokers import (
    ANSWER_S,
    DEADLINE_S,
    NAMES,
    TwoBrokers,
    numbers,
    wait_until,
)

from pymq.client.sockets.blocking_client import BlockingClient

pytestmark = pytest.mark.spark
#: How long brokers stay away.
AWAY_S = 1.0
#: For how long brokers restart under a query that starts, and waits for them for 30 s.
RESTARTS_S = 15.0
#: Until Spark has run the first micro-batches, on a machine that has other things to do.
START_S = 240.0


@pytest.fixture
def copy(spark: SparkSession, two_brokers: TwoBrokers, tmp_path: Path) -> Copy:
    return copy_of(spark, two_brokers, tmp_path / "checkpoint")


@pytest.mark.by_turns("fault")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_query_that_fails_and_starts_again(copy: Copy, fault: str, tmp_path: Path) -> None:
    """It starts again with another number of tasks."""
    options = {"fault": fault, "faultBatch": "2", "faultMark": str(tmp_path / "mark")}
    failure = copy.run(2, **options)
    assert failure is not None and fault in failure
    assert copy.run(3, **options) is None
    assert copy.batch_count >= 4
    copy.check()
    assert copy.run(1) is None  # and nothing more comes of another start
    copy.check()


@pytest.mark.by_turns("fault")
@pytest.mark.parametrize("fault", OUTAGES)
def test_brokers_that_end_around_the_commit(copy: Copy, fault: str, tmp_path: Path) -> None:
    """What was staged, and what was decided, is in their logs when they come back."""
    mark = tmp_path / "mark"

    def end_brokers() -> None:
        wait_until(mark.exists, fault, START_S)
        for name in NAMES:
            copy.bed.kill(name)
        mark.with_name(mark.name + OVER).touch()
        time.sleep(AWAY_S)
        for name in NAMES:
            copy.bed.start(name)

    options = {"fault": fault, "faultBatch": "2", "faultMark": str(mark)}
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(end_brokers)
        failure = copy.run(2, **options)
        ended.result(START_S)
    if fault == OUTAGES[0]:
        assert failure is None
    else:
        assert failure is not None and fault in failure
    # Before 4.2 the first run may have ended without a broker that did not answer yet.
    if fault != OUTAGES[0] or not HAS_LIMITS:
        assert copy.run(3, **options) is None
    copy.check()


def test_a_checkpoint_that_is_set_back(copy: Copy, tmp_path: Path) -> None:
    """By one micro-batch: it is known. By more: refused, and nothing is written."""
    assert copy.run() is None
    backup = tmp_path / "backup"
    shutil.copytree(copy.checkpoint, backup)
    copy.forget_last(1)
    assert copy.run(3) is None
    copy.check()

    copy.forget_last(4)
    failure = copy.run()
    assert failure is not None and "479101" in failure and "sink forget" in failure
    copy.check()
    shutil.rmtree(copy.checkpoint)
    shutil.copytree(backup, copy.checkpoint)
    copy.bed.send("from", numbers(ROWS, ROWS + 50))
    assert copy.run() is None
    copy.check(ROWS + 50)


def test_a_sink_that_was_forgotten_begins_again(copy: Copy) -> None:
    assert copy.run() is None
    copy.forget_last(copy.batch_count + 1)  # before 4.2 the first one has rows already
    with BlockingClient(copy.bed.name_server, timeout_s=ANSWER_S) as client:
        ((_, row),) = admin_of(client).sinks.rows()
        assert admin_of(client).sinks.forget(row.last.sink)
    assert copy.run() is None
    found = sorted(int(one.body) for one in copy.bed.stored("to"))
    assert found == sorted([*range(ROWS), *range(ROWS)])


def test_a_copied_checkpoint(copy: Copy, tmp_path: Path) -> None:
    """The query that started last goes on; the other one is told why it may not."""
    assert copy.run() is None
    twin = Copy(copy.spark, copy.bed, tmp_path / "twin")
    shutil.copytree(copy.checkpoint, twin.checkpoint)

    def start(one: Copy) -> "object":
        writer = one.rows().writeStream.format("pymq").option("nameServer", one.bed.name_server)
        writer.option("topic", "to").option("checkpointLocation", str(one.checkpoint))
        return writer.start()

    # Spark itself refuses two runs of one query in a session; what it knows is the id.
    first = start(copy)
    try:
        copy.bed.send("from", numbers(ROWS, ROWS + 40))
        wait_until(lambda: len(copy.bed.stored("to")) == ROWS + 40, "the first one's rows")
    finally:
        first.stop()  # type: ignore[attr-defined]
    # The twin is behind: its next micro-batch has the number of one that is published.
    failure = twin.run()
    assert failure is None
    copy.check(ROWS + 40)


def test_txn_app_id_outlives_a_checkpoint(copy: Copy, tmp_path: Path) -> None:
    """Another query that writes to the same sink is refused, whatever its batches' numbers are."""
    assert copy.run(txnAppId="copier") is None
    copy.check()
    copy.checkpoint = tmp_path / "another"
    failure = copy.run(txnAppId="copier")
    assert failure is not None and "479102" in failure and "another txnAppId" in failure
    copy.check()


def test_brokers_that_restart_under_a_query(copy: Copy) -> None:
    """Wherever the sink is; rows come all the time."""
    writer = copy.rows().writeStream.format("pymq").option("nameServer", copy.bed.name_server)
    writer.option("topic", "to").option("checkpointLocation", str(copy.checkpoint))
    query = writer.start()
    try:
        sent = ROWS
        for action in ("restart", "kill", "freeze"):
            for name in ("broker-a", "broker-b"):
                copy.bed.send("from", numbers(sent, sent + 100))
                sent += 100
                if action == "restart":
                    copy.bed.restart(name)
                elif action == "kill":
                    copy.bed.broker(name).kill()
                    query.awaitTermination(1.0)
                    copy.bed.start(name)
                else:
                    copy.bed.freeze(name)
                    query.awaitTermination(3.0)
                    copy.bed.thaw(name)
        wait_until(
            lambda: query.exception() is not None or len(copy.bed.stored("to")) >= sent, "all rows"
        )
        assert query.exception() is None
    finally:
        query.stop()
    copy.check(sent)


def test_a_query_that_starts_while_brokers_restart(copy: Copy) -> None:
    """One after the other, so that routes and tasks see different ones; it writes exactly once."""
    writer = copy.rows().writeStream.format("pymq").option("nameServer", copy.bed.name_server)
    writer.option("topic", "to").option("checkpointLocation", str(copy.checkpoint))

    def restart_all() -> None:
        end_s = time.monotonic() + RESTARTS_S
        for name in 3 * NAMES:
            if time.monotonic() < end_s:
                copy.bed.restart(name)

    with ThreadPoolExecutor() as pool:
        restarts = pool.submit(restart_all)
        query = writer.start()
        try:
            restarts.result(DEADLINE_S)
            wait_until(
                lambda: query.exception() is not None or len(copy.bed.stored("to")) >= ROWS,
                "all rows",
                START_S,
            )
            assert query.exception() is None
        finally:
            query.stop()
    copy.check()
    with BlockingClient(copy.bed.name_server, timeout_s=ANSWER_S) as client:
        ((_, row),) = admin_of(client).sinks.rows()
    assert row.last.sink == query.id


def test_a_broker_of_rocketmq_is_written_at_least_once(
    caplog: pytest.LogCaptureFixture, copy: Copy
) -> None:
    """What the log says when a user must not expect more; see also ``tests/interop``."""
    from pyspark_pymq.sink.writer import _warn_once

    _warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        _warn_once()
    assert re.search("at least once.*delivery=atLeastOnce", caplog.text)


def test_batch_writes(copy: Copy, spark: SparkSession) -> None:
    """Whole; and once, if they are numbered."""
    frame = spark.range(200).selectExpr("cast(id as string) as body").repartition(3)

    def write(**options: str) -> None:
        writer = frame.write.format("pymq").mode("append")
        writer.options(nameServer=copy.bed.name_server, topic="to", **options).save()

    def count() -> int:
        return len(copy.bed.stored("to"))

    write()
    assert count() == 200
    for _ in range(2):
        write(txnAppId="nightly", txnVersion="7")
        assert count() == 400
    write(txnAppId="nightly", txnVersion="8")
    assert count() == 600
    for options, text in (
        ({"txnAppId": "nightly", "txnVersion": "3"}, "479101"),
        ({"txnAppId": "nightly"}, "txnVersion is missing"),
        ({"sinkBroker": "broker-x"}, "=broker-x: .* a broker that no name server knows"),
    ):
        with pytest.raises(Exception, match=text):
            write(retryTimeoutMs="500", **options)
    assert count() == 600


def test_batch_writes_in_foreach_batch(copy: Copy) -> None:
    """A micro-batch that is run again is not written again; brokers know the run of the query."""
    calls: list[int] = []
    runs: set[str] = set()
    failures = iter([True])

    def write(frame: DataFrame, number: int) -> None:
        calls.append(number)
        runs.update(query.runId for query in copy.spark.streams.active)
        for app in ("first", "second"):
            writer = frame.write.format("pymq").mode("append")
            writer.options(nameServer=copy.bed.name_server, topic="to", txnAppId=app).save()
            if number == 2 and next(failures, False):
                raise ValueError("as wanted")

    def run() -> None:
        writer = copy.rows().writeStream.foreachBatch(write)
        writer.option("checkpointLocation", str(copy.checkpoint))
        read_all(writer)

    with pytest.raises(Exception, match="as wanted"):
        run()
    runs.clear()
    run()
    assert calls.count(2) == 2 and len(runs) == 1
    with BlockingClient(copy.bed.name_server, timeout_s=ANSWER_S) as client:
        assert {row.last.run for _, row in admin_of(client).sinks.rows()} == runs
    found = sorted(int(one.body) for one in copy.bed.stored("to"))
    assert found == sorted([*range(ROWS), *range(ROWS)])
