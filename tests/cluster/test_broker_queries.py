"""What a broker says about itself and about single messages, over a real socket."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.broker_peer import DEADLINE_S, Peer, fields, records, serve

from pymq.broker.handlers import query as query_handlers
from pymq.errors import StoreError
from pymq.protocol.bodies import KVTable, TopicStats
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.store import FlushMode, Keys


@pytest.fixture(autouse=True)
def patient_queries() -> Iterator[None]:
    """Have queries by key wait for the index for as long as a busy machine needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_handlers, "INDEX_WAIT_S", DEADLINE_S)
        yield


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
        path = tmp_path / "commitlog"
        assert found["commitLogDiskRatio"] == found[f"commitLogDiskRatio_{path}"]
        assert 0 < float(found["commitLogDiskRatio"]) <= 1
        assert 0 < float(found["consumeQueueDiskRatio"]) <= 1
        assert found["commitLogDirCapacity"].startswith("Total : ")

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


@pytest.mark.parametrize(("pool", "free"), [({}, "2147483647"), ({"transient_pool": True}, "4")])
def test_the_state_tells_of_buffers_that_are_free(
    tmp_path: Path, pool: dict[str, bool], free: str
) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x")
        assert (await runtime_info(peer))["remainTransientStoreBufferNumbs"] == free

    serve(tmp_path, check, store=pool)


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
        for asked in ({}, {"offset": "x"}):
            answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, **asked)
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
        assert "it is at physical offset 0" in str(answer.remark)

    serve(tmp_path, check)


# -------------------------------------------------------------------------------------- query


async def query(peer: Peer, topic: str, key: str, **changes: object) -> Command:
    wanted = {"maxNum": 64, "beginTimestamp": 0, "endTimestamp": (1 << 63) - 1} | changes
    return await peer.ask(RequestCode.QUERY_MESSAGE, topic=topic, key=key, **wanted)


def bodies(answer: Command) -> list[bytes]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [record.body for record in records(answer)]


@pytest.mark.parametrize("flush", FlushMode)
@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_messages_are_found_by_their_keys_at_once(
    tmp_path: Path, flush: FlushMode, memory_bytes: int | None
) -> None:
    async def check(peer: Peer) -> None:
        for i in range(50):
            text = f"UNIQ_KEY\x01ID{i}\x02KEYS\x01all k{i % 5}"
            await peer.send("T", b"%d" % i, properties=text)
        await peer.send("Other", b"no", properties="KEYS\x01all k3")
        assert bodies(await query(peer, "T", "k3")) == [b"%d" % i for i in range(3, 50, 5)]
        answer = await query(peer, "T", "all", maxNum=7)
        assert bodies(answer) == [b"%d" % i for i in range(43, 50)]  # the newest, in order
        last = records(await peer.pull("Other", 0))[0]
        assert fields(answer) == {
            "indexLastUpdateTimestamp": str(last.store_timestamp),
            "indexLastUpdatePhyoffset": str(last.physical_offset),
        }
        assert bodies(await query(peer, "T", "ID20", _UNIQUE_KEY_QUERY=True, maxNum=1)) == [b"20"]
        # As in RocketMQ: a query for an id has a limit of its own.
        assert len(bodies(await query(peer, "T", "all", _UNIQUE_KEY_QUERY=True, maxNum=1))) == 32

    serve(tmp_path, check, flush=flush, memory_bytes=memory_bytes)


def test_nothing_found_says_what_was_looked_for(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x", properties="KEYS\x01k")
        (record,) = records(await peer.pull("T", 0))
        at = record.store_timestamp
        assert bodies(await query(peer, "T", "k", beginTimestamp=at, endTimestamp=at)) == [b"x"]
        for topic, key, begin, end in (
            ("T", "K", 0, at),
            ("U", "k", 0, at),
            ("T", "k", at + 1, at + 9),
            ("T", "k", 0, at - 1),
            ("T", "", 0, at),
        ):
            answer = await query(peer, topic, key, beginTimestamp=begin, endTimestamp=end)
            assert answer.code == ResponseCode.QUERY_NOT_FOUND
            assert answer.remark == (
                f"can not find message, maybe time range not correct: key {key!r} of topic "
                f"{topic!r}, stored at {begin}..{end} ms"
            )
        answer = await query(peer, "T", "k", maxNum=0)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert "at most 0 messages" in str(answer.remark)
        answer = await peer.ask(RequestCode.QUERY_MESSAGE, topic="T")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "field 'maxNum' is missing" in str(answer.remark)

    serve(tmp_path, check)


def test_without_a_key_index_queries_are_refused(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x", properties="KEYS\x01k")
        answer = await query(peer, "T", "k")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "key 'k' of topic 'T'" in str(answer.remark)
        assert "messageIndexEnable" in str(answer.remark)

    serve(tmp_path, check, store={"key_index": False})


def test_an_index_that_is_behind_is_not_taken_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"old", properties="KEYS\x01k")
        assert bodies(await query(peer, "T", "k")) == [b"old"]
        monkeypatch.setattr(Keys, "index_step", stuck)
        monkeypatch.setattr(query_handlers, "INDEX_WAIT_S", 0.05)
        await peer.send("T", b"new", properties="KEYS\x01k other")
        assert bodies(await query(peer, "T", "k")) == [b"old"]
        answer = await query(peer, "T", "other")
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "try again" in str(answer.remark)
        monkeypatch.setattr(Keys, "index_step", broken)
        monkeypatch.setattr(query_handlers, "INDEX_WAIT_S", DEADLINE_S)
        answer = await query(peer, "T", "other")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "no space left for keys" in str(answer.remark)
        monkeypatch.undo()
        assert bodies(await query(peer, "T", "other")) == [b"new"]

    def stuck(_: Keys) -> int:
        return 1

    def broken(_: Keys) -> int:
        raise StoreError("no space left for keys")

    serve(tmp_path, check)


def test_what_is_no_longer_in_memory_is_found_just_the_same(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        answers = [await peer.send("T", b"x" * size) for size in (10, 50_000)]
        small, large = (int(fields(answer)["msgId"][16:], 16) for answer in answers)
        for offset, size in ((small, 10), (large, 50_000)):
            answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)
            (found,) = records(answer)
            assert (len(found.body), found.physical_offset) == (size, offset)
        answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=small + 1)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        answer = await peer.ask(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic="T", queueId=0, timestamp=1 << 50
        )
        assert fields(answer)["offset"] == "2"
        answer = await peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, topic="T", queueId=0)
        assert 0 < int(fields(answer)["timestamp"]) <= found.store_timestamp
        answer = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T")
        stats = TopicStats.decode(answer.body)
        times = {one.queue_id: at.last_update_timestamp_ms for one, at in stats.offsets.items()}
        assert times[0] == found.store_timestamp and times[1] == 0

    serve(tmp_path, check, memory_bytes=0)
