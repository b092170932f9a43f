"""The deadline of a whole send, its retries, and what it says in the end."""

import asyncio
import itertools
import logging
import random
import re
import subprocess
import sys
from collections.abc import Awaitable
from typing import Any, Self

import pytest
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import run
from tests.cluster.scenarios import wait_until

from pymq import blocking
from pymq.client.sending.batcher import Batcher
from pymq.client.sending.producer import Producer
from pymq.client.sending.send_attempt import SendAttempt
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import (
    ConfigurationError,
    ConnectionFailed,
    PymqError,
    RequestTimeout,
    ServiceNotAvailable,
    SystemBusy,
    TooManyPending,
)
from pymq.net.server import ServerConnection
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message
from pymq.protocol.record import decode_records
from pymq.testing.cluster import Cluster

PROGRAM_S = 120.0


class Mute(FakeBroker):
    """Stops answering requests for routes after as many as the test wants."""

    routes_left = 1

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if self.routes_left == 0:
                return
            self.routes_left -= 1
        super().on_command(connection, command)


class Holding(FakeBroker):
    """Keeps sends to itself while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_holding = False
        self.kept: list[tuple[ServerConnection, Command]] = []

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        if self.is_holding and command.code == RequestCode.SEND_MESSAGE_V2:
            self.kept.append((connection, command))
        else:
            super().on_command(connection, command)

    def answer_one(self) -> None:
        if self.kept:
            super().on_command(*self.kept.pop(0))


def test_a_silent_name_server_takes_no_longer_than_the_send_may() -> None:
    async def test() -> None:
        async with Mute() as broker, Producer(broker.address, timeout_s=60) as producer:
            async with asyncio.timeout(30):
                with pytest.raises(ConnectionFailed, match="gave its route before") as failed:
                    await producer.send(Message("T", b"x"), deadline_s=0.3)
            assert failed.value.outcome_known

    run(test())


def test_known_failures_are_tried_again_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Or a machine that stands still for two seconds would have no time for all of these.
    monkeypatch.setattr("pymq.client.sending.send_retry.PAUSE_MAX_S", 0.02)

    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, deadline_s=3.0) as producer:
            broker.answers = [2] * 10_000
            with pytest.raises(SystemBusy, match=r"tried \d+ times in .* of 3 s") as refused:
                await producer.send(Message("T", b"x"))
            assert refused.value.outcome_known and refused.value.code == 2
            assert len(broker.sent) > 3
            assert len({(command.fields or {})["i"] for command in broker.sent}) == 1

    run(test())


def test_who_is_reached_too_late_for_another_attempt_leaves_the_error_of_the_last_one() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, deadline_s=2.0) as producer:
            broker.answers = [2] * 10_000
            sender = producer._sender
            reach = sender._reach

            async def reach_late(send: SendAttempt[Any]) -> Any:
                found = await reach(send)
                if send.history is not None:
                    await asyncio.sleep(send.deadline_s - sender._pool.loop.time())
                return found

            sender._reach = reach_late  # type: ignore[method-assign]
            with pytest.raises(SystemBusy) as refused:
                await producer.send(Message("T", b"x"))
            assert refused.value.outcome_known and len(broker.sent) == 1

    run(test())


def test_a_broker_that_comes_back_in_time_gets_the_message() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address) as producer:
            broker.answers = [14, 2, "close", 14, 14, 2]
            receipt = await producer.send(Message("T", b"x"))
            assert receipt.queue_offset == 0 and len(broker.sent) == 7

    run(test())


def test_a_message_for_a_queue_waits_for_a_broker_that_has_left_the_route() -> None:
    """A second broker keeps the topic's route alive; nothing goes there."""
    with Cluster(brokers=2) as cluster:
        name = cluster.broker_names[0]

        async def test() -> None:
            async with Producer(cluster.name_server, deadline_s=90) as producer:
                queues = await producer.queues("T")
                for one in queues:  # each broker makes the topic
                    await producer.send(Message("T", b"before"), queue=one)
                queue = next(one for one in queues if one.broker_name == name)
                await asyncio.to_thread(cluster.kill_broker, name)
                while name in {q.broker_name for q in await producer.queues("T")}:
                    with pytest.raises(PymqError):
                        await producer.send(Message("T", b"lost"), queue=queue, deadline_s=0.2)
                async with Batcher(producer) as batcher:
                    gathered = batcher.send_nowait(Message("T", b"gathered"), queue=queue)
                    alone = producer.send_nowait(Message("T", b"alone"), queue=queue)
                    await asyncio.sleep(0.5)
                    assert not gathered.done() and not alone.done()
                    await asyncio.to_thread(cluster.start_broker, name)
                    assert {(await gathered).queue, (await alone).queue} == {queue}

        run(test())


def test_an_attempt_gets_no_more_time_than_is_left() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, timeout_s=60) as producer:
            await producer.send(Message("T", b"first"))
            for pursued in (False, True):
                broker.answers = [None]
                if pursued:
                    producer._sender.route_changed("T")
                async with asyncio.timeout(30):
                    with pytest.raises(RequestTimeout) as late:
                        await producer.send(Message("T", b"x"), deadline_s=0.3)
                assert not late.value.outcome_known

    run(test())


def test_the_history_names_an_attempt_that_may_have_stored_it() -> None:
    async def test() -> None:
        async with (
            FakeBroker("a", "b") as broker,
            Producer(broker.address, retries=4, deadline_s=90) as producer,
        ):
            await producer.send(Message("T", b"first"))
            broker.answers = ["close", *[14] * 1000]
            with pytest.raises(ServiceNotAvailable) as refused:
                await producer.send(Message("T", b"x"))
            text = str(refused.value)
            assert not refused.value.outcome_known
            assert "was lost before" in text and "may have stored it" in text
            assert "a queue" in text and "b queue" in text

    run(test())


def test_a_deadline_must_be_one() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address) as producer:
            with pytest.raises(ConfigurationError, match="deadline_s=-1"):
                await producer.send(Message("T", b"x"), deadline_s=-1)
            assert producer.in_flight_count == 0 and not broker.sent

    run(test())


# ---------------------------------------------------------------------------------------- room


def test_bytes_in_flight_are_bounded_and_waiting_ends_at_the_deadline() -> None:
    async def test() -> None:
        async with (
            Holding() as broker,
            Producer(
                broker.address, in_flight_bytes_max=10_000, timeout_s=60, deadline_s=90, retries=0
            ) as producer,
        ):
            await producer.send(Message("T", b"first"))
            broker.is_holding = True
            futures = [producer.send_nowait(Message("T", bytes(3000))) for _ in range(4)]
            window = producer._window
            assert 10_000 <= window.size_bytes < 10_000 + 4 * 3300
            with pytest.raises(TooManyPending, match="in_flight_bytes_max"):
                producer.send_nowait(Message("T", b"x"))
            with pytest.raises(TooManyPending, match="in_flight_bytes_max") as full:
                await producer.send(Message("T", b"x"), deadline_s=0.2)
            assert full.value.outcome_known and full.value.retriable
            await wait_until(lambda: len(broker.kept) == 4, "they have come")
            assert len(broker.sent) == 1
            waiting = [
                asyncio.ensure_future(producer.send(Message("T", bytes(3000)))) for _ in range(16)
            ]
            largest = 0
            while not all(one.done() for one in waiting):
                largest = max(largest, window.size_bytes)
                broker.answer_one()
                await asyncio.sleep(0.001)
            assert largest < 10_000 + 3300
            await asyncio.gather(*waiting, *futures)
            assert (producer.in_flight_count, window.size_bytes) == (0, 0)
            broker.is_holding = False
            await producer.send(Message("T", bytes(50_000)))  # alone, it may be larger

    run(test())


def test_threads_are_held_back_as_well(pymq_cluster: Cluster) -> None:
    with blocking.Producer(
        pymq_cluster.name_server, in_flight_bytes_max=100_000, deadline_s=90
    ) as producer:
        producer.send(Message("T", b"first"))
        pymq_cluster.stop_broker()
        body = random.randbytes(30_000)  # no compression makes it smaller
        futures = [producer.send_nowait(Message("T", body)) for _ in range(4)]
        with pytest.raises(TooManyPending, match="in_flight_bytes_max"):
            producer.send_nowait(Message("T", b"x"), deadline_s=0.2)
        pymq_cluster.start_broker()
        futures += [producer.send_nowait(Message("T", body)) for _ in range(8)]
        assert len({(f.result().queue, f.result().queue_offset) for f in futures}) == 12


# ------------------------------------------------------------------------- two brokers, a restart


async def send_until(
    stopped: asyncio.Event, producer: Producer, name: str, outcomes: dict[bytes, PymqError | None]
) -> None:
    """Send one after the other; the outcome is the error, ``None`` once it is acknowledged."""
    number = 0
    while not stopped.is_set():
        message = Message("T", b"%s-%d" % (name.encode(), number))
        number += 1
        if number % 5:
            work = producer.send(message, deadline_s=0.2 if number % 3 else None)
            await note_outcome(message, work, outcomes)
        else:
            await note_outcome(message, producer.send_batch([message]), outcomes)


async def note_outcome(
    message: Message, work: Awaitable[object], outcomes: dict[bytes, PymqError | None]
) -> None:
    try:
        await work
    except PymqError as error:
        outcomes[message.body] = error
    else:
        outcomes[message.body] = None


def stored(cluster: Cluster) -> list[bytes]:
    with BlockingClient(cluster.name_server) as client:
        return [
            bytes(record.body)
            for queue, (first, end) in client.bounds(client.read_queues("T")).items()
            for chunk in client.pull_range(queue, first, end)
            for record in decode_records(chunk.buffer)
        ]


def test_nothing_acknowledged_is_lost_when_one_of_two_brokers_goes_and_comes_back() -> None:
    outcomes: dict[bytes, PymqError | None] = {}

    def acknowledged() -> set[bytes]:
        return {body for body, error in outcomes.items() if error is None}

    def given_up() -> dict[bytes, PymqError]:
        return {body: error for body, error in outcomes.items() if error and error.outcome_known}

    with Cluster(brokers=2) as cluster:

        async def test() -> None:
            async with Producer(cluster.name_server) as producer:
                await producer.send(Message("T", b"first"))
                stopped = asyncio.Event()
                sending = [
                    asyncio.ensure_future(send_until(stopped, producer, f"s{n}", outcomes))
                    for n in range(30)
                ]
                for name in cluster.broker_names:
                    before = len(acknowledged())
                    await asyncio.to_thread(cluster.kill_broker, name)
                    await asyncio.sleep(0.5)
                    await asyncio.to_thread(cluster.start_broker, name)
                    while len(acknowledged()) < before + 1000:
                        await asyncio.sleep(0.01)
                before = len(given_up())
                for name in cluster.broker_names:  # nobody is there for a while
                    await asyncio.to_thread(cluster.kill_broker, name)
                # Others may all have begun to wait for longer than that.
                for number in itertools.count():
                    if len(given_up()) > before:
                        break
                    message = Message("T", b"nobody is there %d" % number)
                    work = producer.send(message, deadline_s=0.2)
                    await note_outcome(message, work, outcomes)
                await asyncio.sleep(0.5)
                for name in cluster.broker_names:
                    await asyncio.to_thread(cluster.start_broker, name)
                stopped.set()
                await asyncio.gather(*sending)

        run(test())
        found = stored(cluster)
    known = given_up()
    assert acknowledged() - set(found) == set()
    assert {body: known[body] for body in known.keys() & set(found)} == {}
    assert len(acknowledged()) > 1000
    assert known, "no send was given up, so nothing was proven about those"


# ----------------------------------------------------------------------------------- left open

LEFT = """
import asyncio, sys
from pymq import Message, Producer

async def main():
    producer = await Producer(sys.argv[1]).start()
    await producer.send(Message("T", b"x"))
    if len(sys.argv) > 2:
        producer._pool._channels.clear()
        for _ in range(3):
            producer.send_nowait(Message(sys.argv[2], b"lost"))

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("more", "text"), [([], "no send was under way"), (["U"], "3 sends had no answer")]
)
def test_a_producer_left_open_says_what_it_lost(
    pymq_cluster: Cluster, more: list[str], text: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT, pymq_cluster.name_server, *more],
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert "left without close()" in done.stderr
    assert re.search(text, done.stderr), done.stderr


LEFT_GATHERED = """
import asyncio, sys
from pymq import Batcher, Message, Producer

async def main():
    producer = await Producer(sys.argv[1]).start()
    await producer.send(Message("T", b"x"))
    async with Batcher(producer) as batcher:
        await batcher.send(Message("T", b"x"))
    key = sys.argv[2] or None
    batcher = Batcher(producer, linger_s=600)
    for _ in range(200):
        batcher.send_nowait(Message("T", b"lost"), sharding_key=key)

asyncio.run(main())
"""


@pytest.mark.parametrize("key", ["", "k"])
def test_one_left_open_says_what_its_batchers_lost(pymq_cluster: Cluster, key: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_GATHERED, pymq_cluster.name_server, key],
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert "200 messages of its Batcher had no receipt" in done.stderr, done.stderr


def test_one_that_is_closed_says_nothing(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with Producer(pymq_cluster.name_server) as producer:
            await producer.send(Message("T", b"x"))

    with caplog.at_level(logging.WARNING, logger="pymq"):
        run(test())
    assert "without close()" not in caplog.text
