"""A slave that is asked as if it were the master: it says where that is, and is not asked in vain
thousands of times in a second, nor for locks."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest
from tests.administration import admin_of
from tests.cluster.replicated import (
    DEADLINE_S,
    TIMEOUT_S,
    Pair,
    ask,
    eventually,
    pair_of,
    send,
)

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.net.blocking import BlockingChannel
from pymq.protocol.addresses import split_address
from pymq.protocol.bodies import LockRequest, LockResponse, MessageQueue
from pymq.protocol.codes import LanguageCode, PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message
from pymq.protocol.record import decode_records
from pymq.testing import Cluster

HELD = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)
HOLD_MS = "pymq.broker.handlers.pull._SENT_BACK_MS"


class Reader:
    """A consumer of ``T`` with one connection, as RocketMQ's have."""

    def __init__(self, address: str) -> None:
        self.channel = BlockingChannel.connect(*split_address(address), timeout_s=TIMEOUT_S)

    def begin(
        self, offset: int, flags: int = HELD, language: LanguageCode = LanguageCode.JAVA
    ) -> int:
        fields = {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": str(flags),
            "commitOffset": "0",
            "suspendTimeoutMillis": "60000",
            "subVersion": "0",
            "subscription": "*",
        }
        command = Command(RequestCode.PULL_MESSAGE, fields, language=language)
        return self.channel.send(command, time.monotonic() + DEADLINE_S)

    def end(self, opaque: int) -> Command:
        return self.channel.receive(opaque, time.monotonic() + DEADLINE_S)

    def pull(self, offset: int, flags: int = HELD) -> Command:
        return self.end(self.begin(offset, flags))

    def is_sent_back(self, offset: int, flags: int = HELD) -> bool:
        """Is a pull told to go on where it began, at the master?"""
        answer = self.pull(offset, flags)
        fields = answer.fields or {}
        place = fields.get("nextBeginOffset"), fields.get("suggestWhichBrokerId")
        return answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and place == (str(offset), "0")

    def waits(self, offset: int) -> bool:
        """Is it told so after a while?"""
        begun_s = time.monotonic()
        return self.is_sent_back(offset) and time.monotonic() - begun_s > 0.25

    def close(self) -> None:
        self.channel.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with pair_of(tmp_path) as one:
        one.admin.topics.create("T", queue_count=1)
        one.admin.groups.create("g")
        send(one, [b"0", b"1"])
        one.wait_equal()
        known = {
            RequestCode.GET_TOPIC_CONFIG: {"topic": "T"},
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: {"group": "g"},
        }
        eventually(lambda: all(one.ask(code, what).code == 0 for code, what in known.items()))
        yield one


def test_who_comes_again_waits_until_something_arrives(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Reader(pair.slave.broker_address)) as reader:
        monkeypatch.setattr(HOLD_MS, 300)
        eventually(lambda: reader.is_sent_back(2))
        assert reader.waits(2) and reader.waits(2)
        assert reader.is_sent_back(2, int(PullFlag.SUBSCRIPTION)), "who does not wait"
        monkeypatch.setattr(HOLD_MS, 60_000)
        assert reader.is_sent_back(7), "who is elsewhere comes for the first time"
        assert reader.is_sent_back(2)
        opaque = reader.begin(2)
        send(pair, [b"2"])
        answer = reader.end(opaque)
        assert answer.code == ResponseCode.SUCCESS
        assert [record.body for record in decode_records(answer.body)] == [b"2"]


def test_who_has_to_be_told_of_a_reset_comes_again_more_slowly(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset = {"topic": "T", "group": "g", "queueId": "0", "offset": "1", "timestamp": "-1"}
    command = Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**reset, "isForce": "true"})
    assert ask(pair.master.broker_address, command).code == ResponseCode.SUCCESS
    monkeypatch.setattr(HOLD_MS, 300)
    with closing(Reader(pair.slave.broker_address)) as reader:
        eventually(lambda: reader.is_sent_back(0, int(PullFlag.SUBSCRIPTION)))
        assert reader.waits(0) and reader.waits(0)


def test_locks_are_the_masters(pair: Pair) -> None:
    queue = MessageQueue("T", pair.master.broker_name, 0)
    request = LockRequest(consumer_group="g", client_id="one", queues=[queue]).encode()
    command = Command(RequestCode.LOCK_BATCH_MQ, {}, request)
    for cluster, granted in ((pair.master, [queue]), (pair.slave, [])):
        answer = ask(cluster.broker_address, command)
        assert answer.code == ResponseCode.SUCCESS
        assert LockResponse.decode(answer.body).queues == granted
    assert pair.ask(RequestCode.UNLOCK_BATCH_MQ, {}, request).code == ResponseCode.SUCCESS


def test_a_slave_whose_log_is_not_confirmed_gives_nothing_and_keeps_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cut_off(*where: object) -> NoReturn:
        raise OSError("no route to host")

    with Cluster(replicas=2, broker={"slave_read": True}) as group:
        group.wait_in_sync()
        slave_id = 3 - group.master()
        with BlockingClient(group.name_server, timeout_s=TIMEOUT_S) as client:
            admin_of(client).topics.create("T", queue_count=1)
            admin_of(client).groups.create("g")
            client.send(Message("T", b"0"))
        group.stop_broker(None, slave_id)
        monkeypatch.setattr("pymq.broker.ha.slave.connect", cut_off)
        group.start_broker(None, slave_id)
        monkeypatch.setattr(HOLD_MS, 300)
        with closing(Reader(group.address(None, slave_id))) as reader:
            assert reader.is_sent_back(0) and reader.waits(0)
            assert reader.is_sent_back(0, int(PullFlag.SUBSCRIPTION))
            # Who reads a range takes anything but a refusal for what the slave has.
            subscription = int(PullFlag.SUBSCRIPTION)
            answer = reader.end(reader.begin(0, subscription, LanguageCode.PYTHON))
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert "has not confirmed" in (answer.remark or "")
