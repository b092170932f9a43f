"""Batches that cannot go out: every message hears of it, and as late as a single send would."""

import asyncio

from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import LIMITS, run

from pymq import Batcher, Message, Producer
from pymq.errors import TooManyPending
from pymq.protocol.bodies import TopicRoute


class Masterless(FakeBroker):
    """Names only a slave while it has no master; counts how often it was asked."""

    has_master = False
    asked = 0

    def route(self) -> TopicRoute:
        self.asked += 1
        route = super().route()
        if not self.has_master:
            for broker in route.brokers:
                broker.addresses = {1: broker.addresses[0]}
        return route


def test_messages_with_places_wait_for_a_master() -> None:
    async def test() -> None:
        async with (
            Masterless() as broker,
            Producer(broker.address, **LIMITS) as producer,
            Batcher(producer) as batcher,
        ):
            futures = [
                batcher.send_nowait(Message("T", b"x"), sharding_key="k"),
                batcher.send_nowait(Message("T", b"y"), selector=lambda queues: queues[0]),
                batcher.send_nowait(Message("T", b"z")),
            ]
            while broker.asked < 4:
                await asyncio.sleep(0.005)
            assert not any(future.done() for future in futures)
            broker.has_master = True
            assert all(receipt.message_id for receipt in await asyncio.gather(*futures))

    run(test())


def test_messages_that_their_connection_has_no_room_for_fail() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, **LIMITS) as producer:
            await producer.send(Message("T", b"first"))
            for channel in producer._pool._channels.values():
                channel._table.pending_max = 1
            broker.answers = [None]
            unanswered = producer.send_nowait(Message("T", b"x"))
            await broker.wait_sent(2)
            batcher = Batcher(producer, count_max=2, linger_s=0.01)
            futures = [batcher.send_nowait(Message("T", b"%d" % n)) for n in range(5)]
            async with asyncio.timeout(60):
                await batcher.close()
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert {type(one) for one in results} == {TooManyPending}
            assert batcher.unanswered_count == 0 and not unanswered.done()
            broker.server.abort_connections()
            await unanswered

    run(test())
