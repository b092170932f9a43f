"""Order topics: a name server knows them, and tells brokers and clients."""

import asyncio
from pathlib import Path

from tests.cluster.broker_peer import DEADLINE_S, TIMEOUT_S, Peer, connect, create_topic

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.namesrv import NameServer, NamesrvConfig
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import ConsumerData, Subscription, TopicConfig, TopicRoute
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.store import StoreConfig


async def is_ordered(peer: Peer, topic: str) -> bool:
    answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, topic=topic)
    return TopicConfig.decode(answer.body).order


def reader_of(*topics: str) -> ConsumerData:
    subscriptions = [Subscription.of_tags(topic, "*", 1) for topic in topics]
    return ConsumerData(group="g", subscriptions=subscriptions)


async def check(peer: Peer, name_server: AsyncChannel) -> None:
    await create_topic(peer, "ordered")
    await create_topic(peer, "other")
    for key in ("ordered", "unknown"):
        fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": key, "value": "broker-a:4"}
        await name_server.request(Command(RequestCode.PUT_KV_CONFIG, fields), TIMEOUT_S)
    assert not await is_ordered(peer, "ordered")
    await create_topic(peer, "new")  # registers again
    assert await is_ordered(peer, "ordered")
    assert not await is_ordered(peer, "other")
    request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "ordered"})
    route = TopicRoute.decode((await name_server.request(request, TIMEOUT_S)).body)
    assert route.order_topic_conf == "broker-a:4"
    for topics, expected in ((("ordered", "other"), True), (("other",), False)):
        await peer.heartbeat("one", reader_of(*topics))
        assert await is_ordered(peer, "%RETRY%g") is expected


def test_a_broker_learns_of_order_topics_when_it_registers(tmp_path: Path) -> None:
    async def run() -> None:
        config = NamesrvConfig(
            port=0, kv_config_path=tmp_path / "kv.json", order_message_enable=True
        )
        name_server = NameServer(config)
        await name_server.start()
        broker = Broker(
            BrokerConfig(listen_port=0, name_servers=(name_server.address,)),
            StoreConfig(root_path=tmp_path, segment_bytes=1 << 20, disk_free_enough_bytes=1),
        )
        channel = None
        try:
            await broker.start()
            channel = await AsyncChannel.connect(name_server.address, TIMEOUT_S)
            peer = await connect(broker)
            await asyncio.wait_for(check(peer, channel), DEADLINE_S)
            peer.channel.close()
        finally:
            if channel is not None:
                channel.close()
            await broker.close()
            await name_server.close()

    asyncio.run(run())
