"""Outcomes of messages: delay levels, refusals, copies, and who comes first."""

import asyncio
import contextlib
import copy
import dataclasses
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pymq.client.cluster.home import Home
from pymq.client.consuming.outcomes import Outcomes
from pymq.client.group.inbox import Delivery, FlowLimits, Inbox
from pymq.client.group.process_queue import ProcessQueue
from pymq.errors import AlreadySettled, ClientMisplaced, ConfigurationError, NotInHand
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.outcomes import EXPIRED, RETURNED, nearest_level, rejected, retried

QUEUE = MessageQueue("T", "broker-a", 0)
DEADLINE_S = 60.0


def message_at(offset: int) -> ReceivedMessage:
    properties = {"UNIQ_KEY": f"ID{offset}"}
    return ReceivedMessage("T", b"x", properties, "broker-a", 0, offset, 0, 0, 0, b"", b"")


class FakePool:
    """Where and whether a consumer is open."""

    def __init__(self) -> None:
        self.home = Home()
        self.is_open = True


class Taken:
    """Some messages that somebody has taken, and what was sent back of them."""

    def __init__(self, count: int) -> None:
        self.inbox = Inbox(FlowLimits())
        self.pool: Any = FakePool()
        self.sent_back: list[Delivery] = []
        failed: Any = self
        self.outcomes = Outcomes(self.inbox, failed, self.pool, consume_timeout_s=900)
        self.inbox.settler = self.outcomes
        self.queue = ProcessQueue(QUEUE, 0)
        self.inbox.deliver(self.queue, [message_at(n) for n in range(count)], count)
        taken = [self.inbox.take_nowait() for _ in range(count)]
        self.deliveries = [delivery for delivery in taken if delivery is not None]
        self.messages = [delivery.message for delivery in self.deliveries]

    def send_back_soon(self, delivery: Delivery) -> None:
        self.sent_back.append(delivery)


@pytest.mark.parametrize(
    ("after_s", "level"),
    [
        *((0, 1), (1, 1), (2.9, 1), (3, 2), (7.4, 2), (7.5, 3), (20, 4), (45, 5), (60, 5)),
        *((89, 5), (90, 6), (600, 14), (3600, 17), (5400, 18), (7200, 18), (1e9, 18)),
    ],
)
def test_the_nearest_delay_level(after_s: float, level: int) -> None:
    assert nearest_level(after_s) == level == retried(after_s).delay_level


@pytest.mark.parametrize("after_s", [-1, -0.1, float("nan"), float("inf"), "1", True, b"1"])
def test_delays_that_are_none(after_s: Any) -> None:
    with pytest.raises(ConfigurationError, match="after_s=.*: expected seconds, at least 0"):
        retried(after_s)


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        *((None, None), ("", None), (" \n", None), ("a\x01b\x02c\nd", "a b c d")),
        *(("grün 世界", "grün 世界"), ("\ud800", None), ("x" * 5_000, "x" * 1_000)),
    ],
)
def test_reasons_are_kept_as_properties_can(reason: str | None, kept: str | None) -> None:
    assert rejected(reason).reason == kept and rejected(reason).delay_level == -1


def test_a_message_of_nobody_and_copies_have_no_outcome() -> None:
    async def test() -> None:
        taken = Taken(1)
        (message,) = taken.messages
        copies = [copy.copy(message), copy.deepcopy(message), dataclasses.replace(message)]
        copies += [pickle.loads(pickle.dumps(message)), message_at(0)]
        for one in copies:
            assert one == message
            with pytest.raises(NotInHand, match="call it on what the handler or the loop was"):
                one.ack()
        message.ack()
        assert taken.inbox.message_count == 0

    asyncio.run(test())


def test_one_of_many_threads_comes_first() -> None:
    async def test() -> None:
        taken = Taken(50)
        start = threading.Barrier(4)
        wins: list[str] = []

        def settle(name: str) -> None:
            start.wait(30)
            for message in taken.messages:
                try:
                    {"ack": message.ack, "retry": message.retry, "reject": message.reject}[name]()
                    wins.append(name)
                except AlreadySettled as error:
                    assert not error.retriable

        def finish() -> None:
            start.wait(30)
            wins.extend(["end"] * len(taken.outcomes.decide(taken.deliveries, RETURNED)))

        threads = [asyncio.to_thread(settle, name) for name in ("ack", "retry", "reject")]
        await asyncio.gather(*threads, asyncio.to_thread(finish))
        await asyncio.sleep(0)
        assert len(wins) == 50
        back = wins.count("retry") + wins.count("reject")
        assert len(taken.sent_back) == back
        assert taken.inbox.message_count == 50 - wins.count("ack")

    asyncio.run(test())


@pytest.mark.parametrize(
    "work",
    [
        lambda taken: taken.outcomes.returned(taken.deliveries),
        lambda taken: taken.messages[0].ack(),
        lambda taken: taken.outcomes.close(),
    ],
)
def test_nobody_waits_for_a_thread_that_gives_outcomes(work: Callable[[Taken], object]) -> None:
    """A signal's handler, which waits for the event loop, may have interrupted that thread."""
    interrupted, go_on = threading.Event(), threading.Event()

    async def test() -> None:
        taken = Taken(2)

        def deliveries() -> Iterator[Delivery]:
            yield from taken.deliveries
            interrupted.set()
            go_on.wait(2 * DEADLINE_S)

        deciding = threading.Thread(target=taken.outcomes.decide, args=(deliveries(), EXPIRED))
        deciding.start()
        assert await asyncio.to_thread(interrupted.wait, DEADLINE_S)

        def at_work() -> None:
            with contextlib.suppress(AlreadySettled):
                work(taken)

        working = threading.Thread(target=at_work, daemon=True)
        working.start()
        await asyncio.to_thread(working.join, DEADLINE_S)
        is_waiting = working.is_alive()
        go_on.set()
        deciding.join(DEADLINE_S)
        assert not is_waiting
        assert [one.outcome for one in taken.deliveries] == [EXPIRED, EXPIRED]

    asyncio.run(test())


def test_what_is_refused_says_why() -> None:
    async def test() -> None:
        taken = Taken(4)
        done, dropped, closed, forked = taken.messages
        done.reject("no")
        with pytest.raises(AlreadySettled, match=r"^ack\(\) of message ID0 \(topic 'T'\) comes"):
            done.ack()
        forked_home = taken.pool.home
        forked_home.is_forked = True
        with pytest.raises(ClientMisplaced, match="make a client in each process"):
            forked.ack()
        forked_home.is_forked = False
        taken.inbox.drop(taken.queue)
        with pytest.raises(NotInHand, match="broker-a:0 is read by another member now"):
            dropped.retry()
        taken.queue.dropped = False
        taken.outcomes.close()
        with pytest.raises(NotInHand, match="the consumer was closed"):
            closed.retry(after_s=1)

    asyncio.run(test())


def test_after_the_end_of_the_loop() -> None:
    async def begin() -> Taken:
        return Taken(1)

    taken = asyncio.run(begin())
    refused: list[str] = []

    def settle() -> None:
        with pytest.raises(NotInHand) as late:
            taken.messages[0].ack()
        refused.append(str(late.value))

    thread = threading.Thread(target=settle)
    thread.start()
    thread.join()
    assert "its consumer's event loop has ended" in refused[0]


class Properties(dict[str, str]):
    """Can be watched, unlike messages."""


@pytest.mark.parametrize("settle", ["ack", "returned"])
def test_a_finished_message_is_freed_without_the_garbage_collector(settle: str) -> None:
    """Bodies would pile up until it runs."""

    async def test() -> None:
        taken = Taken(0)
        message = message_at(0)
        message.properties = Properties(message.properties)
        watched = weakref.ref(message.properties)
        taken.inbox.deliver(taken.queue, [message], 1)
        delivery = taken.inbox.take_nowait()
        assert delivery is not None
        gc.disable()
        try:
            if settle == "ack":
                message.ack()
            else:
                taken.outcomes.returned((delivery,))
            del message, delivery
            assert watched() is None
        finally:
            gc.enable()

    asyncio.run(test())
