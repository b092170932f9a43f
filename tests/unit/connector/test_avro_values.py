"""Avro datums: what fastavro itself makes of the original schema, and what Spark's types are."""

import contextlib
import datetime
import io
import json
import sys
from decimal import Decimal
from typing import Any

import fastavro
import fastavro.schema
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import ConfigurationError, LocalProtocolError
from pyspark_pymq.values.avro_types import plan_of
from pyspark_pymq.values.avro_values import AvroDecoder, AvroEncoder, check_avro
from pyspark_pymq.values.spark_types import arrow_type

UTC = datetime.timezone.utc  # noqa: UP017


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    pairs = [{"name": field, "type": kind} for field, kind in fields]
    return {"type": "record", "name": name, "fields": pairs, **more}


def decoder(schema: Any) -> AvroDecoder:
    text = json.dumps(schema)
    return AvroDecoder(text, arrow_type(check_avro(text).spark_type))


def datum(schema: Any, value: Any) -> bytes:
    """Return what fastavro writes with the schema as it stands."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("kind", "spark_type", "nullable"),
    [
        ("int", "int", False),
        ("null", "void", True),
        ({"type": "null"}, "void", True),
        ({"type": "map", "values": "null"}, "map<string,void>", False),
        (["null", "string"], "string", True),
        (["string", "null"], "string", True),
        (["string"], "string", False),
        (["null"], "void", True),
        (["int", "long"], "bigint", False),
        (["null", "double", "float"], "double", True),
        (["int", "string"], "struct<member0:int,member1:string>", False),
        (["int", "null", "string"], "struct<member0:int,member1:string>", True),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string", False),
        ({"type": "fixed", "name": "F", "size": 4}, "binary", False),
        ({"type": "array", "items": ["null", "bytes"]}, "array<binary>", False),
        ({"type": "map", "values": "float"}, "map<string,float>", False),
        ({"type": "int", "logicalType": "date"}, "date", False),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp", False),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp", False),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "timestamp_ntz", False),
        ({"type": "long", "logicalType": "time-micros"}, "bigint", False),
        ({"type": "int", "logicalType": "time-millis"}, "int", False),
        ({"type": "string", "logicalType": "uuid"}, "string", False),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3}, None, False),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 3}, "binary", False),
    ],
)
def test_types_are_those_of_from_avro(kind: Any, spark_type: str | None, nullable: bool) -> None:
    plan = check_avro(json.dumps(record(("x", kind))))
    field = plan.spark_type["x"]  # type: ignore[index]
    assert field.dataType.simpleString() == (spark_type or "decimal(38,3)")
    assert field.nullable is nullable


MEMBERS = record(("q", "long"), name="Part", namespace="deep")
EVERYTHING = record(
    ("union", ["null", "int", "string", MEMBERS, {"type": "map", "values": "bytes"}]),
    ("again", ["deep.Part", "null"]),
    ("parts", {"type": "map", "values": ["null", "deep.Part"]}),
    ("number", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}),
    (
        "fixed_number",
        {"type": "fixed", "name": "N", "size": 5, "logicalType": "decimal", "precision": 11},
    ),
    ("ms", {"type": "long", "logicalType": "timestamp-millis"}),
    ("never", "null"),
    ("nevers", {"type": "map", "values": {"type": "null"}}),
    ("us", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
    ("local", {"type": "long", "logicalType": "local-timestamp-millis"}),
    ("days", {"type": "array", "items": {"type": "int", "logicalType": "date"}}),
    ("colour", {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}),
    ("wide", ["float", "double"]),
    ("whole", ["null", "int", "long"]),
    ("nested", {"type": "array", "items": {"type": "array", "items": ["null", "string"]}}),
    ("id", {"type": "fixed", "name": "Id", "size": 3}),
    name="a.b.Everything",
)
MS = st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2200, 1, 1)).map(
    lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)
)
PARTS = st.fixed_dictionaries({"q": st.integers(-(1 << 63), (1 << 63) - 1)})
UNIONS = st.one_of(
    st.none(),
    st.fixed_dictionaries({"member0": st.integers(-(1 << 31), (1 << 31) - 1)}),
    st.fixed_dictionaries({"member1": st.text(max_size=3)}),
    st.fixed_dictionaries({"member2": PARTS}),
    st.fixed_dictionaries({"member3": st.dictionaries(st.text(max_size=2), st.binary())}),
)
ROWS = st.fixed_dictionaries(
    {
        "union": UNIONS,
        "again": st.none() | PARTS,
        "parts": st.dictionaries(st.text(max_size=2), st.none() | PARTS, max_size=2),
        "number": st.decimals(-(10**35), 10**35, places=2),
        "fixed_number": st.integers(-(10**11) + 1, 10**11 - 1).map(Decimal),
        "ms": MS.map(lambda time: time.replace(tzinfo=UTC)),
        "never": st.none(),
        "nevers": st.dictionaries(st.text(max_size=2), st.none(), max_size=2),
        "us": st.none() | st.datetimes().map(lambda time: time.replace(tzinfo=UTC)),
        "local": MS,
        "days": st.lists(st.dates(), max_size=2),
        "colour": st.sampled_from(["RED", "GREEN"]),
        "wide": st.floats(allow_nan=False),
        "whole": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "nested": st.lists(st.lists(st.none() | st.text(max_size=2), max_size=2), max_size=2),
        "id": st.binary(min_size=3, max_size=3),
    }
)


def as_fastavro(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as fastavro reads it with the schema as it stands."""
    union = row["union"]
    return row | {"union": None if union is None else next(iter(union.values()))}


@given(st.lists(st.none() | ROWS, max_size=8), st.data())
def test_as_fastavro_and_back(rows: list[dict[str, Any] | None], data: st.DataObject) -> None:
    text = json.dumps(EVERYTHING)
    kind = arrow_type(check_avro(text).spark_type)
    values = pa.array(rows, kind)
    bodies = AvroEncoder(text).encode(values, str)
    bodies.validate(full=True)
    parsed = fastavro.parse_schema(EVERYTHING)
    for row, body in zip(rows, bodies.to_pylist(), strict=True):
        if row is None:
            assert body is None
            continue
        stream = io.BytesIO(body)
        assert fastavro.schemaless_reader(stream, parsed) == as_fastavro(row)
        assert stream.tell() == len(body)
    found = AvroDecoder(text, kind).decode(bodies)
    found.values.validate(full=True)
    assert not found.bad and found.values.equals(values)
    if rows and (body := bodies.to_pylist()[0]):  # what is cut off is found out
        cut = body[: data.draw(st.integers(0, len(body) - 1))]
        some = pa.array([body, cut, body, body + b"\0", None, body], pa.binary())
        found = AvroDecoder(text, kind).decode(some)
        assert list(found.bad) == [1, 3]
        first = values[0].as_py()
        assert found.values.to_pylist() == [first, None, first, None, None, first]
        assert "goes on after" in found.bad[3]


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_junk_is_bad_or_a_datum(bodies: list[bytes]) -> None:
    found = decoder(record(("a", ["null", "string"]), ("b", "bytes"), ("c", "double"))).decode(
        pa.array(bodies, pa.binary())
    )
    assert len(found.values) == len(bodies)
    for place, value in enumerate(found.values.to_pylist()):
        assert (value is None) is (place in found.bad)


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("kind", "good", "bad", "reason"),
    [
        ("string", b"\x06abc", b"\x01abc", "ends too soon"),
        ("bytes", b"\x00", b"\x0fabc", "ends too soon"),
        ({"type": "map", "values": "int"}, b"\x00", b"\x02\x01a\x02\x00", "ends too soon"),
        (ENUM, b"\x02", b"\x01", "index -1"),
        (ENUM, b"\x00", b"\x03", "index -2"),
        (ENUM, b"\x00", b"\x04", "IndexError"),
        (["null", "int"], b"\x02\x04", b"\x01\x04", "index -1"),
        (["null", "int"], b"\x00", b"\x03", "index -2"),
        (["null", ENUM], b"\x02\x02", b"\x02\x01", "index -1"),
        (["int", "null", "string"], b"\x04\x02a", b"\x01\x02a", "index -1"),
        ({"type": "array", "items": ["null", "int"]}, b"\x02\x00\x00", b"\x02\x03\x00", "index"),
        ({"type": "map", "values": ENUM}, b"\x00", b"\x02\x02a\x01\x00", "index -1"),
    ],
)
def test_what_is_negative_is_bad(kind: Any, good: bytes, bad: bytes, reason: str) -> None:
    """Python would count from the end, or read all that there is."""
    decode = decoder(record(("x", kind))).decode
    for bodies in ([good, bad], [bad, good], [bad], [b"", bad]):
        found = decode(pa.array(bodies, pa.binary()))
        assert set(found.bad) == {at for at, body in enumerate(bodies) if body != good}
        assert reason in found.bad[bodies.index(bad)]
        assert all(found.values[at].as_py() is None for at in found.bad)


def test_single_object_encoding() -> None:
    schema = record(("id", "long"), ("name", "string"), name="x.Y", doc="not part of the form")
    bare = datum(schema, {"id": -98, "name": "é"})
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    print_ = bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
    # Avro's specification: CRC-64-AVRO of "int" is 7275d51a3f395c8f, low bytes first.
    known = fastavro.schema.fingerprint('"int"', "CRC-64-AVRO")
    assert bytes.fromhex(known)[::-1].hex() == "7275d51a3f395c8f"
    bodies = [bare, b"\xc3\x01" + print_ + bare, b"\xc3\x01" + bytes(8) + bare]
    found = decoder(schema).decode(pa.array(bodies))
    value = {"id": -98, "name": "é"}
    assert found.values.to_pylist() == [value, value, None]
    assert f"has the fingerprint {bytes(8).hex()}, expected {print_.hex()}" in found.bad[2]
    # A datum may begin like that by itself: -98 as a long is c3 01.
    assert bare.startswith(b"\xc3\x01")


def test_values_too_large_for_their_type() -> None:
    plain = record(("n", "bytes"), ("t", "long"), ("d", "int"))
    logical = record(
        ("n", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}),
        ("t", {"type": "long", "logicalType": "timestamp-millis"}),
        ("d", {"type": "int", "logicalType": "date"}),
    )
    bodies = [
        datum(plain, {"n": n, "t": t, "d": 1})
        for n, t in ((b"\x01\x00", 1), (b"\x7f\xff", 1), (b"", 1 << 62), (bytes(30) + b"\x05", 2))
    ]
    found = decoder(logical).decode(pa.array(bodies))
    assert list(found.bad) == [1, 2]
    assert [value and value["n"] for value in found.values.to_pylist()] == [
        Decimal("2.56"), None, None, Decimal("0.05")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("long", None, "row 1: value does not fit the schema: value.x is null"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "'B'"),
        ({"type": "fixed", "name": "F", "size": 2}, b"abc", "of length 3 does not match"),
        ({"type": "array", "items": "int"}, [1, None], "value.x.element is null"),
        (["int", "string"], {"member0": 1, "member1": "a"}, "2 are not null, expected exactly one"),
        (["int", "string"], {"member0": None}, "0 are not null, expected exactly one"),
    ],
)
def test_rows_that_do_not_fit(kind: Any, value: Any, text: str) -> None:
    schema = json.dumps(record(("x", kind)))
    values = pa.array([None, {"x": value}], arrow_type(check_avro(schema).spark_type))
    with pytest.raises(LocalProtocolError) as caught:
        AvroEncoder(schema).encode(values, lambda row: f"row {row}")
    assert "row 1: value" in str(caught.value) and text in str(caught.value)


def test_milliseconds_drop_what_is_less() -> None:
    schema = json.dumps(record(("t", {"type": "long", "logicalType": "timestamp-millis"})))
    kind = arrow_type(check_avro(schema).spark_type)
    values = pa.array([{"t": 1_999}, {"t": -1}], kind)
    bodies = AvroEncoder(schema).encode(values, str)
    back = AvroDecoder(schema, kind).decode(bodies).values
    assert back.field("t").cast(pa.int64()).to_pylist() == [1_000, -1_000]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("{", "not JSON"),
        ('"string"', "expected a record"),
        ({"type": "record", "name": "R", "fields": []}, "record R has no fields"),
        (record(("x", "lng")), "value.x: there is no type 'lng'"),
        (record(("x", ["null", "R"])), "value.x: type R has itself as a part"),
        (record(("x", {"type": "array", "items": "null"})), "value.x.element takes no bytes"),
        (
            record(("x", {"type": "array", "items": record(("y", "null")) | {"name": "E"}})),
            "value.x.element takes no bytes",
        ),
        (
            record(("x", {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}})),
            "value.x.element takes no bytes",
        ),
        (record(("x", {"type": "array"})), "value.x.element: None is not a type"),
        (record(("x", {"type": "enum", "symbols": ["A"]})), "value.x: a enum has no name"),
        ({"type": "record", "name": "R", "fields": [{"name": "x"}]}, "is not a field"),
    ],
)
def test_schemas_that_are_wrong(schema: Any, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        plan_of(schema if isinstance(schema, str) else json.dumps(schema))
    assert text in str(caught.value)


JUNK = st.recursive(
    st.none()
    | st.integers(-1, 3)
    | st.sampled_from(["int", "null", "record", "enum", "fixed", "array", "map", "R", "x.y", ""]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["type", "name", "items", "values", "symbols", "size", "fields", "logicalType"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)


@given(JUNK)
def test_junk_schemas_raise_what_options_expect(junk: Any) -> None:
    with contextlib.suppress(ValueError):
        check_avro(json.dumps(record(("x", junk))))


def test_without_fastavro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigurationError, match="pip install fastavro, here and on every"):
        check_avro(json.dumps(record(("x", "int"))))


def test_no_rows() -> None:
    found = decoder(record(("x", "int"))).decode(pa.array([], pa.binary()))
    assert len(found.values) == 0 and not found.bad
