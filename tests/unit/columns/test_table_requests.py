"""Tables as requests: whatever Arrow calls text; what lies beneath a null is not there."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pymq.columns.table_requests import TableRequest, TableRequests
from pymq.columns.unique_key_arrays import UniqueKeyArrays
from pymq.errors import LocalProtocolError
from pymq.protocol.batch_body import decode_batch
from pymq.protocol.message import decode_properties

ROWS = 4
VIEWS = pa.dictionary(pa.int8(), pa.string_view())


def requests(topic: str | None = "T", /, **columns: Any) -> TableRequests:
    return TableRequests(
        {"body": [b"%d" % n for n in range(ROWS)]} | columns,
        topic=topic,
        keys=UniqueKeyArrays(address=bytes(4), pid=1, salt=bytes(4)),
        month_ms=0,
        batch_bytes=1 << 20,
        message_bytes_max=1 << 20,
    )


def made(table: TableRequests) -> list[TableRequest]:
    table.topics()
    return [one for part in table.parts(lambda _: 4, lambda _: False) for one in part]


def properties(table: TableRequests) -> list[dict[str, str]]:
    """Return each row's properties without its id."""
    found: dict[int, dict[str, str]] = {}
    for request in made(table):
        assert isinstance(request.body, bytes)
        for row, (_, _, text) in zip(request.rows, decode_batch(request.body), strict=True):
            found[int(row)] = decode_properties(bytes(text))
            del found[int(row)]["UNIQ_KEY"]
    return [found[row] for row in range(ROWS)]


def hidden(text: str) -> pa.Array:
    """Return nulls beneath which there is text, as ``pc.if_else`` makes them, and one value."""
    is_shown = pa.array([True] + [False] * (ROWS - 1))
    values = pa.array(["shown"] + [text] * (ROWS - 1))
    found = pc.if_else(is_shown, values, pa.scalar(None, pa.string()))
    assert found.null_count == ROWS - 1 and text.encode() in found.buffers()[2].to_pybytes()
    return found


def test_hidden_sharding_keys_choose_no_queue() -> None:
    found = [
        (one.key_hash is None, one.rows.tolist())
        for one in made(requests(sharding_key=hidden("customer-7")))
    ]
    assert found == [(False, [0]), (True, [1, 2, 3])]


@pytest.mark.parametrize(
    ("column", "name"), [("tags", "TAGS"), ("keys", "KEYS"), ("sharding_key", "__SHARDINGKEY")]
)
def test_hidden_texts_are_neither_sent_nor_refused(column: str, name: str) -> None:
    assert properties(requests(**{column: hidden("a\x01||b")})) == [{name: "shown"}, {}, {}, {}]


def test_hidden_values_of_properties_are_neither_sent_nor_refused() -> None:
    maps = pa.MapArray.from_arrays(
        pa.array(range(ROWS + 1), pa.int32()), pa.array(["p"] * ROWS), hidden("\x02")
    )
    assert properties(requests(properties=maps)) == [{"p": "shown"}, {}, {}, {}]


@pytest.mark.parametrize("column", ["body", "tags", "keys", "sharding_key", "topic"])
def test_dictionaries_of_views(column: str) -> None:
    """Arrow cannot decode them; some tools make no others of categories."""
    texts = ["t", "unused", "u"]
    codes = pa.array([2, 0, 0, 0, 0, 2], pa.int8())[1:5]
    values = pa.DictionaryArray.from_arrays(codes, pa.array(texts, pa.string_view()))
    assert values.type == VIEWS
    table = requests(None if column == "topic" else "T", **{column: pa.chunked_array([values])})
    assert len(table) == ROWS
    (request,) = made(table)
    assert isinstance(request.body, bytes)
    assert request.topic == ("t" if column == "topic" else "T")
    if column == "body":
        assert {bytes(body) for _, body, _ in decode_batch(request.body)} == {b"t"}
    elif column != "topic":
        assert {value for one in properties(table) for value in one.values()} == {"t"}
    empty = requests(None, body=[], topic=pa.chunked_array([], VIEWS))
    assert empty.topics() == [] and made(empty) == []


def test_a_topic_that_is_not_utf_8_is_named() -> None:
    offsets = pa.py_buffer(np.array([0, 1, 2, 4, 5], np.int32))
    topic = pa.Array.from_buffers(pa.string(), ROWS, [None, offsets, pa.py_buffer(b"TT\xff\xfeT")])
    with pytest.raises(LocalProtocolError, match=r"row 2: topic b'\\xff\\xfe' is not UTF-8"):
        requests(None, topic=topic).topics()


def test_errors_show_text_that_is_not_utf_8() -> None:
    offsets = pa.py_buffer(np.array([0, 4, 4, 4, 4], np.int32))
    tags = pa.Array.from_buffers(pa.string(), ROWS, [None, offsets, pa.py_buffer(b"\xff||\xfe")])
    with pytest.raises(LocalProtocolError, match="row 0: tags '\ufffd"):
        made(requests(tags=tags))
    keys = pa.ListArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), tags)
    with pytest.raises(LocalProtocolError, match="row 1: key ''"):
        made(requests(keys=keys))
