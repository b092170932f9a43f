"""Structs as JSON: what Python makes of single rows, and what the source reads back."""

import base64
import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import LocalProtocolError
from pyspark_pymq.values.ddl import struct_of_ddl
from pyspark_pymq.values.json_decode import JsonDecoder
from pyspark_pymq.values.json_encode import encode_json
from pyspark_pymq.values.spark_types import arrow_type

DDL = (
    "a bigint, b string, c double, d boolean, e timestamp, f date, g decimal(38,10), h tinyint, "
    "i float, j array<int>, k struct<`x \"y\"`: int, y: array<struct<z string>>>, l timestamp_ntz, "
    "m map<string, array<string>>, n binary, o array<array<double>>, p array<map<string,int>>"
)
TYPE = arrow_type(struct_of_ddl(DDL))
TEXT = st.text(max_size=4) | st.sampled_from(
    ["", '"', "\\", "\x00\x1f\x7f", "a,b", "}{", "é日\U0001f600"]
)
TIMES = st.datetimes()
ROWS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "a": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "b": st.none() | TEXT,
        "c": st.floats(allow_nan=False, allow_infinity=False),
        "d": st.booleans(),
        "e": TIMES.map(lambda time: time.replace(tzinfo=datetime.timezone.utc)),  # noqa: UP017
        "f": st.dates(),
        "g": st.decimals(-(10**27), 10**27, places=10),
        "h": st.integers(-128, 127),
        "i": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "j": st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=3),
        "k": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                'x "y"': st.none() | st.integers(0, 9),
                "y": st.lists(
                    st.none() | st.fixed_dictionaries({"z": st.none() | TEXT}), max_size=2
                ),
            },
        ),
        "l": TIMES,
        "m": st.dictionaries(TEXT, st.none() | st.lists(st.none() | TEXT, max_size=2), max_size=2),
        "n": st.binary(max_size=4),
        "o": st.lists(st.none() | st.lists(st.floats(-1, 1), max_size=2), max_size=2),
        "p": st.lists(
            st.none() | st.dictionaries(TEXT, st.none() | st.integers(0, 9), max_size=2), max_size=2
        ),
    },
)


def naive(value: Any) -> Any:
    """Return what ``json.loads`` is to give."""
    match value:
        case dict():
            return {name: naive(v) for name, v in value.items() if v is not None}
        case list():
            return [naive(v) for v in value]
        case datetime.datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return text if value.tzinfo is None else f"{text}Z"
        case datetime.date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
    return value


def pythons(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as Arrow has it: maps are lists, and what is not there is null."""
    found = naive(row)
    if "m" in row:  # in maps null stays
        found["m"] = row["m"]
    if "p" in row:
        found["p"] = row["p"]
    return found  # type: ignore[no-any-return]


@given(st.lists(ROWS, max_size=12), st.integers(0, 3))
def test_rows_as_one_by_one_and_back(rows: list[dict[str, Any] | None], skipped: int) -> None:
    values = pa.array(rows, TYPE)[skipped:]
    rows = rows[skipped:]
    documents = encode_json(values, str)
    documents.validate(full=True)
    assert documents.type == pa.binary()
    for row, document in zip(rows, documents.to_pylist(), strict=True):
        if row is None:
            assert document is None
            continue
        found = json.loads(document, parse_float=Decimal)
        wanted = pythons(row)
        assert {name: v for name, v in found.items() if name not in "cio"} == {
            name: v for name, v in wanted.items() if name not in "cio"
        }
        assert list(found) == [name for name in "abcdefghijklmnop" if name in wanted]
    back = JsonDecoder(struct_of_ddl(DDL)).decode(documents)
    assert not back.bad
    assert repr(back.values.to_pylist()) == repr(values.to_pylist())


@pytest.mark.parametrize(
    ("ddl", "rows", "text"),
    [
        ("a double", [{"a": 1.0}, {"a": float("nan")}], "row 1: value.a is nan; JSON has no such"),
        ("a array<float>", [{"a": []}, {"a": [1.0, float("inf")]}], "row 1: value.a.element is"),
        (
            "a struct<b map<string,double>>",
            [None, {"a": {"b": {"x": 1.0}}}, {"a": {"b": {"x": 0.0, "y": float("-inf")}}}],
            "row 2: value.a.b.value is -inf",
        ),
        ("a timestamp", [{"a": 1 << 60}], "not in the years 1 to 9999"),
        ("a date", [{"a": 1 << 30}], "not in the years 1 to 9999"),
    ],
)
def test_rows_that_have_no_json(ddl: str, rows: list[Any], text: str) -> None:
    values = pa.array(rows, arrow_type(struct_of_ddl(ddl)))
    with pytest.raises(LocalProtocolError) as caught:
        encode_json(values, lambda row: f"row {row}")
    assert text in str(caught.value)


def test_large_types_are_written_as_the_small_ones() -> None:
    """What Spark hands over with spark.sql.execution.arrow.useLargeVarTypes."""
    small = [("s", pa.string()), ("b", pa.binary()), ("m", pa.map_(pa.string(), pa.binary()))]
    text, data = pa.large_string(), pa.large_binary()
    large = [("s", text), ("b", data), ("m", pa.map_(text, data))]
    rows = [
        {"s": 'green "tea"', "b": b"\xff\x00", "m": [("a\n", b"1"), ("b", None)]},
        {"s": None, "b": None, "m": None},
        None,
        {"s": "", "b": b"", "m": []},
    ]

    def documents(fields: list[tuple[str, pa.DataType]]) -> list[bytes | None]:
        kind = pa.struct([*fields, ("l", pa.list_(pa.struct(fields)))])
        nested = [None if row is None else {**row, "l": [row, None]} for row in rows]
        found: list[bytes | None] = encode_json(pa.array(nested, kind)[1:], str).to_pylist()
        return found

    assert documents(large) == documents(small)
    values = pa.StructArray.from_arrays([pa.array(["green tea"], text)], ["item"])
    assert encode_json(values, str).to_pylist() == [b'{"item":"green tea"}']


def test_values_under_a_null_are_not_looked_at() -> None:
    child = pa.array([1.0, float("nan")])
    mask = pa.array([False, True])
    inner = pa.StructArray.from_arrays([child], ["x"], mask=mask)
    values = pa.StructArray.from_arrays([inner], ["s"])
    assert encode_json(values, str).to_pylist() == [b'{"s":{"x":1}}', b"{}"]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), child, mask=mask)
    values = pa.StructArray.from_arrays([lists], ["l"])
    try:
        found = encode_json(values, str).to_pylist()
    except LocalProtocolError as error:  # what nobody sees is refused
        raise AssertionError(str(error)) from error
    assert found == [b'{"l":[1]}', b"{}"]


def test_no_rows() -> None:
    assert encode_json(pa.array([], TYPE), str).to_pylist() == []
    assert encode_json(pa.array([None], TYPE), str).to_pylist() == [None]
