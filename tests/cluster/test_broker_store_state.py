"""The store as administrators see and steer it."""

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, create_topic, serve

from pymq.protocol.admin_bodies import ColdReadLimits, ReplicationStatus
from pymq.protocol.bodies import ConsumerData
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.store import MessageStore
from pymq.store.state.sealed_file import SealedFile


def test_a_master_without_slaves(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x")
        answer = await peer.ask(RequestCode.GET_BROKER_HA_STATUS)
        status = ReplicationStatus.decode(answer.body)
        assert (status.master, status.in_sync_slave_count) == (True, 0)
        assert status.log_end > 0
        answer = await peer.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET, masterFlushOffset=7)
        assert answer.code == ResponseCode.SUCCESS
        answer = await peer.ask(RequestCode.GET_BROKER_EPOCH_CACHE)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "this request only for controllerMode "

    serve(tmp_path, check)


def test_cold_reads_are_not_limited(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        answer = await peer.ask(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
        assert ColdReadLimits.decode(answer.body).group_limits == {}
        for code in (
            RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
            RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        ):
            answer = await peer.ask(code, b"g=100")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "limits no cold reads" in str(answer.remark)

    serve(tmp_path, check)


def test_reading_ahead_is_switched_off_and_on(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        mode = RequestCode.SET_COMMITLOG_READ_MODE
        for value in (1, 0):
            # Files of 1 MiB: the second half of these messages goes to others.
            for _ in range(15):
                await peer.send("T", b"x" * 100_000)
            answer = await peer.ask(mode, READ_AHEAD_MODE=value)
            assert answer.code == ResponseCode.SUCCESS
            assert answer.remark == f"set commitlog readahead mode success, mode: {value}"
            assert (await peer.pull("T", 0)).code == ResponseCode.SUCCESS
        for fields, code in (
            ({"READ_AHEAD_MODE": 2}, ResponseCode.INVALID_PARAMETER),
            ({"READ_AHEAD_MODE": "x"}, ResponseCode.SYSTEM_ERROR),
            ({}, ResponseCode.SYSTEM_ERROR),
        ):
            assert (await peer.ask(mode, **fields)).code == code

    serve(tmp_path, check)


def test_queues_of_topics_that_do_not_exist_are_deleted(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for topic in ("T", "U"):
            await create_topic(peer, topic, queues=1)
            await peer.send(topic, b"x")
        assert (await peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == ResponseCode.SUCCESS
        queues = tmp_path / "consumequeue"
        assert {path.name for path in queues.iterdir()} >= {"T", "U"}
        assert peer.broker._run is not None
        parts = peer.broker._run._parts
        assert parts is not None
        # Left over by a crash in the middle of a deletion, for instance.
        handler = parts.dispatcher._handlers[RequestCode.CLEAN_UNUSED_TOPIC]
        del handler.__self__._topics._topics["T"]  # type: ignore[attr-defined]
        assert (await peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == ResponseCode.SUCCESS
        left = {path.name for path in queues.iterdir()}
        assert "U" in left and "T" not in left

    serve(tmp_path, check)


def test_what_is_saved_last_counts_only_what_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offset that outlives its message would have the next one left out."""
    ends: list[tuple[int, int]] = []
    save = SealedFile.save

    def observed(file: SealedFile, text: str) -> None:
        if file._path == tmp_path / "config" / "consumerOffset.json":
            ends.append((stores[0].durability.flushed_end, stores[0].log_end))
        save(file, text)

    stores: list[MessageStore] = []
    monkeypatch.setattr(SealedFile, "save", observed)

    async def check(peer: Peer) -> None:
        run: Any = peer.broker._run
        stores.append(run.store)
        await peer.send("T", b"x")
        await peer.heartbeat("c", ConsumerData(group="g"))
        answer = await peer.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup="g",
            topic="T",
            queueId=0,
            commitOffset=1,
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    serve(
        tmp_path,
        check,
        store={"flush_interval_ms": 3_600_000, "flush_thorough_interval_ms": 3_600_000},
        offset_flush_interval_ms=3_600_000,
    )
    assert ends and ends[0][0] == ends[0][1] > 0
