"""Groups that an administrator sets to other offsets, by the broker or by their members."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import (
    DEADLINE_S,
    TIMEOUT_S,
    Peer,
    connect,
    create_topic,
    fields,
    records,
    serve,
)

from pymq.broker.cold_reads import ColdReads
from pymq.protocol.bodies import ConsumerData, ConsumeStats, MessageQueue, Subscription
from pymq.protocol.client_bodies import OffsetReset
from pymq.protocol.codes import LanguageCode, PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
PULL = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND | PullFlag.COMMIT_OFFSET)


def consumer(*topics: str, group: str = "g") -> ConsumerData:
    return ConsumerData(
        group=group,
        subscriptions=[Subscription.of_tags(topic, "*", 1) for topic in topics or ("T",)],
    )


async def fill(peer: Peer) -> list[int]:
    """Put three messages into each of two queues; return the store times in the first one."""
    await create_topic(peer, "T", queues=2)
    await peer.heartbeat("one", consumer())
    for number in range(3):
        for queue_id in range(2):
            await peer.send("T", b"%d" % number, queue_id=queue_id)
        await asyncio.sleep(0.005)
    return [record.store_timestamp for record in records(await peer.pull("T", 0))]


async def commit(peer: Peer, offset: int, *, queue_id: int = 0, group: str = "g") -> Command:
    return await peer.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup=group,
        topic="T",
        queueId=queue_id,
        commitOffset=offset,
    )


async def committed(peer: Peer, *, queue_id: int = 0, group: str = "g") -> int:
    query = {"consumerGroup": group, "topic": "T", "queueId": queue_id}
    answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, **query, setZeroIfNotFound=False)
    return int(fields(answer)["offset"]) if answer.code == 0 else -1


async def reset(peer: Peer, **changes: Any) -> Command:
    request = {"topic": "T", "group": "g", "timestamp": 0, "isForce": True}
    return await peer.ask(RESET, **(request | changes))


def offsets(answer: Command) -> dict[int, int]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    body = OffsetReset.decode(answer.body)
    assert {(queue.topic, queue.broker_name) for queue in body.offsets} == {("T", "broker-a")}
    return {queue.queue_id: offset for queue, offset in body.offsets.items()}


# --- by the broker


def test_a_group_goes_on_where_it_is_set_to(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        times = await fill(peer)
        for queue_id in range(2):
            await commit(peer, 3, queue_id=queue_id)
        assert offsets(await reset(peer, timestamp=times[1])) == {0: 1, 1: 1}
        assert await committed(peer) == 1
        answer = await commit(peer, 3)
        assert (answer.code, answer.remark) == (0, "Offset has been previously reset")
        assert await committed(peer) == 1, "what members commit now is of the time before"
        answer = await peer.pull("T", 3, sysFlag=PULL, commitOffset=3)
        assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
        assert fields(answer)["nextBeginOffset"] == "1"
        assert (fields(answer)["minOffset"], fields(answer)["maxOffset"]) == ("0", "3")
        assert await committed(peer) == 1
        found = records(await peer.pull("T", 1, sysFlag=PULL, commitOffset=2))
        assert [record.body for record in found] == [b"1", b"2"]
        assert await committed(peer) == 2, "from now on commits count again"

    serve(tmp_path, check)


def test_what_a_member_commits_before_it_has_gone_there_is_of_the_time_before(
    tmp_path: Path,
) -> None:
    """RocketMQ's go there ten seconds later, and are stopped or killed meanwhile."""

    async def check(peer: Peer) -> None:
        await fill(peer)
        await commit(peer, 3)
        await reset(peer, timestamp=0)
        answer = await peer.pull("T", 3, sysFlag=PULL)
        assert fields(answer)["nextBeginOffset"] == "0"
        answer = await commit(peer, 3)
        assert (answer.code, answer.remark) == (0, "Offset has been previously reset")
        assert await committed(peer) == 0
        await commit(peer, 0)  # it is there
        await commit(peer, 1)
        assert await committed(peer) == 1

    serve(tmp_path, check)


def test_a_held_pull_hears_of_a_reset_at_once_and_those_of_other_groups_do_not(
    tmp_path: Path,
) -> None:
    async def check(peer: Peer) -> None:
        await fill(peer)
        pull = {"sysFlag": PULL, "suspendTimeoutMillis": 60_000}
        held = peer.pull_later("T", 3, **pull)
        other = peer.pull_later("T", 3, consumerGroup="other", **pull)
        assert offsets(await reset(peer, timestamp=0)) == {0: 0, 1: 0}
        answer = await held
        assert (answer.remark, fields(answer)["nextBeginOffset"]) == ("OFFSET_RESET", "0")
        assert not other.done()
        await peer.send("T", b"3")
        assert (await other).code == ResponseCode.SUCCESS

    serve(tmp_path, check)


def test_one_queue_to_the_end_or_to_an_offset(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await fill(peer)
        assert offsets(await reset(peer, timestamp=-1)) == {0: 3, 1: 3}
        assert offsets(await reset(peer, queueId=1)) == {1: 0}
        assert offsets(await reset(peer, queueId=1, offset=-1, timestamp=-1)) == {1: 3}
        assert offsets(await reset(peer, queueId=1, offset=2)) == {1: 2}
        answer = await reset(peer, queueId=1, offset=5)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "Target offset 5 not in consume queue range [0-3]"
        assert [await committed(peer, queue_id=queue_id) for queue_id in range(2)] == [3, 2]

    serve(tmp_path, check)


def test_topics_and_groups_that_are_not_there(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await fill(peer)
        answer = await reset(peer, topic="U")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert answer.remark == "Topic U does not exist"
        answer = await reset(peer, group="h")
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert answer.remark == "Group h does not exist"

    serve(tmp_path, check)


@pytest.mark.parametrize("is_made_again", [True, False])
def test_offsets_of_a_topic_that_is_deleted_meanwhile_are_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    is_looking, may_go_on = asyncio.Event(), asyncio.Event()
    offset_by_time = ColdReads.offset_by_time

    async def slow(reads: ColdReads, *arguments: Any) -> int:
        offset = await offset_by_time(reads, *arguments)
        is_looking.set()
        await may_go_on.wait()
        return offset

    monkeypatch.setattr(ColdReads, "offset_by_time", slow)

    async def check(peer: Peer) -> None:
        times = await fill(peer)
        asked = asyncio.ensure_future(reset(peer, timestamp=times[2]))
        await is_looking.wait()
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        if is_made_again:
            await create_topic(peer, "T", queues=2)
        may_go_on.set()
        answer = await asked
        assert "T was deleted meanwhile" in str(answer.remark)
        assert await committed(peer) == -1

    serve(tmp_path, check)


def test_a_reset_that_was_acknowledged_survives_the_broker(tmp_path: Path) -> None:
    async def first(peer: Peer) -> None:
        await fill(peer)
        await commit(peer, 3)
        await reset(peer, queueId=0, offset=1)
        saved = (tmp_path / "config" / "consumerOffset.json").read_text()
        assert json.loads(saved)["offsetTable"]["T@g"] == {"0": 1}, "before it was answered"

    async def second(peer: Peer) -> None:
        await peer.heartbeat("one", consumer())
        await commit(peer, 3)
        assert await committed(peer) == 1
        assert (await peer.pull("T", 3, sysFlag=PULL)).remark == "OFFSET_RESET"
        await peer.pull("T", 1, sysFlag=PULL)
        await commit(peer, 3)
        assert await committed(peer) == 3

    async def third(peer: Peer) -> None:
        assert await committed(peer) == 3
        assert (await peer.pull("T", 3, suspendTimeoutMillis=1)).remark != "OFFSET_RESET"

    for check in (first, second, third):
        serve(tmp_path, check)


# --- by the members


def told(peer: Peer) -> list[Command]:
    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    return [notice for notice in peer.notices if notice.code == code]


async def wait_told(*peers: Peer) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not all(map(told, peers)):
            await asyncio.sleep(0.005)


def test_members_are_told_where_to_go_on(tmp_path: Path) -> None:
    async def check(one: Peer) -> None:
        times = await fill(one)
        two = await connect(one.broker)
        await two.heartbeat("two", consumer())
        for queue_id, offset in enumerate((3, 0)):
            await commit(one, offset, queue_id=queue_id)
        answer = await reset(one, timestamp=times[1], isForce=False)
        assert offsets(answer) == {0: 1, 1: 0}, "not forward"
        assert offsets(await reset(one, timestamp=times[1])) == {0: 1, 1: 1}
        await wait_told(one, two)
        notice = told(two)[0]
        assert notice.is_one_way and OffsetReset.decode(notice.body).offsets == {
            MessageQueue("T", "broker-a", 0): 1,
            MessageQueue("T", "broker-a", 1): 0,
        }
        assert fields(notice) == {
            "topic": "T",
            "group": "g",
            "timestamp": str(times[1]),
            "isForce": "false",
            "queueId": "-1",
        }
        assert await committed(one) == 3, "they commit it themselves"

    serve(tmp_path, check, server_side_reset=False)


def test_cpp_clients_have_no_maps_with_objects_as_keys(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await fill(peer)
        for queue_id in range(2):
            await commit(peer, 3, queue_id=queue_id)
        request = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}
        command = Command(RESET, request, language=LanguageCode.CPP)
        assert offsets(await peer.channel.request(command, TIMEOUT_S)) == {0: 3, 1: 3}
        await wait_told(peer)
        assert json.loads(bytes(told(peer)[0].body)) == {
            "offsetTable": [
                {"brokerName": "broker-a", "offset": 3, "queueId": queue_id, "topic": "T"}
                for queue_id in range(2)
            ]
        }

    serve(tmp_path, check, server_side_reset=False)


def test_members_that_cannot_be_told(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await fill(peer)
        answer = await reset(peer, topic="U")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        answer = await reset(peer)
        assert answer.remark == "THe consumer group <g> not exist"
        for queue_id in range(2):
            await commit(peer, 3, queue_id=queue_id)
        await peer.ask(RequestCode.UNREGISTER_CLIENT, clientID="one", consumerGroup="g")
        answer = await reset(peer)
        assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
        assert answer.remark == (
            "Consumer not online, so can not reset offset, Group: g Topic: T Timestamp: 0"
        )

    serve(tmp_path, check, server_side_reset=False)


# --- clones and progress


@pytest.mark.parametrize("topic", ["T", ""])
def test_a_group_is_put_where_another_one_is(tmp_path: Path, topic: str) -> None:
    async def check(peer: Peer) -> None:
        await fill(peer)
        await commit(peer, 2)
        await commit(peer, 1, queue_id=1)
        request = {"srcGroup": "g", "destGroup": "h", "topic": topic}
        answer = await peer.ask(RequestCode.CLONE_GROUP_OFFSET, **request, offline=False)
        assert answer.code == ResponseCode.SUCCESS
        found = [await committed(peer, queue_id=n, group="h") for n in range(2)]
        assert found == [2, 1]
        await commit(peer, 3)
        assert await committed(peer, group="h") == 2

    serve(tmp_path, check)


def test_a_clone_ends_a_reset_that_its_target_has_not_heard_of(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await fill(peer)
        await commit(peer, 3)
        clone = {"srcGroup": "g", "destGroup": "h", "topic": "T", "offline": True}
        await peer.heartbeat("two", consumer("T", group="h"))
        await commit(peer, 2, group="h")
        await peer.ask(RequestCode.UNREGISTER_CLIENT, clientID="two", consumerGroup="h")
        for is_told in (False, True):
            answer = await reset(peer, group="h", queueId=0, offset=1)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            if is_told:
                told = await peer.pull("T", 2, consumerGroup="h")
                assert (told.remark, fields(told)["nextBeginOffset"]) == ("OFFSET_RESET", "1")
            answer = await peer.ask(RequestCode.CLONE_GROUP_OFFSET, **clone)
            assert answer.code == ResponseCode.SUCCESS
            assert await committed(peer, group="h") == 3
            pulled = await peer.pull("T", 3, consumerGroup="h")
            assert pulled.remark != "OFFSET_RESET"
            await commit(peer, 2, group="h")
            assert await committed(peer, group="h") == 2  # and it counts what members commit

    serve(tmp_path, check)


@pytest.mark.parametrize("target", ["", "a@b", "bad name", "x" * 256])
def test_a_clone_to_what_is_no_group_is_refused(tmp_path: Path, target: str) -> None:
    async def check(peer: Peer) -> None:
        await fill(peer)
        await commit(peer, 2)
        request = {"srcGroup": "g", "destGroup": target, "topic": "T"}
        answer = await peer.ask(RequestCode.CLONE_GROUP_OFFSET, **request, offline=True)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "group name" in (answer.remark or "")
        assert await committed(peer, group=target) == -1

    serve(tmp_path, check)


def test_topics_that_the_source_does_not_read_now_are_cloned_on_demand(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await fill(peer)
        await commit(peer, 2)
        await peer.heartbeat("one", consumer("U"))
        request = {"srcGroup": "g", "destGroup": "h", "topic": "T"}
        for offline, expected in ((False, -1), (True, 2)):
            await peer.ask(RequestCode.CLONE_GROUP_OFFSET, **request, offline=offline)
            assert await committed(peer, group="h") == expected

    serve(tmp_path, check)


async def progress(peer: Peer) -> dict[int, tuple[int, int]]:
    """Return what the group has committed and pulled in each queue."""
    answer = await peer.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="T")
    body = ConsumeStats.decode(answer.body)
    return {
        queue.queue_id: (found.consumer_offset, found.pull_offset)
        for queue, found in body.offsets.items()
    }


def test_what_was_pulled_and_not_committed_is_in_flight(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await fill(peer)
        await commit(peer, 1)
        await peer.pull("T", 1, maxMsgNums=1)
        assert await progress(peer) == {0: (1, 2), 1: (0, 0)}
        await commit(peer, 3)
        assert await progress(peer) == {0: (3, 3), 1: (0, 0)}

    serve(tmp_path, check)


def test_progress_in_topics_that_nobody_subscribes_to_is_shown_on_demand(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        async def topics(**request: str) -> set[str]:
            answer = await peer.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g", **request)
            return {queue.topic for queue in ConsumeStats.decode(answer.body).offsets}

        await fill(peer)
        await commit(peer, 1)
        assert await topics() == await topics(topic="T") == {"T"}
        await peer.heartbeat("one", consumer("U"))
        assert await topics() == await topics(topic="T") == set()
        assert await topics(topicList="T;nowhere") == {"T"}
        await peer.heartbeat("one", ConsumerData(group="g"))
        assert await topics(topic="T") == {"T"}

    serve(tmp_path, check)
