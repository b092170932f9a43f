"""Java and pymq consumers in one group: in order, sharing, broadcasting, while members come and go.

Nothing is lost; what is handled again is explained by a queue that moved.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.cluster.in_order import OrderLog, send_keys
from tests.cluster.scenarios import wait_until
from tests.interop.conftest import RealCluster, require_peers, some
from tests.interop.java_admin import JavaAdmin
from tests.interop.java_client import JavaPushConsumer
from tests.interop.jvm import JavaClient
from tests.interop.peers import RealBroker, RealNameServer
from tests.interop.test_moving_group import Delivery, unexplained

from pymq.client.cluster.network import Network
from pymq.client.consuming.consumer import Consumer
from pymq.client.sending.producer import Producer
from pymq.protocol.message import Message, ReceivedMessage
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

OURS: Final = "pymq"
CLIENT: Final = "5.3.3"
#: A Java client, and whose brokers: two of ours, or an official one.
PAIRS: Final = some(
    [(CLIENT, OURS), ("4.9.7", OURS), (CLIENT, CLIENT), ("4.9.7", "4.9.7")],
    (CLIENT, OURS),
    (CLIENT, CLIENT),
)
QUEUE_COUNT: Final = 8
COUNT: Final = 40
FROM: Final = "earliest"
DEADLINE_S: Final = 120.0


class Site:
    """A Java client, brokers, a topic and a group that nobody used before."""

    def __init__(self, client: JavaClient, name_server: str) -> None:
        self.client = client
        self.name_server = name_server
        self.topic = f"mixed-{uuid.uuid4().hex[:12]}"
        self.group = f"g-{self.topic}"

    def pymq(self, **options: Any) -> Consumer:
        consumer = Consumer(self.name_server, self.group, from_where=FROM, **options)
        return consumer.subscribe(self.topic)

    def java(self, take: Callable[[Sequence[Any]], None], **options: Any) -> JavaMember:
        return JavaMember(self, take, **options)


class JavaMember(JavaPushConsumer):
    """A Java consumer that hands what it is given to a function first, in the listener's thread."""

    def __init__(self, site: Site, take: Callable[[Sequence[Any]], None], **options: Any) -> None:
        self._hand_on = take
        super().__init__(site.client, site.group, site.name_server, site.topic, **options)

    def _take(self, java_messages: Sequence[Any]) -> bool:
        self._hand_on(self._reader.read(java_messages))
        return super()._take(java_messages)


@pytest.fixture(scope="module")
def ours() -> Iterator[Cluster]:
    with Cluster(brokers=2) as running:
        yield running


@pytest.fixture
def site(
    request: pytest.FixtureRequest,
    ours: Cluster,
    java_client: Callable[[str], JavaClient],
    java_admin: Callable[[str, str], JavaAdmin],
    real_cluster: Callable[[str], RealCluster],
) -> Site:
    version, broker = request.param
    if broker == OURS:
        found = Site(java_client(version), ours.name_server)
    else:
        address = real_cluster(broker).name_server.address
        found = Site(java_client(version), address)
    java_admin(version, found.name_server).create_topic(found.topic, QUEUE_COUNT)
    return found


def on_pairs(test: Callable[..., None]) -> Callable[..., None]:
    pairs = [
        pytest.param(one.values, marks=one.marks, id="-".join(map(str, one.values)))
        for one in PAIRS
    ]
    return pytest.mark.parametrize("site", pairs, indirect=True)(test)


@asynccontextmanager
async def running(consumer: Consumer, handler: Callable[[Any], Any]) -> AsyncIterator[Consumer]:
    async with consumer:
        run = asyncio.ensure_future(consumer.run(handler))
        try:
            yield consumer
        finally:
            await consumer.close()
            await run


def seeded() -> random.Random:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    return random.Random(seed)


# --- in order


@on_pairs
def test_a_group_in_order(site: Site) -> None:
    log = OrderLog(seeded())

    def java_takes(member: str, messages: Sequence[Any]) -> None:
        for message in messages:
            log.begin(member, message)
            log.end(message)

    async def test() -> None:
        def java(name: str) -> JavaMember:
            return site.java(functools.partial(java_takes, name), listener="orderly")

        sent = 0
        is_enough = asyncio.Event()

        async def send(producer: Producer) -> None:
            """Send until members that come have got something, however long that takes."""
            nonlocal sent
            while sent < 2 * COUNT or not is_enough.is_set():
                await send_keys(producer, site.topic, range(sent, sent + 1))
                sent += 1
                if sent > 2 * COUNT:
                    await asyncio.sleep(0.02)

        async def send_more(producer: Producer) -> int:
            await send_keys(producer, site.topic, range(sent, sent + COUNT))
            return sent + COUNT

        async with Producer(site.name_server) as producer:
            sending = asyncio.ensure_future(send(producer))
            java_one = await asyncio.to_thread(java, "java 1")
            await wait_until(lambda: log.has_all(3), "the first ones")
            async with running(
                site.pymq(orderly=True), functools.partial(log.handle, "pymq 1")
            ) as pymq_one:
                await wait_until(lambda: "pymq 1" in log.members, "pymq takes part")
                is_enough.set()
                java_two = await asyncio.to_thread(java, "java 2")
                async with running(
                    site.pymq(orderly=True), functools.partial(log.handle, "pymq 2")
                ):
                    await sending
                    sent = await send_more(producer)
                    await asyncio.to_thread(java_one.close)
                    sent = await send_more(producer)
                    await wait_until(lambda: log.has_all(sent), "all of them")
                # One of each is left.
                sent = await send_more(producer)
                await wait_until(lambda: log.has_all(sent), "all of them")
                assert pymq_one.assignment
            sent = await send_more(producer)
            await wait_until(lambda: log.has_all(sent), "java 2 goes on alone")
            await asyncio.to_thread(java_two.close)

    asyncio.run(test())
    print(log.members, "handled again:", log.again_after)
    assert log.wrong == []
    # A Java member drops what it is working on when a queue moves; ours finish and commit it.
    assert not [name for name in log.again_after if name.startswith("pymq")]
    assert {"java 1", "pymq 1"} <= log.members


@pytest.mark.parametrize("kind", [OURS, *some([("4.9.7",), (CLIENT,)], (CLIENT,))])
def test_a_broker_is_killed_while_a_mixed_group_is_in_order(
    kind: str,
    ours: Cluster,
    java_client: Callable[[str], JavaClient],
    java_admin: Callable[[str, str], JavaAdmin],
) -> None:
    log = OrderLog(seeded())
    client = java_client(CLIENT)

    def java_takes(messages: Sequence[Any]) -> None:
        for message in messages:
            log.begin("java", message)
            log.end(message)

    async def test(site: Site, restart: Callable[[], None]) -> None:
        java = await asyncio.to_thread(site.java, java_takes, listener="orderly")
        async with (
            Producer(site.name_server, deadline_s=60) as producer,
            running(site.pymq(orderly=True), functools.partial(log.handle, "pymq")),
        ):
            await send_keys(producer, site.topic, range(COUNT))
            await wait_until(lambda: log.has_all(COUNT), "what was sent before")
            sent = COUNT
            deadline = time.monotonic() + DEADLINE_S
            while log.members != {"java", "pymq"}:
                assert time.monotonic() < deadline, f"only {log.members} take part"
                await send_keys(producer, site.topic, range(sent, sent + 10))
                sent += 10
            queues = await producer.queues(site.topic)
            await asyncio.to_thread(restart)
            await wait_until(lambda: log.has_all(sent), "what was sent before")
            # A key has another queue as long as some are missing.
            deadline = time.monotonic() + DEADLINE_S
            while await producer.queues(site.topic) != queues:
                assert time.monotonic() < deadline, "the producer does not find all queues again"
                await asyncio.sleep(0.05)
            await send_keys(producer, site.topic, range(sent, sent + COUNT))
            await wait_until(lambda: log.has_all(sent + COUNT), "all of them")
        await asyncio.to_thread(java.close)

    with ExitStack() as stack:
        if kind == OURS:
            site = Site(client, ours.name_server)

            def restart() -> None:
                ours.kill_broker(ours.broker_name)
                ours.start_broker(ours.broker_name)
        else:
            require_peers(kind)
            name_server = stack.enter_context(RealNameServer(kind))
            brokers = [
                stack.enter_context(
                    RealBroker(kind, [name_server.address], brokerName=f"broker-{letter}")
                )
                for letter in "ab"
            ]
            site = Site(client, name_server.address)

            def restart() -> None:
                brokers[0].kill()
                brokers[0].start()

        java_admin(CLIENT, site.name_server).create_topic(site.topic, QUEUE_COUNT)
        asyncio.run(test(site, restart))
    print(log.again_count, "handled again")
    skipped = [one for one in log.wrong if "expected" in one]
    assert skipped == [], "a broker that has forgotten its locks may have two at work on one key"


# --- sharing


@on_pairs
def test_a_group_that_shares(site: Site) -> None:
    deliveries: list[Delivery] = []

    def note(member: int, message: Any, broker: str) -> None:
        queue_id = message.queue_id + QUEUE_COUNT * (broker == "broker-b")
        time_ms = int(time.monotonic() * 1000)
        deliveries.append(
            Delivery(int(message.body), member, queue_id, message.queue_offset, time_ms)
        )

    def java_takes(member: int, messages: Sequence[Any]) -> None:
        for message in messages:
            note(member, message, message.properties["broker"])

    async def pymq_takes(member: int, message: ReceivedMessage) -> None:
        note(member, message, message.properties["broker"])

    async def test() -> None:
        sent: set[int] = set()
        is_over = asyncio.Event()

        async def send(producer: Producer) -> None:
            queues = await producer.queues(site.topic)
            while not is_over.is_set():
                number = len(sent)
                queue = queues[number % len(queues)]
                message = Message(
                    site.topic, b"%d" % number, properties={"broker": queue.broker_name}
                )
                await producer.send(message, queue=queue)
                sent.add(number)
                await asyncio.sleep(0.002)

        async def takes_part(member: int) -> None:
            begun = len(deliveries)
            await wait_until(
                lambda: member in {one.consumer for one in deliveries[begun:]}, f"member {member}"
            )

        async with Producer(site.name_server) as producer:
            sending = asyncio.ensure_future(send(producer))
            java = await asyncio.to_thread(site.java, functools.partial(java_takes, 0))
            await takes_part(0)
            async with running(site.pymq(), functools.partial(pymq_takes, 1)):
                await takes_part(1)
                async with running(site.pymq(), functools.partial(pymq_takes, 2)):
                    await takes_part(2)
                    await asyncio.to_thread(java.close)
                    java = await asyncio.to_thread(site.java, functools.partial(java_takes, 3))
                    await takes_part(3)
                await takes_part(1)
            await takes_part(3)
            is_over.set()
            await sending
            await wait_until(lambda: {one.number for one in deliveries} == sent, "all of them")
            await asyncio.to_thread(java.close)

    asyncio.run(test())
    places = {(one.queue_id, one.queue_offset) for one in deliveries}
    again = len(deliveries) - len(places)
    print(again, "delivered again to", {one.consumer for one in deliveries})
    assert not unexplained(deliveries)


# --- broadcasting


@on_pairs
def test_a_group_that_broadcasts(site: Site, tmp_path: Path) -> None:
    got: dict[str, list[int]] = {"java": [], "pymq": []}

    async def pymq_takes(message: ReceivedMessage) -> None:
        got["pymq"].append(int(message.body))

    def java_takes(messages: Sequence[Any]) -> None:
        got["java"].extend(int(message.body) for message in messages)

    async def test() -> None:
        options = {"message_model": "BROADCASTING"}
        async with Producer(site.name_server) as producer:
            java = await asyncio.to_thread(site.java, java_takes, **options)
            async with running(site.pymq(local_offsets_dir=tmp_path, **options), pymq_takes):
                for number in range(COUNT):
                    await producer.send(Message(site.topic, b"%d" % number))
                for name in got:
                    await wait_until(lambda n=name: len(got[n]) >= COUNT, f"all at {name}")  # type: ignore[misc]
            await asyncio.to_thread(java.close)

    asyncio.run(test())
    assert {name: sorted(numbers) for name, numbers in got.items()} == dict.fromkeys(
        got, list(range(COUNT))
    )


@on_pairs
def test_each_goes_on_where_the_other_left_its_file(site: Site) -> None:
    root = site.client.home / "offsets"  # where the JVM was told to keep them
    name = f"member-{site.topic}"
    options = {"message_model": "BROADCASTING"}
    got: list[int] = []

    async def pymq_takes(message: ReceivedMessage) -> None:
        got.append(int(message.body))

    def java_takes(messages: Sequence[Any]) -> None:
        got.extend(int(message.body) for message in messages)

    async def test() -> None:
        async with Producer(site.name_server) as producer:
            for turn in range(4):
                until = (turn + 1) * COUNT
                for number in range(turn * COUNT, until):
                    await producer.send(Message(site.topic, b"%d" % number))

                def has_all(until: int = until) -> bool:
                    return len(got) >= until

                if turn % 2 == 0:
                    network = Network(instance_name=name)
                    consumer = site.pymq(local_offsets_dir=root, network=network, **options)
                    async with running(consumer, pymq_takes):
                        await wait_until(has_all, "pymq's turn")
                        while consumer.backlog_count:
                            await asyncio.sleep(0.02)
                        assert consumer.client_id == f"127.0.0.1@{name}"
                else:
                    java = await asyncio.to_thread(
                        site.java, java_takes, InstanceName=name, ClientIP="127.0.0.1", **options
                    )
                    await wait_until(has_all, "Java's turn")
                    await asyncio.to_thread(java.close)

    asyncio.run(test())
    assert sorted(got) == list(range(4 * COUNT)), "neither skips nor repeats"
    kept = [path.name for path in (root / f"127.0.0.1@{name}" / site.group).iterdir()]
    assert sorted(kept) == ["offsets.json", "offsets.json.bak"]
