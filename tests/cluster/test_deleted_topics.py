"""What becomes of a deleted topic: all of it goes, but for messages that wait, which are kept."""

import asyncio
import threading
from collections.abc import Collection
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import (
    Peer,
    connect,
    copy_running,
    create_topic,
    fields,
    records,
    serve,
)
from tests.cluster.test_delayed_messages import Later

from pymq.errors import DiskFull, FlushFailed, PymqError, StoreError
from pymq.protocol import names
from pymq.protocol.bodies import TopicTable
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.store import Files
from pymq.store.state.clean_stop import CleanStop
from pymq.store.state.sealed_file import SealedFile, replace_file

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


QUEUE: dict[str, Any] = {"topic": "T", "queueId": 0}


async def send_and_commit(peer: Peer) -> None:
    """Have group g consume a message of topic T, and all of that saved."""
    await create_topic(peer, "T", queues=1)
    await peer.send("T", b"old")
    group = b'{"groupName": "g"}'
    await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
    await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **QUEUE, consumerGroup="g", commitOffset=1)
    await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
    assert await committed(peer) == "1"


async def committed(peer: Peer) -> str | None:
    answer = await peer.ask(
        RequestCode.QUERY_CONSUMER_OFFSET, **QUEUE, consumerGroup="g", setZeroIfNotFound=False
    )
    return (answer.fields or {}).get("offset")


@pytest.mark.parametrize("kind", [DiskFull, FlushFailed])
def test_a_topic_is_deleted_as_a_whole_or_not_at_all(
    tmp_path: Path, kind: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused on a full disk, all of it is there; recorded, but perhaps not durably, none is."""

    def fail(self: CleanStop, topics: Collection[str], log_end: int) -> None:
        raise kind("queues.json: no space left on the device")

    async def check(peer: Peer) -> None:
        await send_and_commit(peer)
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
    # A broker whose disk has failed says so at its end, if something is not on the disk.
    with suppress(StoreError) if kind is FlushFailed else nullcontext():
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


#: Offsets are saved with other things, and not by themselves.
SELDOM: dict[str, Any] = {"offset_flush_interval_ms": 3_600_000}


def test_offsets_are_saved_while_the_files_of_its_queues_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those may take long, and the process may be killed meanwhile."""
    disk = StuckDisk(monkeypatch)
    file = tmp_path / "config" / "consumerOffset.json"

    async def check(peer: Peer) -> None:
        await send_and_commit(peer)
        assert "T@g" in file.read_text()
        deleted = asyncio.create_task(peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T"))
        while not file.exists() or "T@g" in file.read_text():  # between two renames, there is none
            assert not deleted.done()
            await asyncio.sleep(0.002)
        disk.may_go_on.set()
        assert (await deleted).code == ResponseCode.SUCCESS

    serve(tmp_path, check, **SELDOM)


@pytest.mark.parametrize("is_created_again", [True, False])
def test_offsets_that_a_crash_left_are_not_those_of_a_topic_created_again(
    tmp_path: Path, is_created_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its groups would pass over the first messages."""
    root, copy = tmp_path / "store", tmp_path / "copy"
    save = SealedFile.save

    def fail(self: SealedFile, text: str) -> None:
        if self._path.name == "consumerOffset.json":
            raise StoreError("the process dies before that")
        save(self, text)

    async def begin(peer: Peer) -> None:
        await send_and_commit(peer)
        with monkeypatch.context() as patch:
            patch.setattr(SealedFile, "save", fail)
            answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            if is_created_again:
                await create_topic(peer, "T", queues=1)
                await peer.send("T", b"new")
            copy_running(root, copy)
        assert "T@g" in (copy / "config" / "consumerOffset.json").read_text()

    async def check(peer: Peer) -> None:
        if not is_created_again:
            found = await peer.ask(RequestCode.GET_TOPIC_CONFIG, topic="T")
            assert found.code == ResponseCode.TOPIC_NOT_EXIST
            await create_topic(peer, "T", queues=1)
            await peer.send("T", b"new")
        assert await committed(peer) is None
        assert [one.body for one in records(await peer.pull("T", 0))] == [b"new"]
        await peer.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET, **QUEUE, consumerGroup="g", commitOffset=1
        )

    async def check_again(peer: Peer) -> None:
        assert await committed(peer) == "1", "of the topic that there is now"

    serve(root, begin, **SELDOM)
    serve(copy, check, **SELDOM)
    serve(copy, check_again)


def test_retry_topics_of_pops_stay_with_a_topic_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may be full after any number of writes: what is popped must not be lost."""
    retry_topic = names.pop_retry_topic("T", "g", v2=False)
    writes = 0

    def fail(files: Files, path: Path, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes == write_count:
            raise DiskFull(f"{path}: no space left on the device")
        replace_file(files, path, data)

    async def left(peer: Peer) -> set[str]:
        answer = await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        return set(TopicTable.decode(answer.body).topics) & {"T", retry_topic}

    async def check(peer: Peer) -> None:
        await send_and_commit(peer)
        await create_topic(peer, retry_topic, queues=1)
        await peer.send(retry_topic, b"again")
        assert await left(peer) == {"T", retry_topic}
        with monkeypatch.context() as patch:
            patch.setattr("pymq.store.state.clean_stop.replace_file", fail)
            answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        is_refused = answer.code != ResponseCode.SUCCESS
        assert is_refused == (writes == write_count)
        assert await left(peer) == ({"T", retry_topic} if is_refused else set())
        if is_refused:
            assert [one.body for one in records(await peer.pull(retry_topic, 0))] == [b"again"]

    for write_count in 1, 2:
        writes = 0
        serve(tmp_path / str(write_count), check)


def test_a_directory_that_cannot_be_removed_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_directory = Files.remove_directory

    def fail(files: Files, path: Path) -> bool:
        if path.name == "T":
            raise StoreError(f"{path}: remove directory: Permission denied")
        return remove_directory(files, path)

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        await peer.send("T", b"old")
        answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        assert answer.code == ResponseCode.SUCCESS
        await create_topic(peer, "T")
        await peer.send("T", b"new")
        assert [one.body for one in records(await peer.pull("T", 0))] == [b"new"]

    monkeypatch.setattr(Files, "remove_directory", fail)
    serve(tmp_path, check)
