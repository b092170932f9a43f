"""Where a consumer begins: policies, offsets that are lost, unknown or beyond the end."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.administration import admin_of
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import ask, run
from tests.cluster.scenarios import (
    DEADLINE_S,
    TIMEOUT_S,
    numbers_of,
    receive,
    send_numbers,
    wait_until,
)

from pymq.client import operations
from pymq.client.consuming.consumer import Consumer
from pymq.client.group.inbox import FlowLimits
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.net.channel import AsyncChannel
from pymq.net.server import ServerConnection
from pymq.protocol.bodies import ConsumeFromWhere, GroupConfig, MessageQueue
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.testing.cluster import Cluster

pytestmark = pytest.mark.usefixtures("quick_local_retry")


def test_the_policies_choose_where_a_group_begins(pymq_cluster: Cluster) -> None:
    async def first_of(group: str, count: int, **options: Any) -> list[int]:
        consumer = Consumer(pymq_cluster.name_server, group, **options).subscribe("T")
        async with consumer:
            return numbers_of(await receive(consumer, count))

    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(10))
        await asyncio.sleep(0.01)  # store times have milliseconds
        between = datetime.now(UTC)
        await asyncio.sleep(0.01)
        await send_numbers(pymq_cluster.name_server, "T", range(10, 20))
        assert await first_of("g1", 20, from_where="earliest") == list(range(20))
        assert await first_of("g2", 20, from_where=ConsumeFromWhere.FIRST_OFFSET)
        if not await young_queues_start_at_zero(pymq_cluster):
            assert await first_of("g3", 10, from_where=between) == list(range(10, 20))

    run(test())


async def young_queues_start_at_zero(cluster: Cluster) -> bool:
    """Does the broker answer 0 for a group without offset, as RocketMQ does for young queues?"""
    operation = operations.query_offset("nobody", MessageQueue("T", cluster.broker_name, 0))
    return await ask(cluster.broker_address, operation) == 0


def test_an_offset_beyond_the_end_is_moved_back(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(8))
        await ask(pymq_cluster.broker_address, operations.update_group(GroupConfig(group="g")))
        for number in range(4):
            queue = MessageQueue("T", pymq_cluster.broker_name, number)
            await ask(pymq_cluster.broker_address, operations.update_offset("g", queue, 1000))
        async with Consumer(pymq_cluster.name_server, "g").subscribe("T") as consumer:
            await wait_until(lambda: "outside the queue" in caplog.text, "the offset is moved")
            await wait_until(lambda: caplog.text.count("outside the queue") == 4, "all are")
            await send_numbers(pymq_cluster.name_server, "T", range(100, 108))
            assert numbers_of(await receive(consumer, 8)) == list(range(100, 108))

    run(test())


def test_a_topic_that_is_deleted_and_created_again_is_read_from_its_beginning(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader is beyond the end of the new queue, where an official client would go on."""
    monkeypatch.setattr("pymq.client.group.queue_reader.SUSPEND_S", 0.1)
    name_server = pymq_cluster.name_server

    def replace_topic() -> None:
        with BlockingClient(name_server, timeout_s=TIMEOUT_S) as client:
            admin = admin_of(client)
            admin.topics.delete("T")
            admin.topics.create("T", queue_count=4)

    async def test() -> None:
        old, new = set(range(40)), set(range(100, 104))
        got: set[int] = set()
        await send_numbers(name_server, "T", range(40))
        async with Consumer(name_server, "g", from_where="earliest").subscribe("T") as consumer:
            async for message in consumer:
                got.add(int(message.body))
                if got == old:
                    await asyncio.to_thread(replace_topic)
                    await send_numbers(name_server, "T", range(100, 104))  # one in each queue
                if got == old | new:
                    break

    run(test())
    assert caplog.text.count("its topic was deleted and created again, or its broker lost") == 4


@pytest.mark.parametrize("wanted", [90, 3])
def test_a_group_that_is_reset_while_it_reads_goes_on_there(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture, wanted: int
) -> None:
    """It has read a part of the queue, as it handles one message at a time."""
    queue = MessageQueue("T", pymq_cluster.broker_name, 0)

    def prepare() -> None:
        with BlockingClient(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as client:
            admin_of(client).topics.create("T", queue_count=1)

    async def reset() -> None:
        fields = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}
        fields |= {"queueId": "0", "offset": str(wanted)}
        command = Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields=fields)
        channel = await AsyncChannel.connect(pymq_cluster.broker_address, TIMEOUT_S)
        answer = await channel.request(command, TIMEOUT_S)
        assert answer.code == 0, answer.remark
        channel.close()

    async def test() -> None:
        await asyncio.to_thread(prepare)
        await send_numbers(pymq_cluster.name_server, "T", range(100))
        limits = FlowLimits(queue_messages_max=10)
        got: list[int] = []
        async with Consumer(
            pymq_cluster.name_server, "g", from_where="earliest", limits=limits
        ).subscribe("T") as consumer:
            async for message in consumer:
                got.append(int(message.body))
                if len(got) == 20:
                    await reset()
                if got[-1] == 99:
                    break
        assert got[:20] == list(range(20))
        # What it had read ahead may still be handled.
        assert wanted in got[20:]
        begun = 20 + got[20:].index(wanted)
        assert begun <= 40 and got[begun:] == list(range(wanted, 100))
        committed = operations.query_offset("g", queue)
        assert await ask(pymq_cluster.broker_address, committed) == 100

    run(test())
    assert "the offset of its group was reset" in caplog.text
    assert "outside the queue" not in caplog.text


def test_an_idle_member_tells_a_group_that_was_deleted_where_it_is(
    pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymq.client.consuming.consumer.COMMIT_S", 0.05)
    monkeypatch.setattr("pymq.client.group.broker_offsets.COMMIT_AGAIN_S", 0.1)
    monkeypatch.setattr("pymq.client.group.queue_reader.SUSPEND_S", 0.2)
    queue = MessageQueue("T", pymq_cluster.broker_name, 0)
    query = operations.query_offset("g", queue)

    def prepare() -> None:
        with BlockingClient(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as client:
            admin_of(client).topics.create("T", queue_count=1)

    def delete() -> None:
        with BlockingClient(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as client:
            admin_of(client).groups.delete("g", forget_offsets=True)

    async def test() -> None:
        await asyncio.to_thread(prepare)
        await send_numbers(pymq_cluster.name_server, "T", range(7))
        async with Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe(
            "T"
        ) as consumer:
            assert numbers_of(await receive(consumer, 7)) == list(range(7))
            await asyncio.to_thread(delete)
            async with asyncio.timeout(DEADLINE_S):  # the last one is not finished
                while await ask(pymq_cluster.broker_address, query) != 6:
                    await asyncio.sleep(0.05)

    run(test())


class OffsetlessBroker(FakeBroker):
    """Cannot say what was committed, as long as it is ill."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ill = True
        self.seen: list[Command] = []

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        self.seen.append(command)
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            body = b'{"consumerIdList":["%s"]}' % self.client_id.encode()
            connection.respond(command, command.reply(0, body=body))
        elif command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            answer = command.reply(1, "ill") if self.is_ill else command.reply(22, "none")
            connection.respond(command, answer)
        elif command.code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
            connection.respond(command, command.reply(0, fields={"offset": "77"}))
        elif command.code != RequestCode.PULL_MESSAGE:  # pulls are held
            super().on_command(connection, command)

    def count(self, code: RequestCode) -> int:
        return sum(command.code == code for command in self.seen)

    client_id = ""


def test_a_queue_whose_offset_is_unknown_is_left_until_it_is_known() -> None:
    async def test() -> None:
        async with OffsetlessBroker() as broker:
            consumer = Consumer(broker.address, "g").subscribe("T")
            async with consumer:
                broker.client_id = consumer.client_id
                asked = RequestCode.QUERY_CONSUMER_OFFSET
                await wait_until(lambda: broker.count(asked) >= 8, "it asks again and again")
                assert not broker.count(RequestCode.PULL_MESSAGE)
                assert not broker.count(RequestCode.GET_MAX_OFFSET)
                assert not broker.count(RequestCode.UPDATE_CONSUMER_OFFSET)
                broker.is_ill = False
                pull = RequestCode.PULL_MESSAGE
                await wait_until(lambda: broker.count(pull) >= 2, "it pulls")
                told = [c for c in broker.seen if c.code == RequestCode.UPDATE_CONSUMER_OFFSET]
                assert {(c.fields or {})["commitOffset"] for c in told} == {"77"}
                pulls = [c.fields or {} for c in broker.seen if c.code == pull]
                assert {fields["queueOffset"] for fields in pulls} == {"77"}
                assert all(int(fields["sysFlag"]) & 0b11 == 0b10 for fields in pulls)
                assert {fields["suspendTimeoutMillis"] for fields in pulls} == {"15000"}
            assert broker.count(RequestCode.UNREGISTER_CLIENT) == 1

    run(test())
