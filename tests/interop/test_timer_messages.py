"""Timer messages: our broker and the official one, answer by answer and message by message.

The same requests go to both.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Final

import pytest
from tests.interop.conftest import require_peers
from tests.interop.peers import RealBroker, RealNameServer
from tests.interop.test_delays_and_retries import Asker

from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import decode_properties
from pymq.protocol.names import TIMER_TOPIC
from pymq.protocol.recall_handles import RecallHandle
from pymq.protocol.record import Record
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

VERSION: Final = "5.3.3"
BROKER_NAME: Final = "broker-a"
DEADLINE_S: Final = 120.0
#: A wheel of six seconds, so that messages have rounds in a test's time.
ROLL_SLOTS: Final = 6
#: What differs between any two runs.
TIMES: Final = frozenset(("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "BORN_TIMESTAMP"))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# ----------------------------------------------------------- what both brokers make of requests


class Story:
    """What one broker answers and stores; times are counted from its start.

    Attributes:
        seen: everything a client can see, in order.
    """

    def __init__(self, broker: Asker, topic: str) -> None:
        # The beginning of a second, so that the slots of delays are the same in all stories.
        time.sleep(1.05 - time.time() % 1)
        self.start_ms = now_ms() // 1000 * 1000
        self.broker = broker
        self.topic = topic
        self.seen: list[object] = []

    @property
    def is_in_its_second(self) -> bool:
        """Whether everything up to now was within the second of the start."""
        return now_ms() < self.start_ms + 1000

    def since(self, value: str) -> object:
        """Return a time as seconds since the start, anything else as it is."""
        if not value.isdigit() or abs(int(value) - self.start_ms) > 10**9:
            return value
        return f"start + {(int(value) - self.start_ms) / 1000}"

    def send(self, key: str, **properties: str) -> Command:
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        answer = self.broker.send(self.topic, f"{text}UNIQ_KEY\x01{key}\x02")
        fields = dict(answer.fields or {})
        handle = fields.get("recallHandle")
        parts: object = None
        if handle is not None:
            decoded = RecallHandle.decode(handle)
            parts = (decoded.broker_name, self.since(decoded.time), decoded.message_id)
            assert decoded.topic == self.topic and decoded.encode() == handle
        self.seen.append((key, answer.code, answer.remark, fields.get("queueId"), parts))
        return answer

    def recall(self, topic: str, handle: str) -> None:
        answer = self.broker.ask(
            RequestCode.RECALL_MESSAGE, topic=topic, recallHandle=handle, producerGroup="pg"
        )
        fields = dict(answer.fields or {})
        # Of a success RocketMQ says that no response code was set; nobody reads that.
        remark = (answer.remark or "").replace(self.topic, "T") if answer.code else None
        self.seen.append(("recall", answer.code, remark, fields.get("msgId")))

    def look(self, topic: str, count: int) -> list[Record]:
        """Wait for messages of this story in a topic, and see them by their keys."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = [
                record
                for record in self.broker.records(topic, 0)
                if topic == self.topic
                or decode_properties(record.properties).get("REAL_TOPIC") == self.topic
            ]
            if len(found) >= count:
                break
            assert time.monotonic() < deadline, f"{topic}: {len(found)} of {count}"
            time.sleep(0.05)
        rows = []
        for record in found:
            properties = decode_properties(record.properties)
            shown = {
                name: "..." if name in TIMES else self.since(value).replace(self.topic, "T")
                for name, value in properties.items()
            }
            rows.append((shown.get("UNIQ_KEY"), record.body, record.flag, sorted(shown.items())))
        self.seen.append(sorted(rows, key=repr))
        return found


def begun(broker: Asker) -> tuple[Story, Command]:
    """Send everything with a timer within one second; return the last answer, too."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        one = Story(broker, f"timers-{uuid.uuid4().hex[:8]}")
        recalled = send_all(one)
        if one.is_in_its_second:
            return one, recalled
        assert time.monotonic() < deadline, "the machine is never fast for a second"


def send_all(one: Story) -> Command:
    later, topic = one.start_ms + 4500, one.topic
    one.send("sec", TIMER_DELAY_SEC="2", TAGS="t", k="v")
    one.send("ms", TIMER_DELAY_MS="1010", WAIT="false")
    one.send("deliver", TIMER_DELIVER_MS=str(later))
    one.send("first-counts", TIMER_DELIVER_MS=str(later), TIMER_DELAY_SEC="3")
    one.send("plus", TIMER_DELAY_SEC="+2")
    one.send("round", TIMER_DELAY_SEC="9")
    one.send("past", TIMER_DELIVER_MS="1000")
    one.send("zero", TIMER_DELAY_MS="0")
    one.send("negative", TIMER_DELAY_SEC="-5")
    one.send("waited", TIMER_DELAY_SEC="2", TIMER_OUT_MS="5")
    for key, value in (("far", "259201"), ("word", "x"), ("blank", " 2"), ("huge", "9" * 20)):
        one.send(key, TIMER_DELAY_SEC=value)
    one.send("late-cancel", TIMER_DELIVER_MS="1000", TIMER_DEL_UNIQKEY=f"{topic}+sec")
    one.send("cancelled", TIMER_DELIVER_MS=str(later))
    one.send("cancel", TIMER_DELIVER_MS=str(later), TIMER_DEL_UNIQKEY=f"{topic}+cancelled")
    return one.send("recalled", TIMER_DELAY_SEC="5")


def story(broker: Asker) -> list[object]:
    """Do everything with timers; return what a client can see of it."""
    one, recalled = begun(broker)
    later, topic = one.start_ms + 4500, one.topic
    one.look(TIMER_TOPIC, 9)
    handle = (recalled.fields or {})["recallHandle"]
    one.recall(topic, handle)
    one.recall("no-such-topic", handle)
    one.recall("SELF_TEST_TOPIC", handle)
    one.recall(topic, "no handle")
    one.recall(topic, RecallHandle(topic, "broker-b", str(later), "k").encode())
    for moment in ("x", str(one.start_ms - 1), str(one.start_ms + 10**9)):
        one.recall(topic, RecallHandle(topic, BROKER_NAME, moment, "k").encode())
    delivered = one.look(topic, 10)
    due = {"sec": 2000, "ms": 1010, "deliver": 4500, "first-counts": 3000, "plus": 2000}
    for record in delivered:
        key = decode_properties(record.properties)["UNIQ_KEY"]
        assert record.store_timestamp >= one.start_ms + due.get(key, 0)
    time.sleep(0.5)
    assert len(one.look(topic, 10)) == 10, "what was cancelled is not there"
    return one.seen


def test_what_both_brokers_make_of_timers(tmp_path: Path) -> None:
    require_peers(VERSION)
    with (
        RealNameServer(VERSION) as name_server,
        RealBroker(
            VERSION, [name_server.address], recallMessageEnable=True, timerRollWindowSlot=ROLL_SLOTS
        ) as real,
        Asker(real.address) as asker,
    ):
        # Its first message takes long: it creates files.
        asker.send("warm", "TIMER_DELAY_SEC\x011\x02")
        asker.records("warm", 1)
        expected = story(asker)
    with (
        Cluster(
            tmp_path,
            store_settings={"timer_roll_window_slots": ROLL_SLOTS},
            broker={"recall_messages": True},
        ) as ours,
        Asker(ours.broker_address) as asker,
    ):
        found = story(asker)
    for one, other in zip(found, expected, strict=True):
        assert one == other
