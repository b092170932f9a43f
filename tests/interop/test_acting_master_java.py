"""Slaves that act for their masters: ours for RocketMQ's, RocketMQ's for ours.

The official name server and Java consumers judge. A master is killed while two groups read: one
that was there before, one that begins then; one in order, one not. They go on at the slave, and
what they commit there is at the master when it is back, before clients find it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.crash.servers import ServerProcess, broker_process, name_server_process
from tests.interop.conftest import require_peers
from tests.interop.java_client import JavaPushConsumer
from tests.interop.jvm import JavaClient
from tests.interop.peers import RealBroker, RealNameServer, free_port

from pymq.client import operations
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import BrokerSystemError, PymqError
from pymq.net.blocking import BlockingChannel
from pymq.protocol.addresses import split_address
from pymq.protocol.bodies import BrokerData, MessageQueue
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message

pytestmark = pytest.mark.interop

VERSION = "5.3.3"
NAME, TOPIC, QUEUES = "broker-a", "acting", 4
SEGMENT_BYTES = 1 << 20
FIRST, SECOND, THIRD = 100, 200, 100
DEADLINE_S = 150.0
#: For an answer.
ASK_S = 30.0
ACTING = {
    "enableSlaveActingMaster": "true",
    "totalReplicas": 2,
    "slaveReadEnable": "true",
    # A name server sees at once that a connection ends; what is slow must not count as dead.
    "brokerNotActiveTimeoutMillis": 30_000,
}
#: So that clients find the acting slave soon.
QUICK = {"PollNameServerInterval": 500, "HeartbeatBrokerInterval": 1_000}


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)


def committed(address: str, group: str) -> int:
    """Return what a group's offsets add up to at one broker."""
    channel = BlockingChannel.connect(*split_address(address), timeout_s=ASK_S)
    try:
        total = 0
        for queue_id in range(QUEUES):
            operation = operations.query_offset(group, MessageQueue(TOPIC, NAME, queue_id))
            answer = channel.request(operation.request, ASK_S)
            total += int((answer.fields or {}).get("offset", 0))
        return total
    finally:
        channel.close()


def log_end(client: BlockingClient, address: str) -> int:
    return int(admin_of(client).brokers.state(address)["commitLogMaxOffset"])


def addresses(client: BlockingClient) -> dict[int, str]:
    found = admin_of(client).cluster().brokers
    return found.get(NAME, BrokerData(broker_name=NAME)).addresses


def send(client: BlockingClient, first: int, count: int) -> None:
    for number in range(first, first + count):
        client.send(Message(TOPIC, b"%d" % number), MessageQueue(TOPIC, NAME, number % QUEUES))


def check(consumer: JavaPushConsumer, count: int, *, in_order: bool) -> None:
    """Everything came, once, and each queue in its order if that was wanted."""
    queues: dict[int, list[int]] = defaultdict(list)
    for message in consumer.wait_count(count, DEADLINE_S):
        queues[message.queue_id].append(message.queue_offset)
    for offsets in queues.values():
        assert sorted(offsets) == list(range(min(offsets), min(offsets) + len(offsets)))
        if in_order:
            assert offsets == sorted(offsets)
    assert sum(map(len, queues.values())) == count


class Pair:
    """A master and its slave, of ours or official ones."""

    def __init__(self, home: Path, server: str, kinds: tuple[str, str], **more: int) -> None:
        self._home = home
        self._server = server
        self._more = more
        self.master = self._broker("master", kinds[0], brokerRole="ASYNC_MASTER")
        self.slave = self._broker("slave", kinds[1], brokerRole="SLAVE", brokerId=1)

    def _broker(self, name: str, kind: str, **more: str | int) -> ServerProcess | RealBroker:
        (self._home / name).mkdir()
        store = self._home / name / "store"
        properties = {
            **ACTING,
            **self._more,
            **more,
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
            "haListenPort": free_port(0),
        }
        if kind == "java":
            return RealBroker(VERSION, [self._server], store_dir=store, **properties)
        return broker_process(self._home / name, self._server, store, **properties)


@pytest.mark.by_turns("server", "master", "slave")
@pytest.mark.parametrize(
    ("server", "master", "slave"),
    [
        ("java", "java", "pymq"),
        ("java", "pymq", "java"),
        ("java", "pymq", "pymq"),
        ("pymq", "pymq", "pymq"),
        ("pymq", "java", "pymq"),
    ],
)
def test_consumers_go_on_at_the_slave_and_at_the_master_when_it_is_back(
    server: str,
    master: str,
    slave: str,
    tmp_path: Path,
    java_client: Callable[[str], JavaClient],
) -> None:
    require_peers(VERSION)
    with ExitStack() as stack:
        if server == "java":
            found = stack.enter_context(RealNameServer(VERSION, supportActingMaster=True))
            name_server = found.address
        else:
            name_server = stack.enter_context(
                name_server_process(tmp_path, supportActingMaster="true")
            ).address
        pair = Pair(tmp_path, name_server, (master, slave))
        stack.enter_context(pair.master)
        client = stack.enter_context(BlockingClient(name_server))
        admin = admin_of(client)
        admin.topics.create(TOPIC, queue_count=QUEUES)
        for group in ("before", "meanwhile"):
            admin.groups.create(group)
        stack.enter_context(pair.slave)
        send(client, 0, FIRST)
        java = java_client(VERSION)
        before = stack.enter_context(
            JavaPushConsumer(java, "before", name_server, TOPIC, listener="orderly", **QUICK)
        )
        before.wait_count(FIRST, DEADLINE_S)
        before.java.suspend()
        send(client, FIRST, SECOND)
        end = log_end(client, pair.master.address)
        eventually(lambda: log_end(client, pair.slave.address) >= end, "the slave has the log")
        eventually(lambda: _knows(pair.slave.address), "the slave knows topic and groups")

        pair.master.kill()
        eventually(lambda: addresses(client) == {1: pair.slave.address}, "the master is gone")
        before.java.resume()
        meanwhile = stack.enter_context(
            JavaPushConsumer(java, "meanwhile", name_server, TOPIC, **QUICK)
        )
        for one in (before, meanwhile):
            one.wait_count(FIRST + SECOND, DEADLINE_S)
            name = str(one.java.getConsumerGroup())
            one.wait_offsets(
                FIRST + SECOND, lambda name=name: committed(pair.slave.address, name), DEADLINE_S
            )
        with pytest.raises(PymqError), BlockingClient(name_server, timeout_s=2.0) as other:
            other.send(Message(TOPIC, b"x"))  # Nothing is written while the master is away.

        pair.master.start()
        eventually(
            lambda: addresses(client) == {0: pair.master.address, 1: pair.slave.address},
            "both are there",
        )
        for group in ("before", "meanwhile"):
            assert committed(pair.master.address, group) == FIRST + SECOND
        eventually(lambda: _sends(client, FIRST + SECOND), "the master takes messages")
        send(client, FIRST + SECOND + 1, THIRD - 1)
        check(before, FIRST + SECOND + THIRD, in_order=True)
        check(meanwhile, FIRST + SECOND + THIRD, in_order=False)
        end = log_end(client, pair.master.address)
        eventually(lambda: log_end(client, pair.slave.address) >= end, "the slave follows again")


@pytest.mark.by_turns("server", "slave")
@pytest.mark.parametrize(("server", "slave"), [("pymq", "java"), ("java", "pymq")])
def test_a_slave_is_told_when_the_lowest_id_changes(
    server: str, slave: str, tmp_path: Path
) -> None:
    """It does not ask for its group in this hour."""
    require_peers(VERSION)
    notify = {"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"}
    with ExitStack() as stack:
        if server == "java":
            name_server = stack.enter_context(RealNameServer(VERSION, **notify)).address
        else:
            name_server = stack.enter_context(name_server_process(tmp_path, **notify)).address
        pair = Pair(tmp_path, name_server, ("pymq", slave), syncBrokerMemberGroupPeriod=3_600_000)
        stack.enter_context(pair.master)
        stack.enter_context(pair.slave)
        client = stack.enter_context(BlockingClient(name_server))
        both = {0: pair.master.address, 1: pair.slave.address}
        eventually(lambda: addresses(client) == both, "both are there")
        eventually(lambda: _acts(client, pair) is False, "the slave follows")
        for _ in range(2):
            pair.master.kill()
            eventually(lambda: _acts(client, pair), "the slave acts")
            pair.master.start()
            eventually(lambda: _acts(client, pair) is False, "the slave does not act any more")


def _acts(client: BlockingClient, pair: Pair) -> bool | None:
    """Return whether the slave does what a master does (isSpecialServiceRunning)."""
    try:
        state = admin_of(client).brokers.state(pair.slave.address)
    except BrokerSystemError:
        return None  # RocketMQ's have nothing to say in their first second
    return state["brokerActive"] == "true"


def _knows(address: str) -> bool:
    """Return whether a slave has the topic and the groups of its master."""
    questions = [Command(RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC})] + [
        Command(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})
        for group in ("before", "meanwhile")
    ]
    channel = BlockingChannel.connect(*split_address(address), timeout_s=ASK_S)
    try:
        return all(channel.request(one, ASK_S).code == ResponseCode.SUCCESS for one in questions)
    finally:
        channel.close()


def _sends(client: BlockingClient, number: int) -> bool:
    try:
        send(client, number, 1)
    except PymqError:
        return False
    return True
