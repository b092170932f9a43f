"""The journal of popping, while slaves are late to confirm what is written to it."""

import asyncio
import random
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.pop.test_checkpoint import HOST, checkpoint
from tests.unit.store.stores import FakeClock, open_store, put_ok

from pymq.broker.log_writer import Done, Outcome
from pymq.broker.pop.checkpoint import Checkpoint, CheckpointKey
from pymq.broker.pop.checkpoint_table import CheckpointTable
from pymq.broker.pop.record_reading import ReadRecords
from pymq.broker.pop.revive_journal import ReviveJournal
from pymq.broker.state.offsets import OffsetTable
from pymq.protocol.names import REVIVE_END_GROUP, REVIVE_GROUP
from pymq.protocol.record import NewRecord, decode_records
from pymq.store import Arrival, MessageStore, Put, PutResult

TOPIC = "rmq_sys_REVIVE_LOG_C"
START_MS = 1_795_189_242_816


class Slow:
    """Plays a broker whose slaves confirm late, and whose disk is slow to read.

    What is appended is visible at once. Its outcome is told when it is asked for.
    """

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.store: MessageStore = open_store(path, self.clock)
        self.offsets = OffsetTable(self.clock)
        self.waiting: deque[tuple[Done, PutResult]] = deque()
        self.reads: list[asyncio.Event] = []
        self.table, self.journal = self._journal(self.offsets)
        self.journal.open()

    def _journal(self, offsets: OffsetTable) -> tuple[CheckpointTable, ReviveJournal]:
        table = CheckpointTable(1)
        played: Any = self
        journal = ReviveJournal(
            self.store, played, played, offsets, table, self.clock, played,
            topic=TOPIC, queue_count=1, broker_name="broker-a", host=HOST,
        )  # fmt: skip
        return table, journal

    def first_offsets(self) -> dict[str, int]:
        return {}

    def append(self, put: Put, done: Done, *, wait: bool = True) -> None:
        (result,) = put_ok(self.store, put)
        self.waiting.append((done, result))
        self._announce()

    def put_foreign(self, number: int) -> None:
        """Store a record as RocketMQ's timer delivers one."""
        properties = b"TAGS\x01ack\x02UNIQ_KEY\x01%d\x02" % number
        body = b'{"ao":1,"bn":"another","c":"g","pt":1,"q":0,"so":1,"t":"T"}'
        put_ok(self.store, NewRecord(TOPIC, 0, body, properties, HOST, 1))
        self._announce()

    def _announce(self) -> None:
        _, end = self.store.queue_bounds(TOPIC, 0)
        self.journal.take([Arrival(TOPIC, 0, end - 1, end, b"")])

    def tell(self, index: int = 0, outcome: Outcome = Outcome.STORED) -> None:
        """Tell one of the outcomes that are waited for."""
        done, result = self.waiting[index]
        del self.waiting[index]
        done(result, outcome)

    async def read(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int
    ) -> ReadRecords:
        result = self.store.reads.read(
            topic, queue_id, queue_offset, count_max=count_max, bytes_max=9999
        )
        records = [one for buffer in result.buffers for one in decode_records(buffer)]
        self.reads.append(asyncio.Event())
        await self.reads[-1].wait()
        return ReadRecords(records, result.next_queue_offset, result.status)

    async def settle(self) -> None:
        """Let everything that was begun go on, until it waits for an outcome."""
        for _ in range(9):
            for read in self.reads:
                read.set()
            self.reads.clear()
            await asyncio.sleep(0)

    def pop(self, number: int) -> Checkpoint:
        one = checkpoint(
            pop_time=START_MS + number, revive_queue_id=0, differences=(0,), queue_id=0
        )
        self.journal.write(one, lambda result, outcome: None)
        return one

    async def acknowledge(self, one: Checkpoint) -> None:
        found = self.table.find(one.key)
        assert found is not None
        self.journal.acknowledge(found, 1, lambda result, outcome: None)
        await asyncio.sleep(0)

    def known_after_a_restart(self) -> set[CheckpointKey]:
        saved = OffsetTable(self.clock)
        for group in (REVIVE_GROUP, REVIVE_END_GROUP):
            offset = self.offsets.find(group, TOPIC, 0)
            if offset is not None:
                saved.commit(group, TOPIC, 0, offset)
        table, journal = self._journal(saved)
        journal.open()
        return {*table._by_key}

    def open_keys(self) -> set[CheckpointKey]:
        return {*self.table._by_key}

    def check_followed(self) -> None:
        """Check that every record is known, and where its checkpoint is."""
        _, end = self.store.queue_bounds(TOPIC, 0)
        assert (self.journal._ends, self.journal._ours) == ([end], [{}])
        places = [*self.table._by_place[0]]
        assert places == sorted(places)
        assert len(places) == len(self.table)
        assert self.known_after_a_restart() == self.open_keys()


@pytest.mark.parametrize("has_foreign", [False, True])
@pytest.mark.parametrize("told", [(0, 0, 0), (1, 1, 0), (2, 1, 0), (0, 1, 0)])
def test_what_waits_for_slaves_is_not_taken_for_a_record_of_rocketmqs_timer(
    tmp_path: Path, told: tuple[int, ...], has_foreign: bool
) -> None:
    """It would be open without a place, and the journal be needed only from behind it.

    Args:
        told: the outcomes, in the order of what is left to tell. One that finds too few slaves is
            told before those that wait for them.
    """

    async def check() -> None:
        broker = Slow(tmp_path)
        popped = []
        for number in range(3):
            popped.append(broker.pop(number))
            if has_foreign:
                broker.put_foreign(number)
        for index in told:
            broker.tell(index, Outcome.NO_SLAVE if index else Outcome.SLAVE_TIMEOUT)
            await broker.settle()
        broker.check_followed()
        assert broker.open_keys() == {one.key for one in popped}
        await broker.acknowledge(popped[0])
        broker.tell()
        await broker.settle()
        broker.check_followed()
        assert broker.open_keys() == {one.key for one in popped[1:]}
        assert broker.table.take_due(START_MS + 60_002, 9) == popped[1:]
        await broker.journal.close()

    asyncio.run(check())


def test_what_is_told_while_the_journal_is_read_is_not_taken_over_again(tmp_path: Path) -> None:
    """What was acknowledged meanwhile would be open again, until its acknowledgement is read."""

    async def check() -> None:
        broker = Slow(tmp_path)
        broker.put_foreign(0)
        await broker.settle()
        one, another = broker.pop(1), broker.pop(2)
        broker.tell(1)
        await asyncio.sleep(0)
        assert broker.reads  # the first of them may be a record of RocketMQ's
        broker.tell()
        await broker.acknowledge(one)
        await broker.acknowledge(another)
        broker.tell()
        broker.tell()
        assert len(broker.table) == 0
        broker.reads.pop(0).set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(broker.table) == 0
        await broker.settle()
        broker.check_followed()
        await broker.journal.close()

    asyncio.run(check())


def test_a_restart_knows_what_is_open_whatever_is_told_when(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)

    async def check(path: Path) -> None:
        broker = Slow(path)
        for number in range(dice.choice((10, 40))):
            match dice.choice("ppfatttrs"):
                case "p":
                    broker.pop(number)
                case "f":
                    broker.put_foreign(number)
                case "a":
                    found = [one for one in broker.table._by_key.values() if not one.acknowledging]
                    if found:
                        await broker.acknowledge(dice.choice(found))
                case "t" if broker.waiting:
                    broker.tell(dice.choice((0, dice.randrange(len(broker.waiting)))))
                case "r" if broker.reads:
                    broker.reads.pop(0).set()
                case "s":
                    await broker.settle()
            left = {one.key for one in broker.table._by_key.values() if not one.acknowledging}
            assert left <= broker.known_after_a_restart()
            await asyncio.sleep(0)
        while broker.waiting:
            broker.tell()
        await broker.settle()
        broker.check_followed()
        await broker.journal.close()

    for run in range(12):
        asyncio.run(check(tmp_path / str(run)))
