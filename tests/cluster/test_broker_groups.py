"""Groups at the broker: members, subscriptions, locks, offsets."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.broker_peer import DEADLINE_S, Peer, connect, fields, records, serve

from pymq.protocol.bodies import (
    ConsumerData,
    ConsumerIds,
    GroupConfig,
    Heartbeat,
    LockRequest,
    LockResponse,
    MessageQueue,
    ProducerData,
    Subscription,
    TopicConfig,
)
from pymq.protocol.codes import RequestCode, ResponseCode


def consumer(group: str, *topics: str, version: int = 1) -> ConsumerData:
    return ConsumerData(
        group=group,
        subscriptions=[Subscription.of_tags(topic, "*", version) for topic in topics],
    )


def test_members_of_a_group_are_listed_and_told_of_changes(tmp_path: Path) -> None:
    async def check(first: Peer) -> None:
        second = await connect(first.broker)
        await first.heartbeat("one", consumer("g", "T"))
        await second.heartbeat("two", consumer("g", "T"))
        # Of itself and of the other one: the second notice may have to wait for its turn.
        await wait_until(lambda: len(first.notices) == 2)
        answer = await first.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
        assert ConsumerIds.decode(answer.body).client_ids == ["one", "two"]
        assert [notice.code for notice in first.notices][-1] == 40
        assert first.notices[-1].is_one_way
        assert first.notices[-1].fields == {"consumerGroup": "g"}
        before = len(first.notices)
        await second.heartbeat("two", consumer("g", "T"))
        await first.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
        assert len(first.notices) == before, "an unchanged heartbeat is no news"
        second.channel.close()
        await wait_until(lambda: len(first.notices) > before)
        answer = await first.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
        assert ConsumerIds.decode(answer.body).client_ids == ["one"]
        await first.ask(RequestCode.UNREGISTER_CLIENT, clientID="one", consumerGroup="g")
        answer = await first.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
        assert answer.code == ResponseCode.SYSTEM_ERROR

    serve(tmp_path, check)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


def test_answers_to_heartbeats_say_whether_subscriptions_shall_be_sent(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        async def beat(fingerprint: int, *topics: str, without: bool = False) -> str:
            body = Heartbeat(
                client_id="one",
                consumers=[consumer("g", *topics)],
                heartbeat_fingerprint=fingerprint,
                without_sub=without,
            )
            answer = await peer.ask(RequestCode.HEART_BEAT, body.encode())
            assert fields(answer)["IS_SUPPORT_HEART_BEAT_V2"] == "true"
            return fields(answer)["IS_SUB_CHANGE"]

        assert await beat(0, "T") == "true", "the first version of heartbeats"
        assert await beat(7, "T") == "true", "another fingerprint than before"
        assert await beat(7, without=True) == "false"
        assert (await peer.pull("T", 0, sysFlag=0, subVersion=1)).code == (
            ResponseCode.TOPIC_NOT_EXIST
        )

    serve(tmp_path, check)


@pytest.mark.parametrize("by", ["group", "broker"])
def test_members_are_not_told_of_changes_where_that_is_switched_off(
    tmp_path: Path, by: str
) -> None:
    async def check(first: Peer) -> None:
        config = GroupConfig(group="g", notify_consumer_ids_changed_enable=by == "broker")
        await first.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config.encode())
        second = await connect(first.broker)
        await first.heartbeat("one", consumer("g", "T"), consumer("told", "T"))
        await second.heartbeat("two", consumer("g", "T"), consumer("told", "T"))
        await second.ask(RequestCode.UNREGISTER_CLIENT, clientID="two", consumerGroup="g")
        if by == "group":
            await wait_until(lambda: len(first.notices) >= 2)
        else:
            await asyncio.sleep(0.05)
        assert {fields(notice)["consumerGroup"] for notice in first.notices} == (
            {"told"} if by == "group" else set()
        )

    serve(tmp_path, check, notify_consumer_ids_changed=by != "broker")


def test_a_heartbeat_creates_the_groups_retry_topic(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.heartbeat("one", consumer("g", "T"), producers=[ProducerData(group="pg")])
        answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, topic="%RETRY%g")
        assert TopicConfig.decode(answer.body).read_queue_count == 1

    serve(tmp_path, check)


def test_a_pull_uses_the_heartbeats_subscription(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for tag in "ab":
            await peer.send("T", tag.encode(), properties=f"TAGS\x01{tag}")
        data = ConsumerData(group="g", subscriptions=[Subscription.of_tags("T", "b", 5)])
        await peer.heartbeat("one", data)
        found = records(await peer.pull("T", 0, sysFlag=0, subVersion=5))
        assert [record.body for record in found] == [b"b"]
        answer = await peer.pull("T", 0, sysFlag=0, subVersion=6)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        await peer.heartbeat(
            "one", ConsumerData(group="g"), without_sub=True, heartbeat_fingerprint=1
        )
        assert (await peer.pull("T", 0, sysFlag=0, subVersion=5)).code == 0
        await peer.heartbeat("one", ConsumerData(group="g"))
        answer = await peer.pull("T", 0, sysFlag=0, subVersion=5)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST

    serve(tmp_path, check)


def test_a_queue_is_locked_for_one_client_at_a_time(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        queues = [MessageQueue("T", name, 0) for name in ("broker-a", "broker-b")]

        async def lock(client_id: str) -> list[MessageQueue]:
            request = LockRequest(consumer_group="g", client_id=client_id, queues=queues)
            answer = await peer.ask(RequestCode.LOCK_BATCH_MQ, request.encode())
            return LockResponse.decode(answer.body).queues

        assert sorted(await lock("one")) == queues
        assert await lock("two") == []
        assert sorted(await lock("one")) == queues
        release = LockRequest(consumer_group="g", client_id="one", queues=queues[:1])
        await peer.ask(RequestCode.UNLOCK_BATCH_MQ, release.encode())
        assert await lock("two") == queues[:1]

    serve(tmp_path, check)


# --- offsets


def test_offsets_of_new_groups_start_where_nothing_is_skipped(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x")
        query = {"consumerGroup": "new", "topic": "T", "queueId": 0}
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, **query)
        assert (answer.code, fields(answer)["offset"]) == (0, "0")
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, **query, setZeroIfNotFound=False)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND

    serve(tmp_path, check)


def test_queue_bounds_and_times(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        queue = {"topic": "T", "queueId": 0}
        for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
            assert fields(await peer.ask(code, **queue))["offset"] == "0"
        answer = await peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **queue)
        assert fields(answer)["timestamp"] == "-1"
        for _ in range(3):
            await peer.send("T", b"x")
        assert fields(await peer.ask(RequestCode.GET_MAX_OFFSET, **queue))["offset"] == "3"
        (first, *_, last) = records(await peer.pull("T", 0))
        answer = await peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **queue)
        assert fields(answer)["timestamp"] == str(first.store_timestamp)
        by_time = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        answer = await peer.ask(by_time, **queue, timestamp=first.store_timestamp)
        assert fields(answer)["offset"] == "0"
        answer = await peer.ask(by_time, **queue, timestamp=last.store_timestamp + 1)
        assert fields(answer)["offset"] == "3"

    serve(tmp_path, check)


def test_an_offset_of_an_unknown_topic_or_group_or_below_zero_is_refused(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        offset = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
        update = RequestCode.UPDATE_CONSUMER_OFFSET
        answer = await peer.ask(update, **offset)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert answer.remark == "Group g not exist!"
        await peer.heartbeat("one", consumer("g", "T"))
        answer = await peer.ask(update, **offset)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert answer.remark == "Topic T not exist!"
        await peer.send("T", b"x")
        assert (await peer.ask(update, **offset)).code == ResponseCode.SUCCESS
        offset["commitOffset"] = -1
        assert (await peer.ask(update, **offset)).code == ResponseCode.SYSTEM_ERROR

    serve(tmp_path, check)
