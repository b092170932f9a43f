"""A broker whose file system does not tell upper from lower case: a name that is taken is refused.

The others are none the worse, and it can be started again.
"""

from pathlib import Path

import pytest
from tests.cluster.broker_peer import Peer, create_topic, fields, records, serve
from tests.folding_files import FoldingFiles

from pymq.broker import broker
from pymq.protocol.admin_bodies import TopicConfigs
from pymq.protocol.bodies import ConsumerData, Heartbeat, TopicConfig
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command


@pytest.fixture(autouse=True)
def _folding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "Files", FoldingFiles)


def assert_refused(answer: Command, topic: str, other: str) -> None:
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert f"topic '{topic}' cannot be stored beside topic '{other}'" in str(answer.remark)


async def has_topic(peer: Peer, topic: str) -> bool:
    answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, topic=topic)
    return answer.code == ResponseCode.SUCCESS


def test_a_topic_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        assert (await peer.send("Orders", b"0")).code == ResponseCode.SUCCESS
        for properties in ("", "DELAY\x013"):
            assert_refused(
                await peer.send("orders", b"x", properties=properties), "orders", "Orders"
            )
        assert_refused(await create_topic(peer, "ORDERS"), "ORDERS", "Orders")
        assert not await has_topic(peer, "orders")
        assert (await peer.send("Orders", b"1")).code == ResponseCode.SUCCESS

    async def check_again(peer: Peer) -> None:
        answer = await peer.pull("Orders", 0)
        assert [record.body for record in records(answer)] == [b"0", b"1"]
        answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="Orders")
        assert answer.code == ResponseCode.SUCCESS
        assert (await peer.send("orders", b"2")).code == ResponseCode.SUCCESS

    serve(tmp_path, check)
    serve(tmp_path, check_again)


def test_topics_without_messages_differ_too(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "Orders")
        assert_refused(await create_topic(peer, "orders"), "orders", "Orders")
        assert (await create_topic(peer, "Orders", queues=8)).code == ResponseCode.SUCCESS
        assert_refused(await create_topic(peer, "tbw102"), "tbw102", "TBW102")

    serve(tmp_path, check)


@pytest.mark.parametrize("names", [("New", "orders"), ("new", "New")])
def test_of_a_list_all_topics_are_created_or_none(tmp_path: Path, names: tuple[str, str]) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "Orders")
        body = TopicConfigs(configs=[TopicConfig(topic=name) for name in names]).encode()
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert not await has_topic(peer, names[0])

    serve(tmp_path, check)


def test_a_group_is_refused_and_the_clients_others_are_not(tmp_path: Path) -> None:
    """Its retry topic could not have a message: what it fails at would stay away."""

    async def members(peer: Peer, group: str) -> int:
        answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
        return int(answer.code)

    async def check(peer: Peer) -> None:
        await peer.heartbeat("c1", ConsumerData(group="Billing"))
        both = [ConsumerData(group="billing"), ConsumerData(group="other")]
        body = Heartbeat(client_id="c2", consumers=both).encode()
        for _ in range(2):
            answer = await peer.ask(RequestCode.HEART_BEAT, body)
            assert_refused(answer, "%RETRY%billing", "%RETRY%Billing")
        assert await members(peer, "other") == ResponseCode.SUCCESS
        assert await members(peer, "billing") == ResponseCode.SYSTEM_ERROR
        # A member that says nothing of itself has no retry topic either.
        await peer.send("T", b"x")
        (record,) = records(await peer.pull("T", 0, consumerGroup="Billing"))
        answer = await peer.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            group="billing",
            offset=record.physical_offset,
            delayLevel=0,
            originMsgId="x",
            originTopic="T",
            unitMode=False,
            maxReconsumeTimes=16,
        )
        assert_refused(answer, "%RETRY%billing", "%RETRY%Billing")
        assert fields(await peer.ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0))

    serve(tmp_path, check)
