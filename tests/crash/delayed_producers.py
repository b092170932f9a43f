"""The process that sends delayed messages, and sends others back, and its ledger.

Runs until its standard input ends::

    python -m tests.crash.delayed_producers <name server> <topic> <ledger> <seed>

Nothing is retried. What a request was is the last part of its name in the ledger: ``d2`` a message
with delay level 2, ``n`` one without delay, ``b2`` the same sent back to come again at level 2,
``b-1`` sent back to the dead letters. For those the line ``K`` has no place: the broker names none.
"""

from __future__ import annotations

import asyncio
import dataclasses
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
from tests.crash.producers import PAUSE_S, TIMEOUT_S

from pymq.client.operations import SendStatus
from pymq.client.sending.producer import Producer
from pymq.errors import ConnectionFailed, PymqError
from pymq.net.channel import AsyncChannel, OnRequest
from pymq.protocol.bodies import TopicRoute
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message

GROUP: Final = "retriers"
LEVEL_COUNT: Final = 3
PRODUCER_COUNT: Final = 4
IN_FLIGHT: Final = 4
SIZE_MAX: Final = 1_000


class BrokerLine:
    """A connection to the only broker, made again when it is lost.

    Args:
        hello: the first request of each connection.
        on_request: handles the broker's own requests.

    Attributes:
        channel: the connection; None while there is none.
    """

    def __init__(
        self,
        name_server: str,
        topic: str,
        *,
        hello: Command | None = None,
        on_request: OnRequest | None = None,
    ) -> None:
        self._name_server = name_server
        self._topic = topic
        self._hello = hello
        self._on_request = on_request
        self._connecting = asyncio.Lock()
        self.channel: AsyncChannel | None = None

    async def ask(self, code: int, **fields: object) -> Command:
        """Send one request.

        Raises:
            PymqError: whether it was done is unknown.
        """
        texts = {name: str(value) for name, value in fields.items()}
        return await self.send(Command(code, texts))

    async def send(self, request: Command) -> Command:
        """Send one request.

        Raises:
            PymqError: whether it was done is unknown.
        """
        async with self._connecting:
            if self.channel is None:
                await self._connect()
            channel = self.channel
        assert channel is not None
        return await channel.request(request, TIMEOUT_S)

    async def _connect(self) -> None:
        channel = await AsyncChannel.connect(
            await self._address(),
            TIMEOUT_S,
            on_request=self._on_request,
            on_ended=self._ended,
        )
        self.channel = channel
        if self._hello is not None:
            await channel.request(dataclasses.replace(self._hello), TIMEOUT_S)

    async def _address(self) -> str:
        channel = await AsyncChannel.connect(self._name_server, TIMEOUT_S)
        try:
            request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": self._topic})
            answer = await channel.request(request, TIMEOUT_S)
        finally:
            channel.close()
        if answer.code != ResponseCode.SUCCESS:
            raise ConnectionFailed(f"no broker for {self._topic}: {answer.code} {answer.remark}")
        route = TopicRoute.decode(answer.body)
        return next(iter(route.brokers[0].addresses.values()))

    def _ended(self, channel: AsyncChannel) -> None:
        if channel is self.channel:
            self.channel = None

    def close(self) -> None:
        """Close the connection."""
        if self.channel is not None:
            self.channel.close()


class Sender:
    """One producer and the ledger's account of it."""

    def __init__(
        self,
        number: int,
        producer: Producer,
        line: BrokerLine,
        topic: str,
        ledger: LedgerWriter,
        seed: int,
    ) -> None:
        self._number = number
        self._producer = producer
        self._line = line
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

    def _attempt(self, kind: str, key: str) -> str:
        request = f"{self._number}.{next(self._requests)}.{kind}"
        self._ledger.write(Attempted(request, (key,)))
        return request

    async def _send(self) -> bool:
        chance = self._random
        level = chance.choice((0, 0, *range(1, LEVEL_COUNT + 1)))
        size = int(SIZE_MAX ** chance.random()) - 1
        key = make_key(self._number, next(self._messages), size)
        request = self._attempt(f"d{level}" if level else "n", key)
        message = Message(self._topic, body_of(key), delay_level=level)
        try:
            result = await self._producer.send(message)
        except PymqError as error:
            self._ledger.write(Failed(request, error.outcome_known, f"{error!r}"))
            return False
        if result.status is not SendStatus.OK:
            self._ledger.write(Failed(request, False, result.status))
            return False
        message_id = str(result.offset_message_id)
        place = int(message_id[-16:], 16)
        self._ledger.write(
            Acknowledged(request, result.queue.queue_id, result.queue_offset, (place,))
        )
        if level:
            return True
        return await self._send_back(key, place)

    async def _send_back(self, key: str, physical_offset: int) -> bool:
        level = self._random.choice((-1, *range(1, LEVEL_COUNT + 1)))
        request = self._attempt(f"b{level}", key)
        try:
            answer = await self._line.ask(
                RequestCode.CONSUMER_SEND_MSG_BACK,
                offset=physical_offset,
                group=GROUP,
                delayLevel=level,
                originTopic=self._topic,
                maxReconsumeTimes=16,
            )
        except PymqError as error:
            self._ledger.write(Failed(request, False, f"{error!r}"))
            return False
        if answer.code != ResponseCode.SUCCESS:
            self._ledger.write(Failed(request, False, f"{answer.code} {answer.remark}"))
            return False
        self._ledger.write(Acknowledged(request, 0, 0, (0,)))
        return True


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
    line = BrokerLine(name_server, topic)
    async with Producer(
        name_server,
        group=f"ledger-{number}",
        retries=0,
        timeout_s=TIMEOUT_S,
        compress_bytes_min=None,
    ) as producer:
        sender = Sender(number, producer, line, topic, ledger, seed)
        await asyncio.gather(*(sender.run(stopped) for _ in range(IN_FLIGHT)))
    line.close()


def main() -> None:
    """Run with the arguments of the command line."""
    name_server, topic, ledger, seed = sys.argv[1:]
    with LedgerWriter(Path(ledger)) as writer:
        asyncio.run(produce(name_server, topic, writer, int(seed)))


if __name__ == "__main__":
    main()
