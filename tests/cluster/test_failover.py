"""What goes on when the master of a group dies, or gives its role away: over real sockets, with
the brokers of a group and their controller in this process.
"""

import asyncio
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.cluster.running import SLOW_MS, run
from tests.cluster.scenarios import wait_until

from pymq.broker.ha.heartbeat import Position
from pymq.broker.role_changes import RoleChanges
from pymq.broker.state.topics import TopicTable
from pymq.client.consuming.consumer import Consumer
from pymq.client.operations import SendStatus
from pymq.client.sending.producer import Producer
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import DiskFull, PymqError
from pymq.net.blocking import BlockingChannel
from pymq.protocol.addresses import split_address
from pymq.protocol.bodies import GroupTable
from pymq.protocol.bodies import TopicTable as TopicTableBody
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import ElectMasterRequest
from pymq.protocol.headers.offsets import NO_ID, MaxOffsetResponse, QueryOffsetRequest
from pymq.protocol.json_object import JsonObject
from pymq.protocol.message import Message, ReceivedMessage
from pymq.protocol.offset_changes import OffsetChanges
from pymq.store.files import Files
from pymq.store.state import sealed_file
from pymq.testing import Cluster

pytestmark = pytest.mark.usefixtures("quick_local_retry")
DEADLINE_S = 60.0


async def kill_master(group: Cluster) -> int:
    """Kill the master; return its id once the other broker is the master."""
    loop = asyncio.get_running_loop()
    before = await loop.run_in_executor(None, group.master)
    await loop.run_in_executor(None, group.kill_broker, None, before)
    while await loop.run_in_executor(None, group.master) == before:
        await asyncio.sleep(0.01)
    return before


async def start_again(group: Cluster, broker_id: int) -> None:
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, group.start_broker, None, broker_id)
    await loop.run_in_executor(None, group.wait_in_sync)


def test_producers_and_consumers_go_on(group: Cluster) -> None:
    """The master dies twice; what was acknowledged is received, each queue in its order."""

    async def test() -> None:
        received: dict[int, list[ReceivedMessage]] = defaultdict(list)
        acknowledged: set[bytes] = set()
        is_over = False

        async def send(producer: Producer) -> None:
            number = 0
            while not is_over:
                number += 1
                body = b"%d" % number
                try:
                    result = await producer.send(Message("T", body))
                except PymqError:
                    await asyncio.sleep(0.02)
                    continue
                if result.status is SendStatus.OK:
                    acknowledged.add(body)
                await asyncio.sleep(0.002)

        async def handle(message: ReceivedMessage) -> None:
            received[message.queue_id].append(message)

        await asyncio.get_running_loop().run_in_executor(None, make_topic, group)
        consumer = Consumer(group.name_server, "g", from_where="earliest").subscribe("T")
        async with Producer(group.name_server) as producer, consumer:
            sending = asyncio.ensure_future(send(producer))
            running = asyncio.ensure_future(consumer.run(handle))
            for _ in range(2):
                count = len(acknowledged)
                await wait_until(lambda n=count: len(acknowledged) > n + 100, "acknowledgements")
                dead = await kill_master(group)
                await start_again(group, dead)
            count = len(acknowledged)
            await wait_until(lambda: len(acknowledged) > count + 100, "acknowledgements")
            is_over = True
            await sending

            def bodies() -> set[bytes]:
                return {one.body for queue in received.values() for one in queue}

            await wait_until(lambda: acknowledged <= bodies(), "what was acknowledged")
        await running
        for queue in received.values():
            # A queue may be read again from what was committed last, never out of order.
            firsts = list(dict.fromkeys(one.queue_offset for one in queue))
            assert firsts == sorted(firsts)

    run(test())


def make_topic(group: Cluster) -> None:
    with BlockingClient(group.name_server, timeout_s=DEADLINE_S) as client:
        admin_of(client).topics.create("T", queue_count=2)


def test_what_waits_is_delivered_by_the_new_master(group: Cluster) -> None:
    """A delayed message, once."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, make_topic, group)
        consumer = Consumer(group.name_server, "g", from_where="earliest").subscribe("T")
        got: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        producer = Producer(group.name_server, timeout_s=DEADLINE_S, deadline_s=DEADLINE_S)
        async with producer, consumer:
            running = asyncio.ensure_future(consumer.run(handle))
            late = await producer.send(Message("T", b"late", delay_level=9))  # 5 min
            assert late.status is SendStatus.OK
            await producer.send(Message("T", b"first"))
            await wait_until(lambda: got == [b"first"], "the first one")
            await wait_until(lambda: not consumer.backlog_count, "it is finished")
            await consumer.commit()  # Or the group may go on before it at the new master.
            await kill_master(group)
            await loop.run_in_executor(None, group.clock.advance, 301)
            await wait_until(lambda: len(got) > 1, "the late one")
            await asyncio.sleep(1.0)
        await running
        assert got == [b"first", b"late"]

    run(test())


def test_a_role_goes_over_without_a_restart(group: Cluster) -> None:
    """By request; connections stay open, and what is asked meanwhile is answered."""
    before = group.master()
    other = 3 - before
    channels = {
        one: BlockingChannel.connect(*split_address(group.address(None, one)), timeout_s=DEADLINE_S)
        for one in (before, other)
    }
    try:
        with BlockingClient(group.name_server, timeout_s=DEADLINE_S) as client:
            client.send(Message("T", b"before"))
            for turn in range(3):
                new = other if turn % 2 == 0 else before
                elect(group, new)
                for channel in channels.values():
                    answer = channel.request(
                        Command(RequestCode.GET_BROKER_RUNTIME_INFO), timeout_s=DEADLINE_S
                    )
                    assert answer.code == ResponseCode.SUCCESS, answer.remark
                deadline = time.monotonic() + DEADLINE_S
                while group.master() != new:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                group.wait_in_sync()
                assert client.send(Message("T", b"after %d" % turn)).status is SendStatus.OK
            queues = client.read_queues("T")
            bounds = client.bounds(queues)
            assert sum(end - first for first, end in bounds.values()) == 4
    finally:
        for channel in channels.values():
            channel.close()


def elect(group: Cluster, broker_id: int) -> None:
    request = ElectMasterRequest(
        cluster_name="DefaultCluster",
        broker_name=group.broker_name,
        broker_id=broker_id,
        is_designated=True,
    )
    channel = BlockingChannel.connect(*split_address(group.controller), timeout_s=DEADLINE_S)
    try:
        answer = channel.request(
            Command(RequestCode.CONTROLLER_ELECT_MASTER, request.to_fields()), timeout_s=DEADLINE_S
        )
    finally:
        channel.close()
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def test_a_topic_is_as_it_was_created(group: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was acknowledged to an administrator is at the slave, however soon the master dies."""
    # An administrator does not wait any longer for a slave whose disk is slow.
    monkeypatch.setattr("pymq.broker.table_saving.ANNOUNCE_WAIT_S", SLOW_MS / 2000)

    async def test() -> None:
        loop = asyncio.get_running_loop()

        def create(number: int) -> None:
            with BlockingClient(group.name_server, timeout_s=DEADLINE_S) as client:
                admin_of(client).topics.create(f"T{number}", queue_count=5)
                admin_of(client).groups.create(f"g{number}")

        def queue_count(number: int) -> int:
            with BlockingClient(group.name_server, timeout_s=DEADLINE_S) as client:
                return len(client.read_queues(f"T{number}"))

        def topic_id(number: int) -> object:
            with BlockingClient(group.name_server, timeout_s=DEADLINE_S) as client:
                queue = client.read_queues(f"T{number}")[0]
                request = {"topic": queue.topic, "queueId": "0"}
                address = split_address(group.address(None, group.master()))
                channel = BlockingChannel.connect(*address, timeout_s=DEADLINE_S)
                try:
                    answer = channel.request(
                        Command(RequestCode.GET_MAX_OFFSET, request), timeout_s=DEADLINE_S
                    )
                finally:
                    channel.close()
                return MaxOffsetResponse.from_fields(answer.fields).topic_id

        for number in range(3):
            await loop.run_in_executor(None, create, number)
            before = await loop.run_in_executor(None, topic_id, number)
            dead = await kill_master(group)
            assert await loop.run_in_executor(None, queue_count, number) == 5
            assert await loop.run_in_executor(None, topic_id, number) == before != NO_ID
            await start_again(group, dead)

    run(test())


def test_what_a_slave_could_not_save_is_known_when_it_becomes_the_master(
    group: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk has room for the log, which is allocated, and for no table."""
    replace_file = sealed_file.replace_file
    master = group.master()
    tables = group.store / group.broker_name / str(3 - master) / "config"

    def no_room(files: Files, path: Path, data: bytes, *, keep_as: Path | None = None) -> None:
        if path.parent == tables:
            raise DiskFull(f"{path}: no space left on device")
        replace_file(files, path, data, keep_as=keep_as)

    make_topic(group)
    deadline = time.monotonic() + DEADLINE_S
    with BulkClient(
        group.name_server, timeout_s=DEADLINE_S, read_deadline_s=DEADLINE_S
    ) as client:
        admin_of(client).groups.create("g")
        queue = client.write_queues("T")[0]
        for _ in range(9):
            assert client.send(Message("T", b"one"), queue).status is SendStatus.OK
        with monkeypatch.context() as patched:
            patched.setattr(sealed_file, "replace_file", no_room)
            client.commit_offset("g", queue, 7)
            slave = split_address(group.address(None, 3 - master))
            channel = BlockingChannel.connect(*slave, timeout_s=DEADLINE_S)
            request = QueryOffsetRequest(
                consumer_group="g", topic="T", queue_id=queue.queue_id, set_zero_if_not_found=False
            )
            found: dict[str, str] | None = None
            while found != {"offset": "7"}:  # in memory
                assert time.monotonic() < deadline
                query = Command(RequestCode.QUERY_CONSUMER_OFFSET, request.to_fields())
                found = channel.request(query, timeout_s=DEADLINE_S).fields
            channel.close()
            group.kill_broker(None, master)
            while group.master() == master:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert client.stored_commit("g", queue) == 7


#: Threads of the brokers.
_BROKERS = ("pymq-cluster", "pymq-write", "asyncio")


class Heartbeats:
    """Of the brokers of a group, which all have one event loop: what takes long has to wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        #: By what has waited: whether any came.
        self.seen: dict[str, bool] = {}
        self._come = threading.Event()
        position = RoleChanges.position

        def told(roles: RoleChanges) -> Position:
            self._come.set()
            return position(roles)

        monkeypatch.setattr(RoleChanges, "position", told)

    def wait_for_two(self, what: str) -> None:
        for _ in range(2):
            self._come.clear()
            self.seen[what] = self._come.wait(DEADLINE_S) and self.seen.get(what, True)


def test_a_broker_that_reads_large_tables_is_not_silent(
    group: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the controller takes it for dead, elects it again, and it reads them again."""
    make_topic(group)
    heartbeats, restore = Heartbeats(monkeypatch), TopicTable.restore

    def slow(table: TopicTable, value: object) -> None:
        heartbeats.wait_for_two("topics")
        restore(table, value)

    monkeypatch.setattr(TopicTable, "restore", slow)
    before = group.master()
    group.kill_broker(None, before)
    deadline = time.monotonic() + DEADLINE_S
    while group.master() == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert heartbeats.seen == {"topics": True}
    with BlockingClient(group.name_server, timeout_s=DEADLINE_S) as client:
        assert len(client.read_queues("T")) == 2


def test_a_slave_that_is_told_large_tables_is_not_silent(
    group: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeats = Heartbeats(monkeypatch)
    monkeypatch.setattr("pymq.broker.ha.offset_sync.LARGE_BYTES", 0)

    def make_slow(table: type[JsonObject]) -> None:
        from_json = table.from_json

        def slow(value: object) -> JsonObject:
            if threading.current_thread().name.startswith(_BROKERS):
                heartbeats.wait_for_two(table.__name__)
            return from_json(value)

        monkeypatch.setattr(table, "from_json", slow)

    make_slow(TopicTableBody)
    make_slow(GroupTable)
    make_slow(OffsetChanges)
    make_topic(group)
    with BlockingClient(
        group.name_server, timeout_s=DEADLINE_S, read_deadline_s=DEADLINE_S
    ) as client:
        admin_of(client).groups.create("g")
        client.commit_offset("g", client.write_queues("T")[0], 0)
    deadline = time.monotonic() + DEADLINE_S
    while len(heartbeats.seen) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert heartbeats.seen == {"TopicTable": True, "GroupTable": True, "OffsetChanges": True}
