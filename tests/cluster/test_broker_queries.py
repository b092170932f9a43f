"""What a broker says about itself and about single messages, over a real socket."""

from pathlib import Path

from tests.cluster.broker_peer import Peer, serve

from pymq.protocol.bodies import KVTable
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.store import FlushMode


async def runtime_info(peer: Peer) -> dict[str, str]:
    answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert answer.code == ResponseCode.SUCCESS
    return KVTable.decode(answer.body).table


def test_the_state_of_an_empty_broker(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        found = await runtime_info(peer)
        assert found["brokerVersionDesc"] == "V5_3_3"
        assert found["earliestMessageTimeStamp"] == "-1"
        assert found["putMessageTimesTotal"] == found["msgPutTotalTodayNow"] == "0"
        assert found["putMessageAverageSize"] == "0.0"
        assert found["putTps"] == found["getTotalTps"] == "0.0 0.0 0.0"
        assert found["runtime"].startswith("[ 0 days, 0 hours, 0 minutes, ")

    serve(tmp_path, check)


def test_the_state_counts_what_was_sent_and_pulled(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for _ in range(6):
            await peer.send("T", b"x" * 100)
        await peer.send("no/topic", b"refused before it reaches the store")
        await peer.pull("T", 2)
        await peer.pull("T", 6)
        found = await runtime_info(peer)
        assert found["putMessageTimesTotal"] == found["msgPutTotalTodayNow"] == "6"
        assert found["putMessageSizeTotal"] == found["commitLogMaxOffset"]
        assert float(found["putMessageAverageSize"]) == int(found["commitLogMaxOffset"]) / 6 > 191
        assert found["msgGetTotalTodayNow"] == "4"
        assert found["commitLogMinOffset"] == found["dispatchBehindBytes"] == "0"
        assert int(found["earliestMessageTimeStamp"]) >= int(found["bootTimestamp"]) > 0
        classes = dict(one.split(":") for one in found["putMessageDistributeTime"].split(" "))
        assert sum(map(int, classes.values())) == 6
        assert found["getTransferedTps"] == found["getTransferredTps"]

    serve(tmp_path, check, flush=FlushMode.SYNC)
