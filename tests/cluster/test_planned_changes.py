"""A master gives its role away and stays, as a slave: who asks it finds the new one at once.

Nobody's connection is lost, and what a slave refuses, or answers all the same, says nothing of
another master. Over real sockets, with the brokers of a group and their controller in this process.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.administration import admin_of
from tests.cluster.running import LIMITS, PATIENT, TIMEOUT_S, ask, run
from tests.cluster.scenarios import wait_until
from tests.cluster.test_failover import elect

from pymq import Admin, PullConsumer, Reader, SimpleConsumer, blocking
from pymq.client import operations
from pymq.client.consuming.consumer import Consumer
from pymq.client.sending.producer import Producer
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import CommitFailed, PymqError, ServiceNotAvailable
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message, ReceivedMessage
from pymq.testing import Cluster

#: By then a client has found the new master by itself: less than the age at which it reads a route
#: again, or asks again for a lock, and more than a busy machine needs.
SOON_S = 12.0
#: Kinds of clients that read, each a topic of that name in group ``g-`` and that name.
READERS = ("push", "order", "all", "asked", "face", "pull", "auto", "pop", "range", "bulk")

Step = Callable[[bytes], Awaitable[None]]


@pytest.fixture(params=[False, True], ids=["", "slaveReadEnable"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A group of two brokers, whose slave may be read from or not."""
    broker: Any = {"slave_read": request.param}
    with Cluster(replicas=2, replication=PATIENT, broker=broker) as running:
        running.wait_in_sync()
        with BulkClient(running.name_server, timeout_s=TIMEOUT_S) as client:
            for topic in READERS:
                admin_of(client).topics.create(topic, queue_count=1)
                admin_of(client).groups.create(f"g-{topic}")
            client.send(Message("bulk", b"first"))
        yield running


class Clients:
    """Clients of every kind, and what each can do; its steps raise until they succeed."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self.got: dict[str, set[bytes]] = {topic: set() for topic in READERS}
        self.sent: set[bytes] = set()
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start them, and close them in the end."""
        enter = self._stack.enter_async_context
        servers = self._cluster.name_server
        begin: dict[str, Any] = {"from_where": "earliest"}
        async with self._stack:
            self.producer = await enter(Producer(servers, **LIMITS))
            self.asker = await enter(Producer(servers, group="askers", **LIMITS))
            self.admin = await enter(Admin(servers))
            self.reader = await enter(Reader(servers))
            self.pull = PullConsumer(servers, "g-pull", auto_commit=False, **begin)
            self.auto = PullConsumer(servers, "g-auto", **begin)
            self.simple = SimpleConsumer(servers, "g-pop", **begin)
            for consumer, topic in ((self.pull, "pull"), (self.auto, "auto"), (self.simple, "pop")):
                await enter(consumer.subscribe(topic))
            kinds: dict[str, dict[str, Any]] = {
                "push": {},
                "order": {"orderly": True},
                "all": {"message_model": "BROADCASTING", "local_offsets_dir": self._folder},
                "asked": {},
            }
            for topic, options in kinds.items():
                member = Consumer(servers, f"g-{topic}", **begin, **options).subscribe(topic)
                await enter(member)
                self._tasks.append(asyncio.ensure_future(member.run(self._handle)))
            self.bulk = BulkClient(servers, read_deadline_s=SOON_S)
            self._stack.callback(self.bulk.close)
            face = blocking.Consumer(servers, "g-face", **begin).subscribe("face")
            await asyncio.to_thread(face.start)
            self._stack.push_async_callback(asyncio.to_thread, face.close)
            self._tasks.append(asyncio.ensure_future(asyncio.to_thread(face.run, self._note)))
            yield
        await asyncio.gather(*self._tasks)

    async def _handle(self, message: ReceivedMessage) -> None:
        if message.topic == "asked":
            await self.asker.reply(message, b"reply to " + message.body)
        self._note(message)

    def _note(self, message: ReceivedMessage) -> None:
        self.got[message.topic].add(message.body)

    def steps(self) -> dict[str, Step]:
        """Return what is to succeed with each new body, by name."""
        handled = ("push", "order", "all", "face")
        return {
            **{f"{topic} handles": self._handles(topic) for topic in handled},
            **{f"{topic} commits": self._commits(topic) for topic in ("push", "order")},
            "order locks": self._locks,
            "request": self._request,
            "pull": self._pull,
            "auto": self._auto,
            "pop": self._pop,
            "range": self._range,
            "bulk": lambda body: asyncio.to_thread(self._bulk, body),
            "admin": self._administer,
        }

    async def send(self, body: bytes) -> None:
        for topic in READERS:
            if topic not in ("asked", "bulk"):
                await self.producer.send(Message(topic, body))
        self.sent.add(body)

    def _master(self) -> str:
        return self._cluster.address(None, self._cluster.master())

    def _queue(self, topic: str) -> MessageQueue:
        return MessageQueue(topic, self._cluster.broker_name, 0)

    async def _wait_committed(self, topic: str) -> None:
        queue, master = self._queue(topic), await asyncio.to_thread(self._master)
        end = await ask(master, operations.max_offset(queue))
        while await ask(master, operations.query_offset(f"g-{topic}", queue)) < end:
            await asyncio.sleep(0.02)

    def _handles(self, topic: str) -> Step:
        return lambda body: wait_until(lambda: body in self.got[topic], f"{topic} got {body!r}")

    def _commits(self, topic: str) -> Step:
        async def commits(body: bytes) -> None:
            await self._handles(topic)(body)
            await self._wait_committed(topic)

        return commits

    async def _locks(self, _: bytes) -> None:
        """The new master gives the queue of the member in order to nobody else."""
        master, queue = await asyncio.to_thread(self._master), self._queue("order")
        while await ask(master, operations.lock_queues("g-order", "somebody", [queue])):
            await ask(master, operations.unlock_queues("g-order", "somebody", [queue]))
            await asyncio.sleep(0.2)

    async def _request(self, body: bytes) -> None:
        reply = await self.asker.request(Message("asked", body), deadline_s=SOON_S)
        assert reply.body == b"reply to " + body

    async def _pull(self, body: bytes) -> None:
        while body not in self.got["pull"]:
            self.got["pull"] |= {one.body for one in await self.pull.poll(timeout_s=0.1)}
        while True:
            try:
                await self.pull.commit()
            except CommitFailed as error:
                failures = error.failed.values()
                assert all(isinstance(one, ServiceNotAvailable) for one in failures), failures
                await asyncio.sleep(0.1)
                continue
            break
        await self._wait_committed("pull")

    async def _auto(self, body: bytes) -> None:
        while body not in self.got["auto"]:
            self.got["auto"] |= {one.body for one in await self.auto.poll(timeout_s=0.1)}
        await self.auto.poll(timeout_s=0)  # so that all is consumed
        await self._wait_committed("auto")

    async def _pop(self, body: bytes) -> None:
        while body not in self.got["pop"]:
            try:
                for message in await self.simple.receive(timeout_s=0.1):
                    await self.simple.ack(message)
                    self.got["pop"].add(message.body)
            except PymqError:
                await asyncio.sleep(0.1)

    async def _range(self, body: bytes) -> None:
        count, wanted = 0, len(self.sent | {body})
        while count < wanted:
            count = sum([len(batch) async for batch in self.reader.read("range")])
            await asyncio.sleep(0.02)

    def _bulk(self, body: bytes) -> None:
        queue, bulk = self._queue("bulk"), self.bulk
        (bounds,) = bulk.bounds([queue]).values()
        assert list(bulk.pull_range(queue, *bounds))[-1].next_offset == bounds[1]
        bulk.commit_offset("g-bulk", queue, bounds[1])
        assert bulk.stored_commit("g-bulk", queue) == bounds[1]
        assert bulk.send(Message("bulk", body)).queue_offset >= bounds[1]

    async def _administer(self, body: bytes) -> None:
        await self.admin.topics.create(f"new-{body.decode()}")
        await self.admin.groups.create(f"g-new-{body.decode()}")


def test_every_client_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    """There and back."""
    clients = Clients(cluster, tmp_path)

    async def all_go_on(body: bytes, limit_s: float) -> None:
        took_s: dict[str, float] = {}
        begun_s = time.monotonic()

        async def go_on(name: str, step: Step) -> None:
            await step(body)
            took_s[name] = time.monotonic() - begun_s

        steps = clients.steps()
        sending = asyncio.ensure_future(clients.send(body))
        work = [asyncio.ensure_future(go_on(name, step)) for name, step in steps.items()]
        done, late = await asyncio.wait([sending, *work], timeout=limit_s)
        for one in late:
            one.cancel()
        await asyncio.gather(*done)
        assert not late, f"late: {sorted(steps.keys() - took_s.keys())}, not {took_s}"

    async def test() -> None:
        async with clients.running():
            await all_go_on(b"before", TIMEOUT_S)
            before = cluster.master()
            for body, new in ((b"there", 3 - before), (b"back", before)):
                await asyncio.to_thread(cluster.wait_in_sync)
                await asyncio.to_thread(elect, cluster, new)
                while await asyncio.to_thread(cluster.master) != new:
                    await asyncio.sleep(0.01)
                await all_go_on(body, SOON_S)

    run(test())
