"""Popping over a real socket: what is handed out, what comes back, and what never does."""

import asyncio
import dataclasses
import json
import time
from pathlib import Path

import pytest
from tests.cluster.broker_peer import Peer, create_topic, fields, records, serve
from tests.cluster.pops import LONG_MS, PopConsumer, PoppedMessage
from tests.cluster.test_broker_pops_in_order import POLL_MS, pop_again

from pymq.broker.handlers import pop
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.store import FlushMode


def test_popped_messages_are_nobody_elses_and_acknowledged_ones_never_return(
    tmp_path: Path,
) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=2)
        for n in range(10):
            await peer.send("T", b"%d" % n, queue_id=n % 2)
        one, other = PopConsumer(peer), PopConsumer(peer)
        first = await one.pop(maxMsgNums=4)
        assert len(first) == 4
        rest = await other.pop()
        assert sorted(m.body for m in first + rest) == [b"%d" % n for n in range(10)]
        assert await one.pop() == []
        kept = first.pop()
        for message in first + rest:
            assert (await one.ack(message)).code == ResponseCode.SUCCESS
        # Only now is it to become visible: the others have been acknowledged in time.
        assert (await one.change(kept, 300)).code == ResponseCode.SUCCESS
        again = await pop_again(one)
        assert [m.body for m in again] == [kept.body]
        assert again[0].record.reconsume_times == 1
        assert again[0].record.topic == "T"
        assert again[0].properties["1ST_POP_TIME"] == kept.handle.split(" ")[1]
        assert (await one.ack(again[0])).code == ResponseCode.SUCCESS
        assert await one.pop() == []

    serve(tmp_path, check)


def test_a_group_and_a_topic_with_long_names(tmp_path: Path) -> None:
    """The name of their retry topic takes two bytes to tell its length."""
    topic, group = "t" * 60, "g" * 100
    retry_topic = f"%RETRY%{group}_{topic}"
    retried: list[PoppedMessage] = []

    async def fail_once(peer: Peer) -> None:
        await create_topic(peer, topic, queues=1)
        for n in range(3):
            await peer.send(topic, b"%d" % n, properties="TAGS\x01a\x02KEYS\x01k\x02")
        consumer = PopConsumer(peer, topic, group)
        assert len(await consumer.pop(invisibleTime=300)) == 3
        retried.extend(await pop_again(consumer, 3))
        for message in retried:
            assert (await consumer.change(message, 2_000)).code == ResponseCode.SUCCESS

    async def fail_again(peer: Peer) -> None:
        assert sorted(one.body for one in retried) == [b"0", b"1", b"2"]
        assert {(one.record.topic, one.record.reconsume_times) for one in retried} == {(topic, 1)}
        stored = records(await peer.pull(retry_topic, 0, consumerGroup=group))
        # Or more, if their time was over before the broker was back.
        assert len(stored) >= 3 and {one.topic for one in stored} == {retry_topic}
        consumer = PopConsumer(peer, topic, group)
        found = await pop_again(consumer, 3)
        assert {one.record.reconsume_times for one in found} == {2}
        for message in found:
            answer = await peer.ask(
                RequestCode.CONSUMER_SEND_MSG_BACK,
                offset=message.record.physical_offset,
                group=group,
                delayLevel=-1,
                originTopic=retry_topic,
            )
            assert answer.code == ResponseCode.SUCCESS
            assert (await consumer.ack(message)).code == ResponseCode.SUCCESS
        dead = records(await peer.pull(f"%DLQ%{group}", 0, consumerGroup=group))
        assert sorted(one.body for one in dead) == [b"0", b"1", b"2"]
        assert await consumer.pop() == []

    serve(tmp_path, fail_once)
    serve(tmp_path, fail_again)


def test_the_fields_of_an_answer(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        for n in range(3):
            await peer.send("T", b"%d" % n)
        before = int(time.time() * 1000)
        answer = await PopConsumer(peer).ask(maxMsgNums=2, invisibleTime=7000)
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
        said = fields(answer)
        assert before <= int(said.pop("popTime")) <= int(time.time() * 1000)
        assert said.pop("reviveQid") == "0"
        assert said == {
            "invisibleTime": "7000",
            "restNum": "1",
            "startOffsetInfo": "0 0 0",
            "msgOffsetInfo": "0 0 0,1",
        }
        answer = await PopConsumer(peer, group="other").ask(exp="nobody")
        assert (answer.code, answer.remark) == (
            ResponseCode.POLLING_TIMEOUT,
            "NO_MESSAGE_IN_QUEUE",
        )
        assert fields(answer)["restNum"] == "0"

    serve(tmp_path, check)


def test_the_retry_topics_of_a_topic_are_deleted_with_it(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        await create_topic(peer, "%RETRY%g_other", queues=1)
        await peer.send("T", b"old")
        consumer = PopConsumer(peer)
        await consumer.pop(invisibleTime=100)
        (again,) = await pop_again(consumer)
        assert (await consumer.change(again, 100)).code == ResponseCode.SUCCESS
        assert again.record.reconsume_times == 1
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        answer = await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        there = set(json.loads(answer.body)["topicConfigTable"])
        assert there & {"T", "%RETRY%g_T", "%RETRY%g_other"} == {"%RETRY%g_other"}
        await create_topic(peer, "T", queues=1)
        await peer.send("T", b"new")
        assert [m.body for m in await consumer.pop(invisibleTime=LONG_MS)] == [b"new"]
        await asyncio.sleep(0.3)  # what was in flight is due now
        assert await consumer.pop() == []

    serve(tmp_path, check)


def test_what_was_in_flight_in_a_deleted_topic_is_not_looked_for_in_its_successor(
    tmp_path: Path,
) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        for n in range(3):
            await peer.send("T", b"old %d" % n)
        consumer = PopConsumer(peer)
        old = await consumer.pop(invisibleTime=500)
        assert len(old) == 3
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        await create_topic(peer, "T", queues=1)
        for n in range(3):
            await peer.send("T", b"new %d" % n)
        assert (await consumer.ack(old[0])).code == ResponseCode.SUCCESS
        assert [m.body for m in await consumer.pop()] == [b"new 0", b"new 1", b"new 2"]
        await asyncio.sleep(1.2)  # what was in flight is due now
        assert await consumer.pop() == []

    serve(tmp_path, check)


def test_a_restart_knows_what_is_in_flight(tmp_path: Path) -> None:
    acknowledged: set[bytes] = set()
    open_ones: set[bytes] = set()

    async def pop(peer: Peer) -> None:
        await create_topic(peer, "T", queues=3)
        for n in range(60):
            await peer.send("T", b"%d" % n, queue_id=n % 3)
        consumer = PopConsumer(peer)
        # Long enough to be popped once only, on any machine.
        while messages := await consumer.pop(maxMsgNums=7, invisibleTime=6000):
            for n, message in enumerate(messages):
                if n % 2:
                    assert (await consumer.ack(message)).code == ResponseCode.SUCCESS
                    acknowledged.add(message.body)
                else:
                    open_ones.add(message.body)

    async def come_back(peer: Peer) -> None:
        consumer = PopConsumer(peer)
        await peer.send("T", b"new")
        found: set[bytes] = set()
        while len(found) < len(open_ones) + 1:
            for message in await consumer.pop(pollTime=POLL_MS):
                assert message.body not in found | acknowledged
                # What was in flight comes back when its time is over; it is not popped again.
                assert message.record.reconsume_times == (message.body != b"new")
                found.add(message.body)
        assert found == open_ones | {b"new"}
        assert await consumer.pop() == []

    serve(tmp_path, pop)
    serve(tmp_path, come_back)


def test_held_pops_are_woken_one_by_one(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=4)
        consumer = PopConsumer(peer)

        def later(**changes: object) -> asyncio.Future[Command]:
            texts = {k: str(v) for k, v in consumer.pop_fields(**changes).items()}
            return peer.channel.request_nowait(Command(RequestCode.POP_MESSAGE, texts), 120)

        held = [later(pollTime=60_000) for _ in range(3)]
        other = later(pollTime=60_000, exp="other")
        await peer.send("T", b"a", queue_id=2, properties="TAGS\x01x")
        done, waiting = await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        assert [m.body for m in consumer.messages(done.pop().result())] == [b"a"]
        await peer.send("T", b"b", queue_id=1, properties="TAGS\x01other")
        done, waiting = await asyncio.wait({*waiting, other}, return_when=asyncio.FIRST_COMPLETED)
        assert [m.body for m in consumer.messages(done.pop().result())] == [b"b"]
        # The others wait still, for what each of them wants.
        for body, tag in ((b"c", "x"), (b"d", "other")):
            await peer.send("T", body, queue_id=3, properties=f"TAGS\x01{tag}")
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            (answer,) = (one.result() for one in done)
            assert [m.body for m in consumer.messages(answer)] == [body]
        assert not waiting

    serve(tmp_path, check)


def test_a_pop_that_found_nothing_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        consumer = PopConsumer(peer)
        begun = time.monotonic()
        answer = await consumer.ask(pollTime=400)
        assert time.monotonic() - begun > 0.2
        assert answer.code == ResponseCode.POLLING_TIMEOUT
        monkeypatch.setattr(pop, "waited_ms", lambda request: 5000.0)
        late = await consumer.ask(pollTime=400)
        assert late.code == ResponseCode.POLLING_TIMEOUT
        assert late.remark is not None and "timeout too much" in late.remark
        await peer.send("T", b"x")
        (message,) = await consumer.pop(pollTime=0)  # who does not wait is never too late
        assert message.body == b"x"

    serve(tmp_path, check)


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
def test_the_clock_of_who_pops_does_not_matter(tmp_path: Path, ahead_s: int) -> None:
    """Else a consumer whose clock is behind the broker's would get nothing, ever."""

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        born = int((time.time() + ahead_s) * 1000)
        consumer = PopConsumer(peer)
        begun = time.monotonic()
        answer = await consumer.ask(pollTime=400, bornTime=born)
        assert (answer.code, answer.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        notified = await peer.ask(
            RequestCode.NOTIFICATION, **consumer.pop_fields(pollTime=400, bornTime=born)
        )
        assert fields(notified)["hasMsg"] == "false"
        assert time.monotonic() - begun > 0.4
        await peer.send("T", b"x")
        (message,) = await consumer.pop(pollTime=400, bornTime=born)
        assert message.body == b"x"

    serve(tmp_path, check)


def test_what_is_refused(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        await create_topic(peer, "W", queues=1, perm=2)
        await peer.send("T", b"x")
        consumer = PopConsumer(peer)
        for changes, code in [
            ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"topic": "W"}, ResponseCode.NO_PERMISSION),
            ({"queueId": 1}, ResponseCode.INVALID_PARAMETER),
            ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
            ({"expType": "SQL92", "exp": "a > "}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
            ({"exp": " || "}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
            ({"maxMsgNums": "many"}, ResponseCode.SYSTEM_ERROR),
        ]:
            answer = await consumer.ask(**changes)
            assert answer.code == code, (changes, answer)
        (message,) = await consumer.pop()
        for changes, code in [
            ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"queueId": 1}, ResponseCode.MESSAGE_ILLEGAL),
            ({"queueId": -1}, ResponseCode.MESSAGE_ILLEGAL),
            ({"offset": 7}, ResponseCode.NO_MESSAGE),
            ({"offset": -1}, ResponseCode.NO_MESSAGE),
            ({"extraInfo": "nonsense"}, ResponseCode.SYSTEM_ERROR),
            ({"extraInfo": "a b c d e f"}, ResponseCode.SYSTEM_ERROR),
            ({"consumerGroup": "another"}, ResponseCode.SUCCESS),
        ]:
            answer = await consumer.ack(message, **changes)
            assert answer.code == code, (changes, answer)

    serve(tmp_path, check)


def test_only_what_was_in_flight_is_counted(tmp_path: Path) -> None:
    """Or anybody could fill the memory with the names of groups."""

    async def is_counted(peer: Peer, name: str, group: str) -> bool:
        view = RequestCode.VIEW_BROKER_STATS_DATA
        answer = await peer.ask(view, statsName=name, statsKey=f"T@{group}")
        return answer.code == ResponseCode.SUCCESS

    async def check(peer: Peer) -> None:
        for number in range(3):
            await peer.send("T", b"%d" % number)
        consumer = PopConsumer(peer)
        one, two, three = await consumer.pop()
        strangers = [f"nobody{number}" for number in range(100)]
        for group in strangers:
            stranger = PopConsumer(peer, group=group)
            assert (await stranger.ack(one)).code == ResponseCode.SUCCESS
            assert (await stranger.ack_batch([one])).code == ResponseCode.SUCCESS
            changed = await stranger.change(dataclasses.replace(one), LONG_MS)
            assert changed.code == ResponseCode.SUCCESS
        for name in ("GROUP_ACK_NUMS", "GROUP_CK_NUMS"):
            assert not any([await is_counted(peer, name, group) for group in strangers])
        assert (await consumer.ack(one)).code == ResponseCode.SUCCESS
        assert (await consumer.ack_batch([two])).code == ResponseCode.SUCCESS
        assert (await consumer.change(three, LONG_MS)).code == ResponseCode.SUCCESS
        for name in ("GROUP_ACK_NUMS", "GROUP_CK_NUMS"):
            assert await is_counted(peer, name, "g")

    serve(tmp_path, check)


def test_with_sync_flush_and_cold_messages(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for n in range(20):
            await peer.send("T", b"%d" % n * 300, queue_id=n % 2, properties="TAGS\x01a")
        consumer = PopConsumer(peer)
        first = await consumer.pop(invisibleTime=300, exp="a")
        assert sorted(m.body for m in first) == sorted(b"%d" % n * 300 for n in range(20))
        again = await pop_again(consumer, 20, exp="a")
        assert sorted(m.body for m in again) == sorted(m.body for m in first)
        for message in again:
            assert (await consumer.ack(message)).code == ResponseCode.SUCCESS

    serve(tmp_path, check, flush=FlushMode.SYNC, memory_bytes=0)


def test_messages_that_a_group_does_not_want_are_passed(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for n in range(30):
            await peer.send("T", b"%d" % n, properties=f"TAGS\x01{'ab'[n % 5 == 0]}")
        consumer = PopConsumer(peer)
        found = await consumer.pop(exp="b")
        assert [m.body for m in found] == [b"%d" % n for n in range(0, 30, 5)]
        assert await consumer.pop(exp="c") == []
        assert await consumer.pop(exp="*") == []

    serve(tmp_path, check)


def test_sql_selects_messages_hot_and_cold(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for n in range(100):
            await peer.send("T", b"%d" % n * 100, properties=f"a\x01{n}\x02", queue_id=n % 2)
        consumer = PopConsumer(peer)
        sql = {"expType": "SQL92", "exp": "a BETWEEN 40 AND 79", "maxMsgNums": 5}
        found: list[bytes] = []
        while len(found) < 40:
            pops = (consumer.pop(pollTime=4_000, **sql) for _ in range(4))
            for messages in await asyncio.gather(*pops):
                found += [message.body for message in messages]
        assert sorted(found) == sorted(b"%d" % n * 100 for n in range(40, 80))
        assert await consumer.pop(**sql) == []
        assert await consumer.pop(exp="*") == []

    serve(tmp_path / "hot", check)
    serve(tmp_path / "cold", check, memory_bytes=0)


def test_the_invisible_time_can_be_changed(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for n in range(3):
            await peer.send("T", b"%d" % n)
        consumer = PopConsumer(peer)
        soon, later, done = await consumer.pop()
        assert (await consumer.change(soon, 300)).code == ResponseCode.SUCCESS
        assert (await consumer.change(later, LONG_MS)).code == ResponseCode.SUCCESS
        assert (await consumer.change(done, 3_000)).code == ResponseCode.SUCCESS
        assert (await consumer.ack(done)).code == ResponseCode.SUCCESS
        (again,) = await pop_again(consumer)
        assert again.body == soon.body
        assert again.record.reconsume_times == 1
        # Its old handle is worth nothing any more, nor are those of acknowledged messages.
        assert (await consumer.change(soon, 300)).code == ResponseCode.SUCCESS
        assert (await consumer.change(done, 300)).code == ResponseCode.SUCCESS
        assert await consumer.pop(pollTime=3500) == []
        assert (await consumer.ack(later)).code == ResponseCode.SUCCESS
        wrong = again
        wrong.handle = wrong.handle[:-1] + "9"
        assert (await consumer.change(wrong, 1)).code == ResponseCode.NO_MESSAGE

    serve(tmp_path, check)


def test_batches_of_acknowledgements(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for n in range(40):
            await peer.send("T", b"%d" % n, queue_id=n % 3)
        consumer = PopConsumer(peer)
        # Long enough for the acknowledgements to come in time, on any machine.
        first = await consumer.pop(invisibleTime=4000)
        rest = await consumer.pop(invisibleTime=4000)
        assert len(first + rest) == 40
        kept = [first.pop(5), rest.pop()]
        assert (await consumer.ack_batch(first + rest)).code == ResponseCode.SUCCESS
        again = await pop_again(consumer, 2)
        assert sorted(m.body for m in again) == sorted(m.body for m in kept)
        assert (await consumer.ack_batch(again)).code == ResponseCode.SUCCESS
        assert (await consumer.ack_batch([])).code == ResponseCode.NO_MESSAGE
        for body in (b"", b"{", b'{"acks":[{"c":"g","t":"T","r":"7"}]}'):
            answer = await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body)
            assert answer.code in (ResponseCode.NO_MESSAGE, ResponseCode.SYSTEM_ERROR)

    serve(tmp_path, check)


def test_notifications_and_polling_info(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=2)
        consumer = PopConsumer(peer)
        assert fields(await consumer.notify()) == {"hasMsg": "false", "pollingFull": "false"}
        held = asyncio.ensure_future(consumer.pop(pollTime=POLL_MS))
        told = asyncio.ensure_future(consumer.notify(pollTime=1_000))
        while not await consumer.polling_count():
            await asyncio.sleep(0.01)
        assert await consumer.polling_count(1) == 0
        await peer.send("T", b"x", queue_id=1)
        (message,) = await held
        answer = await told
        assert fields(answer)["hasMsg"] in ("true", "false")  # the pop may have been first
        assert fields(await consumer.notify(consumerGroup="other"))["hasMsg"] == "true"
        assert fields(await consumer.notify())["hasMsg"] == "false"
        await consumer.change(message, 100)
        told = asyncio.ensure_future(consumer.notify(pollTime=POLL_MS))
        assert fields(await told)["hasMsg"] == "true"
        unknown = await consumer.notify(topic="unknown")
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST

    serve(tmp_path, check)
