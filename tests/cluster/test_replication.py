"""A master and its slave, over real sockets: the same log, the same tables, whatever happens."""

import json
import random
import time
from pathlib import Path

import pytest
from tests.cluster.replicated import (
    SEGMENT_BYTES,
    Pair,
    ask,
    bodies_at,
    eventually,
    pair_of,
    plain_send,
    send,
)

from pymq.protocol.bodies import GroupConfig
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.message import Message
from pymq.store import StoreConfig
from pymq.store.inspection import check_store
from pymq.testing import Cluster


def test_a_slave_serves_what_was_sent_to_its_master(pair: Pair) -> None:
    pair.admin.topics.create("T", queue_count=4)
    pair.admin.groups.create(GroupConfig(group="reader"))
    sent = [b"%d" % n for n in range(100)]
    send(pair, sent)
    pair.wait_equal()
    eventually(lambda: pair.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}).code == 0)
    eventually(
        lambda: pair.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "reader"}).code == 0
    )

    def found() -> list[bytes]:
        return sorted(body for queue_id in range(4) for body in pair.pull("T", queue_id, 0))

    eventually(lambda: found() == sorted(sent))


def test_consumer_offsets_and_deletions_follow(pair: Pair) -> None:
    pair.admin.topics.create("T", queue_count=1)
    send(pair, [b"%d" % n for n in range(10)])
    (queue,) = pair.client.read_queues("T")
    pair.admin.groups.create("g")
    pair.client.commit_offset("g", queue, 7)
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "setZeroIfNotFound": "false"}

    def offset() -> str | None:
        answer = pair.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        return (answer.fields or {}).get("offset")

    eventually(lambda: offset() == "7")
    config = {"topic": "T"}
    eventually(lambda: pair.ask(RequestCode.GET_TOPIC_CONFIG, config).code == 0)
    pair.admin.topics.delete("T")
    eventually(
        lambda: pair.ask(RequestCode.GET_TOPIC_CONFIG, config).code == ResponseCode.TOPIC_NOT_EXIST
    )
    eventually(lambda: not (pair.roots["slave"] / "consumequeue" / "T").exists())
    eventually(lambda: offset() is None)
    pair.admin.topics.create("T", queue_count=1)
    send(pair, [b"new"])
    pair.wait_equal()
    eventually(lambda: pair.ask(RequestCode.GET_TOPIC_CONFIG, config).code == 0)
    eventually(lambda: pair.pull("T", 0, 0) == [b"new"])


@pytest.mark.parametrize("who", ["master", "slave", "both"])
def test_a_restart_goes_on_where_it_was(pair: Pair, who: str) -> None:
    pair.admin.topics.create("T", queue_count=1)
    sent = [b"%d" % n for n in range(50)]
    send(pair, sent[:20])
    if who in ("slave", "both"):
        pair.slave.stop_broker()
        send(pair, sent[20:40])
    if who in ("master", "both"):
        pair.master.restart_broker()
    pair.slave.start_broker()
    send(pair, sent[40:] if who != "master" else sent[20:])
    pair.wait_equal()
    eventually(lambda: pair.pull("T", 0, 0) == sent[:32])
    eventually(lambda: pair.pull("T", 0, 32) == sent[32:])
    pair.slave.stop_broker()
    report = check_store(StoreConfig(root_path=pair.roots["slave"], segment_bytes=SEGMENT_BYTES))
    assert [group for group in report.findings.groups() if group[0].name != "NOTE"] == []


def test_a_slave_that_comes_late_gets_everything(tmp_path: Path, seed: int) -> None:
    """Far more than is sent from memory, while more is sent."""
    dice = random.Random(seed)
    with pair_of(tmp_path) as pair:
        pair.admin.topics.create("T", queue_count=3)
        pair.slave.stop_broker()
        queues = pair.client.write_queues("T")
        for n in range(40):
            batch = [Message(topic="T", body=dice.randbytes(4_000)) for _ in range(200)]
            pair.client.send_batch(queues[n % 3], batch)
        assert pair.end > 24 << 20
        pair.slave.start_broker()
        send(pair, [b"%d" % n for n in range(100)])
        pair.wait_equal()


def test_a_slave_takes_nothing(pair: Pair) -> None:
    refused = pair.ask(RequestCode.SEND_MESSAGE_V2, {"a": "pg", "b": "T"}, b"body")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "slave mode" in (refused.remark or "")
    for code in (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_SUBSCRIPTIONGROUP):
        refused = pair.ask(code, {"topic": "X", "groupName": "X"})
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "from slave broker" in (refused.remark or "")
    assert pair.ask(RequestCode.END_TRANSACTION, {}).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_readers_that_are_not_late_are_sent_back_to_the_master(pair: Pair) -> None:
    pair.admin.topics.create("T", queue_count=1)
    send(pair, [b"1", b"2"])
    pair.wait_equal()
    eventually(lambda: pair.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}).code == 0)
    eventually(lambda: pair.pull("T", 0, 0) == [b"1", b"2"])
    for offset in (2, 7):  # nothing new; and what this slave may not have yet
        answer = pair.ask_pull("T", 0, offset)
        fields = answer.fields or {}
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (fields["nextBeginOffset"], fields["suggestWhichBrokerId"]) == (str(offset), "0")
    pair.master.stop_broker()
    eventually(lambda: pair.ask_pull("T", 0, 2).code == ResponseCode.PULL_NOT_FOUND)
    answer = pair.ask_pull("T", 0, 7)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert (answer.fields or {})["nextBeginOffset"] == "7"
    assert pair.pull("T", 0, 0) == [b"1", b"2"]


def test_a_reset_is_told_by_the_master_only(pair: Pair) -> None:
    pair.admin.topics.create("T", queue_count=1)
    send(pair, [b"1", b"2"])
    pair.wait_equal()
    eventually(lambda: pair.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}).code == 0)
    pair.admin.groups.create("reader")
    reset = {"topic": "T", "group": "reader", "queueId": "0", "offset": "1", "timestamp": "-1"}
    answer = ask(
        pair.master.broker_address,
        Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**reset, "isForce": "true"}),
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark

    def sent_back() -> bool:
        answer = pair.ask_pull("T", 0, 0)
        return answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY

    eventually(sent_back)
    assert sent_back(), "it is not the slave that takes it for told"


def test_a_slave_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    with pair_of(tmp_path, slave_read=False) as pair:
        answer = pair.ask_pull("T", 0, 0)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "slaveReadEnable" in (answer.remark or "")


def test_delayed_messages_are_delivered_by_the_master_only(tmp_path: Path) -> None:
    with pair_of(tmp_path, store_settings={"delay_levels_ms": (300,) * 18}) as pair:
        pair.admin.topics.create("T", queue_count=1)
        pair.client.send(Message(topic="T", body=b"later", delay_level=1))
        eventually(lambda: pair.client.bounds(pair.client.read_queues("T")).popitem()[1] == (0, 1))
        pair.wait_equal()
        eventually(lambda: pair.pull("T", 0, 0) == [b"later"])
        time.sleep(1.0)
        assert pair.pull("T", 0, 0) == [b"later"]
        pair.wait_equal()


def send_timer(pair: Pair, body: bytes, delay_ms: int) -> None:
    timer = plain_send("T", f"TIMER_DELAY_MS\x01{delay_ms}\x02", body)
    answer = ask(pair.master.broker_address, timer)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def test_a_slave_that_becomes_the_master_delivers_what_still_waits_and_nothing_twice(
    tmp_path: Path,
) -> None:
    timers = {"timer_precision_ms": 100, "delay_levels_ms": (300, 600_000) + (60_000,) * 16}
    with pair_of(tmp_path, store_settings=timers) as pair:
        pair.admin.topics.create("T", queue_count=1)
        for n in range(5):
            send_timer(pair, b"soon %d" % n, 200)
            pair.client.send(Message(topic="T", body=b"soon, by level %d" % n, delay_level=1))
        send_timer(pair, b"later", 600_000)
        pair.client.send(Message(topic="T", body=b"later, by level", delay_level=2))
        eventually(lambda: len(bodies_at(pair.master)) == 10)
        pair.wait_told()
        pair.wait_equal()
        delivered = bodies_at(pair.master)
        assert b"later" not in delivered
    settings = {"segment_bytes": SEGMENT_BYTES, **timers}
    with Cluster(pair.roots["slave"], store_settings=settings) as promoted:
        assert bodies_at(promoted) == delivered
        promoted.clock.advance(601)
        eventually(lambda: len(bodies_at(promoted)) >= 12)
        time.sleep(1.0)
        assert sorted(bodies_at(promoted)) == sorted([*delivered, b"later", b"later, by level"])
    report = check_store(StoreConfig(root_path=pair.roots["slave"], **settings))
    assert [group for group in report.findings.groups() if group[0].name != "NOTE"] == []


def test_a_topic_that_is_created_again_at_once_begins_again(pair: Pair, seed: int) -> None:
    """Whatever the slave has noticed of it: with fewer queues, with messages or without."""
    dice = random.Random(seed)
    pair.admin.groups.create(GroupConfig(group="reader"))
    for turn in range(8):
        count = dice.randint(1, 4)
        wanted: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(4)}
        pair.admin.topics.create("T", queue_count=count)
        for number in range(dice.choice([0, 3, 20])):
            queue_id, body = dice.randrange(count), b"%d of %d" % (number, turn)
            put_to(pair, queue_id, body)
            wanted[queue_id].append(body)
        if dice.random() < 0.3:
            pair.slave.restart_broker()
        elif dice.random() < 0.3:
            pair.slave.kill_broker()
            pair.slave.start_broker()

        def follows(count: int = count, wanted: dict[int, list[bytes]] = wanted) -> bool:
            answer = pair.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
            if answer.code or json.loads(bytes(answer.body))["readQueueNums"] != count:
                return False
            return all(end_at_slave(pair, one) == len(bodies) for one, bodies in wanted.items())

        eventually(follows, f"turn {turn}: {[end_at_slave(pair, one) for one in range(4)]}")
        pair.wait_equal()
        for queue_id in range(count):
            assert pair.pull("T", queue_id, 0) == wanted[queue_id], (turn, queue_id)
        pair.admin.topics.delete("T")


def put_to(pair: Pair, queue_id: int, body: bytes) -> None:
    header = SendRequest(
        *("pg", "T", "TBW102", 4, queue_id, 0, 1_700_000_000_000, 0, "", 0, False, None),
        batch=False,
    )
    command = Command(RequestCode.SEND_MESSAGE_V2, header.to_v2(), body)
    assert ask(pair.master.broker_address, command).code == ResponseCode.SUCCESS


def end_at_slave(pair: Pair, queue_id: int) -> int:
    fields = {"topic": "T", "queueId": str(queue_id), "committed": "false"}
    answer = pair.ask(RequestCode.GET_MAX_OFFSET, fields)
    return int((answer.fields or {}).get("offset", 0))
