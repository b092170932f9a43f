"""What of a decided batch was copied before, found among the copies in the log."""

import time
from pathlib import Path

import numpy as np
from tests.unit.store.stores import open_store

from pymq.broker.sinks.decided_batch import DecidedBatch
from pymq.broker.state.sinks import Sink
from pymq.protocol.sink_bodies import SinkBatch, SinkRow, StagedRun
from pymq.protocol.sink_decisions import JournalEntry, StagedRuns
from pymq.store.staging import Copies

RECORD_BYTES = 100


def decided(run_count: int, row_count: int) -> DecidedBatch:
    runs = [
        StagedRun(
            topic="T",
            queue_id=number % 4,
            physical_offset=number * row_count * RECORD_BYTES,
            size_bytes=row_count * RECORD_BYTES,
            count=row_count,
            part=1,
        )
        for number in range(run_count)
    ]
    batch = SinkBatch(sink="s", query="q", run="r", batch=0)
    entry = JournalEntry(kind="decided", batch=batch, runs=StagedRuns.of(runs))
    return DecidedBatch.of(
        Sink(SinkRow(last=batch, decided_ms=0), pending=entry, decision_end=1 << 40)
    )


def copies_of(first: int, end: int) -> Copies:
    """Return what is in the log when the records from one number to another are copied."""
    staged = np.arange(first, end) * RECORD_BYTES
    return Copies(staged, staged + (1 << 40))


def test_what_is_copied_is_left_out(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    one = decided(run_count=4, row_count=10)
    one.leave_out(copies_of(10, 30), store.staging)
    assert [run.physical_offset for run in one.left] == [0, 3000]
    assert (one.first_copy, one.lost_count) == ((1 << 40) + 1000, 0)
    one = decided(run_count=4, row_count=10)
    assert len(one.queues) == 4
    one.leave_out(copies_of(0, 0), store.staging)
    assert (len(one.left), one.first_copy) == (4, None)
    # What is complete holds no queues: the next batch may have copies there.
    one.leave_out(copies_of(0, 40), store.staging)
    assert not one.left and not one.queues
    store.close()


def test_the_rest_of_a_run_that_is_gone_is_lost(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    one = decided(run_count=3, row_count=10)
    one.leave_out(copies_of(10, 14), store.staging)
    assert [run.physical_offset for run in one.left] == [0, 2000]
    assert one.lost_count == 6
    store.close()


def test_a_large_batch_takes_no_longer_per_row_than_a_small_one(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    one = decided(run_count=400, row_count=2500)
    copies = copies_of(0, 1_000_000)
    begun = time.thread_time()
    one.leave_out(copies, store.staging)
    # A search of all copies for each run takes minutes.
    assert time.thread_time() - begun < 20
    assert not one.left
    store.close()
