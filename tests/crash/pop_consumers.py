"""The process that sends messages and pops them for two groups, and its ledger.

Runs until its standard input ends, then until everything is acknowledged::

    python -m tests.crash.pop_consumers <name server> <topic> <ledger> <seed> <store>

No request is repeated. What a request was is the last part of its name in the ledger, and ``keys``
of the line ``A`` says what it is about: ``s`` a message that is sent; ``p`` a pop, of a group;
``a`` an acknowledgement, of handles; ``c`` another invisible time, for one handle. Apart from those
of messages that were sent, lines ``K`` have no place. Lines ``N`` come before them::

    N <pop> <handle> <topic> <attempts> <key> <time>     a message that was popped
    N <acknowledgement> <time>                           when its answer came
    N <change> <handle> <time>                           the message's new handle

A handle is what RocketMQ calls the receipt handle, ``:`` in the place of blanks, after the group.
Times are in ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.cluster.pops import PopConsumer, PoppedMessage
from tests.crash.delayed_producers import BrokerLine
from tests.crash.disk import log_records
from tests.crash.ledger import (
    Acknowledged,
    Attempted,
    Failed,
    LedgerWriter,
    Noted,
    body_of,
    key_of,
    make_key,
)
from tests.crash.pop_checkers import read_flights
from tests.crash.producers import PAUSE_S

from pymq.errors import PymqError, StoreError
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.record import parse_offset_message_id

GROUPS: Final = ("one", "two")
SENDER_COUNT: Final = 4
CONSUMER_COUNT: Final = 3
SIZE_MAX: Final = 1_000
#: Senders wait while a group is this many messages behind.
BEHIND_MAX: Final = 300
POLL_MS: Final = 400
INVISIBLE_MS: Final = (200, 1000, 2500)
#: What is asked for when a message is to come again at another time.
CHANGED_MS: Final = (50, 700, 2000)
#: Long enough that nothing comes again while a slow machine acknowledges it.
LONG_MS: Final = 15_000
DRAIN_TIMEOUT_S: Final = 240.0


def now_ms() -> int:
    """Return the time in ms."""
    return time.time_ns() // 1_000_000


class Asking:
    """Makes requests, and writes into the ledger how they end.

    Attributes:
        sent_count: how many messages are stored.
        finished: of each group, the keys of messages that it wanted to acknowledge.
        is_draining: whether everything is to be acknowledged now.
    """

    def __init__(self, name_server: str, topic: str, ledger: LedgerWriter) -> None:
        self.topic = topic
        self.ledger = ledger
        self.sent_count = 0
        self.finished: dict[str, set[str]] = {group: set() for group in GROUPS}
        self.is_draining = False
        self._name_server = name_server
        self._numbers = itertools.count()

    @property
    def is_behind(self) -> bool:
        """Whether some group has many messages left."""
        return self.sent_count - min(map(len, self.finished.values())) > BEHIND_MAX

    def line(self) -> BrokerLine:
        """Return a connection of one's own."""
        return BrokerLine(self._name_server, self.topic)

    async def ask(
        self, line: BrokerLine, kind: str, about: Sequence[str], request: Command
    ) -> tuple[str, Command | None]:
        """Make a request; return its name and its answer if that is good.

        The caller writes what it brought, and that it was acknowledged.
        """
        name = f"{next(self._numbers)}.{kind}"
        self.ledger.write(Attempted(name, tuple(about)))
        try:
            answer = await line.send(request)
        except PymqError as error:
            self.ledger.write(Failed(name, error.outcome_known, f"{error!r}"))
            await asyncio.sleep(PAUSE_S)
            return name, None
        if answer.code != ResponseCode.SUCCESS:
            is_known = answer.code == ResponseCode.POLLING_TIMEOUT  # nothing was popped
            self.ledger.write(Failed(name, is_known, f"{answer.code} {answer.remark}"))
            return name, None
        return name, answer

    def done(self, name: str) -> None:
        """A request without a place was successful."""
        self.ledger.write(Acknowledged(name, 0, 0, (0,)))


async def send(asking: Asking, number: int, seed: int, stopped: asyncio.Event) -> None:
    """Send one message after the other."""
    chance = random.Random(f"{seed}/s{number}")
    line = asking.line()
    for count in itertools.count():
        while asking.is_behind and not stopped.is_set():
            await asyncio.sleep(PAUSE_S)
        if stopped.is_set():
            break
        key = make_key(number, count, int(SIZE_MAX ** chance.random()) - 1)
        header = SendRequest(
            "ledger", asking.topic, "TBW102", 4, chance.randrange(4), 0, now_ms(), 0,
            f"UNIQ_KEY\x01{key}\x02", 0, False, None, False,
        )  # fmt: skip
        request = Command(RequestCode.SEND_MESSAGE_V2, header.to_v2(), body_of(key))
        name, answer = await asking.ask(line, "s", [key], request)
        if answer is not None:
            fields = answer.fields or {}
            _, physical_offset = parse_offset_message_id(fields["msgId"])
            place = int(fields["queueId"]), int(fields["queueOffset"])
            asking.ledger.write(Acknowledged(name, *place, (physical_offset,)))
            asking.sent_count += 1
    line.close()


class Consumer:
    """Pops messages, acknowledges most, and forgets the others or wants them at another time."""

    def __init__(self, asking: Asking, group: str, chance: random.Random) -> None:
        self._asking = asking
        self._ledger = asking.ledger
        self._group = group
        self._chance = chance
        self._consumer = PopConsumer(None, asking.topic, group)
        self._line = asking.line()

    async def run(self, stopped: asyncio.Event) -> None:
        """Pop and acknowledge until it is stopped."""
        while not stopped.is_set():
            messages = await self._pop()
            if self._asking.is_draining:
                await self._acknowledge(messages)
            elif messages:
                await self._handle(messages)
        self._line.close()

    async def _pop(self) -> list[PoppedMessage]:
        chance = self._chance
        invisible_ms = LONG_MS if self._asking.is_draining else chance.choice(INVISIBLE_MS)
        fields = self._consumer.pop_fields(
            maxMsgNums=chance.choice((1, 8, 32)), invisibleTime=invisible_ms, pollTime=POLL_MS
        )
        request = command(RequestCode.POP_MESSAGE, **fields)
        name, answer = await self._asking.ask(self._line, "p", [self._group], request)
        if answer is None:
            return []
        messages = self._consumer.messages(answer)
        for one in messages:
            record, key = one.record, key_of(one.record.body) or "?"
            words = self._handle_of(one), record.topic, record.reconsume_times, key, now_ms()
            self._ledger.write(Noted(name, tuple(map(str, words))))
        self._asking.done(name)
        return messages

    async def _handle(self, messages: list[PoppedMessage]) -> None:
        chance = self._chance
        kept = [one for one in messages if chance.random() < 0.85]
        at = chance.randint(0, len(kept)) if chance.random() < 0.3 else len(kept)
        for message in kept[at:]:
            wants_more_time = chance.random() < 0.5
            if wants_more_time and not await self._change(message):
                continue
            if not wants_more_time or chance.random() < 0.5:
                await self._acknowledge([message])
        if chance.random() < 0.1:
            await asyncio.sleep(chance.uniform(0, 0.4))  # until it is too late for some
        await self._acknowledge(kept[:at])

    async def _acknowledge(self, messages: Sequence[PoppedMessage]) -> None:
        if not messages:
            return
        if len(messages) == 1:
            fields = self._consumer.place_of(messages[0])
            request = command(RequestCode.ACK_MESSAGE, **fields)
        else:
            body = self._consumer.batch(messages)
            request = Command(RequestCode.BATCH_ACK_MESSAGE, {}, body)
        handles = [self._handle_of(one) for one in messages]
        keys = {key_of(one.record.body) or "" for one in messages}
        self._asking.finished[self._group] |= keys
        name, answer = await self._asking.ask(self._line, "a", handles, request)
        if answer is not None:
            self._ledger.write(Noted(name, (str(now_ms()),)))
            self._asking.done(name)

    async def _change(self, message: PoppedMessage) -> bool:
        fields = self._consumer.place_of(message)
        fields["invisibleTime"] = self._chance.choice(CHANGED_MS)
        request = command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **fields)
        name, answer = await self._asking.ask(self._line, "c", [self._handle_of(message)], request)
        if answer is None:
            return False
        self._consumer.take_change(message, answer)
        self._ledger.write(Noted(name, (self._handle_of(message), str(now_ms()))))
        self._asking.done(name)
        return True

    def _handle_of(self, message: PoppedMessage) -> str:
        return f"{self._group}:{message.handle.replace(' ', ':')}"


def command(code: int, **fields: object) -> Command:
    """Return a request, its fields as clients write them."""
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in fields.items()
    }
    return Command(code, texts)


def is_drained(store: Path, topic: str) -> bool:
    """Return whether everything is acknowledged, or False if that cannot be read just now."""
    with contextlib.suppress(StoreError, AssertionError):
        flights = read_flights(list(log_records(store)), topic=topic, groups=GROUPS)
        return flights.is_over() and not flights.complaints
    return False


async def wait_drained(store: Path, topic: str) -> None:
    """Wait until everything is acknowledged; or for long enough: the checker says what is left."""
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    count = 0
    # Twice: what was written to one file of the log while the next one was read was not seen.
    while count < 2 and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        count = count + 1 if await asyncio.to_thread(is_drained, store, topic) else 0


async def work(name_server: str, topic: str, ledger: LedgerWriter, seed: int, store: Path) -> None:
    """Send and pop until standard input ends, then pop until nothing is left."""
    sent, popped = asyncio.Event(), asyncio.Event()
    asking = Asking(name_server, topic, ledger)
    async with asyncio.TaskGroup() as group:
        for name in GROUPS:
            for number in range(CONSUMER_COUNT):
                chance = random.Random(f"{seed}/{name}{number}")
                group.create_task(Consumer(asking, name, chance).run(popped))
        async with asyncio.TaskGroup() as senders:
            for number in range(SENDER_COUNT):
                senders.create_task(send(asking, number, seed, sent))
            await asyncio.to_thread(sys.stdin.read)
            sent.set()
        asking.is_draining = True
        await wait_drained(store, topic)
        popped.set()


def main() -> None:
    """Run with the arguments of the command line."""
    name_server, topic, ledger, seed, store = sys.argv[1:]
    with LedgerWriter(Path(ledger)) as writer:
        asyncio.run(work(name_server, topic, writer, int(seed), Path(store)))


if __name__ == "__main__":
    main()
