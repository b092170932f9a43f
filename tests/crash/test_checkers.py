"""The checkers find what they are for, and nothing in a history that is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.crash.checkers import Found, IndexEntry, check_history, check_index, check_index_files
from tests.crash.history import Findings, History, Life, check
from tests.crash.ledger import (
    Acknowledged,
    Attempted,
    Event,
    Failed,
    LedgerWatch,
    LedgerWriter,
    Noted,
    body_of,
    format_event,
    key_of,
    make_key,
    parse_event,
    parse_ledger,
)

KEYS = [make_key(1, number, 10 * number) for number in range(6)]
# One message in queue 0, a batch of three in queue 1, one unknown that was stored behind it, one
# refused.
EVENTS: list[Event] = [
    Attempted("a", (KEYS[0],)),
    Attempted("b", tuple(KEYS[1:4])),
    Acknowledged("a", 0, 0, (0,)),
    Acknowledged("b", 1, 0, (200, 300, 400)),
    Attempted("c", (KEYS[4],)),
    Failed("c", False, "the connection was lost"),
    Attempted("d", (KEYS[5],)),
    Failed("d", True, "the disk is full"),
]
FOUND = [
    Found(0, 0, 0, body_of(KEYS[0])),
    Found(1, 0, 200, body_of(KEYS[1])),
    Found(1, 1, 300, body_of(KEYS[2])),
    Found(1, 2, 400, body_of(KEYS[3])),
    Found(1, 3, 500, body_of(KEYS[4])),
]


def test_a_right_history_passes() -> None:
    assert check_history(EVENTS, FOUND) == []
    assert check_history(EVENTS, FOUND[:4]) == [], "the unknown one may be absent"


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (FOUND[1:], "LOST: 1-0-0"),
        ([replace(FOUND[0], body=body_of(KEYS[4])), *FOUND[1:4]], "LOST: 1-0-0"),
        ([FOUND[0], *FOUND[2:]], "offset 1, expected 0"),
        ([FOUND[0], FOUND[2], FOUND[1], *FOUND[3:]], "offset 1, expected 0"),
        ([replace(FOUND[0], physical_offset=7), *FOUND[1:]], "acknowledged 0"),
        ([*FOUND[:3], replace(FOUND[3], physical_offset=100), FOUND[4]], "100 after 300"),
        ([replace(FOUND[0], body=FOUND[0].body + b"x"), *FOUND[1:]], "damaged body"),
        ([*FOUND[:4], replace(FOUND[4], body=FOUND[4].body[:-1])], "damaged body"),
        ([*FOUND, Found(1, 4, 600, body_of("9-9-9"))], "nobody sent b'9-9-9|"),
        ([*FOUND, Found(1, 4, 600, b"")], "nobody sent"),
        ([*FOUND, Found(1, 4, 600, body_of(KEYS[4]))], "is there 2 times"),
        ([*FOUND, Found(1, 4, 600, body_of(KEYS[5]))], "the disk is full"),
        (FOUND[:3], "batch b is torn"),
    ],
)
def test_a_wrong_one_is_noticed(found: list[Found], complaint: str) -> None:
    assert any(complaint in text for text in check_history(EVENTS, found))


def test_a_batch_without_acknowledgement() -> None:
    events: list[Event] = [Attempted("b", tuple(KEYS[1:4])), Failed("b", False, "lost")]
    whole = FOUND[1:4]
    assert check_history(events, whole) == check_history(events, []) == []
    assert any("b is torn" in text for text in check_history(events, whole[:2]))

    def after_lost_power(found: list[Found]) -> list[str]:
        return check_history(events, found, lost_power=True)

    assert after_lost_power(whole) == after_lost_power(whole[:2]) == after_lost_power([]) == []
    moved = [replace(m, queue_offset=m.queue_offset - 1) for m in whole[1:]]
    assert any("b is torn" in text for text in after_lost_power(moved)), "without its first"
    swapped = [
        replace(whole[0], body=whole[1].body),
        replace(whole[1], body=whole[0].body),
        whole[2],
    ]
    assert any("b is torn" in text for text in after_lost_power(swapped))
    apart = [whole[0], replace(whole[1], queue_id=2, queue_offset=0)]
    assert any("b is torn" in text for text in after_lost_power(apart))
    events.append(Acknowledged("b", 1, 0, (200, 300, 400)))
    assert any("b is torn" in text for text in after_lost_power(whole[:2]))


def test_order_across_an_acknowledgement() -> None:
    events: list[Event] = [
        Attempted("a", (KEYS[0],)),
        Attempted("b", (KEYS[1],)),
        Acknowledged("a", 0, 1, (100,)),
        Attempted("c", (KEYS[2],)),
    ]
    found = [Found(0, 0, 50, body_of(KEYS[1])), Found(0, 1, 100, body_of(KEYS[0]))]
    assert check_history(events, found) == [], "a and b were under way together"
    swapped = [Found(0, 0, 50, body_of(KEYS[2])), *found[1:]]
    assert any("acknowledged before it was sent" in text for text in check_history(events, swapped))


def test_index_against_log() -> None:
    log = [IndexEntry(0, 0, 0, 100, 7), IndexEntry(0, 1, 100, 120, 0)]
    assert check_index(log, log) == []
    assert any("record without" in text for text in check_index(log[:1], log))
    assert any("entry without" in text for text in check_index(log, log[:1]))
    assert any("entry without" in text for text in check_index([replace(log[0], size=1)], log))


def test_index_files_against_log() -> None:
    assert check_index_files([b"a", b"b"], [b"a", b"b"]) == []
    assert check_index_files([b"a", b"x"], [b"a", b"b"]) != []
    assert check_index_files([b"a"], [b"a", b"b"]) != []


def test_bodies_and_keys() -> None:
    assert [key_of(body_of(key)) for key in KEYS] == KEYS
    assert len(body_of("3-12-1000")) == len("3-12-1000|") + 1000
    assert key_of(b"") is None and key_of(b"1-2|x") is None and key_of(b"a-b-c|") is None


def test_ledger_lines(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "ledger") as writer:
        for event in EVENTS:
            writer.write(event)
    watch = LedgerWatch(tmp_path / "ledger")
    assert watch.acknowledged_count() == 2
    watch.close()
    lines = (tmp_path / "ledger").read_text().splitlines(keepends=True)
    assert parse_ledger(lines) == EVENTS
    assert parse_event(format_event(noted := Noted("x", ("1", "y")))) == noted
    for line in ("A x", "K x 1 2", "F x", "N x", "Z x y"):
        with pytest.raises(ValueError):
            parse_event(line)


# ------------------------------------------------------------------- a store over restarts


def history() -> History:
    """One living topic, whose log ends at 600."""
    return History({"T": Life(0, list(EVENTS))}, durable_end=600, saved=3, save_begun=4)


LOG = [IndexEntry(one.queue_id, one.queue_offset, one.physical_offset, 100, 0) for one in FOUND]


def findings(**changes: Any) -> Findings:
    right = Findings(600, {"T": FOUND}, 3, {"T": LOG}, {"T": LOG})
    return replace(right, **changes)


def test_a_right_store_passes() -> None:
    assert check(history(), findings()) == []
    assert check(history(), findings(saved=4)) == [], "the save under way may be done"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"log_end": 599}, "LOST: the log ends at 599"),
        ({"messages": {"T": FOUND[1:]}}, "T: LOST: 1-0-0"),
        ({"messages": {"T": FOUND, "U": FOUND}}, "topic U was never made"),
        ({"entries": {"T": LOG, "U": LOG}}, "topic U was never made"),
        ({"entries": {"T": LOG[1:]}}, "T: record without its entry"),
        ({"log": {"T": LOG[1:]}}, "T: entry without its record"),
        ({"saved": 2}, "holds save 2, expected 3..4"),
        ({"saved": 5}, "holds save 5, expected 3..4"),
    ],
)
def test_a_wrong_store_is_noticed(changes: dict[str, Any], complaint: str) -> None:
    assert any(complaint in text for text in check(history(), findings(**changes)))


def test_a_deletion_under_way_is_all_or_nothing() -> None:
    gone = findings(messages={}, entries={})
    assert any("LOST" in text for text in check(history(), gone))
    half = findings(messages={"T": FOUND[1:]}, entries={"T": LOG[1:]})
    for there, right in ((["T"], findings()), ([], gone)):
        after = history()
        after.lives["T"].is_ending = True
        after.resolve_endings(there, 600)
        assert check(after, right) == []
        assert check(after, half) != []
        assert check(after, gone if there else findings()) != []
        assert check(after, findings(messages={})) != []


def test_lost_power_forgets_a_suffix_only() -> None:
    lost = history()
    lost.forget_beyond(400)
    shorter = findings(messages={"T": FOUND[:3]}, log={"T": LOG[:3]}, entries={"T": LOG[:3]})
    assert check(lost, replace(shorter, log_end=400)) != [], "it was said to be on the disk"
    lost.durable_end = 400
    assert check(lost, replace(shorter, log_end=400)) == []
    hole = findings(
        log_end=400, messages={"T": FOUND[1:3]}, log={"T": LOG[:3]}, entries={"T": LOG[1:3]}
    )
    assert any("LOST: 1-0-0" in text for text in check(lost, hole))
