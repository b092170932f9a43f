"""What was found wrong with pops in order, made again without chance."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cluster.pops import PopConsumer, PoppedMessage
from tests.crash.pop_run import Asked, PopRun, command
from tests.crash.test_pop_resets import die, start
from tests.unit.store.stores import HOST, FakeClock

from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.record import NewRecord

pytestmark = pytest.mark.crash

CONSUMER = PopConsumer(None)


async def fill(run: PopRun, *, queues: int) -> None:
    await run.create_topic("T", queues)
    for queue_id in range(queues):
        bodies = [b"%d.%d" % (queue_id, n) for n in range(10)]
        now_ms = run.clock.now_ms
        await run.put([NewRecord("T", queue_id, body, b"", HOST, now_ms) for body in bodies])


def ask(run: PopRun, attempt: str, **changes: Any) -> Asked:
    fields = CONSUMER.pop_fields(
        order=True, attemptId=attempt, bornTime=run.clock.now_ms, invisibleTime=1000, **changes
    )
    return run.ask(command(RequestCode.POP_MESSAGE, **fields))


def popped(asked: Asked) -> list[PoppedMessage]:
    (answer,) = asked.answers()
    assert answer is not None
    return CONSUMER.messages(answer) if answer.code == ResponseCode.SUCCESS else []


async def pop(run: PopRun, attempt: str, **changes: Any) -> list[PoppedMessage]:
    asked = ask(run, attempt, **changes)
    await run.settle_all()
    return popped(asked)


async def acknowledge(run: PopRun, message: PoppedMessage) -> None:
    asked = run.ask(command(RequestCode.ACK_MESSAGE, **CONSUMER.place_of(message)))
    await run.settle_all()
    (answer,) = asked.answers()
    assert answer is not None and answer.code == ResponseCode.SUCCESS, answer


def test_a_group_does_not_go_back_to_what_the_older_table_knows(memory_path: Path) -> None:
    """The offsets were saved after the table of pops, and the broker was killed."""

    async def check() -> None:
        clock = FakeClock()
        run = start(memory_path, clock)
        await fill(run, queues=1)
        messages = await pop(run, "one", maxMsgNums=5)
        await run.save(1)
        for message in messages[:2]:
            await acknowledge(run, message)
        await run.save(0)
        await die(run)
        run = start(memory_path, clock)
        await acknowledge(run, messages[3])
        assert run.offsets.find("g", "T", 0) == 2
        for message in (messages[2], messages[4]):
            await acknowledge(run, message)
        assert [m.record.queue_offset for m in await pop(run, "two", maxMsgNums=2)] == [5, 6]
        await die(run)

    asyncio.run(check())


@pytest.mark.parametrize("later", ["two", "one"])
def test_a_queue_is_nobody_elses_while_a_pop_waits_for_the_disk(
    memory_path: Path, later: str
) -> None:
    """It has taken messages of one queue, and the entries of the next one are not in memory."""

    async def check() -> None:
        run = start(memory_path, FakeClock())
        await fill(run, queues=2)
        assert await pop(run, "a group is created first", queueId=0, maxMsgNums=0) == []
        popping = run.feature.handlers[RequestCode.POP_MESSAGE].__self__._popping  # type: ignore[attr-defined]
        popping._random = SimpleNamespace(randrange=lambda count: 0)
        job = SimpleNamespace(run=lambda: None)
        run.store.reads.entry_prefetch = (  # type: ignore[method-assign]
            lambda topic, queue_id, *_: job if queue_id else None  # type: ignore[assignment]
        )
        asked = [ask(run, "one", maxMsgNums=15), ask(run, later, maxMsgNums=15, queueId=0)]
        await run.settle_all()
        first, second = map(popped, asked)
        assert [m.body for m in first] == [b"0.%d" % n for n in range(10)] + [
            b"1.%d" % n for n in range(5)
        ]
        assert second == []
        await die(run)

    asyncio.run(check())
