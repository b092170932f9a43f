"""Replies to requests of producers: passed on to who asked, and stored."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import DEADLINE_S, Peer, connect, fields, records, serve

from pymq.broker.handlers import replies
from pymq.protocol.bodies import ProducerData
from pymq.protocol.codes import MessageFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.message import encode_properties, parse_properties
from pymq.protocol.names import reply_topic

PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
TOPIC = reply_topic("DefaultCluster")
PROPERTIES = {
    "CORRELATION_ID": "c-1",
    "REPLY_TO_CLIENT": "asker",
    "TTL": "3000",
    "MSG_TYPE": "reply",
}


async def asker(peer: Peer, code: int | None = 0, client_id: str = "asker") -> Peer:
    """Return a producer that answers what is pushed to it; None: it does not."""
    other = await connect(peer.broker)
    await other.heartbeat(client_id, producers=[ProducerData(group="p")])
    if code is not None:
        other.answers[PUSH] = lambda command: command.reply(code)
    return other


async def reply(
    peer: Peer, body: bytes = b"yes", code: int = RequestCode.SEND_REPLY_MESSAGE_V2, **changes: Any
) -> Command:
    properties = encode_properties(PROPERTIES | changes.pop("properties", {})).decode()
    return await peer.send(TOPIC, body, code=code, properties=properties, **changes)


def pushed(peer: Peer) -> Command:
    (notice,) = (notice for notice in peer.notices if notice.code == PUSH)
    return notice


async def stored(peer: Peer) -> list[bytes]:
    return [record.body for record in records(await peer.pull(TOPIC, 0))]


def test_a_reply_reaches_who_asked_and_is_stored(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        producer = await asker(peer)
        compressed = int(MessageFlag.COMPRESSED)
        answer = await reply(peer, sys_flag=compressed, flag=5)
        assert answer.code == ResponseCode.SUCCESS
        notice = pushed(producer)
        assert notice.body == b"yes" and not notice.is_one_way
        sent = fields(notice)
        properties = parse_properties(sent.pop("properties"))
        now_ms = int(properties.pop("PUSH_REPLY_TIME"))
        assert properties == PROPERTIES and int(sent.pop("storeTimestamp")) == now_ms > 1.7e12
        assert sent.pop("bornHost").startswith("127.0.0.1:")
        assert sent == {
            "producerGroup": "pg",
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": str(compressed),
            "bornTimestamp": "1700000000000",
            "flag": "5",
            "reconsumeTimes": "0",
            "unitMode": "false",
            "storeHost": peer.broker.address,
        }
        ours = fields(answer)
        assert len(ours.pop("msgId")) == 32
        assert ours == {
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "queueId": "0",
            "queueOffset": "0",
        }
        assert await stored(peer) == [b"yes"]

    serve(tmp_path, check)


def test_the_long_form(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        producer = await asker(peer)
        answer = await reply(peer, code=RequestCode.SEND_REPLY_MESSAGE)
        assert (answer.code, fields(answer)["queueOffset"]) == (0, "0")
        assert fields(pushed(producer))["producerGroup"] == "pg"

    serve(tmp_path, check)


def test_nothing_is_stored_where_that_is_switched_off(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await asker(peer)
        answer = await reply(peer)
        assert (answer.code, fields(answer)["msgId"]) == (0, "0")
        answer = await reply(peer, properties={"REPLY_TO_CLIENT": "nobody"})
        assert answer.code == ResponseCode.SYSTEM_ERROR and "msgId" not in fields(answer)
        assert (await peer.pull(TOPIC, 0)).code == ResponseCode.PULL_NOT_FOUND

    serve(tmp_path, check, store_replies=False)


def test_replies_that_nobody_takes_are_stored_and_their_senders_told(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await asker(peer, code=1)
        answer = await reply(peer)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "push reply message to askerfail."
        assert fields(answer)["queueOffset"] == "0"
        answer = await reply(peer, properties={"REPLY_TO_CLIENT": "nobody"})
        assert answer.remark == "push reply message fail, channel of <nobody> not found."
        answer = await peer.send(TOPIC, b"yes", code=RequestCode.SEND_REPLY_MESSAGE_V2)
        assert answer.remark == "reply message properties[REPLY_TO_CLIENT] is null"
        assert await stored(peer) == [b"yes"] * 3

    serve(tmp_path, check)


def test_who_asked_is_silent_or_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(peer: Peer) -> None:
        producer = await asker(peer, code=None)
        monkeypatch.setattr(replies, "ACCEPT_S", 0.05)
        assert (await reply(peer)).remark == "push reply message to askerfail."
        monkeypatch.undo()
        later = asyncio.ensure_future(reply(peer))
        while len(producer.notices) < 2:
            await asyncio.sleep(0.005)
        producer.channel.close()
        assert (await later).remark == "push reply message to askerfail."
        async with asyncio.timeout(DEADLINE_S):
            while "not found" not in ((await reply(peer)).remark or ""):
                await asyncio.sleep(0.005)

    serve(tmp_path, check)


def test_the_checks_of_sends_come_first(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        producer = await asker(peer)
        answer = await reply(peer, queue_id=7)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        answer = await peer.send("no.such*topic", b"x", code=RequestCode.SEND_REPLY_MESSAGE_V2)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert not producer.notices

    serve(tmp_path, check)
