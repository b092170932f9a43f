"""Messages that were popped in order from a master that is a slave now."""

import asyncio

from tests.cluster.broker_peer import connect_to, create_topic
from tests.cluster.pops import LONG_MS, PoppedMessage
from tests.cluster.replicated import eventually
from tests.cluster.running import run
from tests.cluster.scenarios import wait_until
from tests.cluster.test_acting_master import offset_at
from tests.cluster.test_broker_pops_in_order import OrderConsumer, bodies

from pymq.protocol.codes import ResponseCode
from pymq.testing import Cluster


def test_a_slave_forgets_what_was_popped_in_order(group: Cluster) -> None:
    """Groups go on at its master; what it knows would block their queues when it is one again."""
    one = group.master()
    other = 3 - one
    config = group.store / group.broker_name / str(one) / "config"

    async def pop() -> None:
        peer = await connect_to(group.address(None, one))
        assert (await create_topic(peer, "T", queues=1)).code == ResponseCode.SUCCESS
        assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS
        consumer = OrderConsumer(peer, broker_name=group.broker_name)
        assert len(await consumer.pop(invisibleTime=LONG_MS)) == 1
        peer.channel.close()

    async def test() -> None:
        loop = asyncio.get_running_loop()
        await pop()
        await loop.run_in_executor(None, group.stop_broker, None, one)
        assert (config / "consumerOrderInfo.json").exists()  # it is saved at the end of the run
        await wait_until(lambda: group.master() == other, "the other one is the master")
        await loop.run_in_executor(None, group.start_broker, None, one)
        await loop.run_in_executor(None, group.wait_in_sync)
        assert not [*config.glob("consumerOrderInfo.json*")]

    run(test())


def test_what_a_group_had_in_order_is_handed_out_again_by_a_new_master(group: Cluster) -> None:
    """As docs/replication.md says: what was acknowledged behind a gap, too, and at once."""
    one = group.master()
    other = 3 - one

    async def pop_first() -> list[PoppedMessage]:
        peer = await connect_to(group.address(None, one))
        assert (await create_topic(peer, "T", queues=1)).code == ResponseCode.SUCCESS
        for n in range(5):
            assert (await peer.send("T", b"%d" % n)).code == ResponseCode.SUCCESS
        consumer = OrderConsumer(peer, broker_name=group.broker_name)
        popped = await consumer.pop(maxMsgNums=4, invisibleTime=LONG_MS)
        for n in (0, 2, 3):
            assert (await consumer.ack(popped[n])).code == ResponseCode.SUCCESS
        peer.channel.close()
        return popped

    async def test() -> None:
        loop = asyncio.get_running_loop()
        popped = await pop_first()
        slave = group.address(None, other)
        await asyncio.to_thread(eventually, lambda: offset_at(slave) == "1")
        await loop.run_in_executor(None, group.stop_broker, None, one)
        await wait_until(lambda: group.master() == other, "the other one is the master")
        peer = await connect_to(slave)
        consumer = OrderConsumer(peer, broker_name=group.broker_name)
        again = await consumer.pop(maxMsgNums=4, invisibleTime=LONG_MS)
        assert bodies(again) == [b"1", b"2", b"3", b"4"]
        assert (await consumer.ack(popped[1])).code == ResponseCode.SUCCESS
        assert await consumer.pop() == []
        for message in again:
            assert (await consumer.ack(message)).code == ResponseCode.SUCCESS
        await peer.send("T", b"5")
        assert bodies(await consumer.pop()) == [b"5"]
        peer.channel.close()

    run(test())
