"""Pulls over a real socket: what comes, what is held, what is refused."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, create_topic, fields, records, serve

from pymq.broker.state.offsets import OffsetTable
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.bodies import ConsumerData, GroupConfig, MessageModel, Subscription
from pymq.protocol.codes import PULL_BYTES_FIELD, PullFlag, RequestCode, ResponseCode


def test_the_four_pull_answers_carry_all_four_offsets(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for n in range(3):
            await peer.send("T", b"%d" % n, properties="TAGS\x01a")
        expected = [
            (0, "*", ResponseCode.SUCCESS, "3"),
            (3, "*", ResponseCode.PULL_NOT_FOUND, "3"),
            (0, "other", ResponseCode.PULL_RETRY_IMMEDIATELY, "3"),
            (9, "*", ResponseCode.PULL_OFFSET_MOVED, "3"),
            (-5, "*", ResponseCode.PULL_OFFSET_MOVED, "0"),
        ]
        for offset, tags, code, following in expected:
            answer = await peer.pull("T", offset, subscription=tags)
            assert answer.code == code
            assert fields(answer) == {
                "nextBeginOffset": following,
                "minOffset": "0",
                "maxOffset": "3",
                "suggestWhichBrokerId": "0",
                "topicSysFlag": "0",
                "groupSysFlag": "0",
            }
        assert (await peer.pull("T", 0, queueId=1)).code == ResponseCode.PULL_NOT_FOUND
        assert (await peer.pull("T", 7, queueId=1)).code == ResponseCode.PULL_OFFSET_MOVED

    serve(tmp_path, check)


def test_a_pull_is_capped_unless_it_asks_with_the_extension(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        body = encode_batch([(0, b"x" * 100, b"") for _ in range(3000)])
        await peer.send("T", body, code=RequestCode.SEND_BATCH_MESSAGE)
        plain = await peer.pull("T", 0, maxMsgNums=3000)
        assert len(records(plain)) == 32
        much = await peer.pull("T", 0, maxMsgNums=3000, **{PULL_BYTES_FIELD: 1 << 20})
        assert len(records(much)) == 3000
        some = await peer.pull("T", 0, maxMsgNums=3000, **{PULL_BYTES_FIELD: 1000})
        assert 1 <= len(some.body) <= 1000

    serve(tmp_path, check)


def test_messages_that_left_memory_are_read_from_the_disk(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for n in range(50):
            await peer.send("T", b"%d" % n * 500, queue_id=n % 2)
        answers = await asyncio.gather(
            *(peer.pull("T", 0, queueId=n % 2, maxMsgNums=25) for n in range(8))
        )
        for n, answer in enumerate(answers):
            bodies = [record.body for record in records(answer)]
            assert bodies == [b"%d" % (n % 2 + 2 * m) * 500 for m in range(25)]

    serve(tmp_path, check, memory_bytes=0)


def test_a_held_pull_wakes_for_a_message_it_wants(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"old", properties="TAGS\x01a")
        flags = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)
        held = peer.pull_later("T", 1, subscription="a", sysFlag=flags, suspendTimeoutMillis=60_000)
        await peer.send("T", b"unwanted", properties="TAGS\x01b")
        assert not held.done()
        await peer.send("T", b"wanted", properties="TAGS\x01a")
        answer = await held
        assert answer.code == ResponseCode.SUCCESS
        assert [record.body for record in records(answer)] == [b"wanted"]

    serve(tmp_path, check)


def test_a_held_pull_is_answered_when_its_time_is_up(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"old")
        flags = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)
        held = peer.pull_later("T", 1, sysFlag=flags, suspendTimeoutMillis=50)
        answer = await held
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert fields(answer)["nextBeginOffset"] == "1"

    serve(tmp_path, check)


def test_a_broker_that_closes_answers_held_pulls(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"old")
        flags = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)
        held = peer.pull_later("T", 1, sysFlag=flags, suspendTimeoutMillis=60_000)
        await peer.send("T", b"elsewhere", queue_id=1)  # the pull is held by now
        await peer.broker.close()
        assert (await held).code == ResponseCode.PULL_NOT_FOUND

    serve(tmp_path, check)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": -1}, ResponseCode.INVALID_PARAMETER),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"expressionType": "SQL92", "subscription": "a > 1"}, ResponseCode.SYSTEM_ERROR),
        ({"sysFlag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"maxMsgNums": "many"}, ResponseCode.SYSTEM_ERROR),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_pull_that_cannot_be_is_refused(
    tmp_path: Path, changes: dict[str, Any], code: int
) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x")
        changed = {"topic": "T", **changes}
        answer = await peer.pull(changed.pop("topic"), 0, **changed)
        assert (answer.code, bool(answer.remark)) == (code, True)

    serve(tmp_path, check)


def test_the_offset_in_a_pull_is_committed(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x")
        flags = int(PullFlag.SUBSCRIPTION | PullFlag.COMMIT_OFFSET)
        await peer.pull("T", 1, sysFlag=flags, commitOffset=1)
        answer = await peer.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", topic="T", queueId=0
        )
        assert fields(answer)["offset"] == "1"

    serve(tmp_path, check)


# --- what the headers of answers say besides


def test_flags_of_topic_and_group_come_with_every_answer(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        group = GroupConfig(group="g", group_sys_flag=4)
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group.encode())
        await peer.send("T", b"x")
        for offset in range(2):
            answer = fields(await peer.pull("T", offset))
            assert (answer["topicSysFlag"], answer["groupSysFlag"]) == ("0", "4")
            assert answer["suggestWhichBrokerId"] == "0"

    serve(tmp_path, check)


@pytest.mark.parametrize(("memory_bytes", "expected"), [(0, "3"), (1 << 30, "2")])
def test_who_lags_behind_is_sent_to_another_broker(
    tmp_path: Path, memory_bytes: int, expected: str
) -> None:
    async def check(peer: Peer) -> None:
        group = GroupConfig(group="g", broker_id=2, which_broker_when_consume_slowly=3)
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group.encode())
        await peer.send("T", b"x")
        assert fields(await peer.pull("T", 0))["suggestWhichBrokerId"] == expected
        assert fields(await peer.pull("T", 1))["suggestWhichBrokerId"] == "2"

    serve(tmp_path, check, slave_read=True, memory_bytes=memory_bytes)


def test_refusals_say_what_forbids_a_pull(tmp_path: Path) -> None:
    async def kind(peer: Peer, topic: str = "T", **changes: Any) -> str:
        answer = await peer.pull(topic, 0, **changes)
        assert answer.code == ResponseCode.NO_PERMISSION
        return fields(answer)["forbiddenType"]

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        await create_topic(peer, "W", perm=2)
        assert await kind(peer, "W") == "3"
        group = GroupConfig(group="no", consume_enable=False)
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group.encode())
        assert await kind(peer, consumerGroup="no") == "2"
        group = GroupConfig(group="g", consume_broadcast_enable=False)
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group.encode())
        data = ConsumerData(
            group="g",
            message_model=MessageModel.BROADCASTING,
            subscriptions=[Subscription.of_tags("T", "*", 1)],
        )
        await peer.heartbeat("one", data)
        assert await kind(peer, sysFlag=0) == "4"
        lite = await peer.ask(RequestCode.LITE_PULL_MESSAGE, **peer.pull_fields("T", 0))
        assert (lite.code, fields(lite)["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "1")

    serve(tmp_path, check, lite_pull=False)
    serve(tmp_path, lambda peer: nothing_is_read(kind(peer)), permission=2)


async def nothing_is_read(kind: Awaitable[str]) -> None:
    assert await kind == "1"


def test_an_administrator_forbids_a_group_a_topic(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        await peer.heartbeat(
            "one", ConsumerData(group="g", subscriptions=[Subscription.of_tags("T", "*", 1)])
        )
        answer = await peer.pull("T", 0, sysFlag=0)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the consumer group[g] is forbidden for topic[T]"
        assert fields(answer)["forbiddenType"] == "5"

    table = tmp_path / "config" / "subscriptionGroup.json"
    table.parent.mkdir()
    table.write_text('{"forbiddenTable": {"g": {"T": 4}}, "subscriptionGroupTable": {}}')
    serve(tmp_path, check)


@pytest.mark.parametrize("deleted", ["topic", "group"])
def test_what_is_deleted_while_a_pull_is_held_is_not_recorded_again(
    tmp_path: Path, deleted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be another topic, or group, of that name: where was the last pull in that?"""
    tables: list[OffsetTable] = []
    note = OffsetTable.note_pull

    def noted(table: OffsetTable, *pulled: Any) -> None:
        tables.append(table)
        note(table, *pulled)

    monkeypatch.setattr(OffsetTable, "note_pull", noted)

    async def check(peer: Peer) -> None:
        await peer.send("T", b"old")
        flags = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)
        held = peer.pull_later("T", 1, sysFlag=flags, suspendTimeoutMillis=60_000)
        await peer.send("T", b"elsewhere", queue_id=1)  # the pull is held by now
        (table,) = tables
        group = "g"
        assert table.pulled(group, "T", 0) == 1
        if deleted == "topic":
            await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        else:
            forget = {"groupName": group, "cleanOffset": True, "removeOffset": True}
            await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, **forget)
        assert table.pulled(group, "T", 0) is None
        await peer.broker.close()
        await held
        assert table.pulled(group, "T", 0) is None

    serve(tmp_path, check)
