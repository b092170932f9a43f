"""Matching responses to requests, against a dict that does the same slowly."""

import random
from collections import Counter

import pytest

from pymq.errors import TooManyPending
from pymq.protocol.command import Command
from pymq.protocol.connection import RequestTable

NEVER = float("inf")


def answer(opaque: int) -> Command:
    return Command(0, opaque=opaque, flag=1)


def test_answers_in_any_order() -> None:
    table: RequestTable[str] = RequestTable()
    first, second = table.register(1.0, "first"), table.register(1.0, "second")
    assert (first, second) == (0, 1)
    assert table.resolve(answer(second)) == "second"
    assert table.resolve(answer(first)) == "first"
    assert len(table) == 0


def test_unknown_and_repeated_answers_find_nothing() -> None:
    table: RequestTable[str] = RequestTable()
    opaque = table.register(1.0, "a")
    assert table.resolve(answer(opaque + 1)) is None
    assert table.resolve(answer(opaque)) == "a"
    assert table.resolve(answer(opaque)) is None


def test_numbers_wrap_like_javas() -> None:
    table: RequestTable[int] = RequestTable(first_opaque=0x7FFFFFFE)
    assert [table.register(1.0, i) for i in range(4)] == [
        0x7FFFFFFE,
        0x7FFFFFFF,
        -0x80000000,
        -0x7FFFFFFF,
    ]
    table = RequestTable(first_opaque=-1)
    assert [table.register(1.0, i) for i in range(2)] == [-1, 0]


def test_numbers_in_use_are_skipped() -> None:
    table: RequestTable[str] = RequestTable(first_opaque=5)
    table.register(1.0, "old")
    table._next = 5  # as after four thousand million requests
    assert table.register(1.0, "new") == 6
    assert table.resolve(answer(5)) == "old"


def test_limit() -> None:
    table: RequestTable[int] = RequestTable(pending_max=2)
    table.register(1.0, 0)
    opaque = table.register(1.0, 1)
    with pytest.raises(TooManyPending, match="pending_max") as caught:
        table.register(1.0, 2)
    assert caught.value.retriable and caught.value.outcome_known
    table.forget(opaque)
    table.register(1.0, 2)


def test_deadlines() -> None:
    table: RequestTable[str] = RequestTable()
    assert table.earliest_s == NEVER
    late = table.register(5.0, "late")
    table.register(2.0, "a")
    table.register(2.0, "b")
    assert table.earliest_s == 2.0
    assert table.expired(1.9) == []
    assert table.expired(2.0) == ["a", "b"]
    assert table.expired(2.0) == []
    assert table.earliest_s == 5.0
    assert table.resolve(answer(late)) == "late"
    assert table.earliest_s == NEVER
    assert table.expired(99.0) == []


def test_a_late_request_may_be_given_more_time() -> None:
    table: RequestTable[str] = RequestTable()
    late = table.register(2.0, "late")
    table.register(2.0, "a")
    more = {"late": 4.0, "a": 2.0}
    asked: list[tuple[int, str]] = []

    def extend(opaque: int, token: str) -> float:
        asked.append((opaque, token))
        return more[token]

    assert table.expired(2.0, extend) == ["a"]
    assert asked == [(late, "late"), (late + 1, "a")]
    assert table.earliest_s == 4.0 and len(table) == 1
    assert table.expired(3.9, extend) == []
    assert table.expired(4.0, extend) == ["late"]


def test_an_answer_after_the_deadline_finds_nothing() -> None:
    table: RequestTable[str] = RequestTable()
    opaque = table.register(1.0, "a")
    assert table.expired(1.0) == ["a"]
    assert table.resolve(answer(opaque)) is None


def test_fail_all() -> None:
    table: RequestTable[str] = RequestTable()
    for name in "abc":
        table.register(1.0, name)
    assert table.fail_all() == ["a", "b", "c"]
    assert table.fail_all() == []
    assert len(table) == 0
    assert table.expired(2.0) == []


def test_every_token_comes_back_once(seed: int) -> None:
    chance = random.Random(seed)
    table: RequestTable[int] = RequestTable(
        pending_max=50, first_opaque=chance.randint(0x7FFFFF00, 0x7FFFFFFF)
    )
    model: dict[int, tuple[float, int]] = {}
    returned: Counter[int] = Counter()
    now_s, token = 0.0, 0
    for _ in range(20_000):
        now_s += chance.random() / 10
        action = chance.random()
        if action < 0.5 and len(model) < 50:
            deadline_s = now_s + chance.random() * 5
            opaque = table.register(deadline_s, token)
            assert opaque not in model
            assert -(1 << 31) <= opaque < 1 << 31
            model[opaque] = (deadline_s, token)
            token += 1
        elif action < 0.9 and model:
            opaque = chance.choice(list(model))
            found = table.resolve(answer(opaque))
            assert found == model.pop(opaque)[1]
            returned[found] += 1
        else:
            late = {t for deadline_s, t in model.values() if deadline_s <= now_s}
            found_late = table.expired(now_s)
            assert set(found_late) == late and len(found_late) == len(late)
            returned.update(found_late)
            model = {k: v for k, v in model.items() if v[1] not in late}
        assert len(table) == len(model)
        assert table.earliest_s <= min((d for d, _ in model.values()), default=NEVER)
    returned.update(table.fail_all())
    assert returned == Counter(range(token))
