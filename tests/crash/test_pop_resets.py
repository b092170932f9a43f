"""A group that pops and is set back stays there, whatever is in flight and wherever it dies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cluster.pops import PopConsumer, PoppedMessage
from tests.crash.pop_run import PopRun, command
from tests.unit.store.stores import HOST, FakeClock

from pymq.broker.pop import revive_journal
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.record import NewRecord
from pymq.store import FlushMode
from pymq.testing.faulty_files import FaultyFiles

pytestmark = pytest.mark.crash

CONSUMER = PopConsumer(None)


def start(home: Path, clock: FakeClock) -> PopRun:
    return PopRun(
        home / "store",
        clock,
        FaultyFiles(),
        tables=home / "tables",
        broker={"revive_queue_count": 1},
        seed=0,
        flush_mode=FlushMode.ASYNC,
    )


async def die(run: PopRun) -> None:
    await run.leave()
    run.files.abandon()


async def pop(run: PopRun, count: int) -> list[PoppedMessage]:
    fields = CONSUMER.pop_fields(maxMsgNums=count, bornTime=run.clock.now_ms)
    asked = run.ask(command(RequestCode.POP_MESSAGE, **fields))
    await run.settle_all()
    (answer,) = asked.answers()
    assert answer is not None and answer.code == ResponseCode.SUCCESS, answer
    return CONSUMER.messages(answer)


async def set_back(run: PopRun) -> None:
    run.offsets.reset("g", "T", 0, 0)
    await run.saving.save()


async def fill(run: PopRun) -> None:
    await run.create_topic("T", 1)
    bodies = [b"%d" % n for n in range(10)]
    await run.put([NewRecord("T", 0, body, b"", HOST, run.clock.now_ms) for body in bodies])


def test_a_change_of_what_was_popped_before_does_not_undo_it(memory_path: Path) -> None:
    async def check() -> None:
        clock = FakeClock()
        run = start(memory_path, clock)
        await fill(run)
        before = await pop(run, 10)
        await set_back(run)
        clock.now_ms += 1
        assert [m.body for m in await pop(run, 1)] == [b"0"]
        await run.save(0)
        fields = CONSUMER.place_of(before[5]) | {"invisibleTime": 1000}
        changed = run.ask(command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **fields))
        await run.settle_all()
        assert changed.count == 1
        await die(run)
        run = start(memory_path, clock)
        assert [m.body for m in await pop(run, 2)] == [b"1", b"2"]
        await die(run)

    asyncio.run(check())


def test_it_waits_for_checkpoints_that_the_journal_has_not_counted(memory_path: Path) -> None:
    """As long as the file of the revive queue cannot grow, for one."""

    async def check() -> None:
        clock = FakeClock()
        run = start(memory_path, clock)
        await fill(run)
        journal = run.in_flight._journal
        journal._follow = lambda queue_id: None  # type: ignore[method-assign]
        assert len(await pop(run, 5)) == 5
        await set_back(run)
        fields = CONSUMER.pop_fields(bornTime=clock.now_ms, pollTime=20_000)
        asked = run.ask(command(RequestCode.POP_MESSAGE, **fields))
        await run.settle_all()
        assert asked.count == 0
        await run.save(0)
        await die(run)
        run = start(memory_path, clock)
        assert [m.body for m in await pop(run, 1)] == [b"0"]
        await die(run)

    asyncio.run(check())


def test_a_checkpoint_that_is_written_again_does_not_undo_it(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is shortened after the offsets were saved, and the broker dies."""
    monkeypatch.setattr(revive_journal, "SHORTEN_LENGTH", 0)
    monkeypatch.setattr(revive_journal, "SHORTEN_FACTOR", 0)
    monkeypatch.setattr(revive_journal, "_SHORTEN_STEP", 2)  # those of before

    async def check() -> None:
        clock = FakeClock()
        run = start(memory_path, clock)
        await fill(run)
        assert len(await pop(run, 2)) == 2
        assert len(await pop(run, 6)) == 6
        await set_back(run)
        clock.now_ms += 1
        assert [m.body for m in await pop(run, 2)] == [b"0", b"1"]
        await run.save(0)
        assert run.in_flight._journal.shorten() == 2
        await run.settle_all()
        await die(run)
        run = start(memory_path, clock)
        assert [m.body for m in await pop(run, 2)] == [b"2", b"3"]
        await die(run)

    asyncio.run(check())
