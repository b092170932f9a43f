"""Exactly-once sinks under deaths, lost power, full and failing disks; their writers act as Spark.

A writer knows which batches it has recorded as done, as Spark's checkpoint does, and repeats the
one after them, with the same rows, in other parts, by another run: until it has recorded it, too.
Consumers look in every turn of the event loop, whatever has failed: they see a batch, or nothing.
Delayed rows are looked for where they wait: with the others of their batch, once.
"""

import asyncio
import errno
import logging
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.crash.sink_run import QUEUE_COUNT, TOPICS, SinkRun
from tests.unit.store.stores import HOST, FakeClock, read_all

from pymq.broker.sinks import publishing
from pymq.errors import StoreError
from pymq.protocol.codes import ResponseCode, SinkCode
from pymq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from pymq.protocol.parking import real_place
from pymq.protocol.record import NewRecord
from pymq.protocol.sink_bodies import SinkBatch, StagedRun
from pymq.store import FlushMode
from pymq.testing.faulty_files import Crashed, Fault, FaultyFiles, Keep
from pymq.testing.lost_power import Disk

pytestmark = pytest.mark.crash

STEPS = 12
LEVELS_MS = (1000, 5000)
#: Where rows wait for consumers, or to be delivered.
PLACES = [
    *((topic, queue_id) for topic in TOPICS for queue_id in range(QUEUE_COUNT)),
    *((SCHEDULE_TOPIC, queue_id) for queue_id in range(len(LEVELS_MS))),
    (TIMER_TOPIC, 0),
]


class Row(NamedTuple):
    """A row of a batch; the level 3 stands for a delivery time."""

    topic: str
    queue_id: int
    body: bytes
    level: int

    def place(self) -> tuple[str, int, bytes]:
        """Return where it is to be seen."""
        if self.level > len(LEVELS_MS):
            return TIMER_TOPIC, 0, self.body
        if self.level:
            return SCHEDULE_TOPIC, self.level - 1, self.body
        return self.topic, self.queue_id, self.body

    def properties(self) -> bytes:
        """Return those it is staged with."""
        if self.level > len(LEVELS_MS):
            return b"TIMER_DELIVER_MS\x015000000000000\x02"
        return b"DELAY\x01%d\x02" % self.level if self.level else b""


class Writer:
    """A query, and what consumers may see of it.

    Attributes:
        number: of the batch that comes next, as Spark's checkpoint says.
        rows_of: the rows of each batch.
        begun: batches that consumers may see.
        answered: those that they have to.
        lasting: those of them that are there whatever the disk does.
        older: what was staged.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0
        self.rows_of: dict[int, list[Row]] = {}
        self.begun: set[int] = set()
        self.answered: set[int] = set()
        self.lasting: set[int] = set()
        self.older: list[tuple[SinkBatch, list[StagedRun]]] = []


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
            "transient_pool": dice.random() < 0.2,
            "queue_extension": dice.random() < 0.2,
            "queue_extension_file_bytes": 1000,
            "delay_levels_ms": LEVELS_MS,
        }
        self.saved: str | None = None
        self.writers = [Writer(name) for name in "st"[: dice.randint(1, 2)]]
        self.other_count = 0
        self.run_count = 0
        self.part = 0
        self.is_faulty = False
        #: Where the queues ended when somebody looked at them.
        self.seen_ends: list[int] = []
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
                if self.settings["flush_mode"] is FlushMode.ASYNC:
                    for writer in self.writers:
                        writer.lasting.clear()  # Their copies have to be made again.
                self.place = self.home / str(number + 1)
                disk.lose_power(self.dice, self.place)
                disk = Disk(self.place)
                if self.dice.random() < 0.5:
                    self.saved = None
        files = FaultyFiles()
        self.start(files)
        for _ in range(2):
            await self.write_batches(self.writers)
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
        if kind < 0.7:
            return Fault(at=at, keep=dice.choice(list(Keep)))
        code = errno.ENOSPC if kind < 0.9 else errno.EIO
        return Fault(at=at, code=code, keep=Keep.BYTES, count=dice.randint(1, 9))

    def start(self, files: FaultyFiles) -> None:
        self.run_count += 1
        self.run = SinkRun(
            self.place / "store", self.clock, files, saved=self.saved, **self.settings
        )
        self.run.on_turn = self.look
        self.check()

    async def step(self) -> None:
        dice = self.dice
        self.clock.now_ms += dice.choice([1, 1000, 30_000])
        kind = dice.random()
        if kind < 0.5:
            count = dice.randint(1, len(self.writers))
            await self.write_batches(dice.sample(self.writers, count))
        elif kind < 0.7:
            self.other_count += 1
            await self.run.put(self.other(self.other_count))
        elif kind < 0.8:
            await self.publish_older(dice.choice(self.writers))
        elif kind < 0.9:
            self.run.store.durability.flush_queues()
        else:
            self.save()
        self.check()

    def save(self) -> None:
        """Save the table, which never knows more than what is on the disk."""
        text = self.run.table.to_text()
        self.run.flush()
        if self.run.store.durability.failure is None:
            self.saved = text

    def other(self, number: int) -> NewRecord:
        topic, queue_id = self.dice.choice(TOPICS), self.dice.randrange(QUEUE_COUNT)
        return NewRecord(topic, queue_id, b"other %d" % number, b"", HOST, 0)

    # --- the writers

    def batch(self, writer: Writer) -> SinkBatch:
        run = f"run {self.run_count}"
        return SinkBatch(
            sink=writer.name, query="q", run=run, batch=writer.number, planned_ms=self.run_count
        )

    async def write_batches(self, writers: Sequence[Writer]) -> None:
        """Write the next batch of each writer, perhaps once more, all at the same time."""
        dice = self.dice
        wanted: list[tuple[Writer, SinkBatch, list[StagedRun]]] = []
        for writer in writers:
            if writer.number not in writer.rows_of:
                prefix = b"%s.%d" % (writer.name.encode(), writer.number)
                writer.rows_of[writer.number] = [
                    Row(
                        dice.choice(TOPICS),
                        dice.randrange(QUEUE_COUNT),
                        b"%s.%d" % (prefix, row),
                        dice.choice((0, 0, 0, 1, 2, 3)),
                    )
                    for row in range(dice.randint(1, 30))
                ]
            runs = await self.stage(writer.rows_of[writer.number])
            if runs is None:
                continue
            batch = self.batch(writer)
            writer.begun.add(batch.batch)
            writer.older.append((batch, runs))
            wanted.append((writer, batch, runs))
        answers = await self.run.publish(*((batch, runs) for _, batch, runs in wanted))
        for (writer, _, _), answer in zip(wanted, answers, strict=True):
            if answer.code != ResponseCode.SUCCESS:
                assert self.is_faulty and answer.code != SinkCode.FENCED, answer
                continue
            writer.answered.add(writer.number)
            writer.lasting.add(writer.number)
            if dice.random() < 0.7:  # Otherwise the driver dies before it has recorded it.
                writer.number += 1
            else:
                self.run_count += 1

    async def stage(self, rows: list[Row]) -> list[StagedRun] | None:
        """Stage rows in tasks of any size, some of which fail; None if the disk refuses them."""
        dice = self.dice
        by_queue: dict[tuple[str, int, bytes], list[bytes]] = {}
        for row in rows:
            queue = row.topic, row.queue_id, row.properties()
            by_queue.setdefault(queue, []).append(row.body)
        runs: list[StagedRun] = []
        for (topic, queue_id, properties), bodies in by_queue.items():
            while bodies:
                count = dice.randint(1, 8)
                self.part += 1
                some = bodies[:count]
                run = await self.run.stage(topic, queue_id, some, self.part, properties)
                if run is None:
                    assert self.is_faulty
                    return None
                if dice.random() < 0.9:
                    bodies = bodies[count:]
                    runs.append(run)
        return runs

    async def publish_older(self, writer: Writer) -> None:
        """Somebody who does not know that he is out of date."""
        if not writer.older:
            return
        batch, runs = self.dice.choice(writer.older)
        (answer,) = await self.run.publish((batch, runs))
        if answer.code == ResponseCode.SUCCESS:
            writer.answered.add(batch.batch)
            writer.lasting.add(batch.batch)

    # --- what must hold

    def look(self) -> None:
        """Look at the queues, if there is something new."""
        bounds = self.run.store.queue_bounds
        ends = [bounds(*place)[1] for place in PLACES]
        if ends != self.seen_ends:
            self.check()
            self.seen_ends = ends

    def check(self) -> None:
        """Compare what consumers see with what they should."""
        found = {
            place: [one.body for one in read_all(self.run.store, *place)] for place in PLACES
        }
        self.check_delayed()
        seen = Counter(
            (*queue, body)
            for queue, bodies in found.items()
            for body in bodies
            if not body.startswith(b"other")
        )
        for writer in self.writers:
            whole: set[int] = set()
            for number, rows in writer.rows_of.items():
                counts = {seen.pop(row.place(), 0) for row in rows}
                assert counts in ({0}, {1}), (writer.name, number, counts)
                if counts == {1}:
                    whole.add(number)
            assert whole <= writer.begun
            assert (writer.lasting if self.is_faulty else writer.answered) <= whole
            for bodies in found.values():
                name = writer.name.encode() + b"."
                numbers = [int(one.split(b".")[1]) for one in bodies if one.startswith(name)]
                assert numbers == sorted(numbers)
        assert not seen


    def check_delayed(self) -> None:
        """Check that delayed rows are due when they should be, and say where they belong."""
        store = self.run.store
        belong = {
            row.body: (row.topic, row.queue_id)
            for writer in self.writers
            for rows in writer.rows_of.values()
            for row in rows
        }
        for topic, queue_id in PLACES:
            if topic not in (SCHEDULE_TOPIC, TIMER_TOPIC):
                continue
            records = read_all(store, topic, queue_id)
            for record in records:
                assert real_place(record.properties) == belong[record.body]
            if topic == SCHEDULE_TOPIC and records:
                first = records[0].queue_offset
                codes, known = store.entries.tag_codes(topic, queue_id, first, len(records))
                due_ms = [one.store_timestamp + LEVELS_MS[queue_id] for one in records]
                assert known.all() and codes.tolist() == due_ms[: len(codes)]


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
