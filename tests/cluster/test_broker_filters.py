"""Pulls with SQL92 expressions over a real socket."""

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, connect, fields, records, serve
from tests.cluster.pops import PopConsumer

from pymq.broker import selections
from pymq.broker.state import filter_turns, message_filter
from pymq.filter.evaluate import Compiled, try_sql92
from pymq.filter.sql92 import EXPRESSION_LENGTH_MAX
from pymq.protocol.bodies import ClientConfigCheck, ConsumerData, Heartbeat, Subscription
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.record import record_properties
from pymq.store import MatchingRead, matching_read, reads


async def send_numbers(peer: Peer, *numbers: int, queue_id: int = 0) -> None:
    for number in numbers:
        properties = f"n\x01{number}\x02TAGS\x01{'even' if number % 2 == 0 else 'odd'}"
        await peer.send("T", b"%d" % number, queue_id=queue_id, properties=properties)


def bodies(answer: Command) -> list[int]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [int(record.body) for record in records(answer)]


async def pull(peer: Peer, offset: int, expression: str, **changes: Any) -> Command:
    return await peer.pull(
        "T", offset, expressionType="SQL92", subscription=expression, **changes
    )


@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_a_pull_gets_the_messages_that_its_expression_selects(
    tmp_path: Path, memory_bytes: int | None
) -> None:
    async def check(peer: Peer) -> None:
        await send_numbers(peer, *range(100))
        assert bodies(await pull(peer, 0, "n BETWEEN 40 AND 50")) == [*range(40, 51)]
        first = await pull(peer, 0, "TAGS = 'even'", maxMsgNums=32)
        assert bodies(first) == [*range(0, 64, 2)]
        assert fields(first)["nextBeginOffset"] == "63"
        none = await pull(peer, 10, "n > 1000")
        assert none.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        found = fields(none)
        assert (found["nextBeginOffset"], found["minOffset"], found["maxOffset"]) == (
            "100",
            "0",
            "100",
        )

    serve(tmp_path, check, memory_bytes=memory_bytes, property_filter=True)


def test_a_held_pull_wakes_for_what_its_expression_selects(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await send_numbers(peer, 1)
        held = peer.pull_later(
            "T",
            1,
            expressionType="SQL92",
            subscription="n > 5",
            sysFlag=int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND),
            suspendTimeoutMillis=60_000,
        )
        await send_numbers(peer, 2, 3)
        await asyncio.sleep(0)
        assert not held.done()
        await send_numbers(peer, 6)
        answer = await held
        assert bodies(answer) == [6]
        assert fields(answer)["nextBeginOffset"] == "4"

    serve(tmp_path, check, property_filter=True)


def test_a_held_pull_moves_on_past_what_it_does_not_want(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await send_numbers(peer, 1)
        held = peer.pull_later(
            "T",
            1,
            expressionType="SQL92",
            subscription="n > 5",
            sysFlag=int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND),
            suspendTimeoutMillis=300,
        )
        # They follow it at once: the broker has them before its time can be up.
        await asyncio.gather(send_numbers(peer, 2), send_numbers(peer, 3))
        answer = await held
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert fields(answer)["nextBeginOffset"] == "3"

    serve(tmp_path, check, property_filter=True)


@pytest.mark.parametrize(
    ("changes", "enabled", "code", "remark"),
    [
        ({}, False, ResponseCode.SYSTEM_ERROR, "does not support consumer to filter.*SQL92"),
        ({"subscription": "a >"}, True, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the cons"),
        ({"subscription": ""}, True, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer"),
        ({"subscription": "a >"}, False, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the cons"),
        ({"subscription": "(" * 999}, True, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the"),
        ({"expressionType": "X"}, True, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the cons"),
        ({"expressionType": "X"}, False, ResponseCode.SYSTEM_ERROR, "not support.* by X"),
        ({"sysFlag": 0}, True, ResponseCode.SUBSCRIPTION_NOT_EXIST, "group info not exist"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_pull_whose_filter_cannot_be_is_refused(
    tmp_path: Path, changes: dict[str, Any], enabled: bool, code: int, remark: str
) -> None:
    async def check(peer: Peer) -> None:
        await send_numbers(peer, 1)
        wanted = {"expressionType": "SQL92", "subscription": "a > 1", **changes}
        answer = await peer.pull("T", 0, **wanted)
        assert answer.code == code
        assert re.search(remark, str(answer.remark))

    serve(tmp_path, check, property_filter=enabled)


@pytest.mark.parametrize("size", [EXPRESSION_LENGTH_MAX + 1, 1 << 20])
@pytest.mark.parametrize(
    ("kind", "expression"), [("TAG", "tag||"), ("SQL92", "a = 1 OR "), ("TAG", "x")]
)
def test_an_expression_that_is_too_long_is_refused_wherever_it_comes_from(
    tmp_path: Path, size: int, kind: str, expression: str
) -> None:
    long = (expression * size)[:size]

    async def check(peer: Peer) -> None:
        await send_numbers(peer, 1)
        wanted = Subscription(topic="T", expression=long, expression_type=kind, version=1)
        config = ClientConfigCheck(client_id="c", group="g", subscription=wanted)
        heartbeat = Heartbeat(
            client_id="c", consumers=[ConsumerData(group="g", subscriptions=[wanted])]
        )
        pop = PopConsumer(peer)
        for answer in [
            await peer.pull("T", 0, expressionType=kind, subscription=long),
            await pop.ask(expType=kind, exp=long),
            await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, config.encode()),
            await peer.ask(RequestCode.HEART_BEAT, heartbeat.encode()),
        ]:
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED, answer
        members = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
        assert members.code == ResponseCode.SYSTEM_ERROR  # there is none

    serve(tmp_path, check, property_filter=True)


def test_a_heartbeat_with_more_codes_than_an_expression_can_have_is_refused(
    tmp_path: Path,
) -> None:
    async def check(peer: Peer) -> None:
        await send_numbers(peer, 1)
        wanted = Subscription(topic="T", expression="a", tag_codes=frozenset(range(1 << 15)))
        heartbeat = Heartbeat(
            client_id="c", consumers=[ConsumerData(group="g", subscriptions=[wanted])]
        )
        answer = await peer.ask(RequestCode.HEART_BEAT, heartbeat.encode())
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED, answer

    serve(tmp_path, check)


def test_many_tags_are_found(tmp_path: Path) -> None:
    """They are remembered elsewhere than the usual few."""
    tags = "||".join(["odd", *(f"tag{number}" for number in range(5000))])

    async def check(peer: Peer) -> None:
        await send_numbers(peer, *range(10))
        for _ in range(2):
            answer = await peer.pull("T", 0, subscription=tags)
            assert bodies(answer) == [*range(1, 10, 2)]

    serve(tmp_path, check)


# ------------------------------------------------------------------------ subscriptions of groups


def consumer(expression: str, version: int, topic: str = "T") -> ConsumerData:
    return ConsumerData(
        group="g",
        subscriptions=[
            Subscription(
                topic=topic, expression=expression, expression_type="SQL92", version=version
            )
        ],
    )


async def pull_as_member(peer: Peer, offset: int, version: int = 0, **changes: Any) -> Command:
    topic = changes.pop("topic", "T")
    return await peer.pull(
        topic, offset, sysFlag=0, subVersion=version, expressionType="SQL92", **changes
    )


def test_members_get_what_their_group_subscribes_to(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await send_numbers(peer, *range(20))
        await peer.heartbeat("one", consumer("n > 15", 5))
        assert bodies(await pull_as_member(peer, 0, 5)) == [16, 17, 18, 19]
        held = peer.pull_later(
            "T", 20, sysFlag=int(PullFlag.SUSPEND), subVersion=5, suspendTimeoutMillis=60_000
        )
        await send_numbers(peer, 3, 21)
        assert bodies(await held) == [21]
        await peer.heartbeat("one", consumer("n BETWEEN 3 AND 4", 6))
        assert bodies(await pull_as_member(peer, 0, 6)) == [3, 4, 3]

    serve(tmp_path, check, property_filter=True)


def test_a_subscription_that_the_broker_does_not_have_is_named(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await send_numbers(peer, 1)
        await peer.heartbeat("one", consumer("n > 15", 5))
        answer = await pull_as_member(peer, 0, 6)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        await peer.heartbeat("one", consumer("n >", 7))
        answer = await pull_as_member(peer, 0, 7)
        assert (answer.code, answer.remark) == (
            ResponseCode.FILTER_DATA_NOT_EXIST,
            "The broker's consumer filter data is not exist!Your expression may be wrong!",
        )
        # The member subscribes again with an older version, as one whose clock was set back.
        await peer.ask(RequestCode.UNREGISTER_CLIENT, clientID="one", consumerGroup="g")
        await peer.heartbeat("one", consumer("n > 0", 3))
        assert bodies(await pull_as_member(peer, 0, 3)) == [1]
        await peer.ask(RequestCode.UNREGISTER_CLIENT, clientID="one", consumerGroup="g")
        await peer.heartbeat("one", consumer("n > 9", 2))
        answer = await pull_as_member(peer, 0, 2)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY, "the filter is the new one"

    serve(tmp_path, check, property_filter=True)


def test_filters_are_remembered_while_their_groups_are_away(tmp_path: Path) -> None:
    async def first(peer: Peer) -> None:
        await send_numbers(peer, 1, 2)
        await peer.heartbeat("one", consumer("n > 1", 5))
        assert bodies(await pull_as_member(peer, 0, 5)) == [2]

    async def second(peer: Peer) -> None:
        await peer.heartbeat("one", consumer("n > 1", 5))
        assert bodies(await pull_as_member(peer, 0, 5)) == [2]
        # Of a member that has a newer subscription the broker was told, of its filter it was not.
        answer = await pull_as_member(peer, 0, 6)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST

    serve(tmp_path, first, property_filter=True)
    text = (tmp_path / "config" / "consumerFilter.json").read_text()
    assert json.loads(text)["filterDataByTopic"]["T"]["groupFilterData"]["g"]["deadTime"] > 0
    serve(tmp_path, second, property_filter=True)


def test_without_property_filters_members_are_refused(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await send_numbers(peer, 1)
        await peer.heartbeat("one", consumer("n > 0", 5))
        answer = await pull_as_member(peer, 0, 5)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == (
            "The broker does not support consumer to filter message by SQL92"
        )

    serve(tmp_path, check)


@pytest.mark.parametrize(("filter_retries", "expected"), [(True, [2, 3]), (False, [1, 3])])
def test_retried_messages_are_selected_as_their_topics_were(
    tmp_path: Path, filter_retries: bool, expected: list[int]
) -> None:
    async def check(peer: Peer) -> None:
        retry = ConsumerData(
            group="g",
            subscriptions=[
                *consumer("n = 2", 5).subscriptions,
                *consumer("n <> 2", 5, "%RETRY%g").subscriptions,
            ],
        )
        await peer.heartbeat("one", retry)
        for number, topic in ((1, "T"), (2, "T"), (3, "elsewhere")):
            properties = f"n\x01{number}\x02RETRY_TOPIC\x01{topic}"
            await peer.send("%RETRY%g", b"%d" % number, properties=properties)
        answer = await pull_as_member(peer, 0, 5, topic="%RETRY%g")
        assert bodies(answer) == expected

    serve(tmp_path, check, property_filter=True, filter_retries=filter_retries)


@pytest.mark.parametrize(
    ("check_body", "enabled", "code", "remark"),
    [
        (None, True, ResponseCode.SUCCESS, None),
        (Subscription.of_tags("T", "a", 1), False, ResponseCode.SUCCESS, None),
        ("a > 5", True, ResponseCode.SUCCESS, None),
        ("a > 5", False, ResponseCode.SYSTEM_ERROR, "not support consumer to filter.* by SQL92"),
        ("a >", True, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "at the end of the expression"),
        ("a >", False, ResponseCode.SYSTEM_ERROR, "not support consumer to filter.* by SQL92"),
    ],
    ids=str,
)
def test_a_client_has_its_filter_checked_when_it_starts(
    tmp_path: Path, check_body: Subscription | str | None, enabled: bool, code: int, remark: str
) -> None:
    if isinstance(check_body, str):
        check_body = consumer(check_body, 1).subscriptions[0]

    async def check(peer: Peer) -> None:
        body = ClientConfigCheck(client_id="one", group="g", subscription=check_body).encode()
        answer = await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body)
        assert answer.code == code
        assert (answer.remark is None) == (remark is None)
        if remark is not None:
            assert re.search(remark, str(answer.remark))

    serve(tmp_path, check, property_filter=enabled)


# -------------------------------------------------------------------------------------- bit maps

EXTENDED: dict[str, Any] = {
    "property_filter": True,
    "bit_maps": True,
    "store": {"queue_extension": True},
}


class Looks:
    """Counts the records whose properties reads and arrivals look at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for module in (matching_read, reads):
            monkeypatch.setattr(module, "record_properties", self._look)
        at_many = MatchingRead._texts_of_columns

        def look_at_many(reading: MatchingRead) -> list[bytes] | None:
            texts = at_many(reading)
            self.count += len(texts or ())
            return texts

        monkeypatch.setattr(MatchingRead, "_texts_of_columns", look_at_many)

    def _look(self, *place: Any) -> tuple[int, int, bytes]:
        self.count += 1
        return record_properties(*place)


def test_with_bit_maps_only_what_may_match_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(monkeypatch)

    async def first(peer: Peer) -> None:
        await send_numbers(peer, 1, 2)  # before the filter: no bit map
        await peer.heartbeat("one", consumer("n > 90", 5))
        await asyncio.sleep(0.002)  # what comes in the same millisecond is looked at
        await send_numbers(peer, *range(3, 100))
        looks.count = 0
        answer = await pull_as_member(peer, 0, 5)
        assert bodies(answer) == [*range(91, 100)] and looks.count == 2 + 9
        held = peer.pull_later(
            "T", 99, sysFlag=int(PullFlag.SUSPEND), subVersion=5, suspendTimeoutMillis=60_000
        )
        looks.count = 0
        await send_numbers(peer, 1, 2, 3)
        assert looks.count == 0 and not held.done()
        await send_numbers(peer, 95)
        assert bodies(await held) == [95]

    async def second(peer: Peer) -> None:
        await send_numbers(peer, 4, 96)  # the group is away
        await peer.heartbeat("one", consumer("n > 90", 5))
        looks.count = 0
        answer = await pull_as_member(peer, 0, 5)
        assert bodies(answer) == [*range(91, 100), 95, 96] and looks.count == 2 + 11
        # Another expression: the bit maps of older messages do not count for it.
        await peer.heartbeat("one", consumer("n < 5", 6))
        looks.count = 0
        assert bodies(await pull_as_member(peer, 0, 6)) == [1, 2, 3, 4, 1, 2, 3, 4]
        assert looks.count == 105

    serve(tmp_path, first, **EXTENDED)
    serve(tmp_path, second, **EXTENDED)


def test_bit_maps_without_the_extensions_of_queues_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(peer: Peer) -> None:
        await send_numbers(peer, 1)

    serve(tmp_path, check, bit_maps=True)
    assert "enableCalcFilterBitMap does nothing without enableConsumeQueueExt" in caplog.text


#: Not one that can be folded, and costly: 100 comparisons a message.
COSTLY = " OR ".join(f"'x{number}' = n" for number in range(100))


def test_a_costly_filter_gives_way_to_everybody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_filter, "_CALL_S", 0.0)
    monkeypatch.setattr(message_filter, "_PIECE_S", 0.0)  # one message at a time
    monkeypatch.setattr(filter_turns, "TURN_S", 0.0)
    monkeypatch.setattr(filter_turns, "READ_S", 60.0)

    async def check(peer: Peer) -> None:
        other = await connect(peer.broker)
        await asyncio.gather(*(send_numbers(peer, number) for number in range(300)))
        filters = {"expressionType": "SQL92", "subscription": COSTLY}
        pop = PopConsumer(peer)
        for read in (
            lambda: peer.pull("T", 0, **filters),
            lambda: pop.ask(expType="SQL92", exp=COSTLY, queueId=0),
        ):
            held = asyncio.ensure_future(read())
            await asyncio.sleep(0)
            for _ in range(10):
                await send_numbers(other, 1, queue_id=1)
            assert not held.done()
            await held
        other.channel.close()

    serve(tmp_path, check, property_filter=True)


def test_a_read_of_a_costly_filter_ends_early_and_its_client_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_filter, "_CALL_S", 0.0)
    monkeypatch.setattr(filter_turns, "READ_S", 0.0)

    async def check(peer: Peer) -> None:
        await asyncio.gather(*(send_numbers(peer, number) for number in range(100)))
        await peer.send("T", b"1000", queue_id=0, properties="n\x01x7")
        offset, answers = 0, 0
        while True:
            answer = await pull(peer, offset, COSTLY)
            answers += 1
            if answer.code == ResponseCode.SUCCESS:
                break
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            following = int(fields(answer)["nextBeginOffset"])
            assert offset < following <= 100
            offset = following
        assert bodies(answer) == [1000]
        assert answers > 2
        consumer = PopConsumer(peer)
        popped = await consumer.pop(expType="SQL92", exp=COSTLY, pollTime=20_000, queueId=0)
        assert [one.body for one in popped] == [b"1000"]

    serve(tmp_path, check, property_filter=True)


def test_a_slow_filter_is_warned_of_once_with_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(message_filter, "_CALL_S", 0.0)
    monkeypatch.setattr(message_filter, "_SLOW_S", -1.0)

    async def check(peer: Peer) -> None:
        await asyncio.gather(*(send_numbers(peer, number) for number in range(100)))
        for _ in range(3):
            await pull(peer, 0, COSTLY)

    serve(tmp_path, check, property_filter=True)
    (warning,) = [one for one in caplog.messages if "a message. The broker" in one]
    assert warning.startswith("group g: its filter of topic T takes ")


def test_a_long_filter_is_compiled_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def compiled(expression: str) -> Compiled:
        threads.append(threading.current_thread())
        return try_sql92(expression)

    monkeypatch.setattr(selections, "try_sql92", compiled)
    monkeypatch.setattr("pymq.filter.evaluate.try_sql92", compiled)

    async def check(peer: Peer) -> None:
        await send_numbers(peer, 1)
        pop = PopConsumer(peer)
        for place in range(4):
            long = f"n = '1' OR {place} = 7 OR {COSTLY} OR {COSTLY}"
            kind = "SQL92"
            wanted = Subscription(topic="T", expression=long, expression_type=kind)
            config = ClientConfigCheck(client_id="c", group="g", subscription=wanted)
            group = ConsumerData(group="g", subscriptions=[wanted])
            for _ in range(2):
                match place:
                    case 0:
                        answer = await peer.pull("T", 0, expressionType=kind, subscription=long)
                    case 1:
                        answer = await pop.ask(expType=kind, exp=long)
                    case 2:
                        answer = await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, config.encode())
                    case _:
                        beat = Heartbeat(client_id="c", consumers=[group])
                        answer = await peer.ask(RequestCode.HEART_BEAT, beat.encode())
                assert answer.code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT), answer
            assert len(threads) == place + 1

    serve(tmp_path, check, property_filter=True)
    assert threading.main_thread() not in threads
