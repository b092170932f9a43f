"""What becomes of a message with a time of its own when it is sent."""

from pathlib import Path

import pytest
from tests.unit.broker.timers.waits import NOW_MS, Waits
from tests.unit.store.stores import BORN, FakeClock

from pymq.errors import BrokerError
from pymq.protocol.codes import ResponseCode
from pymq.protocol.message import decode_properties, parse_properties
from pymq.protocol.names import TIMER_TOPIC
from pymq.protocol.record import NewRecord


@pytest.mark.parametrize(
    ("text", "due_ms"),
    [
        ("TIMER_DELAY_SEC\x013\x02", 2000),
        ("TIMER_DELAY_MS\x012500\x02", 2000),
        ("TIMER_DELAY_MS\x01+2000\x02", 1000),
        (f"TIMER_DELIVER_MS\x01{NOW_MS + 4001}\x02", 4000),
        (f"TIMER_DELIVER_MS\x01{NOW_MS + 1}\x02", 0),
        (f"TIMER_DELAY_SEC\x013\x02TIMER_DELAY_MS\x019\x02TIMER_DELIVER_MS\x01{NOW_MS}\x02", 2000),
        (f"TIMER_DELIVER_MS\x01{NOW_MS + 9999}\x02TIMER_DELAY_MS\x015000\x02", 4000),
        ("TIMER_DELAY_SEC\x01259200\x02", 259_199_000),
        # At once: the time has come.
        (f"TIMER_DELIVER_MS\x01{NOW_MS}\x02", None),
        ("TIMER_DELIVER_MS\x011000\x02", None),
        ("TIMER_DELAY_SEC\x010\x02", None),
        ("TIMER_DELAY_SEC\x01-5\x02TIMER_DELIVER_MS\x01{NOW_MS + 9000}\x02", None),
        ("TIMER_DELAY_MS\x01-9223372036854775808\x02", None),
        ("TIMER_DELAY_SEC\x019\x02TIMER_OUT_MS\x015\x02", None),
    ],
)
def test_when_a_message_is_due(waits: Waits, text: str, due_ms: int | None) -> None:
    text += "WAIT\x01false\x02k\x01v\x02"
    sent = NewRecord("Orders", 5, b"body", text.encode(), BORN, 17, 3, 1, 4, tag_code=9)
    parked = waits.parking.park(sent, parse_properties(text))
    if due_ms is None:
        assert parked is sent
        return
    assert (parked.topic, parked.queue_id) == (TIMER_TOPIC, 0)
    assert decode_properties(parked.properties) == parse_properties(text) | {
        "TIMER_OUT_MS": str(NOW_MS + due_ms),
        "REAL_TOPIC": "Orders",
        "REAL_QID": "5",
    }
    assert (parked.body, parked.flag, parked.sys_flag, parked.reconsume_times) == (b"body", 3, 1, 4)


@pytest.mark.parametrize(
    "text",
    [
        "TIMER_DELAY_SEC\x01259201\x02",
        f"TIMER_DELIVER_MS\x01{NOW_MS + 259_200_001}\x02",
        "TIMER_DELAY_SEC\x01x\x02",
        "TIMER_DELAY_SEC\x01 2\x02",
        "TIMER_DELAY_MS\x011.5\x02",
        "TIMER_DELAY_MS\x01\u0663\x02",
        "TIMER_DELAY_SEC\x0199999999999999999999\x02",
        "TIMER_DELAY_SEC\x01" + "9" * 5000 + "\x02",
        "TIMER_DELAY_SEC\x019223372036854775807\x02",  # RocketMQ counts over, and delivers it
        "TIMER_DELIVER_MS\x011000\x02TIMER_DEL_UNIQKEY\x01T+U\x02",
    ],
)
def test_a_time_that_cannot_be_is_refused(waits: Waits, text: str) -> None:
    with pytest.raises(BrokerError, match="timer message illegal") as refused:
        waits.send(b"x", text)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert "max delay 259200000ms" in str(refused.value)


def test_too_many_messages_in_one_slot_are_refused(tmp_path: Path, clock: FakeClock) -> None:
    waits = Waits(tmp_path / "store", clock, congestion_max=100)
    sent = 0
    with pytest.raises(BrokerError, match="flow control, max num limit is 200") as refused:
        while sent < 201:
            waits.delay(b"%d" % sent, 5000)
            waits.deliver()
            sent += 1
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert sent > 100
    waits.delay(b"other", 6000)
    assert len(waits.deliver(7000)) == sent + 1


def test_properties_that_leave_no_room_are_refused_at_once(
    tmp_path: Path, clock: FakeClock
) -> None:
    waits = Waits(tmp_path / "store", clock, segment_bytes=1 << 16)
    waits.delay(b"ok", 1000, more="k\x01" + "v" * 32500 + "\x02")
    with pytest.raises(BrokerError, match="leave no room") as refused:
        waits.delay(b"no", 1000, more="k\x01" + "v" * 32600 + "\x02")
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert waits.deliver(1000) == [b"ok"]
