"""Exactly-once sinks under deaths, lost power and full disks, with a writer that behaves as Spark.

The writer knows which batches it has recorded as done, as Spark's checkpoint does, and repeats the
one after them, with the same rows, in other parts, by another run: until it has recorded it, too.
"""

import asyncio
import errno
import logging
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.crash.sink_run import QUEUE_COUNT, TOPICS, SinkRun
from tests.unit.store.stores import HOST, FakeClock, read_all

from pymq.broker.sinks import publishing
from pymq.errors import StoreError
from pymq.protocol.codes import ResponseCode, SinkCode
from pymq.protocol.record import NewRecord
from pymq.protocol.sink_bodies import SinkBatch, StagedRun
from pymq.store import FlushMode
from pymq.testing.faulty_files import Crashed, Fault, FaultyFiles, Keep
from pymq.testing.lost_power import Disk

pytestmark = pytest.mark.crash

STEPS = 12


class Schedule:
    """One random schedule.

    Args:
        home: an empty directory.
        dice: of everything.
    """

    def __init__(self, home: Path, dice: random.Random) -> None:
        self.home = home
        self.dice = dice
        self.clock = FakeClock()
        self.settings: dict[str, Any] = {
            "segment_bytes": dice.choice([4096, 9000, 1 << 16]),
            "queue_file_bytes": dice.choice([400, 2000]),
            "flush_mode": dice.choice(list(FlushMode)),
            "append_record_crc": dice.random() < 0.3,
            "message_bytes_max": dice.choice([700, 4 << 20]),  # decisions take several records
            "index_slot_count": 200,
            "index_item_limit": 400,
        }
        self.saved: str | None = None
        #: What Spark's checkpoint says.
        self.batch_number = 0
        self.rows_of: dict[int, list[tuple[str, int, bytes]]] = {}
        #: Batches that consumers may see, and those that they have to.
        self.begun: set[int] = set()
        self.answered: set[int] = set()
        self.other_count = 0
        self.run_count = 0
        self.part = 0
        self.is_faulty = False
        self.older: list[tuple[SinkBatch, list[StagedRun]]] = []
        self.run: SinkRun
        self.place = home / "0"
        self.place.mkdir()

    async def live(self, lives: int) -> None:
        """Go through some lives of a broker; then all that was begun is published."""
        disk = Disk(self.place)
        for number in range(lives):
            fault = self.random_fault()
            files = FaultyFiles(fault, disk=disk)
            self.is_faulty = fault is not None and fault.code is not None
            loses_power = is_up = False
            try:
                self.start(files)
                is_up = True
                for _ in range(STEPS):
                    await self.step()
                self.is_faulty = False
                files.mend()
                kind = self.dice.random()
                if kind < 0.4:
                    await self.run.leave()
                    self.save()
                    self.run.store.close()
                else:
                    loses_power = kind < 0.7
            except Crashed:
                loses_power = self.dice.random() < 0.4
            except StoreError:
                assert self.is_faulty
            if is_up:
                await self.run.leave()
            files.abandon()
            if loses_power:
                self.place = self.home / str(number + 1)
                disk.lose_power(self.dice, self.place)
                disk = Disk(self.place)
                if self.dice.random() < 0.5:
                    self.saved = None
        files = FaultyFiles()
        self.start(files)
        await self.write_batch()
        await self.write_batch()
        self.check()
        await self.run.leave()
        self.run.store.close()
        files.abandon()

    def random_fault(self) -> Fault | None:
        dice = self.dice
        kind = dice.random()
        at = dice.randint(1, dice.choice((30, 120, 300)))
        if kind < 0.2:
            return None
        if kind < 0.8:
            return Fault(at=at, keep=dice.choice(list(Keep)))
        return Fault(at=at, code=errno.ENOSPC, keep=Keep.BYTES, count=dice.randint(1, 9))

    def start(self, files: FaultyFiles) -> None:
        self.run_count += 1
        self.run = SinkRun(
            self.place / "store", self.clock, files, saved=self.saved, **self.settings
        )
        if not self.is_faulty:
            self.check()

    async def step(self) -> None:
        dice = self.dice
        self.clock.now_ms += dice.choice([1, 1000, 30_000])
        kind = dice.random()
        if kind < 0.5:
            await self.write_batch()
        elif kind < 0.7:
            self.other_count += 1
            await self.run.put(self.other(self.other_count))
        elif kind < 0.8 and self.older:
            await self.publish_older()
        elif kind < 0.9:
            self.run.store.durability.flush_queues()
        else:
            self.save()
        if not self.is_faulty and dice.random() < 0.3:
            self.check()

    def save(self) -> None:
        """Save the table, which never knows more than what is on the disk."""
        text = self.run.table.to_text()
        self.run.flush()
        self.saved = text

    def other(self, number: int) -> NewRecord:
        topic, queue_id = self.dice.choice(TOPICS), self.dice.randrange(QUEUE_COUNT)
        return NewRecord(topic, queue_id, b"other %d" % number, b"", HOST, 0)

    # --- the writer

    def batch(self, number: int) -> SinkBatch:
        run = f"run {self.run_count}"
        return SinkBatch(sink="s", query="q", run=run, batch=number, planned_ms=self.run_count)

    async def write_batch(self) -> None:
        """Write the next batch, perhaps once more."""
        dice, number = self.dice, self.batch_number
        if number not in self.rows_of:
            self.rows_of[number] = [
                (dice.choice(TOPICS), dice.randrange(QUEUE_COUNT), b"%d.%d" % (number, row))
                for row in range(dice.randint(1, 30))
            ]
        runs = await self.stage(number)
        if runs is None:
            return
        self.begun.add(number)
        self.older.append((self.batch(number), runs))
        answer = await self.run.publish(self.batch(number), runs)
        if answer.code != ResponseCode.SUCCESS:
            assert self.is_faulty and answer.code != SinkCode.FENCED, answer
            return
        self.answered.add(number)
        if dice.random() < 0.7:  # Otherwise the driver dies before it has recorded it.
            self.batch_number += 1
        else:
            self.run_count += 1

    async def stage(self, number: int) -> list[StagedRun] | None:
        """Stage the rows of a batch in tasks of any size, some of which fail."""
        dice = self.dice
        by_queue: dict[tuple[str, int], list[bytes]] = {}
        for topic, queue_id, body in self.rows_of[number]:
            by_queue.setdefault((topic, queue_id), []).append(body)
        runs: list[StagedRun] = []
        for (topic, queue_id), bodies in by_queue.items():
            while bodies:
                count = dice.randint(1, 8)
                self.part += 1
                run = await self.run.stage(topic, queue_id, bodies[:count], self.part)
                if run is None:
                    assert self.is_faulty
                    return None
                if dice.random() < 0.9:
                    bodies = bodies[count:]
                    runs.append(run)
        return runs

    async def publish_older(self) -> None:
        """Somebody who does not know that he is out of date."""
        batch, runs = self.dice.choice(self.older)
        answer = await self.run.publish(batch, runs)
        if answer.code == ResponseCode.SUCCESS:
            self.answered.add(batch.batch)

    # --- what must hold

    def check(self) -> None:
        """Compare what consumers see with what they should."""
        found = {
            (topic, queue_id): [one.body for one in read_all(self.run.store, topic, queue_id)]
            for topic in TOPICS
            for queue_id in range(QUEUE_COUNT)
        }
        seen = Counter(
            (*queue, body)
            for queue, bodies in found.items()
            for body in bodies
            if not body.startswith(b"other")
        )
        whole: set[int] = set()
        for number, rows in self.rows_of.items():
            counts = {seen.pop(row, 0) for row in rows}
            assert counts in ({0}, {1}), (number, counts)
            if counts == {1}:
                whole.add(number)
        assert not seen
        assert self.answered <= whole <= self.begun
        for bodies in found.values():
            numbers = [int(one.split(b".")[0]) for one in bodies if not one.startswith(b"other")]
            assert numbers == sorted(numbers)


def play(home: Path, seed: int) -> None:
    dice = random.Random(seed)
    asyncio.run(Schedule(home, dice).live(dice.randint(1, 4)))


def test_every_row_once_whatever_happens(
    memory_path: Path,
    seed: int,
    crash_rounds: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(publishing, "RETRY_S", 0.0)
    for number in range(10 * crash_rounds):
        home = memory_path / "home"
        home.mkdir()
        try:
            play(home, seed + number)
        except BaseException as error:
            error.add_note(f"play(home, {seed + number})")
            raise
        shutil.rmtree(home)
