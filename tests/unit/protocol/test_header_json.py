"""JSON of headers: with orjson and without it the same is read, written and refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.protocol.header_json import (
    dump_json,
    dump_json_slowly,
    parse_json,
    parse_json_slowly,
)

pytest.importorskip("orjson")


def values(integers: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | integers | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=12,
    )


def outcome(parse: Any, data: bytes) -> str:
    try:
        return repr(parse(data))
    except (ValueError, RecursionError) as error:
        return "refused" if isinstance(error, ValueError) else "too deep"


@given(values(st.integers(-(2**63), 2**63 - 1)), st.booleans(), st.text(" \t\r\n", max_size=3))
def test_every_json_is_read_alike(value: object, ascii_only: bool, blank: str) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    try:
        data = (blank + text + blank).encode()
    except UnicodeEncodeError:
        return
    assert outcome(parse_json, data) == outcome(parse_json_slowly, data)


@given(st.binary(max_size=60))
def test_what_is_not_json_is_refused_by_both(data: bytes) -> None:
    assert outcome(parse_json, data) == outcome(parse_json_slowly, data)


# No damage makes a number of more than 64 bits of these, which orjson reads as a float.
SMALL = st.integers(-(10**15), 10**15)


@given(values(SMALL), st.integers(0, 200), st.binary(min_size=1, max_size=2))
def test_damaged_json_is_judged_alike(value: object, at: int, damage: bytes) -> None:
    data = json.dumps({"code": 10, "extFields": value}).encode()
    at %= len(data)
    data = data[:at] + damage + data[at + 1 :]
    assert outcome(parse_json, data) == outcome(parse_json_slowly, data)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":"\\ud800"}',  # half a surrogate pair
        b'{"a":NaN,"b":-Infinity}',
        b'{"a":1,"a":2}',
        b'{"a":1} x',
        b'\xef\xbb\xbf{"a":1}',
        b"[" * 100_000,
        b"",
        b" ",
    ],
)
def test_what_orjson_refuses_the_standard_library_decides(data: bytes) -> None:
    assert outcome(parse_json, data) == outcome(parse_json_slowly, data)


TEXTS = st.text(st.characters())  # halves of surrogate pairs included


@given(st.dictionaries(TEXTS, st.integers() | TEXTS | st.dictionaries(TEXTS, TEXTS)))
def test_every_header_is_written_alike(header: dict[str, Any]) -> None:
    try:
        expected = dump_json_slowly(header)
    except UnicodeEncodeError:
        with pytest.raises(UnicodeEncodeError):
            dump_json(header)
        return
    assert dump_json(header) == expected
