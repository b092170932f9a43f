"""How far groups are, asked over a socket as tools do."""

from pathlib import Path
from typing import Any

from tests.cluster.broker_peer import Peer, create_topic, serve
from tests.cluster.test_broker_groups import consumer

from pymq.broker.many_queues import QUEUES_MAX
from pymq.protocol.admin_bodies import (
    BrokerConsumeStats,
    ConsumeTimeSpans,
    CorrectionOffsets,
    GroupForbidden,
    GroupSubscription,
)
from pymq.protocol.bodies import (
    ConsumeStats,
    GroupList,
    GroupTable,
    MessageQueue,
    TopicList,
    TopicStats,
)
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command


async def _fill(peer: Peer) -> None:
    """Six messages in queue 0 of ``T``; ``g`` has read four of them, ``h`` five."""
    await create_topic(peer, "T", queues=2)
    for number in range(6):
        await peer.send("T", b"%d" % number)
    for group, offset in (("g", 4), ("h", 5)):
        await peer.pull("T", 0, consumerGroup=group)
        await _commit(peer, group, offset)


async def _commit(peer: Peer, group: str, offset: int, topic: str = "T") -> None:
    answer = await peer.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup=group,
        topic=topic,
        queueId=0,
        commitOffset=offset,
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def _ask(peer: Peer, code: int, **fields: Any) -> Command:
    answer = await peer.ask(code, **fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


def test_the_progress_of_all_groups(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await _fill(peer)
        answer = await _ask(peer, RequestCode.GET_BROKER_CONSUME_STATS, isOrder=False)
        body = BrokerConsumeStats.decode(answer.body)
        assert body.broker_address == peer.broker.address
        assert body.total_diff == 2 + 1
        found = {group: tables for one in body.groups for group, tables in one.items()}
        assert found["TOOLS_CONSUMER"] == []
        (table,) = found["g"]
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
        assert (table.offsets[queue].broker_offset, table.offsets[queue].consumer_offset) == (6, 4)
        assert table.offsets[queue].last_timestamp_ms > 0
        answer = await _ask(peer, RequestCode.GET_BROKER_CONSUME_STATS, isOrder=True)
        assert BrokerConsumeStats.decode(answer.body).total_diff == 0
        unsaid = await _ask(peer, RequestCode.GET_BROKER_CONSUME_STATS)
        assert BrokerConsumeStats.decode(unsaid.body).total_diff != 0

    serve(tmp_path, check)


def test_more_queues_than_an_answer_can_be_about(tmp_path: Path) -> None:
    """Of a few thousand all is told, in turns; what would not fit into a frame is refused."""

    async def check(peer: Peer) -> None:
        for topic, queue_count in (("T", 2500), ("U", QUEUES_MAX // 2), ("V", QUEUES_MAX // 2)):
            await create_topic(peer, topic, queues=queue_count)
            await peer.pull(topic, 0, consumerGroup="g")
            await _commit(peer, "g", 0, topic)
        for code in (RequestCode.GET_TOPIC_STATS_INFO, RequestCode.QUERY_CONSUME_TIME_SPAN):
            answer = await _ask(peer, code, topic="T", group="g")
            told = (
                TopicStats.decode(answer.body).offsets
                if code == RequestCode.GET_TOPIC_STATS_INFO
                else ConsumeTimeSpans.decode(answer.body).spans
            )
            assert len(told) == 2500
        answer = await _ask(peer, RequestCode.GET_CONSUME_STATS, topic="T", consumerGroup="g")
        assert len(ConsumeStats.decode(answer.body).offsets) == 2500
        for code in (RequestCode.GET_CONSUME_STATS, RequestCode.GET_BROKER_CONSUME_STATS):
            answer = await peer.ask(code, consumerGroup="g")
            assert answer.code == ResponseCode.SYSTEM_ERROR, answer
            assert f"expected at most {QUEUES_MAX}" in (answer.remark or "")

    serve(tmp_path, check)


def test_progress_in_time(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await _fill(peer)
        answer = await _ask(peer, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="g")
        full, empty = ConsumeTimeSpans.decode(answer.body).spans
        assert 0 < full.min_time_ms <= full.consume_time_ms <= full.max_time_ms
        assert full.delay_ms >= 0
        assert (empty.min_time_ms, empty.max_time_ms, empty.consume_time_ms) == (-1, -1, -1)
        answer = await peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="none", group="g")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST

    serve(tmp_path, check)


def test_the_least_offset_of_other_groups(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await _fill(peer)
        correct = RequestCode.QUERY_CORRECTION_OFFSET
        for compared, left_out, offsets in (
            ("h", "", {0: 4}),
            ("h", "g", {0: 5}),
            ("g", "g,x", {0: (1 << 63) - 1}),
            ("g", "g,h", {}),
            ("none", "", {0: 4}),
        ):
            answer = await _ask(
                peer, correct, topic="T", compareGroup=compared, filterGroups=left_out
            )
            assert CorrectionOffsets.decode(answer.body).offsets == offsets, compared
        assert (await peer.ask(correct, topic="T")).code == ResponseCode.SYSTEM_ERROR

    serve(tmp_path, check)


def test_who_consumes_what(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await _fill(peer)
        await peer.heartbeat("c1", consumer("online", "T"))
        answer = await _ask(peer, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T")
        assert GroupList.decode(answer.body).groups == ["g", "h", "online"]
        answer = await _ask(peer, RequestCode.QUERY_TOPICS_BY_CONSUMER, group="g")
        topics = TopicList.decode(answer.body)
        assert (topics.topics, topics.broker_address) == (["T"], peer.broker.address)
        subscription = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
        answer = await _ask(peer, subscription, group="online", topic="T")
        found = GroupSubscription.decode(answer.body).subscription
        assert found is not None and found.expression == "*"
        for group, topic in (("online", "other"), ("g", "T")):
            answer = await _ask(peer, subscription, group=group, topic=topic)
            assert GroupSubscription.decode(answer.body).subscription is None

    serve(tmp_path, check)


def test_a_group_may_be_forbidden_to_read_a_topic(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await _fill(peer)
        await peer.heartbeat("c1", consumer("g", "T"))
        forbid = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
        for readable in (True, False):
            answer = await _ask(peer, forbid, group="g", topic="T", readable=readable)
            assert GroupForbidden.decode(answer.body).readable is readable
            answer = await _ask(peer, forbid, group="g", topic="T")
            assert GroupForbidden.decode(answer.body).readable is readable
            allowed = (await peer.pull("T", 0, sysFlag=0)).code == ResponseCode.SUCCESS
            assert allowed is readable
        answer = await _ask(peer, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        assert GroupTable.decode(answer.body).forbidden == {"g": {"T": 4}}
        await _ask(peer, forbid, group="g", topic="T", readable=True)
        answer = await _ask(peer, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        assert GroupTable.decode(answer.body).forbidden == {}

    serve(tmp_path, check)


def test_what_was_forbidden_to_a_deleted_group_is_not_to_another_of_its_name(
    tmp_path: Path,
) -> None:
    async def check(peer: Peer) -> None:
        await _fill(peer)
        forbid = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
        await _ask(peer, forbid, group="g", topic="T", readable=False)
        # Those that never were groups can be freed of it, too.
        await _ask(peer, forbid, group="unknown", topic="T", readable=False)
        for group in ("g", "unknown"):
            await _ask(peer, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName=group)
        answer = await _ask(peer, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        assert GroupTable.decode(answer.body).forbidden == {}
        await peer.heartbeat("c1", consumer("g", "T"))
        assert (await peer.pull("T", 0, sysFlag=0)).code == ResponseCode.SUCCESS

    serve(tmp_path, check)
