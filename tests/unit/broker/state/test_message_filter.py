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
