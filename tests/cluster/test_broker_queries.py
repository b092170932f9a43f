"""What a broker says about itself and about single messages, over a real socket."""

from pathlib import Path

import pytest
from tests.cluster.broker_peer import Peer, records, serve

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


# --------------------------------------------------------------------------------------- view


@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_a_message_is_viewed_by_its_offset(tmp_path: Path, memory_bytes: int | None) -> None:
    async def check(peer: Peer) -> None:
        bodies = [b"x" * (i * 7) for i in range(5)]
        for body in bodies:
            await peer.send("T", body, properties="KEYS\x01k")
        stored = records(await peer.pull("T", 0))
        for body, record in zip(bodies, stored, strict=True):
            answer = await peer.ask(
                RequestCode.VIEW_MESSAGE_BY_ID, offset=record.physical_offset, topic="T"
            )
            assert answer.code == ResponseCode.SUCCESS
            assert records(answer) == [record]
            assert record.body == body

    serve(tmp_path, check, memory_bytes=memory_bytes)


def test_an_offset_without_a_message_is_refused_with_a_reason(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x" * 500)
        (record,) = records(await peer.pull("T", 0))
        for offset in (-1, 1, 100, record.size - 3, record.size, 1 << 40, (1 << 63) - 1):
            answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            text = f"can not find message by the offset, {offset}: "
            assert answer.remark is not None and answer.remark.startswith(text)
        for fields in ({}, {"offset": "x"}):
            answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, **fields)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "offset" in str(answer.remark)

    serve(tmp_path, check)


def test_a_record_inside_a_body_is_no_message(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x")
        whole = (await peer.pull("T", 0)).body
        await peer.send("T", bytes(whole))
        _, outer = records(await peer.pull("T", 0))
        inside = outer.physical_offset + 88
        answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=inside)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "lies at physical offset 0" in str(answer.remark)

    serve(tmp_path, check)
