"""The end of a producer that is closed under difficulties: nothing goes on behind our back."""

import asyncio

import pytest
from tests.cluster.children import in_child
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import LIMITS, run

from pymq import Batcher, Message, Producer, PymqError
from pymq.errors import ClientClosed
from pymq.net.server import ServerConnection
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command


def client_tasks() -> list[str]:
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("client")]


class Detaining(FakeBroker):
    """Does not answer farewells until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.farewell: tuple[ServerConnection, Command] | None = None

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        if command.code == RequestCode.UNREGISTER_CLIENT:
            self.farewell = (connection, command)
        else:
            super().on_command(connection, command)

    def answer_farewell(self) -> None:
        assert self.farewell is not None
        super().on_command(*self.farewell)


def test_a_close_that_is_cancelled_leaves_nothing_open() -> None:
    async def test() -> None:
        async with FakeBroker() as broker:
            producer = await Producer(broker.address, **LIMITS).start()
            await producer.send(Message("T", b"first"))
            batcher = Batcher(producer, linger_s=3600)
            broker.answers = [None]
            unanswered = producer.send_nowait(Message("T", b"x"))
            closing = asyncio.create_task(producer.close(60))
            await broker.wait_sent(2)
            assert client_tasks()
            gathered = batcher.send_nowait(Message("T", b"y"))
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert client_tasks() == []
            with pytest.raises(PymqError) as lost:
                await unanswered
            assert not lost.value.outcome_known
            with pytest.raises(ClientClosed):
                await gathered

    run(test())


def test_who_closes_it_again_returns_when_it_is_closed() -> None:
    async def test() -> None:
        async with Detaining() as broker:
            producer = await Producer(broker.address, **LIMITS).start()
            await producer.send(Message("T", b"first"))
            first = asyncio.create_task(producer.close())
            while broker.farewell is None:
                await asyncio.sleep(0.005)
            second = asyncio.create_task(producer.close())
            await asyncio.wait([first, second], timeout=0.3)
            assert not first.done() and not second.done()
            broker.answer_farewell()
            await asyncio.gather(first, second)
            assert client_tasks() == []

    run(test())


def test_who_the_first_close_waits_for_does_not_wait_for_it() -> None:
    """A task of the producer's own, such as one that checks a transaction."""

    async def test() -> None:
        async with Detaining() as broker:
            producer = await Producer(broker.address, **LIMITS).start()
            await producer.send(Message("T", b"first"))
            first = asyncio.create_task(producer.close())
            while broker.farewell is None:
                await asyncio.sleep(0.005)
            checking = producer._pool.spawn("check", producer.close())
            await asyncio.wait([first, checking], return_when=asyncio.FIRST_COMPLETED)
            assert checking.done() and not checking.cancelled()
            assert not first.done()
            broker.answer_farewell()
            await first

    run(test())


def test_a_child_does_not_wait_for_a_close_of_its_parent() -> None:
    async def test() -> None:
        async with Detaining() as broker:
            producer = await Producer(broker.address, **LIMITS).start()
            await producer.send(Message("T", b"first"))
            first = asyncio.create_task(producer.close())
            while broker.farewell is None:
                await asyncio.sleep(0.005)

            async def close() -> str:
                await asyncio.wait_for(producer.close(), 60)
                return "closed"

            assert in_child(lambda: asyncio.run(close())) == "closed"
            broker.answer_farewell()
            await first

    run(test())


def test_a_producer_that_was_closed_before_it_started_stays_closed() -> None:
    async def test() -> None:
        producer = Producer("127.0.0.1:1")
        for _ in range(2):
            await producer.close()
        with pytest.raises(ClientClosed):
            await producer.start()

    run(test())
