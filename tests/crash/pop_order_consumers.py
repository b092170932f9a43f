"""The process that sends messages and pops them in order for two groups, and its ledger.

Runs until its standard input ends, then until everything is acknowledged and that is saved::

    python -m tests.crash.pop_order_consumers <name server> <topic> <ledger> <seed> <store>

The ledger is like that of ``pop_consumers``, with times, in ms::

    A <pop> <time> <group> <attempt> <queue>      -1: any queue
    N <pop> <handle> <key>                        a message that was popped
    N <pop> <time>                                when it ended without an answer
    A <acknowledgement> <time> <handle> ...
    N <acknowledgement> <time>                    when it ended, well or not
    A <change> <time> <invisible time> <handle>
    N <change> <time> <visible>                   the same, and when the message is visible again;
                                                  0: it is acknowledged, says the broker

A request that is repeated keeps its attempt, as the official client's does, and gets the same
messages again. Every other one is an attempt of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.cluster.pops import PopConsumer, PoppedMessage
from tests.crash.disk import saved_table
from tests.crash.kills import QUEUE_COUNT
from tests.crash.ledger import LedgerWriter, Noted, key_of
from tests.crash.pop_consumers import (
    CONSUMER_COUNT,
    DRAIN_TIMEOUT_S,
    GROUPS,
    LONG_MS,
    POLL_MS,
    SENDER_COUNT,
    Asking,
    command,
    now_ms,
    send,
)
from tests.crash.pop_order_history import Queue, saved_offsets

from pymq.errors import PymqError
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command

INVISIBLE_MS: Final = (150, 600, 1500)
#: What is asked for when a message is to come again at another time.
CHANGED_MS: Final = (50, 400, 1200)
#: Messages that are acknowledged some time later, when their queue has been popped again or not.
KEPT_MAX: Final = 40
OFFSETS: Final = "consumerOffset.json"
ORDERS: Final = "consumerOrderInfo.json"


class OrderConsumer:
    """Pops in order, acknowledges most, and forgets others or wants them at another time."""

    def __init__(self, asking: Asking, group: str, name: str, chance: random.Random) -> None:
        self._asking = asking
        self._ledger = asking.ledger
        self._group = group
        self._chance = chance
        self._consumer = PopConsumer(None, asking.topic, group)
        self._line = asking.line()
        self._attempts = (f"{name}.{number}" for number in itertools.count())
        #: The request to make once more.
        self._again: dict[str, Any] | None = None
        self._kept: list[PoppedMessage] = []

    async def run(self, stopped: asyncio.Event) -> None:
        """Pop and acknowledge until it is stopped."""
        while not stopped.is_set():
            messages = await self._pop()
            if self._asking.is_draining:
                await self._acknowledge(messages)
            elif messages:
                await self._handle(messages)
        self._line.close()

    def _wanted(self) -> dict[str, Any]:
        if self._again is not None:
            return self._again
        chance = self._chance
        return {
            "queueId": chance.choice((-1, -1, -1, chance.randrange(QUEUE_COUNT))),
            "maxMsgNums": chance.choice((1, 4, 32)),
            "invisibleTime": LONG_MS if self._asking.is_draining else chance.choice(INVISIBLE_MS),
            "attemptId": next(self._attempts),
        }

    async def _pop(self) -> list[PoppedMessage]:
        wanted = self._wanted()
        fields = self._consumer.pop_fields(**wanted, pollTime=POLL_MS, order=True)
        about = str(now_ms()), self._group, wanted["attemptId"], str(wanted["queueId"])
        request = command(RequestCode.POP_MESSAGE, **fields)
        name, answer = await self._asking.ask(self._line, "p", about, request)
        self._again = wanted if self._chance.random() < (0.03 if answer else 0.7) else None
        if answer is None:
            self._ledger.write(Noted(name, (str(now_ms()),)))
            return []
        messages = self._consumer.messages(answer)
        for one in messages:
            words = self._handle_of(one), key_of(one.record.body) or "?"
            self._ledger.write(Noted(name, words))
        self._asking.done(name)
        return messages

    async def _handle(self, messages: list[PoppedMessage]) -> None:
        chance, kind = self._chance, self._chance.random()
        if kind < 0.55:
            await self._acknowledge(messages)
        elif kind < 0.75:
            for message in messages:
                await self._acknowledge([message])
        elif kind < 0.83:
            for message in chance.sample(messages, len(messages)):
                if chance.random() < 0.8:
                    await self._acknowledge([message])
        elif kind < 0.95:
            later = chance.choice(messages)
            await self._change(later)
            await self._acknowledge([one for one in messages if one is not later])
            if chance.random() < 0.5:
                await self._acknowledge([later])
        else:
            self._keep(messages)
        if self._kept and chance.random() < 0.2:
            late = chance.sample(self._kept, chance.randint(1, len(self._kept)))
            self._kept = [one for one in self._kept if one not in late]
            for message in late:
                await self._acknowledge([message])

    async def _acknowledge(self, messages: Sequence[PoppedMessage]) -> None:
        if not messages:
            return
        if len(messages) == 1:
            request = command(RequestCode.ACK_MESSAGE, **self._consumer.place_of(messages[0]))
        else:
            request = Command(RequestCode.BATCH_ACK_MESSAGE, {}, self._consumer.batch(messages))
        keys = {key_of(one.record.body) or "" for one in messages}
        self._asking.finished[self._group] |= keys
        about = str(now_ms()), *(self._handle_of(one) for one in messages)
        name, answer = await self._asking.ask(self._line, "a", about, request)
        self._ledger.write(Noted(name, (str(now_ms()),)))
        if answer is None:
            self._keep(messages)
        else:
            self._asking.done(name)

    def _keep(self, messages: Sequence[PoppedMessage]) -> None:
        self._kept = [*self._kept, *messages][-KEPT_MAX:]

    async def _change(self, message: PoppedMessage) -> None:
        fields = self._consumer.place_of(message)
        invisible_ms = fields["invisibleTime"] = self._chance.choice(CHANGED_MS)
        request = command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **fields)
        about = str(now_ms()), str(invisible_ms), self._handle_of(message)
        name, answer = await self._asking.ask(self._line, "c", about, request)
        visible_ms = 0
        if answer is not None and answer.fields is not None:
            visible_ms = int(answer.fields["popTime"]) + int(answer.fields["invisibleTime"])
        self._ledger.write(Noted(name, (str(now_ms()), str(visible_ms))))
        if answer is not None:
            if visible_ms:
                self._consumer.take_change(message, answer)
            self._asking.done(name)

    def _handle_of(self, message: PoppedMessage) -> str:
        return f"{self._group}:{message.handle.replace(' ', ':')}"


async def wait_saved(asking: Asking, store: Path) -> None:
    """Wait until the broker has saved that all groups are at the ends of all queues.

    Or for long enough: the checker says what is left then.
    """
    line = asking.line()
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    while time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        try:
            answers = [
                await line.ask(RequestCode.GET_MAX_OFFSET, topic=asking.topic, queueId=queue_id)
                for queue_id in range(QUEUE_COUNT)
            ]
            saved = saved_offsets(saved_table(store, OFFSETS), asking.topic)
        except PymqError:
            continue
        if any(answer.code != ResponseCode.SUCCESS for answer in answers):
            continue  # it is busy
        ends = [int((answer.fields or {})["offset"]) for answer in answers]
        if all(
            saved.get(Queue(group, queue_id), 0) == end
            for group in GROUPS
            for queue_id, end in enumerate(ends)
        ):
            break
    line.close()


async def work(name_server: str, topic: str, ledger: LedgerWriter, seed: int, store: Path) -> None:
    """Send and pop until standard input ends, then pop until nothing is left."""
    sent, popped = asyncio.Event(), asyncio.Event()
    asking = Asking(name_server, topic, ledger)
    async with asyncio.TaskGroup() as group:
        for name in GROUPS:
            for number in range(CONSUMER_COUNT):
                chance = random.Random(f"{seed}/{name}{number}")
                consumer = OrderConsumer(asking, name, f"{name}{number}", chance)
                group.create_task(consumer.run(popped))
        async with asyncio.TaskGroup() as senders:
            for number in range(SENDER_COUNT):
                senders.create_task(send(asking, number, seed, sent))
            await asyncio.to_thread(sys.stdin.read)
            sent.set()
        asking.is_draining = True
        await wait_saved(asking, store)
        popped.set()


def main() -> None:
    """Run with the arguments of the command line."""
    name_server, topic, ledger, seed, store = sys.argv[1:]
    with LedgerWriter(Path(ledger)) as writer:
        asyncio.run(work(name_server, topic, writer, int(seed), Path(store)))


if __name__ == "__main__":
    main()
