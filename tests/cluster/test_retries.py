"""Messages that consumers send back to a running broker."""

import asyncio
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, create_topic, fields, records, serve
from tests.cluster.running import run
from tests.cluster.scenarios import TIMEOUT_S, send_numbers, wait_until

from pymq import ConfigurationError, Message, Producer, blocking
from pymq.client.consuming.consumer import Consumer
from pymq.protocol.bodies import GroupConfig
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.message import ReceivedMessage, decode_properties
from pymq.protocol.record import Record
from pymq.store import FlushMode
from pymq.testing import Cluster

STORE: dict[str, Any] = {"delay_levels_ms": (50, 100, 150, 200)}
HELD = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)


async def send_back(peer: Peer, record: Record, **changes: Any) -> Command:
    fields: dict[str, Any] = {
        "offset": record.physical_offset,
        "group": "g",
        "delayLevel": 0,
        "originMsgId": "ID",
        "originTopic": record.topic,
        "unitMode": False,
        "maxReconsumeTimes": 2,
        "bname": "broker-a",
    }
    fields |= changes
    return await peer.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        **{name: value for name, value in fields.items() if value is not None},
    )


async def next_of(peer: Peer, topic: str, offset: int = 0) -> Record:
    """Wait for the next message of a topic's queue 0."""
    while True:
        found = await peer.pull_later(topic, offset, sysFlag=HELD, suspendTimeoutMillis=4000)
        if found.code == ResponseCode.SUCCESS:
            return records(found)[0]


async def first_message(peer: Peer) -> Record:
    await create_topic(peer, "T", queues=1)
    assert (await peer.send("T", b"body", properties="TAGS\x01t\x02")).code == 0
    return await next_of(peer, "T")


@pytest.mark.parametrize(
    ("flush", "group"),
    [(FlushMode.ASYNC, "g"), (FlushMode.SYNC, "g"), (FlushMode.ASYNC, "g" * 248)],
    ids=["async", "sync", "long-group"],
)
def test_a_message_is_tried_again_until_it_is_a_dead_letter(
    tmp_path: Path, flush: FlushMode, group: str
) -> None:
    async def check(peer: Peer) -> None:
        first = record = await first_message(peer)
        for times in range(2):
            assert (await send_back(peer, record, group=group)).code == ResponseCode.SUCCESS
            again = await next_of(peer, f"%RETRY%{group}", times)
            properties = decode_properties(again.properties)
            assert again.store_timestamp - record.store_timestamp >= 150 + 50 * times
            assert (again.body, again.reconsume_times) == (b"body", times + 1)
            assert properties["RETRY_TOPIC"] == "T"
            assert (properties["TAGS"], properties["DELAY"]) == ("t", str(3 + times))
            assert again.born_timestamp == first.born_timestamp
            record = again
        assert (await send_back(peer, record, group=group)).code == ResponseCode.SUCCESS
        dead = await next_of(peer, f"%DLQ%{group}")
        assert (dead.body, dead.reconsume_times) == (b"body", 3)
        assert (
            decode_properties(dead.properties)["ORIGIN_MESSAGE_ID"]
            == (decode_properties(record.properties)["ORIGIN_MESSAGE_ID"])
        )

    serve(tmp_path, check, store=STORE, flush=flush)


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"group": "nobody"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "not exist, nobody"),
        ({"offset": 1}, ResponseCode.SYSTEM_ERROR, "look message by offset failed, 1:"),
        ({"offset": 1 << 40}, ResponseCode.SYSTEM_ERROR, "look message by offset failed"),
        ({"offset": -1}, ResponseCode.SYSTEM_ERROR, "look message by offset failed, -1:"),
        ({"offset": None}, ResponseCode.SYSTEM_ERROR, "'offset' is missing"),
        ({"delayLevel": None}, ResponseCode.SYSTEM_ERROR, "'delayLevel' is missing"),
        ({"delayLevel": "x"}, ResponseCode.SYSTEM_ERROR, "delayLevel"),
        ({"group": None}, ResponseCode.SYSTEM_ERROR, "'group' is missing"),
    ],
    ids=str,
)
def test_what_cannot_be_sent_back(
    tmp_path: Path, changes: dict[str, Any], code: int, remark: str
) -> None:
    async def check(peer: Peer) -> None:
        await peer.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, GroupConfig(group="g").encode()
        )
        record = await first_message(peer)
        answer = await send_back(peer, record, **changes)
        assert (answer.code, remark in (answer.remark or "")) == (code, True), answer.remark

    serve(tmp_path, check, auto_create_group=False)


def test_a_group_that_retries_nothing_and_one_that_must_not(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        record = await first_message(peer)
        group = GroupConfig(group="g", retry_queue_count=0)
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group.encode())
        assert (await send_back(peer, record)).code == ResponseCode.SUCCESS
        await create_topic(peer, "%RETRY%other", perm=4)
        answer = await send_back(peer, record, group="other")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the topic[%RETRY%other] sending message is forbidden"

    serve(tmp_path, check)

    async def read_only(peer: Peer) -> None:
        (record,) = records(await peer.pull("T", 0))
        answer = await send_back(peer, record)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "the broker[127.0.0.1" in (answer.remark or "")

    serve(tmp_path, read_only, permission=4)


def test_a_message_for_the_retry_topic_is_delayed(tmp_path: Path) -> None:
    """A consumer that cannot send back, and one that consumes in order, send like this."""

    async def check(peer: Peer) -> None:
        sent = await peer.send(
            "%RETRY%g",
            b"x",
            reconsume_times=1,
            max_reconsume_times=2,
            properties="DELAY\x013\x02RETRY_TOPIC\x01T\x02",
        )
        assert (sent.code, fields(sent)["queueOffset"]) == (0, "0")
        record = await next_of(peer, "%RETRY%g")
        assert record.reconsume_times == 1
        assert decode_properties(record.properties)["REAL_TOPIC"] == "%RETRY%g"

    serve(tmp_path, check, store=STORE)


def test_our_consumer_fails_until_the_dead_letters(pymq_cluster: Cluster) -> None:
    async def check() -> None:
        tries: dict[int, list[int]] = {}
        dead: list[int] = []

        async def failing(message: ReceivedMessage) -> None:
            assert message.topic == "T"
            tries.setdefault(int(message.body), []).append(message.reconsume_times)
            if int(message.body) < 3:
                raise ValueError("not this one")

        async def bury(message: ReceivedMessage) -> None:
            dead.append(int(message.body))

        name_server = pymq_cluster.name_server
        await send_numbers(name_server, "T", range(6))
        consumer = Consumer(
            name_server, "g", from_where="earliest", max_reconsume_times=2, timeout_s=TIMEOUT_S
        )
        undertaker = Consumer(name_server, "u", from_where="earliest").subscribe("%DLQ%g")
        async with consumer.subscribe("T"), undertaker:
            running = [
                asyncio.ensure_future(consumer.run(failing)),
                asyncio.ensure_future(undertaker.run(bury)),
            ]
            await wait_until(lambda: sorted(dead) == [0, 1, 2], "three dead letters")
        await asyncio.gather(*running)
        assert {number: tries[number] for number in range(6)} == {
            **dict.fromkeys(range(3), [0, 1, 2]),
            **dict.fromkeys(range(3, 6), [0]),
        }

    run(check())


@pytest.mark.parametrize("tries_max", [None, math.inf])
def test_tries_without_limit(tries_max: float | None) -> None:
    """By default a message is given up after 16 tries again; a broker is killed meanwhile."""
    tries: Counter[bytes] = Counter()
    broken = {b"%d" % number for number in range(6)}

    async def handle(message: ReceivedMessage) -> None:
        assert message.reconsume_times >= 0
        tries[message.body] += 1
        if tries[message.body] <= 25:
            raise ValueError("not yet")
        broken.discard(message.body)

    settings = {"delay_levels_ms": (10,) * 18}
    with Cluster(brokers=2, store_settings=settings) as cluster:

        async def test() -> None:
            async with Producer(cluster.name_server) as producer:
                for body in broken:
                    await producer.send(Message("T", body))
            consumer = Consumer(
                cluster.name_server, "g", from_where="earliest", max_reconsume_times=tries_max
            )
            async with consumer.subscribe("T"):
                running = asyncio.create_task(consumer.run(handle))
                await wait_until(lambda: sum(tries.values()) > 40, "they are tried again")
                await asyncio.to_thread(cluster.broker("broker-b").kill)
                await asyncio.to_thread(cluster.broker("broker-b").start)
                if tries_max is None:
                    await wait_until(
                        lambda: len({one.body for one in cluster.dead_letters("g")}) == 6,
                        "all are given up",
                    )
                else:
                    await wait_until(lambda: not broken, "all are done")
                running.cancel()

        run(test())
        assert (cluster.dead_letters("g") == []) is (tries_max is not None)


@pytest.mark.parametrize("own, expected", [(None, [0, 1]), (0, [0]), (2, [0, 1, 2])])
def test_the_setting_of_the_group_counts_unless_its_consumer_has_one(
    own: int | None, expected: list[int]
) -> None:
    tries: list[int] = []

    async def failing(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        raise ValueError("not this one")

    with Cluster(store_settings={"delay_levels_ms": (10,) * 18}) as cluster:
        with blocking.Admin(cluster.name_server, timeout_s=TIMEOUT_S) as admin:
            admin.groups.create(GroupConfig(group="g", retry_max_times=1))

        async def test() -> None:
            await send_numbers(cluster.name_server, "T", range(1))
            consumer = Consumer(
                cluster.name_server, "g", from_where="earliest", max_reconsume_times=own
            )
            async with consumer.subscribe("T"):
                running = asyncio.create_task(consumer.run(failing))
                await wait_until(
                    lambda: cluster.dead_letters("g") or len(tries) > len(expected),
                    "it is given up",
                )
                running.cancel()

        run(test())
        assert tries == expected
        assert len(cluster.dead_letters("g")) == 1


@pytest.mark.parametrize("wrong", [-1, 1.5, -math.inf, math.nan, 1 << 31])
def test_a_wrong_number_of_tries_is_refused(wrong: float) -> None:
    with pytest.raises(ConfigurationError, match="max_reconsume_times="):
        Consumer("127.0.0.1:1", "g", max_reconsume_times=wrong)
