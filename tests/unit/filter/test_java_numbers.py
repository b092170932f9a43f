"""Which strings are numbers, and how doubles are ordered, as in Java."""

import itertools
import math

import pytest

from pymq.filter.java_numbers import (
    INTEGER_BITS,
    LONG_BITS,
    java_double,
    java_whole,
    order_of_doubles,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [("5", 5), ("-5", -5), ("+5", 5), ("007", 7), ("٣٤", 34), ("-2147483648", -(1 << 31))],
)
def test_whole_numbers(text: str, number: int) -> None:
    assert java_whole(text, INTEGER_BITS) == number
    assert java_whole(text, LONG_BITS) == number


@pytest.mark.parametrize(
    "text",
    ["", "+", "-", " 5", "5 ", "5\n", "1_0", "5L", "5.0", "0x5", "--5", "\U0001d7d3", "9" * 5000],
)
def test_not_whole_numbers(text: str) -> None:
    with pytest.raises(ValueError):
        java_whole(text, LONG_BITS)


def test_ranges_of_whole_numbers() -> None:
    for bits in (INTEGER_BITS, LONG_BITS):
        assert java_whole(str((1 << bits - 1) - 1), bits) == (1 << bits - 1) - 1
        with pytest.raises(ValueError):
            java_whole(str(1 << bits - 1), bits)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("5", 5.0), ("-5.5", -5.5), ("5.", 5.0), (".5", 0.5), (" \t5\x00\n", 5.0)),
        *(("1e3", 1000.0), ("1E-3", 0.001), ("5f", 5.0), ("5.5D", 5.5), ("1e400", math.inf)),
        *(("Infinity", math.inf), ("-Infinity", -math.inf), ("0x1p3", 8.0), ("-0X.8P1f", -1.0)),
        *(("0x1.p0", 1.0), ("0x1p5000", math.inf), ("-0x1p5000", -math.inf), ("0x1p-5000", 0.0)),
    ],
)
def test_doubles(text: str, number: float) -> None:
    assert java_double(text) == number


def test_nan() -> None:
    assert math.isnan(java_double("NaN"))
    assert math.isnan(java_double("-NaN"))


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "e5", "1e", "inf", "nan", "infinity", "1_0", "5L", "0x10", "0xp1", "٣"),
        *("5\u00a0", "+-5", "NaNf", "1e5.5", "0x1p", "5 f"),
    ],
)
def test_not_doubles(text: str) -> None:
    with pytest.raises(ValueError):
        java_double(text)


def test_doubles_have_a_total_order() -> None:
    ranked = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan]
    for (one, left), (two, right) in itertools.product(enumerate(ranked), repeat=2):
        assert order_of_doubles(left, right) == (one > two) - (one < two)
