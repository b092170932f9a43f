"""The broker when its store, its disk or its files do not do as they should."""

import asyncio
import json
import os
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import DEADLINE_S, Peer, connect, records, serve

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.clock import Clock
from pymq.errors import CorruptRecord, StoreError
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.store import Files, FlushMode, MessageStore, ReadResult, StoreConfig
from pymq.store.disk_jobs import PrefetchJob
from pymq.store.reads import Reads

SUSPENDED = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)


@pytest.mark.parametrize(
    "name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json"]
)
def test_a_table_nobody_can_read_is_named_and_the_store_let_go(tmp_path: Path, name: str) -> None:
    (tmp_path / "config").mkdir()
    for damaged in (name, f"{name}.bak"):
        (tmp_path / "config" / damaged).write_text("{")
    config = StoreConfig(root_path=tmp_path, segment_bytes=1 << 20)

    async def run() -> None:
        with pytest.raises(CorruptRecord, match=f"{name}.*Restore"):
            await Broker(BrokerConfig(listen_port=0), config).start()

    asyncio.run(run())
    MessageStore.open(config, Clock()).close()


@pytest.mark.parametrize("flush", list(FlushMode))
def test_a_held_pull_that_cannot_be_answered_does_not_harm_who_sends(
    tmp_path: Path, flush: FlushMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"old")
        held = [
            peer.pull_later("T", 1, sysFlag=SUSPENDED, suspendTimeoutMillis=60_000)
            for _ in range(2)
        ]
        await peer.send("T", b"elsewhere", queue_id=1)  # both are held by now

        def damaged(*_: object, **__: object) -> ReadResult:
            raise CorruptRecord("this queue's file is gone")

        monkeypatch.setattr(Reads, "begin", damaged)
        assert (await peer.send("T", b"new")).code == ResponseCode.SUCCESS
        for answer in await asyncio.gather(*held):
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "this queue's file is gone" in str(answer.remark)
        monkeypatch.undo()
        assert (await peer.send("T", b"newer")).code == ResponseCode.SUCCESS
        bodies = [record.body for record in records(await peer.pull("T", 0))]
        assert bodies == [b"old", b"new", b"newer"]

    serve(tmp_path, check, flush=flush)


def test_messages_that_cannot_be_prefetched_are_sent_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> PrefetchJob:
        raise StoreError("too many open files")

    monkeypatch.setattr(MessageStore, "begin_prefetch", none_left)

    async def check(peer: Peer) -> None:
        await peer.send("T", b"x")
        (record,) = records(await peer.pull("T", 0))
        assert record.body == b"x"

    serve(tmp_path, check, memory_bytes=0)


def test_messages_that_the_disk_cannot_read_are_refused_and_their_place_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever touched them in the map instead would be killed: a bad block there is a SIGBUS."""
    pread = Files.pread

    def bad_block(files: Files, fd: int, size: int, position: int) -> bytes:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if "/commitlog/" in path:
            raise StoreError(f"{path}: read at {position}: Input/output error")
        return pread(files, fd, size, position)

    async def check(peer: Peer) -> None:
        await peer.send("T", b"x")
        monkeypatch.setattr(Files, "pread", bad_block)
        for answer in (
            await peer.pull("T", 0),
            await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=0),
        ):
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "/commitlog/" in str(answer.remark) and "read at 0" in str(answer.remark)
        monkeypatch.undo()
        assert [record.body for record in records(await peer.pull("T", 0))] == [b"x"]

    serve(tmp_path, check, memory_bytes=0)


@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_a_changed_queue_entry_is_refused_and_its_cure_named(
    tmp_path: Path, memory_bytes: int | None
) -> None:
    async def check(peer: Peer) -> None:
        for number in range(3):
            await peer.send("T", b"%d" % number)
        (path,) = (tmp_path / "consumequeue" / "T" / "0").iterdir()
        with path.open("r+b") as file:  # The second entry is that of the third message.
            file.seek(40)
            third = file.read(20)
            file.seek(20)
            file.write(third)
        assert [record.body for record in records(await peer.pull("T", 0, maxMsgNums=1))] == [b"0"]
        for offset in (0, 1):
            answer = await peer.pull("T", offset)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "entry 1 " in answer.remark and "pymq store rebuild" in answer.remark
        assert [record.body for record in records(await peer.pull("T", 2))] == [b"2"]

    serve(tmp_path, check, memory_bytes=memory_bytes)


@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_a_message_larger_than_a_frame_is_refused_with_the_reason(
    tmp_path: Path, memory_bytes: int | None
) -> None:
    """It was sent under another limit; read from memory or not, who pulls gets an answer."""
    store = StoreConfig(root_path=tmp_path, segment_bytes=4 << 20)

    async def ask(settings: dict[str, Any], body: bytes) -> Command:
        broker = Broker(BrokerConfig(listen_port=0, memory_bytes=memory_bytes, **settings), store)
        await broker.start()
        peer = await connect(broker)
        try:
            return await (peer.send("T", body) if body else peer.pull("T", 0))
        finally:
            peer.channel.close()
            await broker.close()

    assert asyncio.run(ask({}, bytes(2 << 20))).code == ResponseCode.SUCCESS
    limits = {"frame_bytes_max": (1 << 20) + 1000, "extended_pull_bytes_max": 1000}
    answer = asyncio.run(ask(limits, b""))
    assert answer.code == ResponseCode.SYSTEM_ERROR and "frame" in str(answer.remark)


def test_readers_of_old_messages_do_not_keep_senders_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(PrefetchJob, "run", lambda _: may_end.wait(DEADLINE_S) and None)

    async def check(peer: Peer) -> None:
        await peer.send("T", b"old")
        reads = [peer.pull_later("T", 0) for _ in range(8)]
        try:
            assert (await peer.send("T", b"new")).code == ResponseCode.SUCCESS
            assert not any(read.done() for read in reads)
        finally:
            may_end.set()
        for read in reads:
            assert (await read).code == ResponseCode.SUCCESS

    # The send may take longer than reads usually wait for their turn.
    serve(tmp_path, check, flush=FlushMode.SYNC, memory_bytes=0, fast_failure=False)


def test_a_setting_that_has_no_bytes_is_refused(tmp_path: Path) -> None:
    """JSON can hold half of a surrogate pair; files and announcements cannot."""
    topic = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4"}
    topic |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false"}
    group = {"groupName": "g", "attributes": {"a": "\ud800"}}

    async def check(peer: Peer) -> None:
        for code, fields, body in (
            (RequestCode.UPDATE_AND_CREATE_TOPIC, topic | {"attributes": "+a=\ud800"}, b""),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(group).encode()),
        ):
            answer = await raw(peer, code, fields, body)
            assert answer["code"] != ResponseCode.SUCCESS
            assert answer["remark"]
        answer = await raw(peer, RequestCode.UPDATE_AND_CREATE_TOPIC, topic, b"")
        assert answer["code"] == ResponseCode.SUCCESS
        question = {"topic": "T", "key": "\ud800", "maxNum": "1"}
        question |= {"beginTimestamp": "0", "endTimestamp": "9"}
        answer = await raw(peer, RequestCode.QUERY_MESSAGE, question, b"")
        assert answer["code"] == ResponseCode.QUERY_NOT_FOUND

    serve(tmp_path, check)
    assert '"T"' in (tmp_path / "config" / "topics.json").read_text()


async def raw(peer: Peer, code: int, fields: dict[str, str], body: bytes) -> dict[str, Any]:
    """Return the header of the answer to a frame that our own encoder would refuse."""
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.broker.port)
    header = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 1}
    text = json.dumps(header | {"version": 479}).encode()
    writer.write(struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body)
    _, size = struct.unpack(">II", await reader.readexactly(8))
    answer: dict[str, Any] = json.loads(await reader.readexactly(size))
    writer.close()
    await writer.wait_closed()
    return answer


def test_requests_left_in_a_closing_connection_do_not_reach_a_closing_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is closed in a thread; nothing else may touch it meanwhile."""
    original = MessageStore.close
    touched: list[str] = []

    async def check(peer: Peer) -> None:
        await peer.send("T", b"x")
        loop = asyncio.get_running_loop()
        (connection,) = peer.broker._ports._servers[0]._connections
        fields = {name: str(value) for name, value in peer.pull_fields("T", 0).items()}

        def closing(store: MessageStore) -> None:
            async def late() -> None:
                late_pull = Command(RequestCode.PULL_MESSAGE, fields)
                peer.broker._ports._on_commands(connection, [late_pull])

            asyncio.run_coroutine_threadsafe(late(), loop).result(DEADLINE_S)
            original(store)

        def read(*_: object, **__: object) -> ReadResult:
            touched.append("read")
            raise CorruptRecord("too late")

        monkeypatch.setattr(MessageStore, "close", closing)
        monkeypatch.setattr(Reads, "begin", read)
        await peer.broker.close()

    serve(tmp_path, check)
    assert not touched
