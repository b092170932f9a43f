"""The process that sends messages to light queues, and reads these meanwhile, and its ledger.

Runs until its standard input ends::

    python -m tests.crash.light_producers <name server> <ledger> <seed>

Nothing is retried. The last parts of a request's name say what it was: ``other.n`` a message for
the topic ``other``, ``other.d2`` the same with delay level 2. Most messages have names of light
queues, separated by commas in lines before those with ``A``::

    N <request> <names>

Of the readers there are only lines ``N``; the last part of a name is ``r``::

    N <pull> <light queue> <offset> <key> <offset told>     what was read, from its first offset on
    N <pull> <light queue> <offset> refused <code>

The offset told is what the message itself says of its place.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.crash.delayed_producers import BrokerLine
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
from tests.crash.patience import patiently_async
from tests.crash.producers import PAUSE_S, TIMEOUT_S

from pymq.client.operations import SendStatus
from pymq.client.sending.producer import Producer
from pymq.errors import PymqError, SystemBusy
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message, decode_properties
from pymq.protocol.multi_dispatch import DISPATCH, OFFSETS, places
from pymq.protocol.names import LMQ_PREFIX
from pymq.protocol.record import decode_records

TOPICS: Final = ("ledger", "other")
LEVEL_COUNT: Final = 3
PRODUCER_COUNT: Final = 4
IN_FLIGHT: Final = 4
READER_COUNT: Final = 2
SIZE_MAX: Final = 1_000
#: Light queues that all producers use.
SHARED: Final = [f"{LMQ_PREFIX}shared{number}" for number in range(3)]
#: Each producer uses new ones after this many messages.
NEW_AFTER: Final = 60
#: How long it may take in the end until everything is read; the checker says what is missing.
READ_TIMEOUT_S: Final = 120.0
_NO_MESSAGE: Final = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)


class Sender:
    """One producer and the ledger's account of it."""

    def __init__(
        self, number: int, producer: Producer, ledger: LedgerWriter, seed: int, names: list[str]
    ) -> None:
        self._number = number
        self._producer = producer
        self._ledger = ledger
        self._names = names
        self._random = random.Random(f"{seed}/{number}")
        self._count = itertools.count()

    async def run(self, stopped: asyncio.Event) -> None:
        """Send one message after the other until it is stopped."""
        while not stopped.is_set():
            if not await self._send():
                await asyncio.sleep(PAUSE_S)

    async def _send(self) -> bool:
        chance, count = self._random, next(self._count)
        level = chance.choice((0, 0, 0, 0, 0, *range(1, LEVEL_COUNT + 1)))
        topic = chance.choice(TOPICS)
        kind = f"d{level}" if level else "n"
        request = f"{self._number}.{count}.{topic}.{kind}"
        key = make_key(self._number, count, int(SIZE_MAX ** chance.random()) - 1)
        properties = {}
        if chance.random() < 0.8:
            value = properties[DISPATCH] = ",".join(self._choose(count))
            self._ledger.write(Noted(request, (value,)))
        self._ledger.write(Attempted(request, (key,)))
        message = Message(topic, body_of(key), properties=properties, delay_level=level)
        try:
            result = await self._producer.send(message)
        except PymqError as error:
            self._ledger.write(Failed(request, error.outcome_known, f"{error!r}"))
            return False
        if result.status is not SendStatus.OK:
            self._ledger.write(Failed(request, False, result.status))
            return False
        message_id = str(result.offset_message_id)
        self._ledger.write(
            Acknowledged(
                request, result.queue.queue_id, result.queue_offset, (int(message_id[-16:], 16),)
            )
        )
        return True

    def _choose(self, count: int) -> list[str]:
        own = f"{LMQ_PREFIX}own{self._number}-{count // NEW_AFTER}"
        if own not in self._names:
            self._names.append(own)
        wanted = self._random.choices([*SHARED, own], k=self._random.randint(1, 4))
        # Some name a queue twice.
        return wanted if self._random.random() < 0.2 else list(dict.fromkeys(wanted))


class Reader:
    """Reads light queues, each from its first message on."""

    def __init__(self, name_server: str, name: str, ledger: LedgerWriter) -> None:
        self._line = BrokerLine(name_server, TOPICS[0])
        self._request = f"{name}.r"
        self._ledger = ledger
        self._next: dict[str, int] = {}

    async def run(self, names: Sequence[str], chance: random.Random, end: asyncio.Event) -> None:
        """Read any of these until it is stopped."""
        while not end.is_set():
            try:
                found = await self.read(chance.choice(names))
            except PymqError:
                found = 0
            if not found:
                await asyncio.sleep(PAUSE_S)
        self.close()

    async def read(self, name: str) -> int:
        """Read some messages; return how many.

        Raises:
            PymqError: the broker did not answer, or not with messages.
        """
        first = self._next.get(name, 0)
        answer = await self._line.send(_pull(name, first))
        if answer.code in _NO_MESSAGE:
            return 0
        if answer.code == ResponseCode.SYSTEM_BUSY:
            raise SystemBusy(str(answer.remark), code=answer.code)
        if answer.code != ResponseCode.SUCCESS:
            words = name, str(first), "refused", str(answer.code)
            self._ledger.write(Noted(self._request, words))
            return 0
        records = list(decode_records(answer.body, verify=True))
        for offset, record in enumerate(records, first):
            properties = decode_properties(record.properties)
            told = places(record.topic, properties).get(name, properties.get(OFFSETS))
            words = name, str(offset), key_of(record.body) or "?", str(told)
            self._ledger.write(Noted(self._request, words))
        self._next[name] = first + len(records)
        return len(records)

    def close(self) -> None:
        """Close the connection."""
        self._line.close()


def _pull(name: str, offset: int) -> Command:
    fields = {
        "consumerGroup": "readers",
        "topic": name,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": int(PullFlag.SUBSCRIPTION),
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }
    return Command(RequestCode.PULL_MESSAGE, {name: str(value) for name, value in fields.items()})


async def read_all(name_server: str, ledger: LedgerWriter, counts: Mapping[str, int]) -> None:
    """Read light queues from their beginnings to their ends.

    Args:
        counts: how many messages each has; it is read until nothing more comes, but for as many.

    Raises:
        PymqError: the broker does not answer.
    """
    reader = Reader(name_server, "last", ledger)
    deadline = time.monotonic() + READ_TIMEOUT_S
    for name, wanted in sorted(counts.items()):
        count = 0
        read = functools.partial(reader.read, name)
        while found := await patiently_async(read):
            count += found
        while count < wanted and time.monotonic() < deadline:
            await asyncio.sleep(PAUSE_S)
            count += await patiently_async(read)
    reader.close()


async def work(name_server: str, ledger: LedgerWriter, seed: int) -> None:
    """Send and read until standard input ends."""
    stopped = asyncio.Event()
    names = list(SHARED)
    async with asyncio.TaskGroup() as group:
        for number in range(READER_COUNT):
            reader = Reader(name_server, f"reader{number}", ledger)
            chance = random.Random(f"{seed}/r{number}")
            group.create_task(reader.run(names, chance, stopped))
        for number in range(PRODUCER_COUNT):
            group.create_task(_one(number, name_server, ledger, seed, names, stopped))
        await asyncio.to_thread(sys.stdin.read)
        stopped.set()


async def _one(
    number: int,
    name_server: str,
    ledger: LedgerWriter,
    seed: int,
    names: list[str],
    stopped: asyncio.Event,
) -> None:
    async with Producer(
        name_server,
        group=f"ledger-{number}",
        retries=0,
        timeout_s=TIMEOUT_S,
        compress_bytes_min=None,
    ) as producer:
        sender = Sender(number, producer, ledger, seed, names)
        await asyncio.gather(*(sender.run(stopped) for _ in range(IN_FLIGHT)))


def main() -> None:
    """Run with the arguments of the command line."""
    name_server, ledger, seed = sys.argv[1:]
    with LedgerWriter(Path(ledger)) as writer:
        asyncio.run(work(name_server, writer, int(seed)))


if __name__ == "__main__":
    main()
