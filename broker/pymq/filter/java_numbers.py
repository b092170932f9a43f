"""Numbers as Java reads and orders them, where Python does it another way.

A filter compares properties, which are strings, with numbers. Java's ``Integer.valueOf``,
``Long.valueOf`` and ``Double.valueOf`` decide which strings are numbers at all: ``int()`` and
``float()`` accept blanks, underscores and ``inf``, and know no ``1.5f`` and no ``0x1p3``.

Source: Java Integer.parseInt, Long.parseLong, FloatingDecimal.readJavaFormatString, Double.compare.
"""

import math
import re

INTEGER_BITS = 32
LONG_BITS = 64

# Digits of any script, but only those that are one UTF-16 unit.
_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_HEXADECIMAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
_BLANKS = "".join(map(chr, range(0x21)))  # what String.trim takes off


def java_whole(text: str, bits: int) -> int:
    """Return the number that an Integer (32 bits) or a Long (64 bits) makes of a string.

    Raises:
        ValueError: Java throws a NumberFormatException.
    """
    if not _WHOLE.fullmatch(text) or max(text) > "\uffff":
        raise ValueError(f"not a whole number: {text[:50]!r}")
    number = int(text)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"not a number of {bits} bits: {text[:50]!r}")
    return number


def java_double(text: str) -> float:
    """Return the number that a Double makes of a string, perhaps infinite or NaN.

    Raises:
        ValueError: Java throws a NumberFormatException.
    """
    trimmed = text.strip(_BLANKS)
    if _DECIMAL.fullmatch(trimmed):
        return float(trimmed.rstrip("fFdD"))
    hexadecimal = _HEXADECIMAL.fullmatch(trimmed)
    if not hexadecimal:
        raise ValueError(f"not a number: {text[:50]!r}")
    try:
        return float.fromhex(hexadecimal[1])
    except OverflowError:
        return -math.inf if trimmed.startswith("-") else math.inf


def order_of_doubles(left: float, right: float) -> int:
    """Return -1, 0 or 1: a total order, -0.0 below 0.0 and NaN above everything."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right and left:
        return 0
    return order_of_wholes(_rank(left), _rank(right))


def order_of_wholes(left: int, right: int) -> int:
    """Return -1, 0 or 1."""
    return (left > right) - (left < right)


def _rank(number: float) -> int:
    """Return a rank among -0.0, 0.0 and NaN, between which ``<`` does not tell."""
    if math.isnan(number):
        return 3
    if number:
        return 2
    return 0 if math.copysign(1, number) < 0 else 1
