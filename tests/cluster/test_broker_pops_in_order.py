"""Popping in order: what blocks a queue, and what comes after it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, create_topic, fields, serve
from tests.cluster.pops import PopConsumer, PoppedMessage

from pymq.protocol.codes import RequestCode, ResponseCode


class OrderConsumer(PopConsumer):
    """Pops in order; each request is an attempt of its own unless told."""

    _attempts = 0

    def pop_fields(self, **changes: Any) -> dict[str, Any]:
        OrderConsumer._attempts += 1
        attempt = {"order": True, "attemptId": f"attempt-{OrderConsumer._attempts}"}
        return super().pop_fields(**(attempt | changes))


def bodies(messages: list[PoppedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_queue_is_blocked_until_its_messages_are_acknowledged(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for n in range(6):
            await peer.send("T", b"%d" % n)
        consumer = OrderConsumer(peer)
        answer = await consumer.ask(maxMsgNums=3, attemptId="a")
        said = fields(answer)
        assert said["reviveQid"] == "999"
        assert said["orderCountInfo"] == "0 0 0"
        first = consumer.messages(answer)
        assert bodies(first) == [b"0", b"1", b"2"]
        assert await consumer.pop(attemptId="b") == []
        assert fields(await consumer.notify(attemptId="b"))["hasMsg"] == "false"
        repeated = await consumer.pop(maxMsgNums=3, attemptId="a")
        assert bodies(repeated) == [b"0", b"1", b"2"]
        held = asyncio.ensure_future(consumer.pop(pollTime=4_000))
        for message in (repeated[1], repeated[0]):
            assert (await consumer.ack(message)).code == ResponseCode.SUCCESS
        assert not held.done()
        assert (await consumer.ack(repeated[2])).code == ResponseCode.SUCCESS
        assert bodies(await held) == [b"3", b"4", b"5"]
        # Once more, and others that are not in flight.
        assert (await consumer.ack(repeated[2])).code == ResponseCode.SUCCESS
        late = (await consumer.ack(first[0], offset=4)).code
        assert late == ResponseCode.SUCCESS  # of an earlier pop: nothing happens

    serve(tmp_path, check)


def test_messages_come_again_in_order(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for n in range(5):
            await peer.send("T", b"%d" % n)
        consumer = OrderConsumer(peer)
        first = await consumer.pop(maxMsgNums=3, invisibleTime=700)
        assert (await consumer.ack(first[0])).code == ResponseCode.SUCCESS
        begun = time.monotonic()
        again = await consumer.pop(pollTime=14_500, invisibleTime=60_000)
        assert time.monotonic() - begun < 14
        assert bodies(again) == [b"1", b"2", b"3", b"4"]
        assert [m.consumed_count for m in again] == [1, 1, 0, 0]
        # The handles of before are void.
        assert (await consumer.ack(first[1])).code == ResponseCode.SUCCESS
        assert await consumer.pop() == []
        assert (await consumer.ack_batch(again)).code == ResponseCode.SUCCESS
        await peer.send("T", b"5")
        assert bodies(await consumer.pop()) == [b"5"]

    serve(tmp_path, check)


def test_the_invisible_time_of_messages_in_order_can_be_changed(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for n in range(2):
            await peer.send("T", b"%d" % n)
        consumer = OrderConsumer(peer)
        first, second = await consumer.pop(invisibleTime=1500)
        answer = await consumer.change(first, 60_000)
        said = fields(answer)
        assert said["popTime"] == first.handle.split()[1]
        assert int(said["invisibleTime"]) >= 60_000
        assert (await consumer.change(second, 200)).code == ResponseCode.SUCCESS
        assert await consumer.pop(pollTime=2_500) == []
        assert (await consumer.change(first, 100)).code == ResponseCode.SUCCESS
        again = await consumer.pop(pollTime=4_000)
        assert bodies(again) == [b"0", b"1"]
        assert (await consumer.ack(again[0])).code == ResponseCode.SUCCESS
        passed = await consumer.change(again[0], 100)
        assert fields(passed) == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}

    serve(tmp_path, check)


def test_blocked_queues_survive_a_restart(tmp_path: Path) -> None:
    handles: list[PoppedMessage] = []

    async def pop(peer: Peer) -> None:
        await create_topic(peer, "T", queues=2)
        for n in range(6):
            await peer.send("T", b"%d" % n, queue_id=n % 2)
        consumer = OrderConsumer(peer)
        handles.extend(await consumer.pop(queueId=0, maxMsgNums=2, invisibleTime=60_000))
        assert bodies(handles) == [b"0", b"2"]

    async def go_on(peer: Peer) -> None:
        consumer = OrderConsumer(peer)
        assert sorted(bodies(await consumer.pop())) == [b"1", b"3", b"5"]
        assert await consumer.pop() == []
        for message in handles:
            assert (await consumer.ack(message)).code == ResponseCode.SUCCESS
        assert bodies(await consumer.pop()) == [b"4"]

    serve(tmp_path, pop)
    serve(tmp_path, go_on)


def test_a_reset_sets_popping_groups_back(tmp_path: Path) -> None:
    async def reset(peer: Peer, group: str, offset: int) -> None:
        answer = await peer.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            topic="T",
            group=group,
            queueId=0,
            offset=offset,
            timestamp=-1,
            isForce=True,
        )
        assert answer.code == ResponseCode.SUCCESS, answer

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        for n in range(5):
            await peer.send("T", b"%d" % n)
        consumer, ordered = PopConsumer(peer, group="c"), OrderConsumer(peer, group="o")
        for one in (consumer, ordered):
            for message in await one.pop(maxMsgNums=3):
                await one.ack(message)
        for one in (consumer, ordered):
            await reset(peer, one.group, 1)
            assert bodies(await one.pop(maxMsgNums=2)) == [b"1", b"2"]

    async def after_restart(peer: Peer) -> None:
        assert bodies(await PopConsumer(peer, group="c").pop()) == [b"3", b"4"]

    serve(tmp_path, check)
    serve(tmp_path, after_restart)


@pytest.mark.parametrize("deleted", ["topic", "group"])
def test_handles_of_a_deleted_topic_or_group_say_nothing_of_its_successor(
    tmp_path: Path, deleted: str
) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        for n in range(4):
            await peer.send("T", b"old %d" % n)
        consumer = OrderConsumer(peer)
        old = await consumer.pop()
        assert len(old) == 4
        if deleted == "topic":
            await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
            await create_topic(peer, "T", queues=1)
            for n in range(4):
                await peer.send("T", b"new %d" % n)
        else:
            answer = await peer.ask(
                RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", cleanOffset=True
            )
            assert answer.code == ResponseCode.SUCCESS
        for message in old:
            await consumer.ack(message)
        wanted = [b"%s %d" % (b"new" if deleted == "topic" else b"old", n) for n in range(4)]
        assert bodies(await consumer.pop()) == wanted

    serve(tmp_path, check)
