"""Queries over groups whose masters die: the other broker of each group goes on, with the same
offsets, and what is written exactly once is.
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.copies import ROWS, Copy, copy_of
from tests.spark.failover_bed import FailoverBed
from tests.spark.faulty_sink import FAULTS, OUTAGES, OVER
from tests.spark.two_brokers import DEADLINE_S, NAMES, numbers, wait_until

pytestmark = pytest.mark.spark
LONG = pytest.mark.skipif(
    int(os.environ.get("PYMQ_CRASH_ROUNDS", "0")) < 100, reason="PYMQ_CRASH_ROUNDS=100 runs it, too"
)


@pytest.fixture
def copy(spark: SparkSession, tmp_path: Path) -> Iterator[Copy]:
    with FailoverBed(tmp_path / "bed") as bed:
        yield copy_of(spark, bed, tmp_path / "checkpoint")


@pytest.mark.parametrize("fault", [OUTAGES[0], pytest.param(OUTAGES[1], marks=LONG)])
def test_masters_die_around_the_commit(copy: Copy, fault: str, tmp_path: Path) -> None:
    """Between seal and decision, and between decision and what Spark learns of it."""
    mark = tmp_path / "mark"

    def fail_over() -> None:
        wait_until(mark.exists, fault)
        for name in NAMES:
            copy.bed.kill(name)
        mark.with_name(mark.name + OVER).touch()
        for name in NAMES:
            copy.bed.start(name)

    options = {"fault": fault, "faultBatch": "2", "faultMark": str(mark)}
    with ThreadPoolExecutor() as pool:
        failing = pool.submit(fail_over)
        failure = copy.run(2, **options)
        failing.result(DEADLINE_S)
    if fault == OUTAGES[0]:
        assert failure is None
    else:
        assert failure is not None and fault in failure
        assert copy.run(3, **options) is None
    copy.check()
    assert copy.run(1) is None  # and nothing more comes of another start
    copy.check()


def test_masters_die_while_rows_come_and_go(copy: Copy) -> None:
    """While parts are written and decisions published, whichever it is; twice each group."""
    writer = copy.rows().writeStream.format("pymq").option("nameServer", copy.bed.name_server)
    writer.option("topic", "to").option("checkpointLocation", str(copy.checkpoint))
    query = writer.start()
    try:
        sent = ROWS
        for _ in range(2):
            for name in NAMES:
                copy.bed.send("from", numbers(sent, sent + 100))
                sent += 100
                time.sleep(0.5)
                copy.bed.kill(name)
                copy.bed.send("from", numbers(sent, sent + 100))
                sent += 100
                copy.bed.start(name)
                assert query.exception() is None, str(query.exception())
        wait_until(
            lambda: query.exception() is not None or len(copy.bed.stored("to")) >= sent, "all rows"
        )
        assert query.exception() is None
    finally:
        query.stop()
    copy.check(sent)


@LONG
def test_a_task_fails_and_then_its_masters(copy: Copy, tmp_path: Path) -> None:
    """What is staged of the batch that failed is at the new masters, and is not published."""
    options = {"fault": FAULTS[1], "faultBatch": "2", "faultMark": str(tmp_path / "mark")}
    failure = copy.run(2, **options)
    assert failure is not None and FAULTS[1] in failure
    for name in NAMES:
        copy.bed.kill(name)
    for name in NAMES:
        copy.bed.start(name)  # alone, a SYNC_MASTER secures nothing
    assert copy.run(3, **options) is None
    copy.check()
