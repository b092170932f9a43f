"""Popping in order in random schedules, with restarts and deaths, against a model.

The state of such pops is not in the log: two tables are saved now and then, each for itself. After
a death the model goes on from what the files say, once it has made sure that they say nothing that
never was: a group that is a little behind gets messages twice, one that is ahead would lose some.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.pops import PopConsumer, PoppedMessage
from tests.conftest import ROUNDS_OF_A_TEST
from tests.crash.pop_order_history import LastPop, last_pop
from tests.crash.pop_run import OFFSETS, TABLES, Asked, PopRun, command
from tests.unit.store.stores import HOST, FakeClock

from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.record import NewRecord
from pymq.store import FlushMode
from pymq.testing.faulty_files import FaultyFiles

pytestmark = pytest.mark.crash

TOPIC, GROUP = "T", "o"
ORDERS = "consumerOrderInfo.json"
LIVES_MAX, STEPS = 3, 30
#: A held pop that is looked at so long after its time finds nothing: its client has given it up.
LATE_MS = 500
OK = ResponseCode.SUCCESS


@dataclass(slots=True)
class Queue:
    """One queue, as the group sees it.

    Attributes:
        bodies: of its messages.
        reached: the first message that is not acknowledged.
        saved: what that was when the offsets were saved last.
        last: None: nothing was popped.
    """

    bodies: list[bytes] = field(default_factory=list)
    reached: int = 0
    saved: int = 0
    last: LastPop | None = None

    def is_blocked(self, now_ms: int, attempt_id: str) -> bool:
        """Must a request with this id wait?"""
        last = self.last
        return (
            last is not None
            and last.attempt_id != attempt_id
            and any(
                now_ms < visible_ms
                for offset, visible_ms in last.visible_ms.items()
                # After a death offsets may be known that are newer than the last pop.
                if offset not in last.acknowledged and offset >= self.reached
            )
        )

    def pop(self, messages: list[PoppedMessage], attempt_id: str) -> None:
        """Take over what was popped; it is what comes next."""
        offsets = [message.record.queue_offset for message in messages]
        assert offsets == list(range(self.reached, self.reached + len(offsets)))
        assert [m.body for m in messages] == [self.bodies[at] for at in offsets]
        _, pop_time, invisible_ms, *_ = messages[0].handle.split(" ")
        due_ms = int(pop_time) + int(invisible_ms)
        new = LastPop(attempt_id, int(pop_time), dict.fromkeys(offsets, due_ms))
        before = self.last
        if before is not None and before.attempt_id == attempt_id:
            new.counts = {at: times for at, times in before.counts.items() if at in offsets}
        elif before is not None:
            again = before.visible_ms.keys() & {*offsets}
            new.counts = {at: before.counts.get(at, 0) + 1 for at in again}
        assert [m.consumed_count for m in messages] == [new.counts.get(at, 0) for at in offsets]
        self.last = new

    def acknowledge(self, offset: int, pop_time: int) -> None:
        """A message was acknowledged, maybe too late."""
        last = self.last
        if last is None or last.pop_time != pop_time or offset not in last.visible_ms:
            return
        if offset < self.reached:
            return
        last.acknowledged |= {offset, *(at for at in last.visible_ms if at < self.reached)}
        still = [at for at in last.visible_ms if at not in last.acknowledged]
        self.reached = min(still, default=max(last.visible_ms) + 1)

    def is_unknown(self, offset: int, pop_time: int) -> bool:
        """Was a message left out when others were popped again, in the same millisecond?"""
        last = self.last
        if last is None or last.pop_time != pop_time or offset < self.reached:
            return False
        return offset not in last.visible_ms

    def change(self, offset: int, pop_time: int, visible_ms: int) -> None:
        """A message is to come again at another time."""
        last = self.last
        if offset >= self.reached and last is not None and last.pop_time == pop_time:
            last.visible_ms[offset] = visible_ms


class Schedule:
    """One random schedule.

    Args:
        root: an empty directory.
        dice: of everything.
    """

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.root = root
        self.dice = dice
        self.clock = FakeClock()
        self.queues = [Queue() for _ in range(dice.choice([1, 3]))]
        self.consumer = PopConsumer(None, TOPIC, GROUP)
        self.known: list[PoppedMessage] = []
        self.count = 0
        self.attempt = ""
        #: The request that is held, what it wants, and its id.
        self.held: tuple[Asked, dict[str, Any], str] | None = None
        self.held_until_ms = 0
        self.run: PopRun

    async def live(self) -> None:
        """Go through some lives of a broker, then have everything consumed."""
        for _ in range(self.dice.randint(1, LIVES_MAX)):
            files = await self.start()
            for _ in range(STEPS):
                await self.step()
            if self.dice.random() < 0.4:
                await self.run.close()
                await self.take_held()
                self.note_saved()
            else:
                await self.run.leave()
            self.held = None
            files.abandon()
        files = await self.start()
        await self.finish()
        await self.run.close()
        files.abandon()

    async def start(self) -> FaultyFiles:
        files = FaultyFiles()
        self.run = PopRun(
            self.root / "store",
            self.clock,
            files,
            tables=self.root / "tables",
            broker={"revive_queue_count": 1},
            seed=self.dice.randrange(1 << 30),
            flush_mode=FlushMode.ASYNC,
        )
        if TOPIC not in self.run.topics:
            await self.run.create_topic(TOPIC, len(self.queues))
        offsets, orders = self.read_saved()
        for number, queue in enumerate(self.queues):
            reached = offsets.get(number, 0)
            assert queue.saved <= reached <= queue.reached, (number, reached, queue)
            queue.saved = queue.reached = reached
            queue.last = last_pop(orders.get(number))
        return files

    def read_saved(self) -> tuple[dict[int, int], dict[int, Any]]:
        """Return what the files say of the queues: offsets, and what was popped last."""
        key = f"{TOPIC}@{GROUP}"
        offsets: Any = self.run.saved(OFFSETS) or {}
        orders: Any = self.run.saved(ORDERS) or {}
        found = offsets.get("offsetTable", {}).get(key, {})
        infos = orders.get("table", {}).get(key, {})
        return (
            {int(number): int(offset) for number, offset in found.items()},
            {int(number): info for number, info in infos.items()},
        )

    def note_saved(self) -> None:
        """The offsets were saved."""
        for queue in self.queues:
            queue.saved = queue.reached

    # --- steps

    async def step(self) -> None:
        dice = self.dice
        action = dice.random()
        if action < 0.25:
            await self.send()
        elif action < 0.5:
            await self.pop()
        elif action < 0.75:
            await self.acknowledge()
        elif action < 0.85:
            await self.change()
        elif action < 0.95:
            self.clock.now_ms += dice.choice([100, 1000, 10_000])
        else:
            number = dice.randrange(TABLES)
            await self.run.save(number)
            if number == 0:
                self.note_saved()
        self.clock.now_ms += 1
        await self.run.revive()
        await self.take_held()

    async def send(self) -> None:
        for _ in range(self.dice.choice([1, 4])):
            number, body = self.dice.randrange(len(self.queues)), b"%d" % self.count
            self.count += 1
            await self.run.put([NewRecord(TOPIC, number, body, b"", HOST, self.clock.now_ms)])
            self.queues[number].bodies.append(body)

    async def pop(self) -> None:
        dice = self.dice
        if self.held is not None:
            return
        if not self.attempt or dice.random() < 0.8:
            self.attempt = f"attempt {dice.random()}"
        wanted = {
            "queueId": dice.choice([-1, dice.randrange(len(self.queues))]),
            "maxMsgNums": dice.choice([1, 3, 32]),
            "invisibleTime": dice.choice([200, 5000, 60_000]),
            "pollTime": dice.choice([0, 3000]),
        }
        fields = self.consumer.pop_fields(
            **wanted, order=True, attemptId=self.attempt, bornTime=self.clock.now_ms
        )
        asked = self.run.ask(command(RequestCode.POP_MESSAGE, **fields))
        await self.run.settle_all()
        self.held = asked, wanted, self.attempt
        self.held_until_ms = self.clock.now_ms + wanted["pollTime"] + LATE_MS
        await self.take_held(is_new=True)

    def found(self, wanted: dict[str, Any], attempt_id: str) -> dict[int, int]:
        """Return how many messages a pop may have of each queue."""
        return {
            number: len(queue.bodies) - queue.reached
            for number, queue in enumerate(self.queues)
            if wanted["queueId"] in (-1, number)
            and not queue.is_blocked(self.clock.now_ms, attempt_id)
            and len(queue.bodies) > queue.reached
        }

    async def take_held(self, *, is_new: bool = False) -> None:
        """Take the answer of a pop, if there is one; there must be if there are messages.

        One that was held is answered by the first message that arrives.
        """
        if self.held is None:
            return
        asked, wanted, attempt_id = self.held
        found = self.found(wanted, attempt_id)
        (answer,) = asked.answers()
        if answer is None:
            assert not found, f"{wanted} is held, and there is {found}"
            return
        self.held = None
        if answer.code == ResponseCode.POLLING_TIMEOUT:  # perhaps too late for its client
            assert not found or self.clock.now_ms > self.held_until_ms, (wanted, found)
            return
        assert answer.code == OK, answer
        messages = self.consumer.messages(answer)
        self.known = (self.known + messages)[-40:]
        by_queue: dict[int, list[PoppedMessage]] = {}
        for message in messages:
            by_queue.setdefault(message.record.queue_id, []).append(message)
        assert by_queue.keys() <= found.keys()
        most = min(sum(found.values()), wanted["maxMsgNums"])
        assert len(messages) == most or not is_new and 0 < len(messages) < most
        for number, some in by_queue.items():
            self.queues[number].pop(some, attempt_id)

    async def ask(self, request: Command) -> Command:
        asked = self.run.ask(request)
        await self.run.settle_all()
        (answer,) = asked.answers()
        assert answer is not None
        return answer

    def some(self, count: int) -> list[PoppedMessage]:
        """Choose messages, most of them of the last pops."""
        fresh = [one for one in self.known if self.is_fresh(one)]
        chosen = self.known if self.dice.random() < 0.2 else fresh
        return self.dice.sample(chosen, min(count, len(chosen)))

    def is_fresh(self, message: PoppedMessage) -> bool:
        last = self.queues[message.record.queue_id].last
        return last is not None and last.pop_time == _pop_time(message)

    async def acknowledge(self) -> None:
        for message in self.some(self.dice.choice([1, 3, 32])):
            await self.acknowledge_one(message)

    async def acknowledge_one(self, message: PoppedMessage) -> None:
        fields = self.consumer.place_of(message)
        answer = await self.ask(command(RequestCode.ACK_MESSAGE, **fields))
        queue, offset = self.queues[message.record.queue_id], message.record.queue_offset
        if queue.is_unknown(offset, _pop_time(message)):
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer
            return
        assert answer.code == OK, answer
        queue.acknowledge(offset, _pop_time(message))
        await self.take_held()  # It may have been waiting for this.

    async def change(self) -> None:
        for message in self.some(1):
            invisible_ms = self.dice.choice([50, 3000])
            fields = self.consumer.place_of(message) | {"invisibleTime": invisible_ms}
            answer = await self.ask(command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **fields))
            assert answer.code == OK, answer
            queue = self.queues[message.record.queue_id]
            visible_ms = self.clock.now_ms + invisible_ms
            queue.change(message.record.queue_offset, _pop_time(message), visible_ms)

    async def finish(self) -> None:
        """Consume everything: in the order of each queue, and none is left out."""
        for _ in range(200):
            if self.held is None and not any(self.left()):
                return
            self.clock.now_ms += 70_000
            await self.run.revive()
            await self.pop()
            for message in list(self.known):
                if self.is_fresh(message):
                    await self.acknowledge_one(message)
            await self.take_held()
        raise AssertionError(f"not consumed: {self.left()}")

    def left(self) -> list[int]:
        """Return how many messages of each queue are not acknowledged."""
        return [len(queue.bodies) - queue.reached for queue in self.queues]


def _pop_time(message: PoppedMessage) -> int:
    return int(message.handle.split(" ")[1])


def test_queues_stay_in_order_whatever_happens(
    memory_path: Path, seed: int, crash_rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    if crash_rounds <= ROUNDS_OF_A_TEST:
        seed = 0  # always the same schedules; new ones are for the long run
    for number in range(crash_rounds):
        home = memory_path / "home"
        home.mkdir()
        try:
            asyncio.run(Schedule(home, random.Random(seed + number)).live())
        except BaseException as error:
            error.add_note(f"Schedule of seed {seed + number}")
            raise
        shutil.rmtree(home)
