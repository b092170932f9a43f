"""Timer messages in a running broker: when they come, what a restart keeps, what is refused."""

import asyncio
import base64
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, create_topic, fields, properties_sent, records, serve
from tests.cluster.test_delayed_messages import Later, held_pull

from pymq.protocol.bodies import KVTable
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.message import decode_properties
from pymq.protocol.names import TIMER_TOPIC
from pymq.protocol.record import parse_offset_message_id
from pymq.protocol.timer_metrics_body import TimerMetricsTable
from pymq.store import FlushMode
from pymq.store.timer.timer_checkpoint import TimerCheckpoint

FINE: dict[str, Any] = {"timer_precision_ms": 100}
#: What is due after this time is not due before the test says so, however slow the machine.
FAR_MS = 600_000


@pytest.mark.parametrize("flush", FlushMode)
def test_a_timer_message_wakes_a_pull_when_it_is_due(
    tmp_path: Path, flush: FlushMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(monkeypatch)

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        pull = asyncio.ensure_future(held_pull(peer, "T", queueId=2))
        await peer.send("T", b"other", queue_id=1, properties=f"TIMER_DELAY_MS\x01{FAR_MS}")
        delivery_ms = later.now_ms + FAR_MS + 50
        sent = await peer.send(
            "T", b"body", queue_id=2, flag=7,
            properties=f"TAGS\x01t\x02TIMER_DELIVER_MS\x01{delivery_ms}\x02",
        )  # fmt: skip
        assert sent.code == ResponseCode.SUCCESS
        assert (fields(sent)["queueId"], fields(sent)["queueOffset"]) == ("2", "1")
        (waiting,) = records(await peer.pull(TIMER_TOPIC, 1))
        assert parse_offset_message_id(fields(sent)["msgId"])[1] == waiting.physical_offset
        while await timer_count(peer, "T") < 2:
            await asyncio.sleep(0.02)  # or it is enqueued when it is due already
        assert not pull.done()
        await later.advance(peer, FAR_MS)
        (record,) = records(await pull)
        assert record.store_timestamp >= delivery_ms
        assert (record.body, record.flag, record.queue_id) == (b"body", 7, 2)
        properties = properties_sent(record)
        due_ms = (delivery_ms - 1) // 100 * 100
        assert int(properties.pop("TIMER_ENQUEUE_MS")) <= due_ms
        assert int(properties.pop("TIMER_DEQUEUE_MS")) >= delivery_ms
        assert properties == {
            "TAGS": "t",
            "TIMER_DELIVER_MS": str(delivery_ms),
            "TIMER_OUT_MS": str(due_ms),
            "REAL_TOPIC": "T",
            "REAL_QID": "2",
        }
        assert not records(await peer.pull("T", 0, queueId=3))

    serve(tmp_path, check, store=FINE, flush=flush)


async def timer_counts(peer: Peer) -> dict[str, int]:
    """Return how many timer messages of each topic wait."""
    metrics = await peer.ask(RequestCode.GET_TIMER_METRICS)
    counts = TimerMetricsTable.decode(bytes(metrics.body)).counts
    return {topic: one.count for topic, one in counts.items()}


async def timer_count(peer: Peer, topic: str) -> int:
    """Return how many timer messages of a topic wait."""
    return (await timer_counts(peer)).get(topic, 0)


def test_a_deleted_topic_is_forgotten(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        await peer.send("T", b"x", properties="TIMER_DELAY_SEC\x01100000")
        async with asyncio.timeout(60):
            while await timer_counts(peer) != {"T": 1}:
                await asyncio.sleep(0.02)
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        assert await timer_counts(peer) == {}

    serve(tmp_path, check, store=FINE)


def test_a_restart_delivers_what_waits_and_nothing_twice(tmp_path: Path) -> None:
    async def fill(peer: Peer) -> None:
        await create_topic(peer, "T")
        for number in range(20):
            await peer.send("T", b"first %d" % number, properties="TIMER_DELAY_MS\x01200")
        found: list[Any] = []
        while len(found) < 20:
            found += records(await held_pull(peer, "T", len(found)))
        await peer.send("T", b"much later", properties="TIMER_DELAY_SEC\x01100000")
        while await timer_count(peer, "T") < 1:
            await asyncio.sleep(0.02)
        for number in range(20):
            await peer.send("T", b"second %d" % number, properties="TIMER_DELAY_MS\x011500")

    async def look(peer: Peer) -> None:
        found: list[Any] = []
        while len(found) < 40:
            found += records(await held_pull(peer, "T", len(found)))
        assert sorted(record.body for record in found) == sorted(
            b"%b %d" % (name, number) for name in (b"first", b"second") for number in range(20)
        )

    serve(tmp_path, fill, store=FINE)
    # Those that were not enqueued yet when the broker stopped are enqueued by the next start.
    found = re.search(r'"count":(\d+)', (tmp_path / "config" / "timermetrics").read_text())
    assert found is not None and 0 < int(found[1]) <= 21
    serve(tmp_path, look, store=FINE)

    async def nothing_more(peer: Peer) -> None:
        await peer.send("T", b"last", properties="TIMER_DELAY_MS\x01100")
        (record,) = records(await held_pull(peer, "T", 40))
        assert record.body == b"last"

    serve(tmp_path, nothing_more, store=FINE)


def test_what_is_refused(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        far = await peer.send("T", b"", properties="TIMER_DELAY_SEC\x01259201")
        assert far.code == ResponseCode.MESSAGE_ILLEGAL
        assert (far.remark or "").startswith("timer message illegal, the delay time should not be ")
        direct = await peer.send(TIMER_TOPIC, b"")
        assert direct.code == ResponseCode.NO_PERMISSION

    async def without(peer: Peer) -> None:
        for text in ("TIMER_DELAY_SEC\x011", "TIMER_DELAY_MS\x010", "TIMER_DELIVER_MS\x01x"):
            answer = await peer.send("T", b"", properties=text)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == (
                "accurate timer message is not enabled, timerWheelEnable is false"
            )
        assert (await peer.send("T", b"", properties="k\x01v")).code == ResponseCode.SUCCESS

    serve(tmp_path, check)
    serve(tmp_path, without, store={"timer_wheel": False})
    assert not list(tmp_path.glob("timer*"))


def test_many_due_at_once_do_not_keep_producers_waiting(tmp_path: Path) -> None:
    count = 3000

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        due = f"TIMER_DELIVER_MS\x01{time.time_ns() // 1_000_000 + 2500}"
        for first in range(0, count, 500):
            await asyncio.gather(
                *(peer.send("T", b"x", properties=due) for _ in range(first, first + 500))
            )
        offset = slowest_s = 0
        while offset < count:
            begun = time.monotonic()
            assert (await peer.send("Other", b"x")).code == ResponseCode.SUCCESS
            slowest_s = max(slowest_s, time.monotonic() - begun)
            found = await peer.pull("T", 0, queueId=0)
            offset = int(fields(found)["maxOffset"])
        print(f"slowest send {1000 * slowest_s:.1f} ms")

    serve(tmp_path, check, store=FINE)


def handle_of(*values: object) -> str:
    return base64.urlsafe_b64encode(" ".join(map(str, values)).encode()).decode()


def test_a_message_is_recalled_with_the_handle_of_its_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(monkeypatch)

    async def check(peer: Peer) -> None:
        delay = f"TIMER_DELAY_MS\x01{FAR_MS}\x02UNIQ_KEY\x01K{{}}\x02"
        sent = [
            await peer.send("T", b"%d" % number, properties=delay.format(number))
            for number in range(3)
        ]
        handle = fields(sent[1])["recallHandle"]
        due_ms = decode_properties(records(await peer.pull(TIMER_TOPIC, 1))[0].properties)[
            "TIMER_OUT_MS"
        ]
        assert handle == handle_of("v1", "T", "broker-a", int(due_ms) + 1, "K1")
        answer = await peer.ask(
            RequestCode.RECALL_MESSAGE, topic="T", recallHandle=handle, producerGroup="pg"
        )
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
        assert fields(answer) == {"msgId": "K1", "MSG_REGION": "DefaultRegion"}
        await later.advance(peer, 2 * FAR_MS)
        found: list[Any] = []
        while len(found) < 2:
            found += records(await held_pull(peer, "T", len(found)))
        assert [record.body for record in found] == [b"0", b"2"]
        # One without an id is recalled by the one it got; what is due at once cannot be.
        plain = await peer.send("T", b"x", properties="TIMER_DELAY_MS\x01100")
        late = await peer.send("T", b"x", properties="TIMER_DELAY_MS\x010\x02UNIQ_KEY\x01K")
        assert "recallHandle" in fields(plain) and "recallHandle" not in fields(late)

    serve(tmp_path, check, store=FINE, recall_messages=True)


def test_recalls_that_are_refused(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        now_ms = time.time_ns() // 1_000_000
        soon = handle_of("v1", "T", "broker-a", now_ms + 60_000, "K")
        cases: list[tuple[str, str, int, str]] = [
            ("Nope", soon, 17, "recall failed, the topic[Nope] not exist"),
            ("T", "!", 604, "recall handle is invalid"),
            ("T", handle_of("v1", "U", "broker-a", 1, "K"), 604, "recall failed, topic not match"),
            (
                "T", handle_of("v1", "T", "broker-b", 1, "K"), 604,
                "recall failed, broker service not available",
            ),
        ]  # fmt: skip
        for moment in ("x", now_ms - 1, now_ms + 259_300_000):
            handle = handle_of("v1", "T", "broker-a", moment, "K")
            cases.append(("T", handle, 604, "recall failed, timestamp invalid"))
        for topic, handle, code, remark in cases:
            answer = await peer.ask(RequestCode.RECALL_MESSAGE, topic=topic, recallHandle=handle)
            assert (answer.code, answer.remark) == (code, remark)
        odd = handle_of("v1", "T", "broker-a", now_ms + 60_000, "\x01")
        answer = await peer.ask(RequestCode.RECALL_MESSAGE, topic="T", recallHandle=odd)
        assert (answer.code, answer.remark) == (1, "recall failed, execute error")
        assert (await peer.ask(RequestCode.RECALL_MESSAGE, topic="T")).code == 604

    async def forbidden(peer: Peer) -> None:
        answer = await peer.ask(RequestCode.RECALL_MESSAGE, topic="T", recallHandle="x")
        assert (answer.code, answer.remark) == (16, "recall failed, operation is forbidden")

    async def unwritable(peer: Peer) -> None:
        answer = await peer.ask(RequestCode.RECALL_MESSAGE, topic="T", recallHandle="x")
        assert (answer.code, answer.remark) == (14, "recall failed, broker service not available")

    serve(tmp_path / "a", check, recall_messages=True)
    serve(tmp_path / "b", forbidden)
    serve(
        tmp_path / "c",
        unwritable,
        recall_messages=True,
        permission=4,
        recall_when_not_writable=False,
    )


def test_what_administrators_see(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for number in range(5):
            await peer.send("T", b"x", properties=f"TIMER_DELAY_SEC\x01{100 + number}")
        deadline = time.monotonic() + 60
        while await timer_count(peer, "T") < 5:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        while True:
            answer = await peer.ask(RequestCode.GET_TIMER_CHECK_POINT)
            checkpoint = TimerCheckpoint.decode(bytes(answer.body))
            # The timer log is flushed later: the messages are in the log, which slaves have.
            if checkpoint is not None and checkpoint.log_flushed == 5 * 52:
                break
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        assert checkpoint.master_queue_offset == checkpoint.queue_offset == 5
        info = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = KVTable.decode(bytes(info.body)).table
        assert (table["timerReadBehind"], table["timerOffsetBehind"]) == ("0", "0")
        assert table["timerCongestNum"] == "5"
        assert float(table["timerEnqueueTps"]) >= 0 == float(table["timerDequeueTps"])

    async def without(peer: Peer) -> None:
        for code, remark in (
            (RequestCode.GET_TIMER_CHECK_POINT, "The checkpoint is null"),
            (RequestCode.GET_TIMER_METRICS, "The timer message store is null"),
        ):
            answer = await peer.ask(code)
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)

    serve(tmp_path / "a", check, timer_flush_interval_ms=50)
    serve(tmp_path / "b", without, store={"timer_wheel": False})
