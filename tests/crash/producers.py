"""The process that sends: eight producers, each with several sends under way, and the ledger.

Runs until its standard input ends::

    python -m tests.crash.producers <name server> <topic> <ledger> <seed>

Nothing is retried, so a message is stored once or not at all. Bodies of 0 to 3,000 bytes; one
send in eight is a batch.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from pathlib import Path
from typing import Final

from tests.crash.ledger import (
    Acknowledged,
    Attempted,
    Failed,
    LedgerWriter,
    body_of,
    make_key,
)

from pymq.client.operations import SendResult, SendStatus
from pymq.client.producer import Producer
from pymq.errors import PymqError
from pymq.protocol.message import Message

PRODUCER_COUNT: Final = 8
IN_FLIGHT: Final = 4
SIZE_MAX: Final = 3_000
BATCH_MAX: Final = 12
#: A broker that is away is asked again after this.
PAUSE_S: Final = 0.02
#: Long enough that a loaded machine makes no unknown outcomes of good ones.
TIMEOUT_S: Final = 20.0


class Sender:
    """One producer and the ledger's account of it."""

    def __init__(
        self, number: int, producer: Producer, topic: str, ledger: LedgerWriter, seed: int
    ) -> None:
        self._number = number
        self._producer = producer
        self._topic = topic
        self._ledger = ledger
        self._random = random.Random(f"{seed}/{number}")
        self._messages = itertools.count()
        self._requests = itertools.count()

    async def run(self, stopped: asyncio.Event) -> None:
        """Send one request after the other until it is stopped."""
        while not stopped.is_set():
            if not await self._send():
                await asyncio.sleep(PAUSE_S)

    async def _send(self) -> bool:
        chance = self._random
        count = chance.randint(2, BATCH_MAX) if chance.randrange(8) == 0 else 1
        sizes = [int(SIZE_MAX ** chance.random()) - 1 for _ in range(count)]
        keys = tuple(make_key(self._number, next(self._messages), size) for size in sizes)
        request = f"{self._number}.{next(self._requests)}"
        messages = [Message(self._topic, body_of(key), tags=f"t{self._number}") for key in keys]
        self._ledger.write(Attempted(request, keys))
        try:
            if count == 1:
                result = await self._producer.send(messages[0])
            else:
                (result,) = await self._producer.send_batch(messages)
        except PymqError as error:
            self._ledger.write(Failed(request, error.outcome_known, f"{error!r}"))
            return False
        self._note(request, result)
        return True

    def _note(self, request: str, result: SendResult) -> None:
        if result.status is not SendStatus.OK:
            self._ledger.write(Failed(request, False, result.status))
            return
        physical = tuple(int(text[-16:], 16) for text in result.offset_message_ids)
        self._ledger.write(
            Acknowledged(request, result.queue.queue_id, result.queue_offset, physical)
        )


async def produce(name_server: str, topic: str, ledger: LedgerWriter, seed: int) -> None:
    """Send until standard input ends; returns when every send is answered or failed."""
    stopped = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(PRODUCER_COUNT):
            group.create_task(_one(number, name_server, topic, ledger, seed, stopped))
        await asyncio.to_thread(sys.stdin.read)
        stopped.set()


async def _one(
    number: int,
    name_server: str,
    topic: str,
    ledger: LedgerWriter,
    seed: int,
    stopped: asyncio.Event,
) -> None:
    async with Producer(
        name_server,
        group=f"ledger-{number}",
        retries=0,
        timeout_s=TIMEOUT_S,
        compress_bytes_min=None,
    ) as producer:
        sender = Sender(number, producer, topic, ledger, seed)
        await asyncio.gather(*(sender.run(stopped) for _ in range(IN_FLIGHT)))


def main() -> None:
    """Run with the arguments of the command line."""
    name_server, topic, ledger, seed = sys.argv[1:]
    with LedgerWriter(Path(ledger)) as writer:
        asyncio.run(produce(name_server, topic, writer, int(seed)))


if __name__ == "__main__":
    main()
