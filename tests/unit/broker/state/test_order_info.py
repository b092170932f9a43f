"""What blocks a queue that is popped in order; RocketMQ 5.3.3 gave the expected values."""

import json

import pytest
from tests.unit.store.stores import FakeClock

from pymq.broker.state.order_info import OrderTable, Refused
from pymq.protocol import fastjson
from pymq.protocol.receipt_handles import order_count_info

QUEUE = ("TopicA", "g", 2)
START = 1795189242816


def table(now_ms: int = START) -> tuple[OrderTable, FakeClock]:
    clock = FakeClock(now_ms)
    return OrderTable(clock), clock


def pop(
    orders: OrderTable, *offsets: int, attempt: str | None = "att-1", at: int = START
) -> list[str]:
    counts, least = orders.pop(
        QUEUE, offsets, attempt_id=attempt, pop_time=at, invisible_ms=60000
    )
    return order_count_info("TopicA", 2, counts, least)


def test_the_values_of_the_official_broker() -> None:
    orders, clock = table()
    assert pop(orders, 10, 11, 13) == ["0 2 0"]
    assert orders.acknowledge(QUEUE, 10, START) == 11
    assert orders.acknowledge(QUEUE, 11, 17) is Refused.LATE
    assert orders.acknowledge(QUEUE, 99, START) is Refused.UNKNOWN
    orders.change(QUEUE, 11, START, 1795189299999)
    clock.now_ms = 1795344880151
    assert json.loads(orders.to_text().replace("{2:", '{"2":').replace("{11:", '{"11":')) == {
        "table": {
            "TopicA@g": {
                "2": {
                    "a": "att-1",
                    "cm": 1,
                    "i": 60000,
                    "l": START,
                    "o": [10, 1, 3],
                    "ot": {"11": 1795189299999},
                    "popTime": START,
                }
            }
        }
    }
    assert pop(orders, 11, 13, 14, attempt="att-2", at=START + 100_000) == [
        "0 qo2%11 1",
        "0 qo2%13 1",
        "0 2 0",
    ]
    again, _ = table(clock.now_ms)
    again.restore(fastjson.parse(orders.to_text()))
    assert again.to_text() == orders.to_text()
    assert pop(again, 11, 13, 14, attempt="att-3", at=START + 200_000)[-1] == "0 2 1"


def test_a_queue_is_blocked_until_all_is_acknowledged() -> None:
    orders, clock = table()
    assert not orders.is_blocked(QUEUE)
    pop(orders, 5, 6)
    assert orders.is_blocked(QUEUE, "other")
    assert not orders.is_blocked(QUEUE, "att-1")
    assert orders.acknowledge(QUEUE, 6, START) == 5
    assert orders.is_blocked(QUEUE)
    assert orders.take_free() == []
    assert orders.acknowledge(QUEUE, 5, START) == 7
    assert not orders.is_blocked(QUEUE)
    assert orders.take_free() == [QUEUE]
    assert orders.take_free() == []


def test_what_the_offsets_know_of_counts_as_acknowledged() -> None:
    orders, _ = table()
    pop(orders, 5, 6, 7, 8)
    assert orders.acknowledge(QUEUE, 8, START, 7) == 7
    assert orders.is_blocked(QUEUE)
    assert orders.acknowledge(QUEUE, 7, START, 7) == 9
    assert not orders.is_blocked(QUEUE)


def test_a_queue_is_free_when_its_messages_are_visible_again() -> None:
    orders, clock = table()
    pop(orders, 5, 6, attempt=None)
    orders.change(QUEUE, 5, START, START + 1000)
    clock.now_ms += 1000
    assert orders.is_blocked(QUEUE, None)
    orders.acknowledge(QUEUE, 6, START)
    assert not orders.is_blocked(QUEUE)
    assert orders.take_free() == [QUEUE]
    pop(orders, 5, 6, at=clock.now_ms)
    clock.now_ms += 59_999
    assert orders.take_free() == []
    clock.now_ms += 1
    assert orders.take_free() == [QUEUE]


def restarted(orders: OrderTable, clock: FakeClock) -> OrderTable:
    again = OrderTable(clock)
    again.restore(fastjson.parse(orders.to_text()))
    return again


@pytest.mark.parametrize("with_restart", [False, True])
def test_no_queue_is_blocked_for_longer_when_the_clock_is_set_back(with_restart: bool) -> None:
    orders, clock = table()
    pop(orders, 5, 6, 7)
    clock.now_ms += 1000
    orders.change(QUEUE, 6, START, clock.now_ms + 90_000)
    assert orders.take_free() == []
    clock.now_ms -= 3_600_000
    if with_restart:
        orders = restarted(orders, clock)
    assert orders.take_free() == []
    clock.now_ms += 59_000
    assert orders.acknowledge(QUEUE, 6, START) == 5  # handles stay as they are
    assert not orders.is_blocked(QUEUE)
    assert orders.take_free() == [QUEUE]


@pytest.mark.parametrize("with_restart", [False, True])
def test_what_is_said_after_the_clock_was_set_back_counts_as_said(with_restart: bool) -> None:
    orders, clock = table()
    pop(orders, 5)
    clock.now_ms -= 100_000
    # Before anybody notices.
    orders.change(QUEUE, 5, START, clock.now_ms + 120_000)
    for waited_ms in (10_000, 109_999):
        assert orders.take_free() == []
        if with_restart:
            orders = restarted(orders, clock)
        clock.now_ms += waited_ms
        assert orders.is_blocked(QUEUE) and orders.take_free() == []
    clock.now_ms += 1
    assert orders.take_free() == [QUEUE]


def test_what_is_gone_is_forgotten() -> None:
    orders, clock = table()
    pop(orders, 5)
    orders.clean(lambda *queue: True)
    assert orders.is_blocked(QUEUE)
    orders.clean(lambda *queue: False)
    assert not orders.is_blocked(QUEUE)
    pop(orders, 5)
    clock.now_ms += 25 * 3600 * 1000
    orders.clean(lambda *queue: True)
    assert orders.acknowledge(QUEUE, 77, 0) is Refused.LATE  # 0 to 76 would be left out


def test_times_do_not_pile_up() -> None:
    orders, clock = table()
    for n in range(5000):
        clock.now_ms += 1
        pop(orders, n, at=clock.now_ms)
    assert len(orders._by_free) <= 1003


def test_what_a_group_has_passed_blocks_nothing() -> None:
    """It went on at another master, or before a crash; only its offset tells."""
    orders, clock = table()
    pop(orders, 10, 11, 12)
    text = orders.to_text()
    clock.now_ms += 1000
    for reached, is_blocked in ((12, True), (13, False)):
        again = OrderTable(clock)
        again.restore(fastjson.parse(text))
        again.forget_passed({QUEUE: reached}.__getitem__)
        assert again.is_blocked(QUEUE) == is_blocked
        assert again.is_changed != is_blocked
