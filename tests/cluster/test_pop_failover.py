"""Messages that were popped in order from a master that is a slave now."""

import asyncio

from tests.cluster.broker_peer import connect_to, create_topic
from tests.cluster.pops import LONG_MS
from tests.cluster.running import run
from tests.cluster.scenarios import wait_until
from tests.cluster.test_broker_pops_in_order import OrderConsumer

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
