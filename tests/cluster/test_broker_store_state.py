"""The store as administrators see and steer it."""

from pathlib import Path

from tests.cluster.broker_peer import Peer, create_topic, serve

from pymq.protocol.admin_bodies import ColdReadLimits, ReplicationStatus
from pymq.protocol.codes import RequestCode, ResponseCode


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
