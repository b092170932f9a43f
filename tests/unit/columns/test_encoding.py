"""Arrow columns -> batch bodies, against the codec of one batch at a time."""

import random

import pyarrow as pa
import pytest

from pymq.columns.encoding import Encoded, Messages, encode_messages
from pymq.columns.unique_key_arrays import UniqueKeyArrays
from pymq.errors import LocalProtocolError
from pymq.protocol.batch_body import decode_batch
from pymq.protocol.message import decode_properties
from pymq.protocol.preencoded_records import unpack_sizes
from pymq.protocol.record import Record, decode_records
from pymq.protocol.records_body import RecordsBody

MAP = pa.map_(pa.string(), pa.string())


def keys() -> UniqueKeyArrays:
    salt = bytes.fromhex("30946E09")
    return UniqueKeyArrays(address=bytes((127, 0, 0, 1)), pid=0x49B5, salt=salt)


def messages(message_bytes_max: int = 1 << 20, **columns: pa.Array) -> Messages:
    return encode_messages(
        columns,
        keys(),
        month_ms=0x65202251,
        message_bytes_max=message_bytes_max,
        place="row {}".format,
    )


def encode(message_bytes_max: int = 1 << 20, **columns: pa.Array) -> Encoded:
    return messages(message_bytes_max, **columns).entries()


def binary(*values: str | bytes | None) -> pa.Array:
    return pa.array([v.encode() if isinstance(v, str) else v for v in values], pa.binary())


def decoded(entries: Encoded) -> list[tuple[bytes, dict[str, str]]]:
    found = decode_batch(entries.text.tobytes())
    assert all(flag == 0 for flag, _, _ in found)
    return [(bytes(body), decode_properties(text)) for _, body, text in found]


def without_ids(entries: Encoded) -> list[tuple[bytes, dict[str, str]]]:
    found = decoded(entries)
    for _, properties in found:
        del properties["UNIQ_KEY"]
    return found


def test_bytes_of_one_entry() -> None:
    entries = encode(body=binary("b0"), tags=binary("tagA"), keys=binary("k1"))
    text = b"TAGS\x01tagA\x02KEYS\x01k1\x02UNIQ_KEY\x017F00000149B530946E09652022510000\x02"
    size = 22 + 2 + len(text)
    wanted = (
        size.to_bytes(4, "big")
        + bytes(12)
        + b"\0\0\0\x02b0"
        + len(text).to_bytes(2, "big")
        + text
    )
    assert entries.text.tobytes() == wanted
    assert entries.start.tolist() == [0, size]


def test_rows_without_tags_keys_or_properties() -> None:
    entries = encode(
        body=binary("a", b"", "c", "d"),
        tags=binary("T", None, "", "é"),
        keys=binary(None, "k", None, ""),
        properties=pa.array(
            [[("x", "1"), ("y", None)], None, [], [("z", ""), ("", "v"), ("w", "2")]], MAP
        ),
    )
    assert without_ids(entries) == [
        (b"a", {"TAGS": "T", "x": "1"}),
        (b"", {"KEYS": "k"}),
        (b"c", {}),
        (b"d", {"TAGS": "é", "w": "2"}),
    ]


def test_columns_come_before_what_the_map_says() -> None:
    maps = pa.array([[("TAGS", "old"), ("KEYS", "k"), ("a", "b")]] * 2, MAP)
    entries = encode(body=binary("x", "y"), tags=binary("new", None), properties=maps)
    assert without_ids(entries) == [
        (b"x", {"TAGS": "new", "KEYS": "k", "a": "b"}),
        (b"y", {"KEYS": "k", "a": "b"}),
    ]


def test_an_id_in_the_map_is_kept() -> None:
    maps = pa.array([[("UNIQ_KEY", "mine"), ("a", "b")], [("a", "b")]], MAP)
    first, second = decoded(encode(body=binary("x", "y"), properties=maps))
    assert first[1] == {"UNIQ_KEY": "mine", "a": "b"}
    assert len(second[1]["UNIQ_KEY"]) == 32


def test_a_slice_of_a_larger_batch() -> None:
    maps = pa.array([[("n", str(n)), ("m", "x" * n)] for n in range(20)], MAP)
    body = binary(*(f"body {n}" for n in range(20)))
    entries = encode(body=body.slice(5, 3), properties=maps.slice(5, 3))
    assert without_ids(entries) == [
        (b"body %d" % n, {"n": str(n), "m": "x" * n}) for n in (5, 6, 7)
    ]


def test_what_is_beneath_a_null_map_is_not_sent() -> None:
    """Arrow arrays may have entries there, which nobody sees."""
    offsets = pa.array([0, 1, 2, 3], pa.int32())
    maps = pa.MapArray.from_arrays(
        offsets, ["a", "DELAY", "b"], ["1", "2", "3"], mask=pa.array([True, True, False])
    )
    assert maps.to_pylist() == [None, None, [("b", "3")]]
    assert without_ids(encode(body=binary("x", "y", "z"), properties=maps)) == [
        (b"x", {}),
        (b"y", {}),
        (b"z", {"b": "3"}),
    ]
    later = encode(body=binary("y", "z"), properties=maps[1:])
    assert without_ids(later) == [(b"y", {}), (b"z", {"b": "3"})]


def test_random_rows(seed: int) -> None:
    source = random.Random(seed)

    def text() -> str:
        return "".join(source.choices("abé标 ", k=source.randrange(1, 9)))

    rows = []
    for _ in range(300):
        names = {text() for _ in range(source.randrange(4))}
        rows.append((source.randbytes(source.randrange(200)), {name: text() for name in names}))
    maps = pa.array([list(properties.items()) for _, properties in rows], MAP)
    entries = encode(body=binary(*(body for body, _ in rows)), properties=maps)
    assert without_ids(entries) == rows


def test_requests_are_cut_between_entries() -> None:
    entries = encode(body=binary(*(bytes(n) for n in range(100))))
    requests = list(entries.requests(10, 90, bytes_max=500))
    assert all(len(request) <= 500 for request in requests) and len(requests) > 10
    assert b"".join(requests) == entries.text[entries.start[10] : entries.start[90]].tobytes()
    assert sum(len(decode_batch(request)) for request in requests) == 80
    single = list(encode(body=binary(bytes(2000), b"")).requests(0, 2, bytes_max=500))
    assert [len(decode_batch(request)) for request in single] == [1, 1]


@pytest.mark.parametrize(
    ("columns", "pieces"),
    [
        ({"body": binary("a", None)}, ["row 1", "body is null", "coalesce"]),
        ({"body": binary("a"), "tags": binary("x\x01y")}, ["row 0: tags", "U+0001"]),
        ({"body": binary("a", "b"), "keys": binary(None, "x\x02")}, ["row 1: keys", "U+0002"]),
        (
            {"body": binary("a", "b"), "properties": pa.array([[], [("n", "x\x02")]], MAP)},
            ["row 1: property 'n'", "U+0002"],
        ),
        (
            {"body": binary("a", "b"), "properties": pa.array([None, [("DELAY", "3")]], MAP)},
            ["row 1: property 'DELAY'", "delayed messages", "map_filter"],
        ),
        (
            {"body": binary("a"), "properties": pa.array([[("TRAN_MSG", "true")]], MAP)},
            ["transactional"],
        ),
        ({"body": binary("a", "b" * 2000)}, ["row 1: message of 20", "body 2000 B", "1000"]),
        ({"body": binary("a"), "tags": binary("t" * 40_000)}, ["row 0", "0..32767"]),
    ],
)
def test_rows_that_cannot_be_messages(columns: dict[str, pa.Array], pieces: list[str]) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(message_bytes_max=1000, **columns)
    for piece in pieces:
        assert piece in str(caught.value)


def records_of(encoded: Encoded) -> list[Record]:
    assert encoded.are_records
    return list(decode_records(encoded.text.tobytes()))


def test_records_say_what_entries_say(seed: int) -> None:
    source = random.Random(seed)
    count = 50
    body = pa.array([source.randbytes(source.randrange(100)) for _ in range(count)], pa.binary())
    tags = binary(*(source.choice(["a", "bb", "", None]) for _ in range(count)))
    topics = [source.choice(["orders", "o", "x" * 127]) for _ in range(count)]
    made = messages(body=body, tags=tags, keys=tags)
    wanted = decoded(made.entries())
    for records, topic in (
        (records_of(made.records(b"orders")), ["orders"] * count),
        (records_of(made.records(binary(*topics))), topics),
    ):
        assert [(r.body, decode_properties(r.properties)) for r in records] == wanted
        assert [record.topic for record in records] == topic
        # What the broker fills in:
        for record in records:
            assert record.queue_offset == record.physical_offset == record.sys_flag == 0
            assert record.body_crc == record.born_timestamp == record.store_timestamp == 0


def test_requests_of_records_say_their_sizes() -> None:
    made = messages(body=binary(*(bytes(n) for n in range(100)))).records(b"orders")
    requests = list(made.requests(10, 90, bytes_max=2000))
    assert len(requests) > 5
    sizes = []
    for request in requests:
        assert isinstance(request, RecordsBody) and len(request.body) <= 2000
        mine = unpack_sizes(request.sizes).tolist()
        assert sum(mine) == len(request.body)
        assert mine == [record.size for record in decode_records(request.body)]
        sizes += mine
    assert len(sizes) == 80
