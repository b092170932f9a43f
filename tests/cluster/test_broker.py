"""The broker's requests over a real socket: what each answers, and with which code."""

import asyncio
import dataclasses
import json
import logging
import re
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.clock import Clock
from pymq.errors import ConfigurationError, StoreLocked
from pymq.net.channel import AsyncChannel
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
    TopicTable,
)
from pymq.protocol.codes import PULL_BYTES_FIELD, PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command, HeaderForm
from pymq.protocol.headers.send import LETTERS, SendRequest
from pymq.protocol.message import decode_properties, encode_batch
from pymq.protocol.record import Record, decode_records, parse_offset_message_id
from pymq.store import FlushMode, MessageStore, StoreConfig

DEADLINE_S = 20.0
TIMEOUT_S = 5.0


class Peer:
    """A connection to the broker under test, with the requests of these tests."""

    def __init__(self, broker: Broker, channel: AsyncChannel, notices: list[Command]) -> None:
        self.broker = broker
        self.channel = channel
        self.notices = notices

    async def ask(
        self, code: int, body: bytes = b"", form: HeaderForm = HeaderForm.JSON, **fields: Any
    ) -> Command:
        texts = {
            name: ("true" if value else "false") if isinstance(value, bool) else str(value)
            for name, value in fields.items()
        }
        return await self.channel.request(Command(code, texts, body, form=form), TIMEOUT_S)

    async def send(self, topic: str, body: bytes, **changes: Any) -> Command:
        code = changes.pop("code", RequestCode.SEND_MESSAGE_V2)
        form = changes.pop("form", HeaderForm.JSON)
        request = SendRequest(
            "pg", topic, "TBW102", 4, 0, 0, 1700000000000, 0, "", 0, False, None, False
        )
        fields = dataclasses.replace(request, **changes).to_v2()
        if code == RequestCode.SEND_MESSAGE:
            names = {letter: name for name, letter in LETTERS.items()}
            fields = {names[letter]: value for letter, value in fields.items()}
        return await self.channel.request(Command(code, fields, body, form=form), TIMEOUT_S)

    def pull_fields(self, topic: str, offset: int, **changes: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "consumerGroup": "g",
            "topic": topic,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": int(PullFlag.SUBSCRIPTION),
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        return fields | changes

    async def pull(self, topic: str, offset: int, **changes: Any) -> Command:
        return await self.ask(
            RequestCode.PULL_MESSAGE, **self.pull_fields(topic, offset, **changes)
        )

    def pull_later(self, topic: str, offset: int, **changes: Any) -> asyncio.Future[Command]:
        fields = self.pull_fields(topic, offset, **changes)
        texts = {name: str(value) for name, value in fields.items()}
        return self.channel.request_nowait(Command(RequestCode.PULL_MESSAGE, texts), TIMEOUT_S)

    async def heartbeat(self, client_id: str, *consumers: ConsumerData, **more: Any) -> None:
        body = Heartbeat(client_id=client_id, consumers=list(consumers), **more)
        answer = await self.ask(RequestCode.HEART_BEAT, body.encode())
        assert answer.code == ResponseCode.SUCCESS


def serve(
    path: Path,
    check: Callable[[Peer], Awaitable[None]],
    *,
    flush: FlushMode = FlushMode.ASYNC,
    store: dict[str, Any] | None = None,
    **settings: Any,
) -> None:
    """Run ``check`` against a broker on ``path``, then close it cleanly."""

    async def run() -> None:
        broker = Broker(
            BrokerConfig(listen_port=0, **settings),
            StoreConfig(root_path=path, flush_mode=flush, segment_bytes=1 << 20, **(store or {})),
        )
        await broker.start()
        peer = await connect(broker)
        try:
            await asyncio.wait_for(check(peer), DEADLINE_S)
        finally:
            peer.channel.close()
            await broker.close()
            await broker.close()

    asyncio.run(run())


async def connect(broker: Broker, *, port: int | None = None) -> Peer:
    notices: list[Command] = []
    address = broker.address if port is None else f"127.0.0.1:{port}"
    channel = await AsyncChannel.connect(
        address, TIMEOUT_S, on_request=lambda _, command: notices.append(command)
    )
    return Peer(broker, channel, notices)


def fields(command: Command) -> dict[str, str]:
    assert command.fields is not None
    return command.fields


def records(command: Command) -> list[Record]:
    return list(decode_records(command.body, verify=True))


# --- sending


@pytest.mark.parametrize("form", list(HeaderForm))
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_sent_message_is_pulled_as_it_was(
    tmp_path: Path, code: RequestCode, form: HeaderForm
) -> None:
    async def check(peer: Peer) -> None:
        sent = await peer.send(
            "T",
            b"\x00body\xff",
            code=code,
            form=form,
            queue_id=2,
            flag=7,
            properties="TAGS\x01a\x02KEYS\x01k1 k2",
        )
        assert (sent.code, sent.form) == (ResponseCode.SUCCESS, form)
        assert fields(sent)["queueId"] == "2"
        assert fields(sent)["queueOffset"] == "0"
        assert fields(sent)["MSG_REGION"] and fields(sent)["TRACE_ON"] == "true"
        pulled = await peer.pull("T", 0, queueId=2)
        (record,) = records(pulled)
        assert (record.topic, record.queue_id, record.body) == ("T", 2, b"\x00body\xff")
        assert (record.flag, record.born_timestamp) == (7, 1700000000000)
        assert decode_properties(record.properties) == {
            "TAGS": "a",
            "KEYS": "k1 k2",
            "CLUSTER": "DefaultCluster",
        }
        host, offset = parse_offset_message_id(fields(sent)["msgId"])
        assert (host, offset) == (record.store_host, record.physical_offset)
        assert fields(pulled) == {
            "nextBeginOffset": "1",
            "minOffset": "0",
            "maxOffset": "1",
            "suggestWhichBrokerId": "0",
        }

    serve(tmp_path, check)


def test_a_batch_becomes_consecutive_records(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        body = encode_batch([(n, b"body-%d" % n, b"TAGS\x01t%d" % (n % 2)) for n in range(20)])
        sent = await peer.send("T", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
        assert sent.code == ResponseCode.SUCCESS
        ids = fields(sent)["msgId"].split(",")
        found = records(await peer.pull("T", 0))
        assert [record.body for record in found] == [b"body-%d" % n for n in range(20)]
        assert [record.flag for record in found] == list(range(20))
        assert [record.queue_offset for record in found] == list(range(20))
        assert [parse_offset_message_id(text)[1] for text in ids] == [
            record.physical_offset for record in found
        ]
        tagged = records(await peer.pull("T", 0, subscription="t1"))
        assert [record.flag for record in tagged] == list(range(1, 20, 2))

    serve(tmp_path, check)


def test_what_is_acknowledged_is_there_after_a_clean_restart(tmp_path: Path) -> None:
    async def fill(peer: Peer) -> None:
        for n in range(40):
            assert (await peer.send("T", b"%d" % n * 1000, queue_id=n % 4)).code == 0
        await peer.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup="g",
            topic="T",
            queueId=1,
            commitOffset=5,
        )

    async def look(peer: Peer) -> None:
        found = [
            int(record.body[: len(record.body) // 1000])
            for queue_id in range(4)
            for record in records(await peer.pull("T", 0, queueId=queue_id))
        ]
        assert sorted(found) == list(range(40))
        offset = await peer.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", topic="T", queueId=1
        )
        assert fields(offset)["offset"] == "5"
        assert (await peer.send("T", b"more", queue_id=0)).fields["queueOffset"] == "10"  # type: ignore[index]

    serve(tmp_path, fill)
    serve(tmp_path, look)


def test_sync_flush_answers_after_the_sync(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        store = peer.broker._store
        assert store is not None
        answers = await asyncio.gather(*(peer.send("T", b"%d" % n) for n in range(50)))
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        assert store.unflushed == 0
        assert len(records(await peer.pull("T", 0, maxMsgNums=50))) == 32

    serve(tmp_path, check, flush=FlushMode.SYNC)


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "no/slash"}, ResponseCode.INVALID_PARAMETER, "'/'"),
        ({"topic": ".."}, ResponseCode.INVALID_PARAMETER, "'.'"),
        ({"topic": ""}, ResponseCode.INVALID_PARAMETER, "empty"),
        ({"topic": "x" * 128}, ResponseCode.INVALID_PARAMETER, "128"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"queue_id": 99}, ResponseCode.INVALID_PARAMETER, r"queueId\[99\]"),
        (
            {"topic": "New", "default_topic": "nothing"},
            ResponseCode.TOPIC_NOT_EXIST,
            "autoCreateTopicEnable",
        ),
        ({"properties": "DELAY\x013"}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "DELAY"),
        (
            {"properties": "a\x01b\x02TRAN_MSG\x01true"},
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            "TRAN_MSG",
        ),
        ({"properties": "p\x01" + "x" * 33_000}, ResponseCode.MESSAGE_ILLEGAL, "32767"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_send_that_cannot_be_is_refused_with_its_reason(
    tmp_path: Path, changes: dict[str, Any], code: int, remark: str
) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("Known", b"good")
        request = {"topic": "Known", **changes}
        answer = await peer.send(request.pop("topic"), b"bad", **request)
        assert answer.code == code
        assert fields(answer)["MSG_REGION"]
        assert re.search(remark, answer.remark or "")
        assert [record.body for record in records(await peer.pull("Known", 0))] == [b"good"]

    serve(tmp_path, check)


def test_a_delay_that_means_none_is_an_ordinary_message(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for text in ("DELAY\x010\x02", "x\x01DELAY", "TRAN_MSG\x01false", "MYDELAY\x013"):
            assert (await peer.send("T", b"", properties=text)).code == ResponseCode.SUCCESS

    serve(tmp_path, check)


def test_a_body_over_the_limit_is_refused_and_its_neighbours_are_kept(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        answers = await asyncio.gather(
            peer.send("T", b"before"), peer.send("T", b"x" * 2000), peer.send("T", b"after")
        )
        assert [answer.code for answer in answers] == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
        assert "1000" in (answers[1].remark or "")
        assert [r.body for r in records(await peer.pull("T", 0))] == [b"before", b"after"]

    serve(tmp_path, check, store={"message_bytes_max": 1000})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        struct.pack(">I", 0) * 6,
        struct.pack(">IIIII", 1 << 31, 0, 0, 0, 0) + b"\0\0",
        encode_batch([(0, b"a", b"")])[:-1],
        encode_batch([(0, b"a", b"")]) + b"x",
    ],
)
def test_a_malformed_batch_is_refused_whole(tmp_path: Path, body: bytes) -> None:
    async def check(peer: Peer) -> None:
        answer = await peer.send("T", body, code=RequestCode.SEND_BATCH_MESSAGE)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert (await peer.send("T", b"good")).code == ResponseCode.SUCCESS
        assert [record.body for record in records(await peer.pull("T", 0))] == [b"good"]

    serve(tmp_path, check)


def test_a_retry_topic_sends_to_dead_letters_when_it_was_tried_enough(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        assert (await peer.send("%RETRY%g", b"again", reconsume_times=1)).code == 0
        answer = await peer.send("%RETRY%g", b"dead", reconsume_times=4, max_reconsume_times=3)
        assert answer.code == ResponseCode.SUCCESS
        (dead,) = records(await peer.pull("%DLQ%g", 0))
        assert (dead.body, dead.topic) == (b"dead", "%DLQ%g")
        assert [r.body for r in records(await peer.pull("%RETRY%g", 0))] == [b"again"]

    serve(tmp_path, check)


def test_topics_are_not_created_where_that_is_switched_off(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        answer = await peer.send("T", b"x")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        answer = await create_topic(peer, "T", queues=2)
        assert answer.code == ResponseCode.SUCCESS
        assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS

    serve(tmp_path, check, auto_create_topic=False)


# --- pulling


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


# --- clients


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
        queues = [MessageQueue("T", "broker-a", n) for n in range(2)]
        elsewhere = MessageQueue("T", "broker-b", 0)

        async def lock(client_id: str) -> list[MessageQueue]:
            request = LockRequest(
                consumer_group="g", client_id=client_id, queues=[*queues, elsewhere]
            )
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


def test_an_offset_of_an_unknown_topic_or_below_zero_is_refused(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        offset = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
        update = RequestCode.UPDATE_CONSUMER_OFFSET
        assert (await peer.ask(update, **offset)).code == ResponseCode.TOPIC_NOT_EXIST
        await peer.send("T", b"x")
        assert (await peer.ask(update, **offset)).code == ResponseCode.SUCCESS
        offset["commitOffset"] = -1
        assert (await peer.ask(update, **offset)).code == ResponseCode.SYSTEM_ERROR

    serve(tmp_path, check)


# --- administration


async def create_topic(peer: Peer, topic: str, *, queues: int = 4, perm: int = 6) -> Command:
    return await peer.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=queues,
        writeQueueNums=queues,
        perm=perm,
        topicFilterType="SINGLE_TAG",
        order=False,
    )


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


@pytest.mark.parametrize("code", [0, 9, 12, 36, 37, 315, 200050, 99999])
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


# --- ports, files, life


def test_the_vip_port_serves_sends(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        vip = await connect(peer.broker, port=peer.broker.port - 2)
        assert (await vip.send("T", b"x")).code == ResponseCode.SUCCESS
        vip.channel.close()

    serve(tmp_path, check)


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        second = Broker(
            BrokerConfig(listen_port=0),
            StoreConfig(root_path=tmp_path, segment_bytes=1 << 20),
        )
        with pytest.raises(StoreLocked, match=str(tmp_path)):
            await second.start()

    serve(tmp_path, check)


def test_a_broker_stopped_while_its_store_opens_lets_the_directory_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StoreConfig(root_path=tmp_path, segment_bytes=1 << 20)
    opened = threading.Event()
    original = MessageStore.open

    def slow(*arguments: Any, is_cancelled: Callable[[], bool], **named: Any) -> MessageStore:
        opened.set()
        while not is_cancelled():
            time.sleep(0.001)
        return original(*arguments, **named)

    async def run() -> None:
        monkeypatch.setattr(MessageStore, "open", slow)
        broker = Broker(BrokerConfig(listen_port=0), config)
        starting = asyncio.ensure_future(broker.start())
        await asyncio.to_thread(opened.wait, DEADLINE_S)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(starting, DEADLINE_S)

    asyncio.run(run())
    monkeypatch.undo()
    MessageStore.open(config, Clock()).close()


def test_a_port_in_use_is_refused_before_the_store_is_touched(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        second = Broker(
            BrokerConfig(listen_port=peer.broker.port),
            StoreConfig(root_path=tmp_path / "second"),
        )
        with pytest.raises(ConfigurationError, match="in use"):
            await second.start()
        assert not (tmp_path / "second").exists()

    serve(tmp_path / "first", check)


def test_a_name_server_that_is_down_is_named_once_and_the_broker_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(peer: Peer) -> None:
        assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS

    with caplog.at_level(logging.WARNING, logger="pymq"):
        serve(tmp_path, check, name_servers=("127.0.0.1:9",))
    assert caplog.text.count("name server 127.0.0.1:9 does not know this broker") == 1


def test_an_advertised_address_that_is_not_listened_on_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        broker = Broker(
            BrokerConfig(listen_port=0, advertised_address="192.0.2.7"),
            StoreConfig(root_path=tmp_path, segment_bytes=1 << 20),
        )
        await broker.start()
        assert broker.address.startswith("192.0.2.7:")
        await broker.close()

    with caplog.at_level(logging.WARNING, logger="pymq"):
        asyncio.run(run())
    assert "192.0.2.7 (brokerIP1)" in caplog.text and "bindAddress" in caplog.text


@pytest.mark.parametrize("address", ["0.0.0.0", "my-host", "::"])
def test_an_address_that_cannot_be_advertised_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="brokerIP1"):
        BrokerConfig(advertised_address=address)


def test_topics_lost_from_the_table_are_found_in_the_store(tmp_path: Path) -> None:
    async def fill(peer: Peer) -> None:
        await peer.send("T", b"kept", queue_id=3)

    async def look(peer: Peer) -> None:
        (record,) = records(await peer.pull("T", 0, queueId=3))
        assert record.body == b"kept"

    serve(tmp_path, fill)
    for name in ("topics.json", "topics.json.bak"):
        (tmp_path / "config" / name).unlink(missing_ok=True)
    serve(tmp_path, look)


def test_a_damaged_table_falls_back_to_its_backup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def commit(peer: Peer, offset: int) -> None:
        await peer.send("T", b"x")
        await peer.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup="g",
            topic="T",
            queueId=0,
            commitOffset=offset,
        )

    async def look(peer: Peer) -> None:
        answer = await peer.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", topic="T", queueId=0
        )
        assert fields(answer)["offset"] == "1"

    serve(tmp_path, lambda peer: commit(peer, 1))
    serve(tmp_path, lambda peer: commit(peer, 2))
    (tmp_path / "config" / "consumerOffset.json").write_text('{"offsetTable": {"T@g"')
    with caplog.at_level(logging.WARNING, logger="pymq"):
        serve(tmp_path, look)
    assert "consumerOffset.json.bak" in caplog.text
