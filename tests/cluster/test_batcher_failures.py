"""Batches that cannot go out: every message hears of it, and as late as a single send would."""

import asyncio
import concurrent.futures
import gc
import threading
from collections import deque
from typing import Any

import pytest
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import LIMITS, run

from pymq import Batcher, Message, Producer, SendReceipt, Transaction, blocking
from pymq.errors import ClientClosed, ConfigurationError, TooManyPending
from pymq.protocol.bodies import TopicRoute
from pymq.testing import Cluster

WAIT_S = 60.0


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


@pytest.mark.parametrize(("count", "ends"), [(5, True), (10, False)])
def test_messages_that_wait_for_an_answer_do_not_wait_for_others_after_it(
    pymq_cluster: Cluster, count: int, ends: bool
) -> None:
    """They are enough, or a flush asks for all."""

    async def test() -> None:
        async with Producer(pymq_cluster.name_server, **LIMITS) as producer:
            await producer.send(Message("T", b"first"))
            batcher = Batcher(producer, linger_s=3600, count_max=10)
            futures = [batcher.send_nowait(Message("T", b"x"), sharding_key="k") for _ in range(10)]
            gathered = batcher._gathered["T", True]
            while gathered.run:
                await asyncio.sleep(0)
            assert gathered.busy
            futures += [
                batcher.send_nowait(Message("T", b"y"), sharding_key="k") for _ in range(count)
            ]
            async with asyncio.timeout(60):
                if ends:
                    await batcher.close()
                assert all(await asyncio.gather(*futures))

    run(test())


def test_a_producer_that_closes_says_what_was_gathered_and_not_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, **LIMITS) as producer:
            await producer.send(Message("T", b"first"))
            broker.answers = [None]
            batcher = Batcher(producer, count_max=2)
            messages = [Message("T", b"x") for _ in range(6)]
            futures = [batcher.send_nowait(one, sharding_key="k") for one in messages]
            await broker.wait_sent(2)
            await producer.close(timeout_s=0.1)
            await asyncio.gather(*futures, return_exceptions=True)

    run(test())
    assert "6 messages of its Batcher had no receipt" in caplog.text


@pytest.mark.parametrize("is_reached", [True, False])
def test_what_a_batcher_has_under_way_is_not_counted_twice(
    caplog: pytest.LogCaptureFixture, is_reached: bool
) -> None:
    async def leave() -> None:
        broker = await FakeBroker().__aenter__()
        producer = await Producer(broker.address, **LIMITS).start()
        await producer.send(Message("T", b"first"))
        broker.answers = [None] * 30
        if not is_reached:  # All of it is in tasks, which the end of the loop cancels.
            producer._pool._channels.clear()
        work = [producer.send_nowait(Message("T", b"x")) for _ in range(20)]
        batcher = Batcher(producer, count_max=10, linger_s=600)
        work += [batcher.send_nowait(Message("T", b"x")) for _ in range(30)]
        if is_reached:
            work += [batcher.send_nowait(Message("T", b"x", delay_level=1))]  # It goes alone.
            await broker.wait_sent(1 + 20 + 3 + 1)
        for future in work:
            future.add_done_callback(lambda done: done.exception())

    asyncio.run(leave())
    gc.collect()
    count = 31 if is_reached else 30
    lost = f"{count} messages of its Batcher had no receipt, and 20 sends had no answer"
    assert lost in caplog.text, caplog.text


def test_a_close_in_vain_does_not_count_a_batch_twice(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, **LIMITS) as producer:
            await producer.send(Message("T", b"first"))
            broker.answers = [None] * 30
            work = [producer.send_nowait(Message("T", b"x")) for _ in range(2)]
            batcher = Batcher(producer, count_max=10, linger_s=600)
            work += [batcher.send_nowait(Message("T", b"x")) for _ in range(20)]
            await producer.close(timeout_s=0.1)
            await asyncio.gather(*work, return_exceptions=True)

    run(test())
    text = "2 sends were unanswered when the producer closed; 20 messages of its Batcher had no"
    assert text in caplog.text


def test_a_batcher_needs_an_open_producer_of_its_kind() -> None:
    async def test() -> None:
        producer = Producer("127.0.0.1:1")
        batcher = Batcher(producer)
        with pytest.raises(ClientClosed, match="never started"):
            batcher.send_nowait(Message("T", b"x"))
        with pytest.raises(ClientClosed, match="never started"):
            await batcher.send(Message("T", b"x"), sharding_key="k")
        assert batcher.unanswered_count == 0

    run(test())
    threaded: Any = blocking.Producer("127.0.0.1:1")
    ours: Any = Producer("127.0.0.1:1")
    wrong: Any
    for wrong in (None, threaded, "127.0.0.1:1"):
        also = r"; pymq\.blocking\.%s takes" if wrong is threaded else "%.0s$"
        with pytest.raises(ConfigurationError, match=r"a pymq\.Producer" + also % "Batcher"):
            Batcher(wrong)
        with pytest.raises(ConfigurationError, match=r"a pymq\.Producer" + also % "Transaction"):
            Transaction(wrong, Message("T", b"x"))
    for wrong in (None, ours):
        also = r"; pymq\.%s takes" if wrong is ours else "%.0s$"
        with pytest.raises(ConfigurationError, match="blocking.Producer" + also % "Batcher"):
            blocking.Batcher(wrong)
        with pytest.raises(ConfigurationError, match="blocking.Producer" + also % "Transaction"):
            blocking.Transaction(wrong, Message("T", b"x"))


class Interrupted(deque[Any]):
    """What is handed over, by a thread that a signal interrupts after its first message."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reached, self.go_on = threading.Event(), threading.Event()

    def append(self, handed: Any) -> None:
        super().append(handed)
        self.is_reached.set()
        self.go_on.wait(2 * WAIT_S)


def test_the_loop_does_not_wait_for_a_thread_that_hands_over(pymq_cluster: Cluster) -> None:
    """A handler of the signal may wait for it: that closes the producer, for instance."""
    with (
        blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer,
        blocking.Batcher(producer) as batcher,
    ):
        producer.send(Message("T", b"first"))
        batcher._handed = handed = Interrupted()
        futures: list[concurrent.futures.Future[SendReceipt]] = []
        sending = threading.Thread(
            target=lambda: futures.append(batcher.send_nowait(Message("T", b"x")))
        )
        sending.start()
        assert handed.is_reached.wait(WAIT_S)
        flushing = threading.Thread(target=batcher.flush, daemon=True)
        flushing.start()
        flushing.join(WAIT_S)
        is_flushed = not flushing.is_alive()
        handed.go_on.set()
        sending.join(WAIT_S)
        assert is_flushed and futures[0].done() and futures[0].result()


def test_an_interruption_keeps_no_later_message_waiting(
    pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer:
        batcher = blocking.Batcher(producer)
        with monkeypatch.context() as patched:
            patched.setattr(producer, "_soon", interrupted)
            with pytest.raises(KeyboardInterrupt):
                batcher.send_nowait(Message("T", b"x"))
        assert batcher.send_nowait(Message("T", b"y")).result(WAIT_S)
    assert {message.body for message in pymq_cluster.messages("T")} == {b"x", b"y"}
