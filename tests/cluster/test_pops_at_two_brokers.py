"""A group pops from two brokers, and one of them stops and starts again."""

import asyncio
import time
from pathlib import Path

from tests.cluster.broker_peer import Peer, connect, create_topic
from tests.cluster.pops import PopConsumer, PoppedMessage

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.errors import PymqError
from pymq.protocol.codes import ResponseCode
from pymq.store import StoreConfig

DEADLINE_S = 240.0
NAMES = ("one", "two")
COUNT = 60
INVISIBLE_S = 2.0
#: Of that, brokers and tests count with other clocks.
CLOCKS_S = 0.1


class Place:
    """One of the brokers, over its restarts.

    Attributes:
        broker: None while it is stopped.
        seen: how many attempts each message had when it was popped last.
        done: messages that somebody acknowledged.
        doubtful: those of which it is not certain that this counted: there was no answer, or it
            came when their invisible time was over.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.broker: Broker | None = None
        self.seen: dict[bytes, int] = {}
        self.done: set[bytes] = set()
        self.doubtful: set[bytes] = set()

    async def start(self) -> None:
        self.broker = Broker(
            BrokerConfig(
                listen_port=0,
                name=self.name,
                # A disk or a machine that is busy is no reason to refuse messages.
                fast_failure=False,
                page_cache_busy_ms=60_000,
                sync_flush_timeout_ms=60_000,
            ),
            StoreConfig(root_path=self.path, segment_bytes=1 << 20, disk_free_enough_bytes=1),
        )
        await self.broker.start()

    async def stop(self) -> None:
        broker, self.broker = self.broker, None
        assert broker is not None
        await broker.close()

    async def consume(self) -> None:
        """Pop and acknowledge, wherever the broker is, until all is done."""
        while len(self.done) < COUNT:
            try:
                assert self.broker is not None
                peer = await connect(self.broker)
            except (PymqError, AssertionError):
                await asyncio.sleep(0.02)
                continue
            try:
                await self._consume(PopConsumer(peer, broker_name=self.name))
            except PymqError:
                pass
            finally:
                peer.channel.close()

    async def _consume(self, consumer: PopConsumer) -> None:
        while len(self.done) < COUNT:
            asked_s = time.monotonic()
            answer = await consumer.ask(
                maxMsgNums=3, invisibleTime=int(INVISIBLE_S * 1000), pollTime=200
            )
            if answer.code != ResponseCode.SUCCESS:
                await asyncio.sleep(0.01)  # nothing there, or about to stop
                continue
            until_s = asked_s + INVISIBLE_S - CLOCKS_S
            messages = consumer.messages(answer)
            # All at once, before any is acknowledged: on a busy machine, those that wait for that
            # may be popped again by the other one. So may all of an answer that comes late.
            if time.monotonic() < until_s:
                for message in messages:
                    self._note(message)
            for message in messages:
                if message.body not in self.done:
                    self.done.add(message.body)
                    self.doubtful.add(message.body)
                answer = await consumer.ack(message)
                if answer.code == ResponseCode.SUCCESS and time.monotonic() < until_s:
                    self.doubtful.discard(message.body)

    def _note(self, message: PoppedMessage) -> None:
        """A message comes again only if nobody heard that it is done, with more attempts."""
        body, attempts = message.body, message.record.reconsume_times
        is_over = body in self.done - self.doubtful
        assert not is_over, f"{body!r} was acknowledged, and comes again"
        assert attempts > self.seen.get(body, -1), f"{body!r} came twice as attempt {attempts}"
        self.seen[body] = attempts


async def send(peer: Peer, first: int, end: int) -> None:
    for n in range(first, end):
        answer = await peer.send("T", b"%d" % n, queue_id=n % 2)
        assert answer.code == ResponseCode.SUCCESS


async def prepare(place: Place) -> None:
    await place.start()
    assert place.broker is not None
    peer = await connect(place.broker)
    await create_topic(peer, "T", queues=2)
    await send(peer, 0, COUNT // 3)
    peer.channel.close()


async def fill(place: Place, first: int, end: int) -> None:
    assert place.broker is not None
    peer = await connect(place.broker)
    await send(peer, first, end)
    peer.channel.close()


async def wait_done(place: Place, count: int) -> None:
    while len(place.done) < count:
        await asyncio.sleep(0.01)


def test_one_restarts_while_consumers_pop_from_both(tmp_path: Path) -> None:
    async def run() -> None:
        one, two = (Place(tmp_path / name, name) for name in NAMES)
        for place in (one, two):
            await prepare(place)
        async with asyncio.TaskGroup() as consumers:
            for place in (one, two):
                for _ in range(2):
                    consumers.create_task(place.consume())
            await wait_done(two, COUNT // 6)
            await two.stop()
            await fill(one, COUNT // 3, COUNT)
            await wait_done(one, COUNT)  # what the other does is no reason to wait
            await two.start()
            await fill(two, COUNT // 3, 2 * COUNT // 3)
            await wait_done(two, COUNT // 2)
            await two.stop()
            await two.start()
            await fill(two, 2 * COUNT // 3, COUNT)
        for place in (one, two):
            assert len(place.done) == COUNT
            await place.stop()

    async def in_time() -> None:
        await asyncio.wait_for(run(), DEADLINE_S)

    asyncio.run(in_time())
