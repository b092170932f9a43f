"""JSON bodies: whole batches as one by one, on documents of all kinds."""

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_pymq.values import json_decode, json_rows
from pyspark_pymq.values.ddl import struct_of_ddl
from pyspark_pymq.values.decoded import Decoded
from pyspark_pymq.values.json_decode import JsonDecoder
from pyspark_pymq.values.spark_types import arrow_type

TYPE = struct_of_ddl(
    "a bigint, b string, c double, d boolean, e timestamp, f date, g decimal(6,2), h tinyint, "
    "i float, j array<int>, k struct<x int, y: array<struct<z string>>, v array<decimal(6,2)>>, "
    "l timestamp_ntz, m decimal(38,18), n array<decimal(38,38)>"
)


def decode(*bodies: bytes | None, ddl: str | None = None) -> Decoded:
    kind = TYPE if ddl is None else struct_of_ddl(ddl)
    found = JsonDecoder(kind).decode(pa.array(bodies, pa.binary()))
    found.values.validate(full=True)
    assert found.values.type.equals(arrow_type(kind)) and len(found.values) == len(bodies)
    return found


def naive(bodies: list[bytes | None]) -> tuple[pa.Array, dict[int, str]]:
    convert = json_rows.converter(TYPE, "value")
    found, bad = [], {}
    for place, body in enumerate(bodies):
        value = None
        try:
            value = None if body is None else json_rows.read_document(body, convert)
        except json_rows.Misfit as error:
            bad[place] = str(error)
        found.append(value)
    return pa.array(found, arrow_type(TYPE)), bad


def pretty(value: Any) -> bytes:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text.encode(errors="surrogatepass")


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.integers(-200, 200),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=5),
    st.sampled_from(
        [
            "2024-02-29", "2023-02-29", "0000-01-01", "2024-01-01T25:00:00Z", "9999-12-31",
            "2024-02-29T12:30:00Z", "2024-02-29 12:30", "2024-02-29T12:30:00.123456+02:00",
            "2024-02-29T12:30:00.123456789Z", "2024-02-29T12:30:60Z", "0001-01-01T00:00:00+01:00",
            "2024-02-29T12:30:00-0530", "9999-12-31T23:59:59-01", "2024-02-29T12", "2024-1-1",
            "2024-02-29T12:30:00Z\n", "2024-02-29\n", "2024-02-29T24:00:00",
            "2024-02-29T12:60:00", "2024-02-29T12:30:00.Z", "0000-12-31T23:59:59-01:00",
            "0000-12-31T23:59", "0010-01-01T00:00:00Z", "1.25", "+1.5",
            ".5", "5.", "1e2", "1_0", "12345.6", "0.005", "0.500", "Infinity", "nan", " 1", "1 ",
            "9999.99", "9999.995", "10000", "1e4", "1e-2", "100e-3", "-0", "\ud83d\ude00",
        ]
    ),
)  # fmt: skip
NAMES = st.sampled_from([*"abcdefghijklm", *"xyz"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=6,
)
#: Around the largest numbers of decimal(6,2), in all ways of writing them.
DECIMALS = st.builds(
    lambda number, write: write(number),
    st.integers(9_990, 10_010) | st.sampled_from([10**5, 10**6, 10**36]),
    st.sampled_from([int, str, float, "{:e}".format, "-{}.00".format]),
)
FITTING = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-(1 << 63), (1 << 63) - 1),
        "b": st.text(max_size=4),
        "c": st.floats(allow_nan=False, allow_infinity=False),
        "d": st.booleans(),
        "e": st.sampled_from(["2024-02-29T12:30:00Z", "2024-02-29T12:30:00.5+01:00"]),
        "f": st.dates().map(str),
        "g": st.decimals(-20_000, 20_000, places=2).map(float) | DECIMALS,
        "h": st.integers(-128, 127),
        "i": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "j": st.lists(st.none() | st.integers(-9, 9), max_size=3),
        "k": st.fixed_dictionaries({"x": st.none() | st.integers(0, 9)}),
        "l": st.sampled_from(["2024-02-29T12:30:00", "2024-02-29", None]),
        "m": st.integers(-(10**40), 10**40) | st.integers(10**20 - 9, 10**20 + 9).map(str),
        "n": st.lists(st.none() | st.floats(-2, 2) | st.integers(-999, 999), max_size=2),
        "more": VALUES,
    },
)
SPECIAL = [
    b"", b"{}", b" {} \n", b"null", b"[]", b"{}{}", b"{", b"}", b'{"a":1}\n{"a":2}', b"{}}",
    b'{"b":"}', b'{"b":"\n"}', b'{"b":"\\ud800"}', b'{"z":"\\ud800"}', b'{"b":"\xff"}',
    b'{"z":"\xff"}', b"{}\0{}", b'{"a":1,"a":2}', b'{"a":null,"a":2}', b'{"a":1,"a":null}',
    b'{"z":NaN}', b'{"z":-Infinity}', b'{"b":"NaN"}', b'{"c":1e400}', b'{"c":1e-400}',
    b'{"z":1e400}', b'{"a":01}', b'{"a":-0}', b'{"c":-0}', b'{"i":1e39}', b'{"i":0.1}',
    b'{"i":3.4028235677973366e38}', b'{"i":1.00000005960464477539062500000000001}',
    b'{"g":1e1}', b'{"g":1.250}', b'{"g":0.0000}', b'{"g":1e-2}', b'{"g":0e99}',
    b'{"g":1e99999999}', b'{"g":10000}', b'{"g":1e4}', b'{"g":"1e4"}', b'{"g":-9999.99}',
    b'{"m":400000000000000000000}', b'{"m":4e20}', b'{"m":"-4e20"}', b'{"n":[0,123.456]}',
    b'{"m":115792089237316195423570985008687907853}', b'{"m":99999999999999999999.5}',
    b'{"m":' + b"9" * 77 + b"}", b'{"m":' + b"3" * 120 + b"}", b'{"m":1e58}', b'{"m":1e59}',
    b'{"m":%d}' % (1 << 238), b'{"m":-%d}' % (1 << 237), b'{"n":[-%d]}' % (1 << 217),
    b'{"m":0.' + b"0" * 70 + b"}", b'{"m":1.' + b"0" * 100 + b"}", b'{"m":1e-59}',
    b'{"k":{"v":[10000]}}', b'{"c":1.7976931348623159e308}', b'{"c":-1.7976931348623157e308}',
    b'{"e":"0000-12-31T23:59:59-01:00"}', b'{"h":128}', b'{"a":1.0}', b'{"a":9223372036854775808}',
    b'{"a":"1"}', b'{"b":1.50}', b'{"b":true}', b'{"b":{}}', b'{"\\u0061":7}', b"\xef\xbb\xbf{}",
    b'{"k":{"x":1,"x":2}}', b'{"k":null}', b'{"k":[]}', b'{"j":{}}', b'{"a":1} // x',
    b'{"a":1,}', b'{"z":' + b"[" * 399 + b"]" * 399 + b"}",
    b'{"z":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"z":"' + b"[" * 5000 + b'"}',
    b'{"a":' + b"1" * 5000 + b"}", b'\x0b{"a":1}', b'\xa0{}', b"{\x0c}",
]  # fmt: skip
TEXTS = st.one_of(
    FITTING.map(json.dumps).map(str.encode),
    FITTING.map(lambda value: pretty(value)),
    st.dictionaries(NAMES, VALUES, max_size=5).map(json.dumps).map(str.encode),
    st.binary(max_size=6),
    st.sampled_from(SPECIAL),
    st.none(),
)


@given(st.lists(TEXTS, max_size=30))
@example([b'{"a":1}{"a":2}', b"{\n}", b"\0}", b'{"a":3}'])
@example([b'{"b":"}', b'{"b":"}', b"{}{}"])
@example([b"\t"])
@example([b"{}", b"\n{x}"])
def test_batches_as_one_by_one(bodies: list[bytes | None]) -> None:
    found = decode(*bodies)
    values, bad = naive(bodies)
    assert repr(found.values.to_pylist()) == repr(values.to_pylist())
    assert found.bad == bad


def test_each_special_document_alone_and_among_others() -> None:
    for body in SPECIAL:
        for bodies in ([body], [b'{"a":1}', body, b'{"a":2}']):
            values, bad = naive(bodies)
            found = decode(*bodies)
            assert repr(found.values.to_pylist()) == repr(values.to_pylist()), body
            assert found.bad == bad, body


def test_the_usual_is_read_by_arrow(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Of a large batch with some bad documents only those parts are read one by one."""
    source = random.Random(seed)
    bodies = [b'{"a": %d, "e": "2024-02-29T12:30:00Z"}\n' % n for n in range(10_000)]
    bad = sorted(source.sample(range(10_000), 3))
    for place in bad:
        bodies[place] = b'{"a": "x"}'
    slow = 0
    read = json_rows.read_document

    def counted(*arguments: Any) -> Any:
        nonlocal slow
        slow += 1
        return read(*arguments)

    monkeypatch.setattr(json_rows, "read_document", counted)
    found = decode(*bodies)
    assert list(found.bad) == bad and slow <= 3 * json_decode.ROWS_MIN
    assert [value["a"] for value in found.values.to_pylist() if value] == [
        n for n in range(10_000) if n not in bad
    ]


def test_maps_and_base64() -> None:
    ddl = "m map<string, array<int>>, b binary"
    found = decode(b'{"m":{"x":[1,null],"y":null},"b":"AP8="}', b'{"b":"?"}', None, ddl=ddl)
    assert found.values.to_pylist() == [
        {"m": [("x", [1, None]), ("y", None)], "b": b"\0\xff"}, None, None
    ]  # fmt: skip
    assert found.bad == {1: "value.b is the string '?', expected a string in base64"}
    assert decode(ddl=ddl).values.to_pylist() == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON: Expecting value"),
        (b"[1]", "value is an array, expected an object"),
        (b"null", "null, expected an object"),
        (b'{"a":"1"}', "value.a is the string '1', expected a whole number"),
        (b'{"h":300}', "value.h is the number 300, expected one of 8 bits"),
        (b'{"g":1.255}', "value.g is the number 1.255, expected at most 4 digits before and 2"),
        (b'{"k":{"y":[{"z":[]}]}}', "value.k.y.element.z is an array, expected a string"),
        (b'{"b":"\xc3"}', "not UTF-8: invalid continuation byte at byte 6"),
        (b'{"c":NaN}', "NaN is not JSON"),
        (b'{"e":5}', "value.e is the number 5, expected a time such as"),
        (b'{"i":1e39}', "value.i is the number 1e39, expected one in the range of float"),
        (b'{"i":-3.4028235677973366e38}', "value.i is the number -3.4028235677973366e38, expected"),
        (b'{"c":1e400}', "value.c is the number 1e400, expected one in the range of double"),
    ],
)
def test_reasons(body: bytes, reason: str) -> None:
    (found,) = decode(body).bad.values()
    assert found.startswith(reason)


def test_a_number_too_large_for_a_float_is_bad_wherever_it_is() -> None:
    """Neither infinite nor null: an infinite one could not be written as JSON again."""
    ddl = "f float, l array<float>, s struct<f float>, m map<string, float>"
    largest = b"3.4028234663852886e38"
    for number, is_bad in ((largest, False), (b"1e39", True), (b"-1e39", True)):
        bodies = [b % number for b in (b'{"f":%s}', b'{"l":[1,%s]}', b'{"s":{"f":%s}}')]
        for some in (bodies, [*bodies, b'{"m":{"k":%s}}' % number], [*bodies, b'{"f":0.5}'] * 99):
            kind = ddl if b"m" in some[-1] else ddl.partition(", m ")[0]
            found = decode(*some, ddl=kind)
            bad = [place for place, body in enumerate(some) if is_bad and number in body]
            assert list(found.bad) == bad
            assert all("expected one in the range of float" in text for text in found.bad.values())
            assert "inf" not in repr(found.values.to_pylist())
