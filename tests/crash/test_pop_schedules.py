"""Popping in random schedules: full disks, restarts, deaths and lost power, against a model.

The clock is virtual, so the model is exact: who gets what next, what is in flight until when.
Consumers acknowledge twice and late, one by one and in batches, and several at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.pops import PopConsumer, PoppedMessage
from tests.conftest import ROUNDS_OF_A_TEST
from tests.crash.pop_model import (
    TOPIC,
    FlightKey,
    Model,
    Place,
    Stored,
    Truth,
    key_of,
    stored_of,
    wants,
)
from tests.crash.pop_run import OFFSETS, TABLES, Asked, PopRun, command
from tests.crash.simulation import random_fault
from tests.unit.store.stores import HOST, FakeClock, read_all

from pymq.broker.pop import revive_journal
from pymq.errors import StoreError
from pymq.protocol.bodies import ConsumerOffsetTable
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.names import pop_retry_topic, revive_topic
from pymq.protocol.record import NewRecord
from pymq.protocol.tag_codes import tag_code
from pymq.store import FlushMode
from pymq.testing.faulty_files import Crashed, FaultyFiles
from pymq.testing.lost_power import Disk

pytestmark = pytest.mark.crash

OK = ResponseCode.SUCCESS
STEPS = 12
OVERLOOKED_S = 60
REVIVE_TOPIC = revive_topic("DefaultCluster")
GROUPS = ("g", "h")
REFUSALS = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY)


@dataclass(slots=True)
class Ask:
    """A request of a consumer, and what it is about.

    Attributes:
        queue_id: that is popped; -1: any.
        messages: that are acknowledged, or one that is to come back at another time.
        is_change: whether it is the latter.
    """

    group: str
    asked: Asked
    queue_id: int = -1
    messages: list[PoppedMessage] = field(default_factory=list)
    is_change: bool = False


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
        self.queue_count = dice.choice([1, 2, 3])
        self.broker: dict[str, Any] = {
            "revive_queue_count": dice.choice([1, 3]),
            "pop_retry_percent": dice.choice([0, 20, 100]),
            "pop_actual_topic": dice.random() < 0.3,
        }
        self.settings: dict[str, Any] = {
            "segment_bytes": dice.choice([4096, 9000, 1 << 16]),
            "queue_file_bytes": dice.choice([400, 2000]),
            "flush_mode": dice.choice([FlushMode.ASYNC, FlushMode.SYNC]),
            "index_slot_count": 200,
            "index_item_limit": 400,
            "message_bytes_max": 1000,
        }
        v2 = dice.random() < 0.3
        self.broker["pop_retry_v2"] = v2
        self.model = Model({one: pop_retry_topic(TOPIC, one, v2=v2) for one in GROUPS})
        self.count = 0
        #: What was asked and is not answered yet.
        self.pending: list[Ask] = []
        #: Flights that may have ended without an answer.
        self.doubtful: set[FlightKey] = set()
        self._known: tuple[tuple[Path, int], Truth] | None = None
        #: May writes fail in this life?
        self.is_faulty = False
        #: Could they, ever? Then power is not lost: files that were made in vain are adopted by
        #: the store, but their names may not be on the disk.
        self.was_faulty = False
        #: Did the broker of this life start?
        self.is_up = False
        #: May what consumers were told be lost, or what was written together be torn?
        self.forgets = self.is_torn = False
        self.run: PopRun
        self.disk: Disk
        self.place = home / "0"
        self.place.mkdir()

    def truth(self) -> Truth:
        """Return what is in the log now."""
        state = self.run.root, self.run.store.log_end
        if self._known is None or self._known[0] != state:
            self._known = state, Truth(self.run.root, REVIVE_TOPIC)
        return self._known[1]

    # --- lives

    async def live(self, lives: int) -> None:
        """Go through some lives of a broker, then bring everything to its end."""
        self.disk = Disk(self.place)
        for number in range(lives):
            await self.one_life(number)
        files = FaultyFiles()
        await self.start(files)
        await self.finish()
        await self.run.close()
        files.abandon()

    async def one_life(self, number: int) -> None:
        dice = self.dice
        fault = random_fault(dice)
        files = FaultyFiles(fault, disk=self.disk)
        self.is_faulty = was_faulty = fault is not None and fault.code is not None
        loses_power = self.is_up = False
        try:
            await self.start(files)
            for _ in range(STEPS):
                await self.step()
            files.mend()
            kind = dice.random()
            if kind < 0.4:
                await self.run.close()
                self.take_answers()
            else:
                loses_power = kind < 0.6
        except Crashed:
            loses_power = dice.random() < 0.3
        except StoreError:
            assert self.is_faulty  # it does not start while the disk is full
        self.is_faulty = False
        if self.is_up:
            await self.run.leave()
        files.abandon()
        self.was_faulty |= was_faulty
        if loses_power and not self.was_faulty:
            self.place = self.home / str(number + 1)
            self.disk.lose_power(dice, self.place)
            self.disk = Disk(self.place)
            self.forgets = self.settings["flush_mode"] is FlushMode.ASYNC
            self.is_torn = True

    async def start(self, files: FaultyFiles) -> None:
        """Start a broker, and find out what nobody could know."""
        self.run = run = PopRun(
            self.place / "store",
            self.clock,
            files,
            tables=self.home / "tables",
            broker=self.broker,
            seed=self.dice.randrange(1 << 30),
            **self.settings,
        )
        self.is_up = True
        resets = _saved_resets(run.saved(OFFSETS))
        if TOPIC not in run.topics:
            await run.create_topic(TOPIC, self.queue_count)
        for place in self.model.resets.keys() - resets.keys():
            self.model.take_reset(place)
        self.model.resets |= resets
        truth, now_ms = self.truth(), self.clock.now_ms
        if self.forgets:
            self.model.lost_power(truth, now_ms, doubtful=self.doubt())
        else:
            self.model.restarted(
                *(truth, now_ms),
                doubtful=self.doubt(),
                unheard=self.unheard(),
                is_torn=self.is_torn,
            )
        self.forgets = self.is_torn = False
        self.forget_pending()
        if self.is_faulty:
            self.model.lowest = self.model.cursors | self.model.lowest

    def doubt(self) -> set[FlightKey]:
        """Return the flights that may have ended."""
        asked = {key_of(one.group, message) for one in self.pending for message in one.messages}
        return self.doubtful | asked

    def unheard(self) -> set[str]:
        """Return the groups that may have popped more than they know."""
        return {one.group for one in self.pending if one.is_change or not one.messages}

    def forget_pending(self) -> None:
        self.pending.clear()
        self.doubtful.clear()

    # --- steps

    async def step(self) -> None:
        dice = self.dice
        action = dice.random()
        if action < 0.25:
            await self.send()
        elif action < 0.75:
            await self.consume()
        elif action < 0.87:
            self.clock.now_ms += dice.choice([1, 500, 1000, 5000, 60_000])
            await self.revive()
        elif action < 0.92:
            await self.run.save(dice.randrange(TABLES))
        elif action < 0.95:
            self.run.flush()
        else:
            await self.reset()
        self.clock.now_ms += dice.choice([10, 40])  # handles may be that many ms ahead of it
        if self.is_faulty:
            self.model.resync(self.truth(), doubtful=self.doubt(), unheard={*GROUPS})
            self.doubtful.clear()
        elif dice.random() < 0.1:
            self.model.check(self.truth())

    async def send(self) -> None:
        sent = []
        for _ in range(self.dice.choice([1, 2, 8])):
            message = Stored(b"%d" % self.count, self.dice.choice("ab"), 0)
            sent.append((self.dice.randrange(self.queue_count), message))
            self.count += 1
        results = await self.run.put([_record(*one, self.clock.now_ms) for one in sent])
        for (queue_id, message), result in zip(sent, results, strict=True):
            if result.physical_offset >= 0:
                self.model.put(TOPIC, queue_id, message)
            else:
                assert self.is_faulty, result
        await self.take_all()

    async def consume(self) -> None:
        """Some requests at once."""
        dice = self.dice
        for _ in range(dice.choice([1, 1, 2, 4])):
            action = dice.random()
            if action < 0.45:
                self.pop(dice.choice(GROUPS))
            elif action < 0.85:
                self.acknowledge()
            else:
                self.change()
        await self.run.settle_all()
        await self.take_all()

    async def take_all(self) -> None:
        self.take_answers()
        deadline_s = time.monotonic() + OVERLOOKED_S
        while self.overlooked():  # a pop that met another one looks again soon
            assert time.monotonic() < deadline_s, self.pending
            await asyncio.sleep(0.001)
            await self.run.settle_all()
            self.take_answers()

    def pop(self, group: str) -> None:
        dice = self.dice
        queue_id = dice.choice([-1, -1, dice.randrange(self.queue_count)])
        expression = ("TAG", "a") if dice.random() < 0.7 else ("SQL92", "TAGS = 'a'")
        kind, text = expression if group == "h" else ("TAG", "*")
        fields = consumer(group).pop_fields(
            queueId=queue_id,
            maxMsgNums=dice.choice([1, 3, 32]),
            invisibleTime=dice.choice([100, 1000, 10_000, 3_600_000]),
            pollTime=dice.choice([0, 0, 0, 700, 20_000]),
            bornTime=self.clock.now_ms,
            expType=kind,
            exp=text,
        )
        asked = self.run.ask(command(RequestCode.POP_MESSAGE, **fields))
        self.pending.append(Ask(group, asked, queue_id))

    def some_messages(self, count: int) -> tuple[str, list[PoppedMessage]]:
        """Choose messages of a group, some with handles that are not worth anything any more."""
        dice = self.dice
        group = dice.choice(GROUPS)
        chosen = [
            flight.message
            for key, flight in self.model.flights.items()
            if key.place.group == group and flight.message is not None
        ]
        if dice.random() < 0.2:
            chosen += [message for owner, message in self.model.stale if owner == group]
        return group, dice.sample(chosen, min(count, len(chosen)))

    def acknowledge(self) -> None:
        dice = self.dice
        group, messages = self.some_messages(dice.choice([1, 1, 5, 100]))
        if len(messages) > 1 or dice.random() < 0.1:
            body = consumer(group).batch(messages)
            requests = (
                [(command(RequestCode.BATCH_ACK_MESSAGE, body), messages)] if messages else []
            )
        else:
            requests = [
                (command(RequestCode.ACK_MESSAGE, **consumer(group).place_of(one)), [one])
                for one in messages
            ]
        for request, about in requests * dice.choice([1, 1, 1, 2]):
            self.pending.append(Ask(group, self.run.ask(request), messages=about))

    def change(self) -> None:
        if any(one.is_change for one in self.pending):
            return  # one at a time: a group that was set back may have a message twice
        group, messages = self.some_messages(1)
        for message in messages:
            invisible_ms = self.dice.choice([50, 2000, 100_000])
            fields = consumer(group).place_of(message) | {"invisibleTime": invisible_ms}
            request = command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **fields)
            asked = self.run.ask(request)
            self.pending.append(Ask(group, asked, messages=[message], is_change=True))

    def take_answers(self) -> None:
        """Have the model know what was answered."""
        popped: dict[str, list[PoppedMessage]] = {}
        pending, self.pending = self.pending, []
        for one in pending:
            (answer,) = one.asked.answers()
            if answer is None:
                self.pending.append(one)
            elif self.is_faulty and answer.code in REFUSALS:
                self.doubtful |= {key_of(one.group, message) for message in one.messages}
            elif one.messages:
                self.take_acknowledgement(one, answer)
            elif answer.code == OK:
                popped.setdefault(one.group, []).extend(consumer(one.group).messages(answer))
            else:
                assert answer.code == ResponseCode.POLLING_TIMEOUT, answer
        if self.is_faulty:
            self.model.adopt_queues(self.truth())  # also copies of which nobody heard
        for group, messages in popped.items():
            self.model.pop(group, messages, self.truth, is_faulty=self.is_faulty)

    def overlooked(self) -> bool:
        """Is a pop held that must find something?"""
        return not self.is_faulty and any(
            self.model.found_by(one.group, one.queue_id) for one in self.pending
        )

    def take_acknowledgement(self, one: Ask, answer: Command) -> None:
        assert answer.code == OK, (one, answer)
        if one.is_change:
            (message,) = one.messages
            after = dataclasses.replace(message)
            consumer(one.group).take_change(after, answer)
            self.model.change(one.group, message, after)
        else:
            for message in one.messages:
                self.model.acknowledge(one.group, message)

    async def revive(self) -> None:
        due = self.model.due(self.clock.now_ms)
        self.doubtful |= {*due}
        await self.run.revive()
        if not self.is_faulty:
            self.doubtful.clear()
            copies = self.model.revive(due)
            for topic in {topic for topic, _ in copies}:
                known = len(self.model.queues.get((topic, 0), ()))
                for record in read_all(self.run.store, topic)[known:]:
                    stored = stored_of(record)
                    copies[topic, stored] -= 1
                    self.model.put(topic, 0, stored)
            assert not any(copies.values()), copies
        await self.take_all()

    async def reset(self) -> None:
        """An administrator sets a group to another offset."""
        dice = self.dice
        place = Place(dice.choice(GROUPS), TOPIC, dice.randrange(self.queue_count))
        if self.is_faulty or any(one.group == place.group for one in self.pending):
            return  # what is held is not woken by it
        offset = dice.randint(0, len(self.model.queues.get((TOPIC, place.queue_id), ())))
        self.run.offsets.reset(place.group, TOPIC, place.queue_id, offset)
        self.model.pass_to(place, offset)
        await self.run.saving.save()
        self.model.resets[place] = offset

    async def finish(self) -> None:
        """Have everything consumed: nothing is in flight then, and nothing read again."""
        run, model = self.run, self.model
        for _ in range(40):
            self.clock.now_ms += 4_000_000
            await self.revive()
            for group in GROUPS:
                self.pop_all(group)
            await run.settle_all()
            self.take_answers()
            for group in GROUPS:
                for key, flight in list(model.flights.items()):
                    if key.place.group == group and flight.message is not None:
                        fields = consumer(group).place_of(flight.message)
                        asked = run.ask(command(RequestCode.ACK_MESSAGE, **fields))
                        self.pending.append(Ask(group, asked, messages=[flight.message]))
            await run.settle_all()
            self.take_answers()
            if not model.flights and not any(model.found_by(group, -1) for group in GROUPS):
                break
        else:
            found = [model.found_by(group, -1) for group in GROUPS]
            raise AssertionError(f"still in flight: {model.flights}, not popped: {found}")
        truth = self.truth()
        model.check(truth)
        for place in list(model.resets):
            model.take_reset(place)
        for group in GROUPS:
            wanted = {
                one.body
                for (topic, _), queue in truth.queues.items()
                for one in queue
                if topic == TOPIC and wants(group, one)
            }
            missing = wanted - model.done.get(group, set()) - model.passed.get(group, set())
            assert not missing, (group, missing)
        assert len(run.in_flight._table) == 0

    def pop_all(self, group: str) -> None:
        for queue_id in range(-1, self.queue_count):
            for _ in range(3):
                fields = consumer(group).pop_fields(
                    queueId=queue_id,
                    invisibleTime=3_600_000,
                    bornTime=self.clock.now_ms,
                    exp="a" if group == "h" else "*",
                )
                asked = self.run.ask(command(RequestCode.POP_MESSAGE, **fields))
                self.pending.append(Ask(group, asked, queue_id))


def consumer(group: str) -> PopConsumer:
    return PopConsumer(None, TOPIC, group)


def _record(queue_id: int, message: Stored, now_ms: int) -> NewRecord:
    properties = f"TAGS\x01{message.tag}\x02".encode()
    code = tag_code(message.tag)
    return NewRecord(TOPIC, queue_id, message.body, properties, HOST, now_ms, tag_code=code)


def _saved_resets(saved: object) -> dict[Place, int]:
    """Return the pending resets that a file holds."""
    if saved is None:
        return {}
    return {
        Place(group, topic, queue_id): at
        for key, queues in (ConsumerOffsetTable.from_json(saved).resets or {}).items()
        for topic, _, group in [key.partition("@")]
        for queue_id, at in queues.items()
    }


def play(home: Path, seed: int) -> None:
    """Play one schedule."""
    dice = random.Random(seed)
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(_only_deaths)
        runner.run(Schedule(home, dice).live(dice.randint(1, 3)))


def _only_deaths(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), Crashed):
        loop.default_exception_handler(context)


def test_who_gets_what_whatever_happens(
    memory_path: Path,
    seed: int,
    crash_rounds: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(revive_journal, "SHORTEN_LENGTH", 20)
    if crash_rounds <= ROUNDS_OF_A_TEST:
        seed = 0  # always the same schedules; new ones are for the long run
    for number in range(4 * crash_rounds):
        home = memory_path / "home"
        home.mkdir()
        try:
            play(home, seed + number)
        except BaseException as error:
            error.add_note(f"play(home, {seed + number})")
            raise
        shutil.rmtree(home)
