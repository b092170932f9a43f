"""Popping in order: what blocks a queue, and what comes after it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, create_topic, fields, serve
from tests.cluster.pops import LONG_MS, PopConsumer, PoppedMessage

from pymq.protocol.codes import RequestCode, ResponseCode

#: For how long a pop waits that gets something; less than the answer to it is waited for.
POLL_MS = 20_000


async def pop_again(
    consumer: PopConsumer, count: int = 1, **changes: object
) -> list[PoppedMessage]:
    """Pop, for long, until messages have become visible again."""
    found: list[PoppedMessage] = []
    while len(found) < count:
        found += await consumer.pop(pollTime=POLL_MS, **changes)
    return found


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
        held = asyncio.ensure_future(consumer.pop(pollTime=POLL_MS))
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
        # Long enough for the acknowledgement to come in time, on any machine.
        first = await consumer.pop(maxMsgNums=3, invisibleTime=3_000)
        assert (await consumer.ack(first[0])).code == ResponseCode.SUCCESS
        begun = time.monotonic()
        again = await consumer.pop(pollTime=POLL_MS)
        assert time.monotonic() - begun < 0.9 * POLL_MS / 1000, "as soon as they are visible"
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
        first, second = await consumer.pop()
        answer = await consumer.change(first, 2 * LONG_MS)
        said = fields(answer)
        assert said["popTime"] == first.handle.split()[1]
        assert int(said["invisibleTime"]) >= 2 * LONG_MS
        assert (await consumer.change(second, 200)).code == ResponseCode.SUCCESS
        assert await consumer.pop(pollTime=1_500) == []
        assert (await consumer.change(first, 100)).code == ResponseCode.SUCCESS
        again = await pop_again(consumer, 2)
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
        handles.extend(await consumer.pop(queueId=0, maxMsgNums=2))
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


def test_names_too_long_for_a_retry_topic_are_refused(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        topic, group = "t" * 100, "g" * 200
        await create_topic(peer, topic, queues=1)
        await peer.send(topic, b"one")
        answer = await PopConsumer(peer, topic, group).ask()
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "would have 308 characters, expected at most 255" in (answer.remark or "")
        # In order there is no retry topic.
        (message,) = await PopConsumer(peer, topic, group).pop(order=True)
        assert message.body == b"one"

    serve(tmp_path, check)


def test_what_a_group_has_passed_does_not_block_it_after_a_crash(tmp_path: Path) -> None:
    """What was popped and the offsets of groups are in files that are saved one after the other."""
    file = tmp_path / "config" / "consumerOrderInfo.json"
    popped: list[PoppedMessage] = []
    saved: list[bytes] = []

    async def pop(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        for n in range(3):
            await peer.send("T", b"%d" % n)
        popped.extend(await OrderConsumer(peer).pop(invisibleTime=LONG_MS))
        assert len(popped) == 3

    async def acknowledge(peer: Peer) -> None:
        saved.append(file.read_bytes())
        for message in popped:
            assert (await OrderConsumer(peer).ack(message)).code == ResponseCode.SUCCESS

    async def go_on(peer: Peer) -> None:
        await peer.send("T", b"next")
        async with asyncio.timeout(60):
            assert bodies(await pop_again(OrderConsumer(peer))) == [b"next"]

    serve(tmp_path, pop)
    serve(tmp_path, acknowledge)
    file.write_bytes(saved[0])
    serve(tmp_path, go_on)
