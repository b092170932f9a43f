"""Administration of a broker over a real socket, and what it cannot understand."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.cluster.broker_peer import Peer, create_topic, fields, records, serve

from pymq.protocol.admin_bodies import GroupConfigs, TopicConfigs
from pymq.protocol.bodies import GroupConfig, KVTable, TopicConfig, TopicTable
from pymq.protocol.codes import RequestCode, ResponseCode


def test_a_topic_is_created_shown_and_deleted(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        assert (await create_topic(peer, "T", queues=3)).code == ResponseCode.SUCCESS
        saved = json.loads((tmp_path / "config" / "topics.json").read_text())
        assert saved["topicConfigTable"]["T"]["readQueueNums"] == 3
        answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, topic="T")
        assert TopicConfig.decode(answer.body).write_queue_count == 3
        await peer.send("T", b"x")
        answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        assert answer.code == ResponseCode.SUCCESS
        answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, topic="T")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert not (tmp_path / "consumequeue" / "T").exists()
        for name in ("TBW102", "a/b", "DefaultCluster"):
            assert (await create_topic(peer, name)).code == ResponseCode.INVALID_PARAMETER

    serve(tmp_path, check)


def test_topics_and_groups_come_in_lists(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        update = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
        listed = TopicConfigs(
            configs=[
                TopicConfig(topic="A", read_queue_count=2),
                TopicConfig(topic="B", attributes={"+message.type": "FIFO"}),
            ]
        )
        assert (await peer.ask(update, listed.encode())).code == ResponseCode.SUCCESS
        saved = json.loads((tmp_path / "config" / "topics.json").read_text())
        assert saved["topicConfigTable"]["A"]["readQueueNums"] == 2
        assert saved["topicConfigTable"]["B"]["attributes"] == {"message.type": "FIFO"}
        assert (await peer.ask(update, listed.encode())).code == ResponseCode.SUCCESS
        again = json.loads((tmp_path / "config" / "topics.json").read_text())
        assert again["topicConfigTable"] == saved["topicConfigTable"]
        for bad in (
            TopicConfig(topic="bad^name"),
            TopicConfig(topic="TBW102"),
            TopicConfig(topic="D", write_queue_count=-1),
            TopicConfig(topic="D", attributes={"+no.such": "1"}),
        ):
            body = TopicConfigs(configs=[TopicConfig(topic="C"), bad]).encode()
            assert (await peer.ask(update, body)).code != ResponseCode.SUCCESS
        answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, topic="C")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST

        update = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        groups = GroupConfigs(configs=[GroupConfig(group="g1"), GroupConfig(group="g2")])
        assert (await peer.ask(update, groups.encode())).code == ResponseCode.SUCCESS
        answer = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g2")
        assert GroupConfig.decode(answer.body).group == "g2"
        groups = GroupConfigs(configs=[GroupConfig(group="g3"), GroupConfig(group="")])
        assert (await peer.ask(update, groups.encode())).code == ResponseCode.INVALID_PARAMETER
        assert (await peer.ask(update, b"no json")).code == ResponseCode.SYSTEM_ERROR
        answer = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g3")
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    serve(tmp_path, check)


def test_topics_come_in_pages(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        whole = await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        table = TopicTable.decode(whole.body)
        assert not (whole.fields or {}).get("totalTopicNum")
        found: dict[str, TopicConfig] = {}
        while len(found) < len(table.topics):
            page = await peer.ask(
                RequestCode.GET_ALL_TOPIC_CONFIG,
                topicSeq=len(found),
                maxTopicNum=3,
                dataVersion=table.version.encode().decode() if found else "",
            )
            assert fields(page)["totalTopicNum"] == str(len(table.topics))
            topics = TopicTable.decode(page.body).topics
            assert 1 <= len(topics) <= 3
            found |= topics
        assert found == table.topics

    serve(tmp_path, check)


def test_a_group_is_created_and_deleted_with_its_offsets(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x")
        config = GroupConfig(group="g", retry_max_times=3)
        update = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await peer.ask(update, config.encode())).code == ResponseCode.SUCCESS
        bad = GroupConfig(group="no good")
        assert (await peer.ask(update, bad.encode())).code == ResponseCode.INVALID_PARAMETER
        offset = {"consumerGroup": "g", "topic": "T", "queueId": 0}
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **offset, commitOffset=1)
        answer = await peer.ask(
            RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", cleanOffset=True
        )
        assert answer.code == ResponseCode.SUCCESS
        answer = await peer.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, **offset, setZeroIfNotFound=False
        )
        assert answer.code == ResponseCode.QUERY_NOT_FOUND

    serve(tmp_path, check)


def test_without_automatic_groups_an_unknown_one_is_refused(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x")
        answer = await peer.pull("T", 0)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    serve(tmp_path, check, auto_create_group=False)


@pytest.mark.parametrize("code", [0, 9, 1001, 99999])
def test_codes_of_others_are_answered_not_supported(tmp_path: Path, code: int) -> None:
    async def check(peer: Peer) -> None:
        answer = await peer.ask(code)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == f" request type {code} not supported"

    serve(tmp_path, check)


def test_broken_headers_and_bodies_are_answered_and_the_connection_lives(
    tmp_path: Path,
) -> None:
    async def check(peer: Peer) -> None:
        for code in (11, 14, 15, 17, 29, 30, 34, 38, 41, 200, 207, 208, 10, 310, 320):
            answer = await peer.ask(code, b"{not json", topic="T")
            assert answer.code != ResponseCode.SUCCESS
            assert answer.remark
        assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS

    serve(tmp_path, check)


def test_cleaning_takes_queues_that_belong_to_no_topic(tmp_path: Path) -> None:
    """A queue of a topic that is there keeps its offsets, however long nobody sends to it."""

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=3)
        for queue_id in range(3):
            for _ in range(6):
                await peer.send("T", bytes(200_000), queue_id=queue_id)
            offset = {"consumerGroup": "g", "topic": "T", "queueId": queue_id}
            await peer.pull("T", 0, queueId=queue_id)
            await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **offset, commitOffset=6)
        await create_topic(peer, "T", queues=2)
        for _ in range(6):
            await peer.send("T", bytes(200_000), queue_id=0)
        clean = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE
        assert (await peer.ask(clean)).code == ResponseCode.SUCCESS
        path = tmp_path / "consumequeue" / "T"
        assert {one.name for one in path.iterdir()} == {"0", "1", "2"}  # all of them in use
        await wait_deleted(peer)
        while (path / "2").exists():  # until the files of the log are gone, too
            assert (await peer.ask(clean)).code == ResponseCode.SUCCESS
        assert {one.name for one in path.iterdir()} == {"0", "1"}
        table = json.loads((tmp_path / "config" / "consumerOffset.json").read_text())
        assert table["offsetTable"]["T@g"] == {"0": 6, "1": 6}

    serve(tmp_path, check, store={"reserved_hours": 0, "queue_flush_interval_ms": 20})


def test_cleaning_leaves_a_topic_that_is_created_meanwhile(tmp_path: Path) -> None:
    names = [f"T{number:02}" for number in range(40)]
    last = names[-1]

    async def check(peer: Peer) -> None:
        for name in names:
            await create_topic(peer, name)
            await peer.send(name, b"delayed", properties="DELAY\x011")
            answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)
            assert answer.code == ResponseCode.SUCCESS
        while not {path.name for path in (tmp_path / "consumequeue").iterdir()} >= {*names}:
            await asyncio.sleep(0.02)  # they are delivered, to topics that do not exist
        cleaning = asyncio.create_task(peer.ask(RequestCode.CLEAN_UNUSED_TOPIC))
        while (tmp_path / "consumequeue" / names[0]).exists():
            await asyncio.sleep(0)
        created = asyncio.create_task(create_topic(peer, last))
        sent = await peer.send(last, b"new")
        cleaned = await cleaning
        await created
        assert (cleaned.code, sent.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
        pulled = await peer.pull(last, int(fields(sent)["queueOffset"]))
        assert [one.body for one in records(pulled)] == [b"new"]
        left = {path.name for path in (tmp_path / "consumequeue").iterdir()}
        assert left.isdisjoint(names[:-1]) and last in left

    serve(tmp_path, check)


async def wait_deleted(peer: Peer) -> None:
    """Ask for it until only the last log file is left: what is not flushed stays."""
    while True:
        assert (await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == ResponseCode.SUCCESS
        info = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        found = KVTable.decode(info.body).table
        if int(found["commitLogMaxOffset"]) - int(found["commitLogMinOffset"]) <= 1 << 20:
            return
        await asyncio.sleep(0.02)
