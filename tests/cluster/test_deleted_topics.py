"""What becomes of a deleted topic: all of it goes, but for messages that wait, which are kept."""

import asyncio
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, connect, create_topic, fields, records, serve
from tests.cluster.test_delayed_messages import Later

from pymq.errors import DiskFull, FlushFailed, PymqError, StoreError
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.store import Files
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


class StuckDisk:
    """Takes long to remove the directory of a queue; ``may_go_on`` ends that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_stuck, self.may_go_on = threading.Event(), threading.Event()
        remove_directory = Files.remove_directory

        def wait(files: Files, path: Path) -> bool:
            if path.parts[-3:] == ("consumequeue", "T", "0"):
                self.is_stuck.set()
                assert self.may_go_on.wait(5), "nothing else goes on meanwhile"
            return remove_directory(files, path)

        monkeypatch.setattr(Files, "remove_directory", wait)


@pytest.mark.parametrize("is_created_again", [True, False])
def test_others_are_answered_while_the_files_of_its_queues_go(
    tmp_path: Path, is_created_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StuckDisk(monkeypatch)

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        await create_topic(peer, "Other")
        for queue_id in range(4):
            await peer.send("T", b"old", queue_id=queue_id)
        deleted = asyncio.create_task(peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T"))
        while not disk.is_stuck.is_set():
            await asyncio.sleep(0.001)
        assert (await peer.send("Other", b"x")).code == ResponseCode.SUCCESS
        found = await peer.ask(RequestCode.GET_TOPIC_CONFIG, topic="T")
        assert found.code == ResponseCode.TOPIC_NOT_EXIST
        if is_created_again:
            await create_topic(peer, "T")
            await peer.send("T", b"new", queue_id=1)
        assert not deleted.done()
        disk.may_go_on.set()
        assert (await deleted).code == ResponseCode.SUCCESS
        left = tmp_path / "consumequeue" / "T"
        assert left.exists() == is_created_again
        if is_created_again:
            assert [one.body for one in records(await peer.pull("T", 0, queueId=1))] == [b"new"]
            assert [one.name for one in left.iterdir()] == ["1"]

    serve(tmp_path, check)


def test_others_are_answered_while_unused_topics_are_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later, disk = Later(monkeypatch), StuckDisk(monkeypatch)

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        await create_topic(peer, "Other")
        await peer.send("T", b"waits", properties="DELAY\x011")
        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")).code == 0
        await later.advance(peer, WAIT_MS)
        while await message_count(peer) == 0:
            await asyncio.sleep(0.02)
        cleaned = asyncio.create_task(peer.ask(RequestCode.CLEAN_UNUSED_TOPIC))
        while not disk.is_stuck.is_set():
            await asyncio.sleep(0.001)
        assert (await peer.send("Other", b"x")).code == ResponseCode.SUCCESS
        assert not cleaned.done()
        disk.may_go_on.set()
        assert (await cleaned).code == ResponseCode.SUCCESS
        assert not (tmp_path / "consumequeue" / "T").exists()

    serve(tmp_path, check, store=STORE)


def test_who_asked_for_a_deletion_may_go_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StuckDisk(monkeypatch)

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        await peer.send("T", b"old")
        other = await connect(peer.broker)
        asked = asyncio.create_task(other.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T"))
        while not disk.is_stuck.is_set():
            await asyncio.sleep(0.001)
        other.channel.close()
        with pytest.raises(PymqError):
            await asked
        disk.may_go_on.set()
        while (tmp_path / "consumequeue" / "T").exists():
            await asyncio.sleep(0.01)

    serve(tmp_path, check)
