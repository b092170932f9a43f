"""An exactly-once sink whose master changes: what another master has published counts."""

import asyncio
import json

from tests.cluster.broker_peer import connect_to, create_topic
from tests.cluster.running import run
from tests.cluster.scenarios import wait_until
from tests.cluster.sinks import SinkWriter, bodies
from tests.cluster.test_failover import elect

from pymq.protocol.codes import ResponseCode
from pymq.store.state.sealed_file import SealedFile
from pymq.testing import Cluster


async def connected(group: Cluster, broker_id: int) -> SinkWriter:
    return SinkWriter(await connect_to(group.address(None, broker_id)))


def test_a_file_from_before_the_log_was_cut_is_not_believed(group: Cluster) -> None:
    one = group.master()
    other = 3 - one
    config = group.store / group.broker_name / str(one) / "config"

    def promote(broker_id: int) -> None:
        elect(group, broker_id)
        group.wait_in_sync()

    async def publish(number: int, broker_id: int) -> None:
        writer = await connected(group, broker_id)
        if number == 0:
            await create_topic(writer.peer, "T", queues=1)
        run = await writer.stage([b"%d" % number])
        assert await writer.is_new(number)
        answer = await writer.publish(number, run)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        writer.peer.channel.close()

    async def check() -> None:
        writer = await connected(group, one)
        assert not await writer.is_new(1), "it was published by the other one"
        assert await writer.is_new(2)
        assert await bodies(writer.peer) == [b"0", b"1"]
        writer.peer.channel.close()

    async def test() -> None:
        loop = asyncio.get_running_loop()
        await publish(0, one)
        # It is saved at the end of the run. Its log had an entry that no other one has.
        await loop.run_in_executor(None, group.stop_broker, None, one)
        file = SealedFile(config / "sinks.json")
        saved = file.load(json.loads)
        assert saved is not None
        saved["readTo"] += 1
        saved["readFrom"] += 1
        file.save(json.dumps(saved))
        await wait_until(lambda: group.master() == other, "the other one is the master")
        await loop.run_in_executor(None, group.start_broker, None, one)
        await loop.run_in_executor(None, group.wait_in_sync)
        await publish(1, other)
        await loop.run_in_executor(None, promote, one)
        await check()

    run(test())
