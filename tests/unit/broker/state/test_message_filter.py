"""Filters applied to many messages at a time: the same verdict as one by one, whatever is known."""

import random

import pytest

from pymq.broker.state.message_filter import MessageFilter
from pymq.filter.evaluate import compile_sql92
from pymq.protocol.message import decode_properties, encode_properties

EXPRESSIONS = (
    "a IS NULL AND TRUE", "a = '1'", "a > 5", "a > 5.0 OR b IS NOT NULL", "NOT (a = b)",
    "b IN ('x', 'y')", "abc = 'x' AND bc <> 'y'", "TRUE", "a BETWEEN 1 AND 3", "b CONTAINS 'x'",
)  # fmt: skip
VALUES = ("1", "2", "6", "5.5", "x", "y", "xy", "", "\u4e2d", "v" * 300)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_verdicts_are_those_of_single_messages(expression: str, seed: int) -> None:
    rng = random.Random(seed)
    compiled = compile_sql92(expression)
    errors: list[ValueError] = []
    many = MessageFilter(compiled, errors.append)
    for _ in range(60):
        names = rng.choice((("a", "b"), ("a",), ("abc", "bc", "c"), ("z",), ()))
        messages = []
        for _ in range(rng.randrange(1, 20)):
            chosen = {name: rng.choice(VALUES) for name in names if rng.random() < 0.8}
            text = "".join(f"{name}\x01{value}\x02" for name, value in chosen.items()).encode()
            messages.append(text.removesuffix(b"\x02") if rng.random() < 0.3 else text)
        expected = [compiled.matches(decode_properties(text)) for text in messages]
        assert many(messages) == expected
    if expression == "a > 5":
        assert errors


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymq.broker.state.message_filter._REMEMBERED_COUNT", 8)
    many = MessageFilter(compile_sql92("a > 5"))
    for number in range(100):
        assert many([encode_properties({"a": str(number)})]) == [number > 5]
        assert len(many._known) <= 8
    many = MessageFilter(compile_sql92("a = 'b'"))
    assert many([encode_properties({"a": "x" * 10_000})]) == [False]
    assert not many._known


def test_values_are_not_mistaken_for_names() -> None:
    many = MessageFilter(compile_sql92("a IS NULL"))
    assert many([b"b\x01a\x02", b"ba\x01x\x02", b"a\x01x\x02", b"", b"b\x01\x02a\x01y"]) == [
        True, True, False, True, False,
    ]  # fmt: skip


class Work:
    """The time that this thread has used, as a test has it pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr("pymq.broker.state.message_filter.thread_time", self.read)
        self.reads = 0

    def read(self) -> float:
        self.reads += 1
        return self.now_s


def numbered(count: int) -> list[bytes]:
    return [encode_properties({"n": f"x{number}"}) for number in range(count)]


def test_a_filter_that_takes_long_decides_a_few_messages_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Work(monkeypatch)
    many = MessageFilter(compile_sql92(" OR ".join(f"'x{number}' = n" for number in range(4_000))))
    select = many.compiled.select

    def slow_select(properties: dict[str, str]) -> bool:
        work.now_s += 0.0015
        return select(properties)

    class Slow:
        names, expression, weight = many.compiled.names, "", many.compiled.weight

        def select(self, properties: dict[str, str]) -> bool:
            return slow_select(properties)

    many.compiled = Slow()  # type: ignore[assignment]
    messages = numbered(40)
    verdicts: list[bool] = []
    while len(verdicts) < len(messages):
        assert not many.slow_ms or len(verdicts) >= 32
        found = many(messages[len(verdicts) :])
        assert 1 <= len(found) <= 2
        verdicts += found
    assert verdicts == [True] * 40
    assert many.slow_ms == pytest.approx(1.5)


def test_a_usual_filter_decides_all_of_them_without_a_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Work(monkeypatch)
    many = MessageFilter(compile_sql92("n = 'x1' OR n CONTAINS '7' AND m IS NULL"))
    assert len(many(numbered(256))) == 256
    assert (work.reads, many.slow_ms) == (0, 0.0)
