"""One of two brokers is away, frozen or restarted while producers and consumers start and run.

What was acknowledged and is really in the store must have been consumed. Groups begin at
``"latest"``, which is where something can be skipped; the queues hold messages from before, because
a broker lets a group begin at 0 in a queue that is young.
"""

import asyncio
import dataclasses
import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.cluster.played import Played
from tests.cluster.running import run
from tests.cluster.scenarios import TIMEOUT_S, wait_until
from tests.spark.two_brokers import TwoBrokers

from pymq import blocking
from pymq.client.consuming.consumer import Consumer
from pymq.client.sending.producer import Producer
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import BrokersFailed, PymqError, RequestTimeout
from pymq.protocol.command import Command
from pymq.protocol.message import Message, ReceivedMessage
from pymq.testing.cluster import Cluster

QUEUE_COUNT = 2


class Group:
    """Members of one group that note what they are given."""

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        self.got: Counter[bytes] = Counter()
        self.members: list[Consumer] = []
        self._running: list[asyncio.Task[None]] = []

    async def join(self, *wait_for: str) -> Consumer:
        """Add a member; wait until it has begun to read queues of the brokers named."""
        # A broker that is frozen does not answer in this time, but one that is slow does.
        member = await Consumer(self._name_server, "g", timeout_s=5.0).subscribe("T").start()
        self.members.append(member)
        self._running.append(asyncio.ensure_future(member.run(self._handle)))

        def has_begun() -> bool:
            readers = [r for q, r in member._parts.held.readers.items() if q.topic == "T"]
            begun = {r.queue.broker_name for r in readers if r.process_queue is not None}
            return begun >= set(wait_for) and all(
                r.process_queue is not None for r in readers if r.queue.broker_name in wait_for
            )

        await wait_until(has_begun, f"it reads {wait_for}")
        return member

    async def _handle(self, message: ReceivedMessage) -> None:
        self.got[message.body] += 1

    def read_routes(self) -> None:
        """Do at once what is done every 30 s."""
        for member in self.members:
            member._pool.routes.doubt("T")

    async def wait_for(self, bodies: set[bytes]) -> None:
        try:
            await wait_until(lambda: bodies <= self.got.keys(), "all is consumed")
        except AssertionError:
            missing = sorted(bodies - self.got.keys())
            raise AssertionError(f"{len(missing)} never came: {missing[:5]}") from None

    async def close(self) -> None:
        for member in self.members:
            await member.close()
        await asyncio.gather(*self._running)


@asynccontextmanager
async def group_of(name_server: str) -> AsyncIterator[Group]:
    group = Group(name_server)
    try:
        yield group
    finally:
        await group.close()


# --------------------------------------------------------------------------- where a group begins


@pytest.fixture
def pair() -> Iterator[tuple[Cluster, Cluster]]:
    """Two brokers at the first one's name server, with topic T and something in each queue."""
    settings = {"memory_bytes": 0}  # nothing is in memory: no queue is young
    with Cluster(broker={"name": "broker-a", **settings}) as a:
        more = {"name": "broker-b", "name_servers": (a.name_server,), **settings}
        with Cluster(broker=more) as b:
            with BlockingClient(a.name_server) as client:
                admin_of(client).topics.create("T", queue_count=QUEUE_COUNT)
            send_to_all(a, "broker-a", "old")
            send_to_all(a, "broker-b", "old")
            yield a, b


def send_to_all(cluster: Cluster, broker_name: str, prefix: str) -> set[bytes]:
    """Send a message to each queue of one broker; return the bodies."""
    bodies = set()
    with BlockingClient(cluster.name_server) as client:
        for queue in client.write_queues("T"):
            if queue.broker_name == broker_name:
                body = f"{prefix}-{broker_name}-{queue.queue_id}".encode()
                client.send(Message("T", body), queue)
                bodies.add(body)
    assert len(bodies) == QUEUE_COUNT
    return bodies


def test_a_group_that_begins_while_a_broker_is_away_misses_nothing_that_comes_later(
    pair: tuple[Cluster, Cluster],
) -> None:
    a, _ = pair

    async def test() -> None:
        await asyncio.to_thread(a.stop_broker)
        async with group_of(a.name_server) as group:
            await group.join("broker-b")
            await asyncio.to_thread(a.start_broker)
            sent = await asyncio.to_thread(send_to_all, a, "broker-a", "new")
            group.read_routes()
            await group.wait_for(sent)

    run(test())


def test_a_topic_that_is_created_after_its_consumer_is_read_from_its_beginning(
    pair: tuple[Cluster, Cluster],
) -> None:
    a, b = pair

    async def test() -> None:
        consumer = Consumer(a.name_server, "g", timeout_s=TIMEOUT_S).subscribe("later")
        async with consumer, Producer(a.name_server, timeout_s=TIMEOUT_S) as producer:
            for n in range(100):
                await producer.send(Message("later", b"%d" % n))
            got = set()
            async for message in consumer:
                got.add(int(message.body))
                if len(got) == 100:
                    break

    run(test())


def test_an_offset_that_its_broker_lost_is_known_to_the_member_that_read_the_queue(
    pair: tuple[Cluster, Cluster],
) -> None:
    a, _ = pair

    async def test() -> None:
        async with group_of(a.name_server) as group:
            member = await group.join("broker-a")
            await group.wait_for(await asyncio.to_thread(send_to_all, a, "broker-a", "first"))
            await asyncio.to_thread(a.stop_broker)
            group.read_routes()
            await wait_until(
                lambda: all(q.broker_name == "broker-b" for q in member.assignment), "it notices"
            )
            for file in (a.store / "config").glob("consumerOffset.json*"):
                file.unlink()  # what a kill takes that comes before the first flush
            await asyncio.to_thread(a.start_broker)
            sent = await asyncio.to_thread(send_to_all, a, "broker-a", "second")
            group.read_routes()
            await group.wait_for(sent)

    run(test())


def test_a_queue_of_a_topic_that_was_made_again_is_read_from_its_beginning(
    pair: tuple[Cluster, Cluster],
) -> None:
    a, _ = pair

    async def test() -> None:
        async with group_of(a.name_server) as group:
            member = await group.join("broker-a")
            for n in range(3):
                await group.wait_for(
                    await asyncio.to_thread(send_to_all, a, "broker-a", f"first{n}")
                )
            member.unsubscribe("T")
            held = member._parts.held
            await wait_until(
                lambda: all(q.topic != "T" for q in member.assignment)
                and not (held._ending or held._leaving),  # or its last commit is of the new topic
                "it gives the topic up",
            )
            with BlockingClient(a.name_server) as client:
                admin = admin_of(client)
                admin.topics.delete("T")
                admin.topics.create("T", queue_count=QUEUE_COUNT)
            sent = await asyncio.to_thread(send_to_all, a, "broker-a", "second")
            member.subscribe("T")
            await group.wait_for(sent)

    run(test())


# --------------------------------------------------------------------- under load, as processes


class Producers:
    """Producers that send one message after the other, each once."""

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = asyncio.Event()
        self.acknowledged: set[bytes] = set()
        self.failures: list[PymqError] = []

    async def start_one(self) -> None:
        producer = await Producer(self._name_server, timeout_s=TIMEOUT_S, deadline_s=90).start()
        # Who is silent for so long is left for another one.
        sender = producer._sender
        sender._config = dataclasses.replace(sender._config, timeout_s=1.0)
        self._tasks.append(asyncio.ensure_future(self._run(producer)))

    async def _run(self, producer: Producer) -> None:
        async with producer:
            while not self._stopped.is_set():
                body = f"producer-{next(self._numbers)}".encode()
                try:
                    await producer.send(Message("T", body))
                    self.acknowledged.add(body)
                except PymqError as error:
                    self.failures.append(error)
                await asyncio.sleep(0.002)

    async def wait_acknowledged(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        await wait_until(lambda: len(self.acknowledged) >= wanted, f"{count} more are acknowledged")

    async def stop(self) -> None:
        self._stopped.set()
        await asyncio.gather(*self._tasks)


def take_away(bed: TwoBrokers, name: str, how: str) -> Callable[[], None]:
    """Stop, kill or freeze a broker; return what brings it back."""
    if how == "freeze":
        bed.freeze(name)
        return lambda: bed.thaw(name)
    (bed.stop if how == "stop" else bed.kill)(name)
    return lambda: bed.start(name)


@pytest.mark.parametrize(
    ("name", "how"), [("broker-a", "kill"), ("broker-a", "freeze"), ("broker-b", "stop")]
)
def test_clients_that_start_while_a_broker_is_away_lose_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, how: str
) -> None:
    other = "broker-b" if name == "broker-a" else "broker-a"

    async def test(bed: TwoBrokers) -> None:
        async with group_of(bed.name_server) as group:
            await group.join(name, other)
            producers = Producers(bed.name_server)
            await producers.start_one()
            await producers.wait_acknowledged(100)
            bring_back = await asyncio.to_thread(take_away, bed, name, how)
            # Everybody who starts now finds the broker away, and works with the other one.
            await producers.start_one()
            await group.join(other)
            await producers.wait_acknowledged(200)
            await asyncio.to_thread(bring_back)
            await producers.start_one()
            late = await group.join()
            group.read_routes()
            await wait_until(
                lambda: (
                    {q.broker_name for m in group.members for q in m.assignment} == {name, other}
                ),
                "both brokers are read again",
            )
            await producers.wait_acknowledged(200)
            await producers.stop()
            assert any(queue.topic == "T" for queue in late.assignment)
            stored = {message.body for message in await asyncio.to_thread(bed.stored, "T")}
            assert producers.acknowledged <= stored
            assert all(not failure.outcome_known for failure in producers.failures)
            await group.wait_for(producers.acknowledged)

    with TwoBrokers(tmp_path) as bed:
        bed.create_topic("T", queue_count=QUEUE_COUNT)
        run(test(bed))
    check_warnings(caplog, name)


def check_warnings(caplog: pytest.LogCaptureFixture, name: str) -> None:
    """Each member says once that the broker is away, and nobody accuses the other broker."""
    texts = Counter(
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("pymq")
    )
    other = {"broker-a": "broker-b", "broker-b": "broker-a"}[name]
    assert not [text for text in texts if f"queues of broker {other!r}" in text]
    assert sum(texts.values()) <= 10, texts


def test_a_change_that_one_broker_did_not_answer_says_where_it_was_done(tmp_path: Path) -> None:
    changes: list[Callable[[blocking.Admin], None]] = [
        lambda admin: admin.topics.create("T"),
        lambda admin: admin.groups.create("g"),
        lambda admin: admin.groups.delete("g"),
        lambda admin: admin.topics.delete("T"),
    ]
    with (
        TwoBrokers(tmp_path) as bed,
        # The broker that is there has to make its change within this time.
        blocking.Admin(bed.name_server, timeout_s=4.0) as hasty,
        blocking.Admin(bed.name_server, timeout_s=TIMEOUT_S) as patient,
    ):
        bed.freeze("broker-b")
        for change in changes:
            with pytest.raises(BrokersFailed, match="done on broker-a; perhaps done on") as late:
                change(hasty)
            assert list(late.value.answers) == ["broker-a"]
            assert isinstance(late.value.failures["broker-b"], RequestTimeout)
            assert late.value.retriable and not late.value.outcome_known
        bed.thaw("broker-b")
        for change in changes:
            change(patient)


def test_a_name_server_that_does_not_answer_holds_up_no_new_topic(
    pymq_cluster: Cluster,
) -> None:
    def silent(_: Command) -> None:
        return None

    with Played(silent) as other:
        both = [pymq_cluster.name_server, other.address]
        with BlockingClient(both, timeout_s=2.0) as client:
            admin_of(client).topics.create("T")
            assert client.send(Message("T", b"x")).queue.topic == "T"
