"""No request keeps a broker from starting again, or from serving others."""

import asyncio
import contextlib
import json
import logging
import re
import struct
from pathlib import Path

import pytest
from tests.cluster.broker_peer import (
    HOST,
    TIMEOUT_S,
    Peer,
    connect,
    create_topic,
    put_record,
    serve,
)
from tests.cluster.pops import PopConsumer

from pymq.protocol.bodies import ConsumerData, Subscription
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.names import revive_topic
from pymq.protocol.record import NewRecord


@pytest.mark.parametrize("count", [10**15, 10**9])
def test_a_checkpoint_that_cannot_be_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    said = {"n": count, "d": [0], "t": "T", "c": "g", "q": 0, "so": 0, "pt": 0, "it": 0}
    body = json.dumps(said).encode()
    topic = revive_topic("DefaultCluster")
    put_record(tmp_path, NewRecord(topic, 0, body, b"TAGS\x01ck\x02", HOST, 0))

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS
        (message,) = await PopConsumer(peer).pop()
        assert message.body == b"x"

    serve(tmp_path, check)
    assert "left out of the journal of popping: record 0 of revive queue 0" in caplog.text
    assert f"n is {count}, expected 0..32" in caplog.text


@pytest.mark.parametrize("code", [200, 225])
@pytest.mark.parametrize("depth", [95, 101, 975])
def test_a_group_that_is_nested_too_deep_is_refused(
    tmp_path: Path, code: int, depth: int
) -> None:
    def body(name: str, depth: int) -> bytes:
        nested = "[" * depth + "]" * depth
        one = f'{{"groupName":"{name}","subscriptionDataSet":{nested}}}'
        return (one if code == 200 else f'{{"groupConfigList":[{one}]}}').encode()

    async def check(peer: Peer) -> None:
        assert (await peer.ask(code, body("flat", 50))).code == ResponseCode.SUCCESS
        answer = await peer.ask(code, body("deep", depth))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        limit = r"nested too deep(, expected at most (90|100) levels)?$"
        assert re.search(limit, answer.remark or "")

    async def look(peer: Peer) -> None:
        known = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="flat")
        assert known.code == ResponseCode.SUCCESS
        assert b"[" * 50 in bytes(known.body)
        unknown = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="deep")
        assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    serve(tmp_path, check)
    serve(tmp_path, look)


def group_body(**settings: object) -> bytes:
    return json.dumps({"groupName": "g"} | settings).encode()


@pytest.mark.parametrize("code", [200, 225])
def test_a_group_with_more_retry_queues_than_a_topic_can_have_is_refused(
    tmp_path: Path, code: int
) -> None:
    async def put_group(peer: Peer, count: int) -> Command:
        body = group_body(retryQueueNums=count)
        return await peer.ask(code, body if code == 200 else b'{"groupConfigList":[%s]}' % body)

    async def check(peer: Peer) -> None:
        for count in (65_537, 10**12):
            answer = await put_group(peer, count)
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert f"retryQueueNums is {count}, expected at most 65536" in (answer.remark or "")
        unknown = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
        assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        for count in (-1, 0, 65_536):
            assert (await put_group(peer, count)).code == ResponseCode.SUCCESS

    serve(tmp_path, check)


def test_tables_with_more_queues_than_a_topic_can_have_are_taken_with_fewer(
    tmp_path: Path,
) -> None:
    """They were saved when nobody counted."""
    much = 10**12
    retries = {"topicName": "%RETRY%old", "readQueueNums": much, "writeQueueNums": much}
    config = tmp_path / "config"
    config.mkdir()
    topics = {"topicConfigTable": {"%RETRY%old": retries}}
    (config / "topics.json").write_text(json.dumps(topics))
    groups = {"g": {"groupName": "g", "retryQueueNums": much}, "old": {"groupName": "old"}}
    (config / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": groups}))

    async def check(peer: Peer) -> None:
        await peer.heartbeat("c", ConsumerData(group="g", subscriptions=[Subscription(topic="T")]))
        for topic in ("%RETRY%g", "%RETRY%old"):
            answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, topic=topic)
            found = json.loads(bytes(answer.body))
            assert (found["readQueueNums"], found["writeQueueNums"]) == (65_536, 65_536)
            refused = await peer.send(topic, b"x", queue_id=(1 << 31) - 1)
            assert refused.code == ResponseCode.INVALID_PARAMETER
        reset = asyncio.ensure_future(
            peer.ask(
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                topic="%RETRY%g", group="g", timestamp=-1, isForce=True, queueId=-1,
            )
        )  # fmt: skip
        other = await connect(peer.broker)
        assert (await other.send("T", b"x")).code == ResponseCode.SUCCESS
        other.channel.close()
        assert (await reset).code == ResponseCode.SUCCESS

    serve(tmp_path, check)


def test_what_is_logged_of_a_request_does_not_grow_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    header = b'{"code":"' + b"\x7f" * 4_000_000 + b'","flag":2}'
    end = {
        "producerGroup": "g", "tranStateTableOffset": "0", "commitLogOffset": "0",
        "commitOrRollback": "0", "fromTransactionCheck": "false", "msgId": "x",
    }  # fmt: skip

    async def check(peer: Peer) -> None:
        caplog.clear()
        request = Command(RequestCode.END_TRANSACTION, end, remark="R" * 4_000_000)
        answer = await peer.channel.request(request, TIMEOUT_S)
        assert answer.code == ResponseCode.SUCCESS
        host, _, port = peer.broker.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(struct.pack(">II", 4 + len(header), len(header)) + header)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert "sent an invalid frame" in caplog.text
        assert len(caplog.text) < 10_000

    serve(tmp_path, check)
