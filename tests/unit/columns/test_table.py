"""Parts of tables: of bounded size wherever the large rows stand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pymq.columns import table as tables
from pymq.columns.table import pieces
from pymq.errors import LocalProtocolError

KINDS = [
    pa.binary(),
    pa.large_string(),
    pa.string_view(),
    pa.binary_view(),
    pa.dictionary(pa.int32(), pa.string()),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_large_rows_that_stand_together_are_cut(
    monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    """By their number alone they would be of one part, which Arrow may not be able to hold."""
    monkeypatch.setattr(tables, "BYTES_MAX", 10_000)
    bodies = ["t"] * 500 + ["x" * 4000] * 20 + ["y" * 30_000] + ["t"] * 300
    body = pa.array(bodies)
    chunks = [body[:510], body[510:515], body[515:]]
    if pa.types.is_dictionary(kind):
        chunks = [chunk.dictionary_encode() for chunk in chunks]
    table = pa.table({"body": pa.chunked_array([chunk.cast(kind) for chunk in chunks])})
    table = table.append_column("flag", pa.array(np.arange(len(table)), pa.int32()))
    found = list(pieces(table))
    assert sum([len(columns["body"]) for _, columns in found]) == len(table)
    end = 0
    for first, columns in found:
        assert first == end
        end += len(columns["body"])
        assert columns["body"].type == pa.binary()
        assert columns["body"].to_pylist() == [one.encode() for one in bodies[first:end]]
        assert columns["flag"].to_pylist() == list(range(first, end))
        lengths = [len(one) for one in bodies[first:end]]
        assert sum(lengths) <= 20_000 or len(lengths) == 1
    assert len(found) < 50


def test_a_dictionary_of_nothing() -> None:
    body = pa.array([None, None], pa.string()).dictionary_encode()
    with pytest.raises(LocalProtocolError, match="row 0: body is null or empty"):
        list(pieces(pa.table({"body": body})))


def test_a_dictionary_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part has all of it, however few of its values the part's rows are."""
    measured: list[int] = []

    def binary_length(values: Any) -> Any:
        measured.append(len(values))
        return pc.binary_length(values)

    counting = SimpleNamespace(**vars(pc) | {"binary_length": binary_length})
    monkeypatch.setattr(tables, "pc", counting)
    monkeypatch.setattr(tables, "ROWS_MAX", 100)
    values = pa.array([f"body {n}" for n in range(1000)])
    rows = np.arange(300, dtype=np.int32) * 3
    body = pa.DictionaryArray.from_arrays(pa.array(rows), values)
    found = list(pieces(pa.table({"body": body})))
    assert [first for first, _ in found] == [0, 100, 200]
    bodies = [one for _, columns in found for one in columns["body"].to_pylist()]
    assert bodies == [b"body %d" % n for n in rows]
    assert measured == [1000]


@pytest.mark.parametrize("of", [pa.ListArray, pa.LargeListArray], ids=lambda one: one.__name__)
def test_keys_beneath_a_null_list_are_not_looked_at(of: Any) -> None:
    offsets = pa.array([0, 1, 3], pa.int32() if of is pa.ListArray else pa.int64())

    def table(*keys: str | None) -> pa.Table:
        lists = of.from_arrays(offsets, pa.array(keys), mask=pa.array([True, False]))
        return pa.table({"body": [b"0", b"1"], "keys": lists})

    for keys, wanted in [(("bad key", "y", None), b"y"), (("x", "y", "z"), b"y z")]:
        ((_, found),) = pieces(table(*keys))
        joined = found["keys"].to_pylist()
        assert not joined[0] and joined[1] == wanted
        ((_, found),) = pieces(table(*keys).slice(1))
        assert found["keys"].to_pylist() == [wanted]
    with pytest.raises(LocalProtocolError, match="row 1: key 'bad key'"):
        list(pieces(table("x", "y", "bad key")))


def test_a_part_of_an_array_of_more_than_two_gib() -> None:
    """As of a frame of Polars, whose strings are one array of any size."""
    far = 1 << 31
    data = np.zeros(far + 3, np.uint8)  # memory that is not touched takes no room
    data[far:] = [97, 98, 99]
    offsets = np.array([far, far + 1, far + 3], np.int64)
    kinds = (pa.large_string(), pa.large_binary())
    for kind in kinds:
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        body = pa.Array.from_buffers(kind, 2, buffers)
        lists = pa.LargeListArray.from_arrays(pa.array([0, 1, 2]), body)
        columns = {"body": body, "tags": body} | ({"keys": lists} if kind == kinds[0] else {})
        ((_, found),) = pieces(pa.table(columns))
        wanted = [b"a", b"bc"]
        assert {name: column.to_pylist() for name, column in found.items()} == dict.fromkeys(
            columns, wanted
        )
        assert {column.type for column in found.values()} == {pa.binary()}
