"""Handlers that block, that take too long, and that are still at work at the end."""

import asyncio
import contextvars
import logging
import threading
import time
from typing import Any

import pytest
from tests.cluster.outcome_scenarios import committed
from tests.cluster.running import run
from tests.cluster.scenarios import numbers_of, receive, send_numbers, wait_until

from pymq import AlreadySettled, ConfigurationError, Consumer, ReceivedMessage, blocking
from pymq.testing import Cluster

DEADLINE_S = 60.0

#: What is said of a message that stood for too long.
TOO_LONG = "(consume_timeout_s): it is delivered again"

pytestmark = pytest.mark.usefixtures("quick_local_retry")


def consumer_of(cluster: Cluster, **options: Any) -> Consumer:
    options = {"from_where": "earliest", "timeout_s": DEADLINE_S, **options}
    return Consumer(cluster.name_server, "g", **options).subscribe("T")


def test_a_plain_handler_that_blocks_leaves_the_loop_alone(pymq_cluster: Cluster) -> None:
    """As many calls as ``concurrency`` overlap, each in a thread of its own."""
    all_at_work = threading.Barrier(4)
    ticks: list[int] = []
    ticks_seen: list[int] = []
    threads: set[str] = set()
    name = contextvars.ContextVar("name", default="none")

    def handler(message: ReceivedMessage) -> None:
        before = len(ticks)
        all_at_work.wait(DEADLINE_S)
        deadline_s = time.monotonic() + DEADLINE_S
        while len(ticks) < before + 3 and time.monotonic() < deadline_s:
            threading.Event().wait(0.01)
        ticks_seen.append(len(ticks) - before)
        threads.add(threading.current_thread().name)
        assert name.get() == "caller"

    async def work() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(8))
        name.set("caller")
        async with consumer_of(pymq_cluster) as consumer:
            running = asyncio.ensure_future(consumer.run(handler, concurrency=4))
            while not running.done() and len(ticks_seen) < 8:
                ticks.append(1)
                await asyncio.sleep(0.01)
        await running

    run(work())
    assert min(ticks_seen) >= 3
    assert threads == {f"pymq g {number}" for number in range(4)}
    assert committed(pymq_cluster.name_server, "T", "g") == 8


def test_what_takes_too_long_goes_back_and_is_said_once(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The same in a task, in a thread, and in a loop; a late outcome is refused."""
    tries: list[int] = []
    late: list[str] = []
    go_on = threading.Event()

    def slow(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        if message.reconsume_times == 0:
            assert go_on.wait(DEADLINE_S)
            try:
                message.ack()
            except AlreadySettled as error:
                late.append(str(error))

    async def slow_later(message: ReceivedMessage) -> None:
        await asyncio.to_thread(slow, message)

    async def loop(consumer: Consumer) -> None:
        async for message in consumer:
            await slow_later(message)

    async def work(way: str) -> None:
        tries.clear()
        go_on.clear()
        caplog.clear()
        await send_numbers(pymq_cluster.name_server, "T", range(1))
        async with consumer_of(pymq_cluster, consume_timeout_s=0.4) as consumer:
            if way == "loop":
                several = [asyncio.ensure_future(loop(consumer)) for _ in range(2)]
            else:
                handler: Any = slow if way == "thread" else slow_later
                several = [asyncio.ensure_future(consumer.run(handler))]
            await wait_until(lambda: TOO_LONG in caplog.text, "it goes back")
            # The next try may take its time, too, on a machine that is held up.
            consumer._outcomes._consume_timeout_s = DEADLINE_S
            await wait_until(lambda: tries == [0, 1], "it comes again")
            go_on.set()
            await wait_until(lambda: not consumer.backlog_count, "all are finished")
        await asyncio.gather(*several)
        texts = [record.getMessage() for record in caplog.records]
        said = [text for text in texts if TOO_LONG in text]
        assert len(said) == 1 and "(topic 'T', broker-a:" in said[0]
        stands = [text for text in texts if " stands still behind message " in text]
        assert len(stands) == 1 and "which " in stands[0]
        if way != "loop":
            for text in (*said, *stands):
                assert "handler test_what_takes" in text and " has had" in text

    with caplog.at_level(logging.WARNING, "pymq.client"):
        for way in ("task", "thread", "loop"):
            run(work(way))
    assert len(late) == 3
    assert all("it was not finished in time (consume_timeout_s)" in text for text in late)
    assert committed(pymq_cluster.name_server, "T", "g") == 3


def test_threads_that_are_not_done_at_the_end_are_left_and_their_messages_come_again(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    begun = threading.Event()

    def handler(message: ReceivedMessage) -> None:
        begun.set()
        go_on.wait(DEADLINE_S)

    async def work() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(3))
        consumer = consumer_of(pymq_cluster, close_timeout_s=0.1)
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handler, concurrency=1))
            await asyncio.to_thread(begun.wait)
            await wait_until(lambda: consumer.backlog_count == 3, "all are there")
        await running  # The thread is left behind.
        async with consumer_of(pymq_cluster) as again:
            assert numbers_of(await receive(again, 3)) == [0, 1, 2]
        go_on.set()

    with caplog.at_level(logging.INFO, "pymq.client"):
        run(work())
    assert "1 handlers were not done within 0.1 s (close_timeout_s); threads cannot" in caplog.text
    left = "closed; 1 messages that handlers or loops had are not finished, 2 others were pulled"
    assert caplog.text.count(left) == 1


def test_a_handler_may_close_its_consumer(pymq_cluster: Cluster) -> None:
    class Last:
        """Called like a coroutine function."""

        async def __call__(self, message: ReceivedMessage) -> None:
            message.ack()
            await consumer.close()

    class Inherited(Last):
        pass

    consumer = consumer_of(pymq_cluster, close_timeout_s=DEADLINE_S)

    async def work() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(1))
        async with consumer:
            await consumer.run(Inherited())

    begun_s = time.monotonic()
    run(work())
    assert time.monotonic() - begun_s < DEADLINE_S
    assert committed(pymq_cluster.name_server, "T", "g") == 1


def test_run_ends_when_nothing_comes_and_a_commit_is_answered(pymq_cluster: Cluster) -> None:
    asyncio.run(send_numbers(pymq_cluster.name_server, "T", range(10)))
    with blocking.Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe(
        "T"
    ) as consumer:
        handled: list[int] = []
        while len(handled) < 10:
            consumer.run(lambda message: handled.append(int(message.body)), timeout_s=1)
        assert sorted(handled) == list(range(10))
        consumer.commit()
        assert committed(pymq_cluster.name_server, "T", "g") == 10


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timeout_s": 0}, "timeout_s=0: expected seconds"),
        ({"timeout_s": "1"}, "timeout_s='1': expected seconds"),
        ({"concurrency": 0}, "concurrency=0: expected 1..1000"),
        ({"concurrency": 1001}, "concurrency=1001: expected 1..1000"),
        ({"batch_size": 0}, "batch_size=0: expected a whole number"),
    ],
)
def test_wrong_arguments_of_run(
    pymq_cluster: Cluster, options: dict[str, Any], text: str
) -> None:
    async def work() -> None:
        async with consumer_of(pymq_cluster) as consumer:
            with pytest.raises(ConfigurationError, match=text):
                await consumer.run(print, **options)

    run(work())
    with pytest.raises(ConfigurationError, match="consume_timeout_s=0: expected seconds"):
        consumer_of(pymq_cluster, consume_timeout_s=0)
