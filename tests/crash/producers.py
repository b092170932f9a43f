"""The process that sends: eight producers, each with several sends under way, and the ledger.

Runs until its standard input ends::

    python -m tests.crash.producers <name server> <topic> <ledger> <seed>
        [<first> <timeout> <pause>]

``first`` is the number of the first producer, 0 by default; ``timeout`` is a send's, and ``pause``
comes after each, in seconds.
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

from pymq.client.operations import SendStatus
from pymq.client.sending.producer import Producer
from pymq.client.sending.receipts import SendReceipt
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
        self,
        number: int,
        producer: Producer,
        topic: str,
        ledger: LedgerWriter,
        seed: int,
        pause_s: float,
    ) -> None:
        self._pause_s = pause_s
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
            is_stored = await self._send()
            pause_s = self._pause_s if is_stored else max(PAUSE_S, self._pause_s)
            if pause_s:
                await asyncio.sleep(pause_s)

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
                receipts = [await self._producer.send(messages[0])]
            else:
                receipts = await self._producer.send_batch(messages)
        except PymqError as error:
            self._ledger.write(Failed(request, error.outcome_known, f"{error!r}"))
            return False
        self._note(request, receipts)
        return receipts[0].status is SendStatus.OK

    def _note(self, request: str, receipts: list[SendReceipt]) -> None:
        first = receipts[0]
        if first.status is not SendStatus.OK:
            self._ledger.write(Failed(request, False, first.status))
            return
        physical = tuple(int(str(one.offset_message_id)[-16:], 16) for one in receipts)
        broker = str(first.offset_message_id)[:-16].upper()
        queue_id = first.queue.queue_id
        self._ledger.write(
            Acknowledged(request, queue_id, first.queue_offset, physical, broker)
        )


async def produce(
    name_server: str,
    topic: str,
    ledger: LedgerWriter,
    seed: int,
    *,
    first: int = 0,
    timeout_s: float = TIMEOUT_S,
    pause_s: float = 0.0,
) -> None:
    """Send until standard input ends; returns when every send is answered or failed."""
    stopped = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(first, first + PRODUCER_COUNT):
            group.create_task(
                _one(number, name_server, topic, ledger, seed, stopped, timeout_s, pause_s)
            )
        await asyncio.to_thread(sys.stdin.read)
        stopped.set()


async def _one(
    number: int,
    name_server: str,
    topic: str,
    ledger: LedgerWriter,
    seed: int,
    stopped: asyncio.Event,
    timeout_s: float,
    pause_s: float,
) -> None:
    async with Producer(
        name_server,
        group=f"ledger-{number}",
        retries=0,
        timeout_s=timeout_s,
        compress_bytes_min=None,
    ) as producer:
        sender = Sender(number, producer, topic, ledger, seed, pause_s)
        await asyncio.gather(*(sender.run(stopped) for _ in range(IN_FLIGHT)))


def main() -> None:
    """Run with the arguments of the command line."""
    name_server, topic, ledger, seed, *more = sys.argv[1:]
    first, timeout_s, pause_s = map(float, more or (0, TIMEOUT_S, 0))
    with LedgerWriter(Path(ledger)) as writer:
        asyncio.run(
            produce(
                name_server,
                topic,
                writer,
                int(seed),
                first=int(first),
                timeout_s=timeout_s,
                pause_s=pause_s,
            )
        )


if __name__ == "__main__":
    main()
