"""The checkers of pops in order find what they are for, and nothing in what is right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.crash.ledger import Acknowledged, Attempted, Event, Failed, Noted, body_of, make_key
from tests.crash.pop_order_checkers import check_ordered_pops
from tests.crash.pop_order_history import Death, LastPop, Queue, saved_offsets, saved_pops
from tests.unit.store.stores import BORN, HOST

from pymq.protocol.record import Record

KEYS = [make_key(1, number, 5) for number in range(5)]
QUEUE = Queue("g", 0)


def message(number: int) -> Record:
    return Record(
        "T", 0, number, 10 + number, body_of(KEYS[number]), b"", 0, 0, 0, BORN, 50, HOST, 0, 0, 0, 0
    )


def sent(number: int) -> list[Event]:
    return [
        Attempted(f"{number}.s", (KEYS[number],)),
        Acknowledged(f"{number}.s", 0, number, (10 + number,)),
    ]


def handle(pop_time: int, offset: int, invisible_ms: int = 1000) -> str:
    return f"g:{offset}:{pop_time}:{invisible_ms}:999:0:broker-a:0:{offset}"


def popped(name: str, attempt: str, pop_time: int, *offsets: int) -> list[Event]:
    return [
        Attempted(f"{name}.p", (str(pop_time - 5), "g", attempt, "-1")),
        *(Noted(f"{name}.p", (handle(pop_time, offset), KEYS[offset])) for offset in offsets),
        Acknowledged(f"{name}.p", 0, 0, (0,)),
    ]


def said(name: str, begin: int, end: int, *words: str, visible: str = "") -> list[Event]:
    """Return an acknowledgement, or with a time a change, that was answered."""
    times = (str(end), *((visible,) if visible else ()))
    return [
        Attempted(name, (str(begin), *words)),
        Noted(name, times),
        Acknowledged(name, 0, 0, (0,)),
    ]


#: In a first life, 0 and 1 are popped at 100, 0 is acknowledged. 1 comes again with 2, and these
#: are acknowledged; the file has not heard of it when the broker is killed at 3000. In a second
#: life they come again, when they are visible as the file says. 2 is wanted earlier, and comes
#: with 3 and 4 before the others would have.
SENT = [event for number in range(5) for event in sent(number)]
FIRST = [
    *popped("1", "one", 100, 0, 1),
    *said("2.a", 110, 120, handle(100, 0)),
    *popped("3", "two", 1100, 1, 2),
    *said("4.a", 1110, 1120, handle(1100, 1), handle(1100, 2)),
]
SECOND = [
    *popped("5", "three", 3500, 1, 2, 3),
    *said("6.a", 3510, 3520, handle(3500, 1)),
    *said("7.c", 3530, 3540, "50", handle(3500, 2), visible="3590"),
    *said("8.c", 3530, 3540, "50", handle(3500, 3), visible="3585"),
    *popped("9", "four", 3600, 2, 3, 4),
    *said("10.a", 3610, 3620, handle(3600, 2), handle(3600, 3), handle(3600, 4)),
]
EVENTS = [*SENT, *FIRST, *SECOND]
KILLED = Death(3000, {QUEUE: 1}, {QUEUE: LastPop("one", 100, {0: 1100, 1: 1100}, {}, {0})})
STOPPED = Death(4000, {QUEUE: 5}, {QUEUE: LastPop("four", 3600, {2: 0, 3: 0, 4: 0}, {}, {2, 3, 4})})
RECORDS = [message(number) for number in range(5)]


def check(
    events: list[Event] = EVENTS,
    *,
    records: list[Record] = RECORDS,
    killed: Death = KILLED,
    stopped: Death = STOPPED,
) -> list[str]:
    return check_ordered_pops(events, records, [killed, stopped], topic="T", groups=["g"])


def without(*names: str) -> list[Event]:
    return [event for event in EVENTS if event.request not in names]


def instead(name: str, *events: Event) -> list[Event]:
    """Return the ledger with other lines for one request."""
    at = next(number for number, event in enumerate(EVENTS) if event.request == name)
    rest = [event for event in EVENTS[at:] if event.request != name]
    return [*EVENTS[:at], *events, *rest]


def test_a_right_history_passes() -> None:
    assert check() == []


@pytest.mark.parametrize(
    ("name", "events", "text"),
    [
        # 2 is left out though 1 was with nobody and not acknowledged.
        ("5.p", popped("5", "three", 3500, 2, 3), "SKIPPED"),
        # 1 was not acknowledged in time to come after it.
        ("6.a", said("6.a", 3601, 3610, handle(3500, 1)), "SKIPPED"),
        # By another pop's handle.
        ("6.a", said("6.a", 3510, 3520, handle(1100, 1)), "SKIPPED"),
        # An acknowledgement in the same life does not hold.
        ("3.p", popped("3", "two", 1100, 0, 1, 2), "AGAIN"),
        # 1 was with a consumer until 1100.
        ("3.p", popped("3", "two", 1099, 1, 2), "ORDER"),
        # 3 was with a consumer until 4500, and then until 3585.
        ("8.c", [], "ORDER"),
        ("8.c", said("8.c", 3530, 3540, "50", handle(3500, 3), visible="3601"), "ORDER"),
        ("5.p", popped("5", "three", 3500, 1, 3), "HOLE"),
        ("9.p", popped("9", "four", 3600, 2, 3), "never popped offset 4"),
        ("10.a", said("10.a", 3610, 3620, handle(3600, 2)), "never acknowledged offset 4"),
        ("9.p", popped("9", "four", 4600, 2, 3, 4), "after the end"),
        ("4.s", [], "nobody sent"),
    ],
)
def test_what_is_wrong_is_found(name: str, events: list[Event], text: str) -> None:
    complaints = check(instead(name, *events))
    assert any(text in complaint for complaint in complaints), complaints


@pytest.mark.parametrize(
    ("killed", "text"),
    [
        (replace(KILLED, offsets={QUEUE: 4}), "SAVED"),  # nobody acknowledged 3
        (replace(KILLED, offsets={QUEUE: 2}), "AGAIN"),  # 1 comes in spite of it
        (replace(KILLED, offsets={}), "SKIPPED"),  # 0 does not come
        (replace(KILLED, last={QUEUE: LastPop("one", 101, {0: 0})}), "nobody popped"),
        (replace(KILLED, last={QUEUE: LastPop("one", 100, {0: 0})}), "nobody popped"),
        (replace(KILLED, last={QUEUE: LastPop("?", 100, {0: 0, 1: 0})}), "nobody popped"),
        (
            replace(KILLED, last={QUEUE: LastPop("one", 100, {0: 0, 1: 0}, {}, {1})}),
            "nobody acknowledged all of that",
        ),
        (replace(KILLED, last={QUEUE: LastPop("one", 100, {0: 0, 1: 3501}, {}, {0})}), "ORDER"),
    ],
)
def test_files_that_say_what_never_was_are_found(killed: Death, text: str) -> None:
    complaints = check(killed=killed)
    assert any(text in complaint for complaint in complaints), complaints


def test_files_that_go_back_are_found() -> None:
    ends = [replace(KILLED, at_ms=2000, offsets={QUEUE: 2}), KILLED, STOPPED]
    complaints = check_ordered_pops(EVENTS, RECORDS, ends, topic="T", groups=["g"])
    assert any("offset 1 at 3000, expected 2..2" in one for one in complaints), complaints


def test_offsets_may_know_more_than_the_table_of_pops() -> None:
    """What is acknowledged after the kill takes the group on, and never back."""
    late = said("5.a", 3400, 3410, handle(100, 1))
    killed = replace(KILLED, offsets={QUEUE: 1}, last={QUEUE: LastPop("one", 100, {0: 0, 1: 0})})
    for first, text in ((2, ""), (1, "AGAIN"), (0, "AGAIN"), (3, "SKIPPED")):
        third = popped("5", "three", 3500, *range(first, 4))
        complaints = check(instead("5.p", *late, *third), killed=killed)
        assert any(text in one for one in complaints) if text else not complaints, complaints


def test_messages_that_are_left_or_lost_are_found() -> None:
    assert any("OPEN" in one for one in check(stopped=replace(STOPPED, offsets={QUEUE: 4})))
    assert any("LOST: 1-4-5" in one for one in check(records=RECORDS[:4]))
    other = replace(RECORDS[2], body=body_of(KEYS[0]))
    complaints = check(records=[*RECORDS[:2], other, *RECORDS[3:]])
    assert any("brought 1-2-5 from offset 2, where 1-0-5 is" in one for one in complaints)


def test_the_same_attempt_gets_the_same_messages_at_once() -> None:
    other, same = (popped("3", attempt, 200, 1, 2) for attempt in ("two", "one"))
    assert any("ORDER" in one for one in check(instead("3.p", *other)))
    assert not any("ORDER" in one for one in check(instead("3.p", *same)))


def test_what_nobody_was_told_of_is_allowed_for() -> None:
    """A pop without an answer explains what a file says, and why a change did not count."""
    lost: list[Event] = [
        Attempted("20.p", ("1200", "g", "lost", "-1")),
        Noted("20.p", ("3000",)),
        Failed("20.p", False, "the connection was lost"),
    ]
    killed = replace(KILLED, last={QUEUE: LastPop("lost", 2900, {3: 3400, 4: 3400})})
    assert any("nobody popped" in one for one in check(killed=killed))
    assert check([*EVENTS, *lost], killed=killed) == []
    # What was acknowledged may have been popped again before that.
    early = [*lost[:1], Noted("20.p", ("1090",)), *lost[2:]]
    early[0] = Attempted("20.p", ("90", "g", "lost", "-1"))
    again = instead("3.p", *popped("3", "two", 1100, 0, 1, 2))
    assert any("AGAIN" in one for one in check(again))
    assert not any("AGAIN" in one for one in check([*again, *early]))
    # It is known that this one popped nothing.
    early[2] = Failed("20.p", True, "210 no message")
    assert any("AGAIN" in one for one in check([*again, *early]))


def test_the_tables_are_read_as_the_broker_writes_them() -> None:
    offsets = {"pymqCrc32": "0", "offsetTable": {"T@g": {"0": 3}, "U@g": {"0": 9}}}
    assert saved_offsets(offsets, "T") == {QUEUE: 3}
    info = {"a": "one", "popTime": 100, "i": 50, "o": [3, 1], "ot": {"4": 170}, "cm": 1}
    orders = {"table": {"T@g": {"0": info}, "U@g": {"0": info}}}
    assert saved_pops(orders, "T") == {QUEUE: LastPop("one", 100, {3: 150, 4: 170}, {}, {3})}
    assert saved_offsets({}, "T") == {} == saved_pops({}, "T")
