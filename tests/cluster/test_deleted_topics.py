"""What becomes of a deleted topic: all of it goes, but for messages that wait, which are kept."""

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, create_topic, fields, records, serve
from tests.cluster.test_delayed_messages import Later

from pymq.errors import DiskFull, FlushFailed, StoreError
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.store.state.clean_stop import CleanStop

#: Nothing is due before the topic is deleted, however long that takes.
WAIT_MS = 600_000
STORE: dict[str, Any] = {"delay_levels_ms": (WAIT_MS,), "timer_precision_ms": 100}
WAITS = pytest.mark.parametrize("wait", ["DELAY\x011", f"TIMER_DELAY_MS\x01{WAIT_MS}"])


async def send_and_delete(peer: Peer, wait: str) -> None:
    await create_topic(peer, "T")
    await peer.send("T", b"old")
    await peer.send("T", b"waits", properties=wait)
    answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    assert answer.code == ResponseCode.SUCCESS


async def message_count(peer: Peer) -> int:
    answer = await peer.ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)
    return int(fields(answer)["offset"])


async def found_again(peer: Peer, later: Later) -> None:
    """Have the message come while the topic is away; create that again, and read what is in it."""
    assert await message_count(peer) == 0
    await later.advance(peer, WAIT_MS)
    while await message_count(peer) == 0:
        await asyncio.sleep(0.02)
    assert (await peer.pull("T", 0)).code == ResponseCode.TOPIC_NOT_EXIST
    await create_topic(peer, "T")
    (record,) = records(await peer.pull("T", 0))
    assert record.body == b"waits"


@WAITS
def test_they_are_there_when_the_topic_is_created_again(
    tmp_path: Path, wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(monkeypatch)

    async def check(peer: Peer) -> None:
        await send_and_delete(peer, wait)
        await found_again(peer, later)

    serve(tmp_path, check, store=STORE)


@WAITS
def test_they_come_while_the_topic_is_away_after_a_restart(
    tmp_path: Path, wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(monkeypatch)

    async def begin(peer: Peer) -> None:
        await send_and_delete(peer, wait)

    async def check(peer: Peer) -> None:
        await found_again(peer, later)

    serve(tmp_path, begin, store=STORE)
    serve(tmp_path, check, store=STORE)


@pytest.mark.parametrize("kind", [DiskFull, FlushFailed])
def test_a_topic_is_deleted_as_a_whole_or_not_at_all(
    tmp_path: Path, kind: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused on a full disk, all of it is there; recorded, but perhaps not durably, none is."""

    queue: dict[str, Any] = {"topic": "T", "queueId": 0}

    def fail(self: CleanStop, topic: str, log_end: int) -> None:
        raise kind("queues.json: no space left on the device")

    async def committed(peer: Peer) -> str | None:
        answer = await peer.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, **queue, consumerGroup="g", setZeroIfNotFound=False
        )
        return (answer.fields or {}).get("offset")

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        await peer.send("T", b"old")
        group = b'{"groupName": "g"}'
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
        await peer.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET, **queue, consumerGroup="g", commitOffset=1
        )
        assert await committed(peer) == "1"
        with monkeypatch.context() as patch:
            patch.setattr(CleanStop, "delete", fail)
            answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        assert answer.code == ResponseCode.SYSTEM_ERROR and "no space left" in str(answer.remark)
        found = await peer.ask(RequestCode.GET_TOPIC_CONFIG, topic="T")
        if kind is FlushFailed:
            assert found.code == ResponseCode.TOPIC_NOT_EXIST
            assert await committed(peer) is None
            done.append(True)
            return
        assert found.code == ResponseCode.SUCCESS
        assert await committed(peer) == "1"
        assert [one.body for one in records(await peer.pull("T", 0))] == [b"old"]
        answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        assert answer.code == ResponseCode.SUCCESS
        assert await message_count(peer) == 0 and await committed(peer) is None
        done.append(True)

    done: list[bool] = []
    # A broker whose disk has failed says so at its end.
    with pytest.raises(StoreError) if kind is FlushFailed else nullcontext():
        serve(tmp_path, check)
    assert done
