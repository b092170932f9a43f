"""What brokers that wait for their role tell their controller: where their logs end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.cluster.running import PATIENT, run
from tests.unit.store.stores import crashed_copy

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.broker.ha.identity import NAME as IDENTITY_NAME
from pymq.broker.replication_config import ReplicationConfig, Role
from pymq.controller import Controller, ControllerConfig
from pymq.net.channel import AsyncChannel
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import ElectMasterRequest
from pymq.store import StoreConfig

TIMEOUT_S = 60.0


@asynccontextmanager
async def controlled(folder: Path) -> AsyncIterator[str]:
    controller = Controller(ControllerConfig(store=f"file:{folder}", listen_port=0))
    await controller.start()
    try:
        yield controller.address
    finally:
        await controller.close()


def broker_on(root: Path, controller: str) -> Broker:
    return Broker(
        BrokerConfig(name="b", listen_port=0, vip_port=False),
        StoreConfig(root_path=root, segment_bytes=4 << 20, disk_free_enough_bytes=1 << 20),
        replication=ReplicationConfig(
            role=Role.ASYNC_MASTER,
            listen_port=0,
            controller_mode=True,
            controllers=(controller,),
            **PATIENT,
        ),
    )


async def send(broker: Broker, count: int) -> None:
    fields = {
        "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "",
    }  # fmt: skip
    for _ in range(count):
        command = Command(RequestCode.SEND_MESSAGE, dict(fields), b"x")
        assert (await ask(broker.address, command)).code == 0


async def designate(controller: str, broker_id: int) -> Command:
    request = ElectMasterRequest(
        cluster_name="DefaultCluster", broker_name="b", broker_id=broker_id, is_designated=True
    )
    return await ask(
        controller, Command(RequestCode.CONTROLLER_ELECT_MASTER, request.to_fields())
    )


async def ask(address: str, command: Command) -> Command:
    channel = await AsyncChannel.connect(address, TIMEOUT_S)
    try:
        return await channel.request(command, TIMEOUT_S)
    finally:
        channel.close()


def log_end(broker: Broker) -> int:
    assert broker._roles is not None
    return broker._roles.position().end


async def answer_with(controller: str, broker_id: int, text: str) -> Command:
    """Designate a broker until the answer has a text: brokers are heard one after the other."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            answer = await designate(controller, broker_id)
            if text in (answer.remark or ""):
                return answer
            assert answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, answer.remark
            await asyncio.sleep(0.05)


def test_a_broker_that_lacks_messages_cannot_be_designated(tmp_path: Path) -> None:
    """The controller's state is lost. Broker 1 lost its power and some of an epoch, 2 did not."""

    async def test() -> None:
        async with controlled(tmp_path / "before") as controller:
            broker = broker_on(tmp_path / "whole", controller)
            await broker.start()
            await send(broker, 10)
            lost = crashed_copy(tmp_path / "whole", tmp_path / "lost")
            short_end = log_end(broker)
            await send(broker, 10)
            whole_end = log_end(broker)
            await broker.close()
        assert short_end < whole_end
        for root in (lost, tmp_path / "whole"):
            (root / IDENTITY_NAME).unlink()
        async with AsyncExitStack() as stack:
            controller = await stack.enter_async_context(controlled(tmp_path / "after"))
            starting = []
            for broker_id, root in enumerate((lost, tmp_path / "whole"), 1):
                broker = broker_on(root, controller)
                stack.push_async_callback(broker.close)
                starting.append(asyncio.ensure_future(broker.start()))
                # They get their ids in this order.
                await answer_with(controller, 99, f"broker {broker_id}: epoch 1, offset ")
            refused = await designate(controller, 1)
            assert refused.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
            assert refused.remark and refused.remark.endswith(
                f"broker 1: epoch 1, offset {short_end}, broker 2: epoch 1, offset {whole_end}"
            )
            assert (await designate(controller, 2)).code == 0
            await asyncio.gather(*starting)

    run(test())
