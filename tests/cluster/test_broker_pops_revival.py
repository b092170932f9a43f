"""What was popped and not acknowledged comes again, whatever stands in the way; else nothing."""

import asyncio
from pathlib import Path

import pytest
from tests.cluster.broker_peer import Peer, copy_running, create_topic, serve
from tests.cluster.pops import LONG_MS, PopConsumer
from tests.cluster.test_broker_pops_in_order import OrderConsumer, pop_again

from pymq.clock import Clock
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.bodies import ConsumerData, Subscription
from pymq.protocol.codes import RequestCode, ResponseCode

#: How long checkpoints that were read wait, instead of 2 s.
GRACE_MS = 300


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymq.broker.pop.revive_journal.FOREIGN_GRACE_MS", GRACE_MS)
    monkeypatch.setattr("pymq.broker.pop.revival.AWAIT_GROUP_MS", 1000)


def test_a_tag_that_is_not_utf_8_comes_again_and_so_does_what_is_due_after_it(
    tmp_path: Path,
) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "Bad", queues=1)
        await create_topic(peer, "Good", queues=1)
        properties = "TAGS\x01订单\x02UNIQ_KEY\x01a\x02".encode("gbk")
        batch = encode_batch([(0, b"bad", properties)])
        answer = await peer.send("Bad", batch, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
        assert answer.code == ResponseCode.SUCCESS
        await peer.send("Good", b"good")
        bad, good = PopConsumer(peer, "Bad"), PopConsumer(peer, "Good", "other")
        # Due together, the bad one first.
        assert [m.body for m in await bad.pop(invisibleTime=500)] == [b"bad"]
        assert [m.body for m in await good.pop(invisibleTime=500)] == [b"good"]
        (again,) = await pop_again(good)
        assert again.body == b"good"
        (again,) = await pop_again(bad)
        assert again.body == b"bad"
        assert properties.removesuffix(b"\x02") in again.record.properties

    serve(tmp_path, check)


def test_a_checkpoint_of_a_deleted_topic_is_not_open_again_after_a_restart(tmp_path: Path) -> None:
    """Its messages would be looked for in the topic that has the name now."""

    async def delete(peer: Peer) -> None:
        await create_topic(peer, "U", queues=1)
        await create_topic(peer, "T", queues=1)
        for n in range(9):
            await peer.send("U", b"%d" % n)
        for n in range(3):
            await peer.send("T", b"old %d" % n)
        other, consumer = PopConsumer(peer, "U"), PopConsumer(peer)
        # This one stays open, and the journal is needed from it on. There are eight revive queues.
        assert len(await other.pop(maxMsgNums=1, invisibleTime=LONG_MS)) == 1
        for _ in range(7):
            (message,) = await other.pop(maxMsgNums=1)
            assert (await other.ack(message)).code == ResponseCode.SUCCESS
        assert len(await consumer.pop(invisibleTime=500)) == 3
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        await create_topic(peer, "T", queues=1)
        for n in range(3):
            await peer.send("T", b"new %d" % n)
        for message in await consumer.pop():
            assert (await consumer.ack(message)).code == ResponseCode.SUCCESS

    async def pop(peer: Peer) -> None:
        consumer = PopConsumer(peer)
        await peer.send("T", b"another")
        # It is due after the old ones, if these are open.
        (message,) = await consumer.pop(invisibleTime=GRACE_MS + 1000)
        assert message.body == b"another"
        found = await pop_again(consumer)
        assert [m.body for m in found] == [b"another"]
        assert await consumer.pop() == []

    serve(tmp_path, delete)
    serve(tmp_path, pop)


def test_messages_of_a_group_that_a_crash_has_made_unknown_wait_for_it(tmp_path: Path) -> None:
    """A heartbeat creates it, and nobody waits until it is saved; nor until a slave knows it."""
    before, after = tmp_path / "before", tmp_path / "after"
    member = ConsumerData(group="g", subscriptions=[Subscription(topic="T")])

    async def pop(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        await peer.send("T", b"x")
        await peer.heartbeat("c", member)
        assert len(await PopConsumer(peer).pop(invisibleTime=500)) == 1
        copy_running(before, after)
        for file in (after / "config").glob("subscriptionGroup.json*"):
            file.unlink()

    async def come_back(peer: Peer) -> None:
        other = PopConsumer(peer, group="other")
        # It is due after the first one.
        assert len(await other.pop(invisibleTime=GRACE_MS + 1000)) == 1
        await pop_again(other)
        await peer.heartbeat("c", member)
        async with asyncio.timeout(60):
            (again,) = await pop_again(PopConsumer(peer))
        assert (again.body, again.record.reconsume_times) == (b"x", 1)

    serve(before, pop)
    serve(after, come_back)


class AheadClock(Clock):
    """Is ahead of the machine's, until a test puts it right."""

    def __init__(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


@pytest.mark.parametrize("ahead_ms", [0, LONG_MS])
def test_a_crash_forgets_no_pop_whatever_the_clock_said(tmp_path: Path, ahead_ms: int) -> None:
    """The store's times do not go back with the clock: it pops what is stored "later"."""
    before, after = tmp_path / "before", tmp_path / "after"
    clock = AheadClock(ahead_ms)

    async def create(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        await peer.send("T", b"x")

    async def pop(peer: Peer) -> None:
        clock.ahead_ms = 0
        await peer.send("T", b"y")
        consumer = PopConsumer(peer)
        popped = [await consumer.pop(maxMsgNums=1) for _ in range(2)]
        assert [message.body for message, in popped] == [b"x", b"y"]
        for (message,) in popped:
            assert (await consumer.ack(message)).code == ResponseCode.SUCCESS
        copy_running(before, after)

    async def go_on(peer: Peer) -> None:
        await peer.send("T", b"z")
        async with asyncio.timeout(60):
            assert [m.body for m in await pop_again(PopConsumer(peer))] == [b"z"]

    serve(before, create, clock=clock)
    serve(before, pop, clock=clock, offset_flush_interval_ms=600_000)
    serve(after, go_on)


@pytest.mark.parametrize("with_restart", [False, True])
def test_messages_come_again_in_time_when_the_clock_was_set_back(
    tmp_path: Path, with_restart: bool
) -> None:
    clock = AheadClock(LONG_MS)

    async def pop(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        await peer.send("T", b"x")
        for consumer in (PopConsumer(peer), OrderConsumer(peer, group="o")):
            assert len(await consumer.pop(invisibleTime=500)) == 1

    async def come_back(peer: Peer) -> None:
        clock.ahead_ms = 0
        async with asyncio.timeout(60):
            for consumer in (PopConsumer(peer), OrderConsumer(peer, group="o")):
                assert [m.body for m in await pop_again(consumer)] == [b"x"]

    async def both(peer: Peer) -> None:
        await pop(peer)
        await come_back(peer)

    if with_restart:
        serve(tmp_path, pop, clock=clock)
        clock.ahead_ms = 0
        serve(tmp_path, come_back, clock=clock)
    else:
        serve(tmp_path, both, clock=clock)


DELETE_GROUP = RequestCode.DELETE_SUBSCRIPTIONGROUP


@pytest.mark.parametrize("with_offsets", [False, True])
def test_messages_of_a_deleted_group_are_given_up_when_they_are_due(
    tmp_path: Path, with_offsets: bool
) -> None:
    """As by RocketMQ: they count among those in flight, of which there is a limit for all."""

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        await peer.send("T", b"x")
        assert len(await PopConsumer(peer).pop(invisibleTime=1500)) == 1
        answer = await peer.ask(DELETE_GROUP, groupName="g", cleanOffset=with_offsets)
        assert answer.code == ResponseCode.SUCCESS
        async with asyncio.timeout(60):
            while not await PopConsumer(peer, group="other").pop():
                await asyncio.sleep(0.1)

    serve(tmp_path, check, pop_checkpoint_count_max=1)


@pytest.mark.parametrize("with_offsets", [False, True])
def test_messages_of_a_deleted_group_come_if_it_is_there_again(
    tmp_path: Path, with_offsets: bool
) -> None:
    """Any member that is still there creates it."""
    member = ConsumerData(group="g", subscriptions=[Subscription(topic="T")])

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        await peer.send("T", b"x")
        assert len(await PopConsumer(peer).pop(invisibleTime=3000)) == 1
        await peer.ask(DELETE_GROUP, groupName="g", cleanOffset=with_offsets)
        await peer.heartbeat("c", member)
        # With the offsets it is forgotten what the group has had.
        async with asyncio.timeout(60):
            found = await pop_again(PopConsumer(peer), 1 + with_offsets)
        assert {again.body for again in found} == {b"x"}

    serve(tmp_path, check)
