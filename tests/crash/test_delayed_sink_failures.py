"""Batches with delayed rows whose broker dies while it copies them: each row waits once."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from tests.crash.sink_run import SinkRun
from tests.crash.test_sink_failures import PickyFiles, failing_after
from tests.unit.store.stores import HOST, FakeClock, bodies, read_all

from pymq.broker.sinks import publishing
from pymq.protocol.codes import ResponseCode
from pymq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from pymq.protocol.parking import copy_of
from pymq.protocol.record import Record
from pymq.protocol.sink_bodies import SinkBatch, StagedRun
from pymq.store import FlushMode

pytestmark = pytest.mark.crash

LEVELS_MS = (1000, 60_000)
SETTINGS: dict[str, Any] = {"segment_bytes": 1 << 16, "delay_levels_ms": LEVELS_MS}
#: Topic, bodies and properties of what is staged.
RUNS = [
    ("T", [b"plain 1", b"plain 2"], b""),
    ("T", [b"late 1", b"late 2", b"late 3"], b"DELAY\x012\x02"),
    ("U", [b"late 4"], b"DELAY\x012\x02"),
    ("U", [b"timer 1", b"timer 2"], b"TIMER_DELIVER_MS\x011700000100000\x02"),
]
#: Enough for all copies, and for saying that they are made.
WRITTEN_MAX = 11
PLACES = [("T", 0), (SCHEDULE_TOPIC, 1), (TIMER_TOPIC, 0)]
ALL = [
    [b"plain 1", b"plain 2"],
    [b"late 1", b"late 2", b"late 3", b"late 4"],
    [b"timer 1", b"timer 2"],
]


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "RETRY_S", 0.0)


class Broker:
    """A broker that is started again and again, always with the same clock."""

    run: SinkRun
    files: PickyFiles

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.settings = SETTINGS | settings
        self.clock = FakeClock()

    def start(self) -> None:
        self.files = PickyFiles()
        self.run = SinkRun(self.root, self.clock, self.files, saved=None, **self.settings)

    async def die(self) -> None:
        await self.run.leave()
        self.files.abandon()

    async def stage(self) -> list[StagedRun]:
        found = []
        for number, (topic, some, properties) in enumerate(RUNS):
            run = await self.run.stage(topic, 0, some, number + 1, properties)
            assert run is not None
            found.append(run)
        return found

    async def publish(self, runs: list[StagedRun]) -> int:
        batch = SinkBatch(sink="s", query="q", run="r", batch=0)
        (answer,) = await self.run.publish((batch, runs))
        return answer.code

    def seen(self) -> list[list[bytes]]:
        return [bodies(self.run.store, *place) for place in PLACES]

    def waiting(self) -> tuple[list[Record], list[int]]:
        """Return what waits at level 2, and when it is due."""
        records = read_all(self.run.store, SCHEDULE_TOPIC, 1)
        entries = self.run.store.entries
        codes, _ = entries.tag_codes(SCHEDULE_TOPIC, 1, records[0].queue_offset, 99)
        return records, codes.tolist()


@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize("record_crc", [False, True])
@pytest.mark.parametrize("written", range(WRITTEN_MAX + 1))
def test_a_death_in_the_middle_of_the_copies(
    memory_path: Path, written: int, record_crc: bool, flush: FlushMode
) -> None:
    """However much is written, the next start copies the rest; what waits is there once."""

    async def life(broker: Broker) -> None:
        broker.start()
        runs = await broker.stage()
        # The first write is the decision.
        broker.files.code_of = failing_after(1 + written, errno.EIO, "commitlog")
        is_published = await broker.publish(runs) == ResponseCode.SUCCESS
        if written < len(RUNS):
            assert not is_published and broker.seen() == [[], [], []]
        elif written == WRITTEN_MAX:
            assert is_published
        await broker.die()
        broker.clock.now_ms += 30_000
        for _ in range(2):
            broker.start()
            assert broker.seen() == ALL
            records, codes = broker.waiting()
            assert codes == [one.store_timestamp + LEVELS_MS[1] for one in records]
            assert await broker.publish(runs) == ResponseCode.SUCCESS
            assert broker.seen() == ALL
            broker.clock.now_ms += 1000
            await broker.die()

    asyncio.run(life(Broker(memory_path, append_record_crc=record_crc, flush_mode=flush)))


def test_levels_that_have_changed_before_the_copies_are_made(memory_path: Path) -> None:
    async def life(broker: Broker) -> None:
        broker.start()
        runs = await broker.stage()
        broker.files.code_of = failing_after(1, errno.EIO, "commitlog")
        assert await broker.publish(runs) != ResponseCode.SUCCESS
        await broker.die()
        broker.settings["delay_levels_ms"] = (1000, 5000, 9000)
        broker.start()
        records, codes = broker.waiting()
        assert codes == [one.store_timestamp + 5000 for one in records] and len(codes) == 4
        await broker.die()

    asyncio.run(life(Broker(memory_path)))


def test_the_queue_of_a_level_shows_nothing_new_while_its_batch_is_copied(
    memory_path: Path,
) -> None:
    async def life(broker: Broker) -> None:
        broker.start()
        runs = await broker.stage()

        def look() -> None:
            assert broker.seen() in ([[], [], []], ALL)

        broker.run.on_turn = look
        assert await broker.publish(runs) == ResponseCode.SUCCESS
        assert broker.seen() == ALL
        await broker.die()

    asyncio.run(life(Broker(memory_path)))


def test_what_was_delivered_is_not_taken_for_a_copy_of_the_first_record(memory_path: Path) -> None:
    """What was delayed by a sink keeps the flag of copies, with the offset 0."""

    async def life(broker: Broker) -> None:
        broker.start()
        first = await broker.run.stage("T", 0, [b"first 1", b"first 2"], 1)
        assert first is not None and first.physical_offset == 0
        late = await broker.run.stage("U", 0, [b"late"], 2, b"DELAY\x011\x02")
        assert late is not None
        assert await broker.publish([late]) == ResponseCode.SUCCESS
        # Another batch has the queue, so this one is decided and waits.
        broker.run.publishing._claims.take_nowait(frozenset({("T", 0)}))
        batch = SinkBatch(sink="waits", query="q", run="r", batch=0)
        publishing_it = asyncio.ensure_future(broker.run.publish((batch, [first])))
        while broker.run.table.find("waits") is None or not broker.run.table.find("waits").pending:
            await asyncio.sleep(0)
        (waiting,) = read_all(broker.run.store, SCHEDULE_TOPIC, 0)
        broker.run.store.put([copy_of(waiting, "U", 0)], HOST)
        publishing_it.cancel()
        await asyncio.wait([publishing_it])
        await broker.die()
        broker.start()
        assert bodies(broker.run.store, "T", 0) == [b"first 1", b"first 2"]
        await broker.die()
        broker.start()
        assert bodies(broker.run.store, "T", 0) == [b"first 1", b"first 2"]
        assert bodies(broker.run.store, "U", 0) == [b"late"]
        await broker.die()

    asyncio.run(life(Broker(memory_path)))
