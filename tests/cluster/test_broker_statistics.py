"""What a broker counts, asked over a socket as tools do."""

import asyncio
from pathlib import Path

from tests.cluster.broker_peer import Peer, connect

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.clock import Clock
from pymq.protocol.admin_bodies import BrokerStats
from pymq.protocol.bodies import ConsumeStats, TopicStats
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.store import FlushMode, StoreConfig

DEADLINE_S = 20.0


class MovedClock(Clock):
    """Runs ahead, but for the time of day."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


async def _stats(peer: Peer, name: str, key: str) -> BrokerStats:
    answer = await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return BrokerStats.decode(answer.body)


async def _check(peer: Peer, clock: MovedClock) -> None:
    view = RequestCode.VIEW_BROKER_STATS_DATA
    answer = await peer.ask(view, statsName="TOPIC_PUT_NUMS", statsKey="T")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The stats <TOPIC_PUT_NUMS> <T> not exist"
    assert (await peer.ask(view, statsName="TOPIC_PUT_NUMS")).code == ResponseCode.SYSTEM_ERROR
    for number in range(6):
        await peer.send("T", b"%d" % number)
    assert (await peer.pull("T", 0)).code == ResponseCode.SUCCESS
    clock.ahead_s += 10
    async with asyncio.timeout(DEADLINE_S):
        while not (await _stats(peer, "GROUP_GET_NUMS", "T@g")).minute.total:
            await asyncio.sleep(0.02)
    puts = await _stats(peer, "TOPIC_PUT_NUMS", "T")
    assert (puts.minute.total, puts.minute.average) == (6, 1.0)
    assert puts.minute.per_s > 0
    assert puts.hour.total == puts.day.total == 0  # there was no sample since
    read = await _stats(peer, "GROUP_GET_NUMS", "T@g")
    assert (read.minute.total, read.minute.average) == (6, 6.0)
    sizes = await _stats(peer, "TOPIC_PUT_SIZE", "T")
    assert (await _stats(peer, "GROUP_GET_SIZE", "T@g")).minute.total == sizes.minute.total
    answer = await peer.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="T")
    assert ConsumeStats.decode(answer.body).consumed_per_s == read.minute.per_s
    answer = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T")
    assert TopicStats.decode(answer.body).put_per_s == puts.minute.per_s
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")).code == 0
    answer = await peer.ask(view, statsName="TOPIC_PUT_NUMS", statsKey="T")
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_messages_are_counted_by_topic_and_group(tmp_path: Path) -> None:
    async def run() -> None:
        clock = MovedClock()
        broker = Broker(
            BrokerConfig(listen_port=0),
            StoreConfig(
                root_path=tmp_path,
                flush_mode=FlushMode.ASYNC,
                segment_bytes=1 << 20,
                disk_free_enough_bytes=1,
            ),
            clock,
        )
        await broker.start()
        peer = await connect(broker)
        try:
            await asyncio.wait_for(_check(peer, clock), 2 * DEADLINE_S)
        finally:
            peer.channel.close()
            await broker.close()

    asyncio.run(run())
