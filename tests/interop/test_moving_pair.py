"""From a pair of official brokers to a pair of ours and back, while producers and a consumer go on.

As ``docs/replication.md`` says it: the other group of the cluster takes what is sent while this one
moves. Every acknowledged message is there, at the offset that it was acknowledged with, and the
consumer, which commits, gets what it has not had.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.crash.servers import ServerProcess, broker_process
from tests.interop.conftest import require_peers
from tests.interop.peers import RealBroker, RealNameServer, free_port

from pymq import Consumer, Message
from pymq.client.cluster.config import ClientConfig
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import BrokerSystemError, PymqError
from pymq.net.blocking import BlockingChannel
from pymq.protocol.addresses import split_address
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.record import decode_records

pytestmark = pytest.mark.interop

VERSION, NAME, OTHER = "5.3.3", "broker-a", "broker-b"
TOPIC, GROUP, QUEUES = "moving", "mover", 4
SEGMENT_BYTES = 1 << 24
DEADLINE_S = 150.0
#: For an answer of a broker that is well.
ASK_S = 30.0
#: A route that clients have is asked for again after this time.
ROUTE_S = 1.0
FILES: dict[str, str | int] = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "autoCreateTopicEnable": "false",
    "brokerName": NAME,
}
#: The tables that a slave of RocketMQ's copies once in a minute only.
TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)


class Traffic:
    """A producer and a consumer, which go on all the time.

    Attributes:
        sent: where each acknowledged message is: broker name, queue id, queue offset.
        consumed: how often each body came.
        taken: how often the message of each place came.
        ids: of the messages with each body.
        silence_s: the longest time without an acknowledgement.
    """

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        self.sent: dict[bytes, tuple[str, int, int]] = {}
        self.consumed: Counter[bytes] = Counter()
        self.taken: Counter[tuple[str, int, int]] = Counter()
        self.ids: defaultdict[bytes, set[str]] = defaultdict(set)
        self.silence_s = 0.0
        self._end = threading.Event()
        self._sender = threading.Thread(target=self._send)
        self._reader = threading.Thread(target=lambda: asyncio.run(self._consume()))

    def _send(self) -> None:
        number, last_s = 0, time.monotonic()
        config = ClientConfig(name_servers=(self._name_server,), route_age_s=ROUTE_S)
        with BlockingClient(self._name_server, config=config) as client:
            while not self._end.is_set():
                body = b"%d" % number
                number += 1
                try:
                    result = client.send(Message(TOPIC, body))
                except PymqError:
                    continue  # unknown, or refused
                queue = result.queue
                self.sent[body] = queue.broker_name, queue.queue_id, result.queue_offset
                now_s = time.monotonic()
                self.silence_s, last_s = max(self.silence_s, now_s - last_s), now_s
                time.sleep(0.005)

    async def _consume(self) -> None:
        consumer = Consumer(self._name_server, GROUP, from_where="earliest")
        async with consumer.subscribe(TOPIC):
            task = asyncio.ensure_future(self._take(consumer))
            while not self._end.is_set():
                await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.wait([task])

    async def _take(self, consumer: Consumer) -> None:
        async for message in consumer:
            self.consumed[message.body] += 1
            self.taken[message.broker_name, message.queue_id, message.queue_offset] += 1
            self.ids[message.body].add(message.message_id)

    @contextmanager
    def flow(self) -> Iterator[Traffic]:
        """Go on until the block ends."""
        for thread in (self._sender, self._reader):
            thread.start()
        try:
            yield self
        finally:
            self._end.set()
            for thread in (self._sender, self._reader):
                thread.join(60.0)


class Bed:
    """The two groups, of which one moves, and what an administrator does."""

    def __init__(self, home: Path, name_server: str, client: BlockingClient) -> None:
        self.home = home
        self.name_server = name_server
        self._admin = admin_of(client)

    def java(self, name: str, broker_id: int, role: str) -> RealBroker:
        return RealBroker(
            VERSION,
            [self.name_server],
            store_dir=self.home / name,
            brokerId=broker_id,
            brokerRole=role,
            haListenPort=free_port(0),
            **FILES,
        )

    def ours(self, name: str, broker_id: int, role: str, **more: str | int) -> ServerProcess:
        home = self.home / f"{name} {broker_id}"
        home.mkdir()
        return broker_process(
            home,
            self.name_server,
            self.home / name,
            brokerId=broker_id,
            brokerRole=role,
            haListenPort=free_port(0),
            **{**FILES, **more},
        )

    def end(self, address: str) -> int:
        """Return the end of a broker's log.

        An official one that has just started has no statistics, and refuses to say anything.
        """
        ends: list[int] = []

        def is_told() -> bool:
            try:
                ends.append(int(self._admin.brokers.state(address)["commitLogMaxOffset"]))
            except BrokerSystemError:
                return False
            return True

        eventually(is_told, f"{address} says how long its log is")
        return ends[0]

    def wait_follows(self, master: str, slave: str) -> None:
        """Step 2: it lacks nothing that there was a moment ago."""
        end = self.end(master)
        eventually(lambda: self.end(slave) >= end, f"{slave} has the log of {master}")

    def quiesce(self, master: str, slave: str, traffic: Traffic) -> None:
        """Step 3: nothing is sent there any more, all of it is consumed, and the slave knows."""
        fields = {"brokerName": NAME}
        answer = ask(self.name_server, Command(RequestCode.WIPE_WRITE_PERM_OF_BROKER, fields))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        eventually(lambda: goes_to(traffic, OTHER), "producers have asked for routes")
        end = self.end(master)
        self.wait_follows(master, slave)

        def is_consumed(address: str) -> bool:
            return all(
                offset_at(address, queue_id) == max_offset_at(master, queue_id)
                for queue_id in range(QUEUES)
            )

        eventually(lambda: is_consumed(master), "the group has consumed everything")
        assert self.end(master) == end, "somebody sends nevertheless"


def ask(address: str, command: Command) -> Command:
    channel = BlockingChannel.connect(*split_address(address), timeout_s=ASK_S)
    try:
        return channel.request(command, timeout_s=ASK_S)
    finally:
        channel.close()


def offset_at(address: str, queue_id: int) -> int:
    """Return the group's offset at a broker; 0 if there is none."""
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}
    answer = ask(address, Command(RequestCode.QUERY_CONSUMER_OFFSET, fields))
    return int((answer.fields or {}).get("offset", 0))


def max_offset_at(address: str, queue_id: int) -> int:
    fields = {"topic": TOPIC, "queueId": str(queue_id)}
    answer = ask(address, Command(RequestCode.GET_MAX_OFFSET, fields))
    return int((answer.fields or {}).get("offset", 0))


def copy_tables(source: Path, target: Path) -> None:
    """Topics, groups and offsets, which a slave of RocketMQ's copies once in a minute."""
    for name in TABLES:
        if (source / "config" / name).exists():
            shutil.copy(source / "config" / name, target / "config" / name)
            (target / "config" / f"{name}.bak").unlink(missing_ok=True)


@pytest.mark.by_turns(of="pairs")
def test_a_pair_moves_to_pymq_and_back(tmp_path: Path) -> None:
    require_peers(VERSION)
    with ExitStack() as stack:
        enter = stack.enter_context
        server = enter(RealNameServer(VERSION))
        client = enter(BlockingClient(server.address))
        bed = Bed(tmp_path, server.address, client)
        (tmp_path / "other home").mkdir()
        enter(
            broker_process(
                tmp_path / "other home",
                server.address,
                tmp_path / "other",
                **{**FILES, "brokerName": OTHER},
            )
        )
        java_master = enter(bed.java("java master", 0, "ASYNC_MASTER"))
        java_slave = enter(bed.java("java slave", 1, "SLAVE"))
        admin_of(client).topics.create(TOPIC, queue_count=QUEUES)
        admin_of(client).groups.create(GROUP)
        traffic = enter(Traffic(server.address).flow())
        eventually(lambda: {NAME, OTHER} <= brokers(traffic), "both groups take messages")

        # There: a slave of ours beside the official one becomes the master.
        slave = enter(bed.ours("ours", 2, "SLAVE"))
        bed.wait_follows(java_master.address, slave.address)
        bed.quiesce(java_master.address, slave.address, traffic)
        eventually(lambda: knows(slave.address, java_master.address), "the slave knows the offsets")
        for one in (java_master, java_slave, slave):
            one.stop()
        wait_more(traffic, OTHER, 20)
        master = enter(bed.ours("ours", 0, "ASYNC_MASTER"))
        second = enter(bed.ours("ours too", 1, "SLAVE"))
        wait_more(traffic, NAME, 200)
        bed.wait_follows(master.address, second.address)

        # And back: an official slave, with the store that it had or a new one.
        back = enter(bed.java("java slave", 2, "SLAVE"))
        bed.wait_follows(master.address, back.address)
        bed.quiesce(master.address, back.address, traffic)
        for broker in (master, second, back):
            broker.stop()
        wait_more(traffic, OTHER, 20)
        copy_tables(tmp_path / "ours", tmp_path / "java slave")
        enter(bed.java("java slave", 0, "ASYNC_MASTER"))
        wait_more(traffic, NAME, 200)
        enter(bed.java("java master", 1, "SLAVE"))
        wanted = dict(traffic.sent)
        eventually(lambda: wanted.keys() <= traffic.consumed.keys(), "all is consumed")
        print(f"{len(wanted)} messages, at most {traffic.silence_s:.2f} s without one")
        for body, (name, queue_id, offset) in list(wanted.items())[:: max(1, len(wanted) // 500)]:
            assert body_at(client, name, queue_id, offset) == body, (name, queue_id, offset)
    repeated = {place: count for place, count in traffic.taken.items() if count > 1}
    assert not repeated, f"{len(repeated)} of {len(wanted)} came twice: {sorted(repeated)[:5]}"
    # A send that nobody answered in time was tried again, and both of it may be stored.
    twice = [body for body, count in traffic.consumed.items() if count > 1]
    print(f"stored twice: {twice}")
    assert all(len(traffic.ids[body]) == 1 for body in twice)
    assert traffic.silence_s < 30.0


def brokers(traffic: Traffic) -> set[str]:
    return {name for name, _, _ in list(traffic.sent.values())}


def goes_to(traffic: Traffic, name: str) -> bool:
    """Return whether a group took all that was sent of late: more than each queue takes in turn."""
    return {one[0] for one in list(traffic.sent.values())[-5 * QUEUES :]} == {name}


def wait_more(traffic: Traffic, name: str, count: int) -> None:
    """Wait until a group has taken so many more messages."""

    def taken() -> int:
        return sum(one[0] == name for one in list(traffic.sent.values()))

    before = taken()
    eventually(lambda: taken() >= before + count, f"group {name} takes messages")


def knows(slave: str, master: str) -> bool:
    return all(offset_at(slave, one) == offset_at(master, one) for one in range(QUEUES))


def body_at(client: BlockingClient, name: str, queue_id: int, offset: int) -> bytes:
    chunks = client.pull_range(MessageQueue(TOPIC, name, queue_id), offset, offset + 1)
    (body,) = [record.body for chunk in chunks for record in decode_records(chunk.buffer)]
    return bytes(body)
