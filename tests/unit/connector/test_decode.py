"""Stored records -> Arrow: every column, every schema, and the exceptions."""

import datetime
import random
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as spark
from tests.unit.connector.fake import record

from pymq.errors import RemoteProtocolError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.compression import Compression, compress, compression_flags
from pymq.protocol.message import decode_properties, encode_properties
from pymq.protocol.record import decode_record, pack_host
from pymq.protocol.record_batch import read_columns
from pyspark_pymq.source import decode as decoding
from pyspark_pymq.source.bad_records import BadRecords
from pyspark_pymq.source.columns import COLUMNS, arrow_schema, check_schema
from pyspark_pymq.source.decode import record_batches

BORN_TIMESTAMP, BORN_TIMESTAMP_AT = struct.Struct(">q"), 40  # in a record
QUEUE = MessageQueue("orders", "broker-a", 3)
ALL = arrow_schema(spark.StructType([spark.StructField(n, COLUMNS[n].spark_type) for n in COLUMNS]))


def decode(records: list[bytes], schema: pa.Schema = ALL, **options: object) -> pa.Table:
    columns = read_columns(b"".join(records))
    batches = list(record_batches(columns, QUEUE, schema, **options))  # type: ignore[arg-type]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema)


def test_one_message_in_all_columns() -> None:
    properties = {"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": "0" * 32, "a": "1"}
    stored = record(
        b"hello", properties, queue_id=3, queue_offset=10, flag=7, born_host=pack_host("::1", 5)
    )
    (row,) = decode([stored]).to_pylist()
    utc = datetime.timezone.utc  # noqa: UP017 - what Arrow gives compares by it
    born, written = (
        datetime.datetime(2023, 11, 14, 22, 13, 20, us, utc) for us in (123_000, 456_000)
    )
    assert row == {
        "topic": "orders",
        "brokerName": "broker-a",
        "queueId": 3,
        "queueOffset": 10,
        "body": b"hello",
        "tags": "TagA",
        "keys": "k1 k2",
        "msgId": "0" * 32,
        "bornTimestamp": born,
        "storeTimestamp": written,
        "bornHost": "[::1]:5",
        "flag": 7,
        "sysFlag": 0x10,
        "reconsumeTimes": 0,
        "properties": list(properties.items()),
        "key": b"k1 k2",
        "value": b"hello",
        "partition": 3,
        "offset": 10,
        "timestamp": written,
        "timestampType": 1,
    }


def test_absent_properties_are_null() -> None:
    (row,) = decode([record(queue_offset=2)]).to_pylist()
    assert row["tags"] is row["keys"] is row["key"] is None and row["properties"] == []
    # Without the producer's key a message is known by its place in the log, as in Java.
    assert row["msgId"] == "0A00000200002A9F" + f"{4096 + 2000:016X}"


def test_times_that_are_none_are_null() -> None:
    """A producer sets the one freely; in microseconds it would be another time."""
    utc = datetime.timezone.utc  # noqa: UP017 - what Arrow gives compares by it
    cases = {
        0: datetime.datetime(1970, 1, 1, tzinfo=utc),
        -62_135_596_800_000: datetime.datetime(1, 1, 1, tzinfo=utc),
        253_402_300_799_999: datetime.datetime(9999, 12, 31, 23, 59, 59, 999_000, utc),
        -62_135_596_800_001: None,
        253_402_300_800_000: None,
        1 << 62: None,
        -1 << 63: None,
    }
    stored = []
    for offset, time_ms in enumerate(cases):
        item = bytearray(record(queue_offset=offset))
        BORN_TIMESTAMP.pack_into(item, BORN_TIMESTAMP_AT, time_ms)
        stored.append(bytes(item))
    table = decode(stored)
    assert table["bornTimestamp"].to_pylist() == list(cases.values())
    assert table["storeTimestamp"].null_count == 0


def naive(stored: bytes) -> dict[str, object]:
    message = decode_record(stored)
    properties = decode_properties(message.properties)
    body = message.body
    return {
        "topic": message.topic,
        "queueOffset": message.queue_offset,
        "body": zlib.decompress(body) if message.sys_flag & 1 else body,
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "properties": list(properties.items()),
        "flag": message.flag,
    }


def test_mixed_messages_as_one_by_one(seed: int) -> None:
    """Both kinds of hosts, compressed bodies, junk in properties, in one buffer."""
    source = random.Random(seed)
    stored = []
    for offset in range(400):
        body = source.randbytes(source.choice([0, 1, 100, 3000]))
        texts = [
            b"",
            encode_properties({"TAGS": source.choice("ABC"), "x": "y" * source.randrange(1, 9)}),
            encode_properties({"KEYS": "k"})[:-1],
            b"\x02a\x01b\x01c",
        ]
        packed = source.random() < 0.1
        stored.append(
            record(
                zlib.compress(body) if packed else body,
                source.choice(texts),
                queue_offset=offset,
                born_host=pack_host(source.choice(["::1", "10.1.2.3"]), 1),
                store_host=pack_host(source.choice(["::2", "10.1.2.4"]), 2),
                sys_flag=1 if packed else 0,
                flag=offset,
            )
        )
    table = decode(stored)
    wanted = [naive(item) for item in stored]
    names = list(wanted[0])
    assert [{name: row[name] for name in names} for row in table.to_pylist()] == wanted


@pytest.mark.parametrize("kind", list(Compression))
def test_compressed_bodies(kind: Compression) -> None:
    if kind is not Compression.ZLIB:
        pytest.importorskip("lz4" if kind is Compression.LZ4 else "zstandard")
    plain = [b"first", b"x" * 5000, b"last"]
    stored = [
        record(plain[0]),
        record(compress(plain[1], kind), sys_flag=compression_flags(kind), queue_offset=1),
        record(plain[2], queue_offset=2),
    ]
    assert decode(stored)["body"].to_pylist() == plain


def test_a_compressed_body_that_is_not_names_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stored = [record(b"before"), record(b"junk", {"TAGS": "T"}, sys_flag=1, queue_offset=7)]
    wanted = r"message at offset 7 of queue 3 of orders on broker-a: zlib.* corruptBodies"
    with pytest.raises(RemoteProtocolError, match=wanted):
        decode(stored)
    bad = BadRecords(null_corrupt=True)
    table = decode(stored, bad=bad)
    bad.report()
    assert table["body"].to_pylist() == table["value"].to_pylist() == [b"before", None]
    assert table["tags"].to_pylist() == [None, "T"]
    assert table["queueOffset"].to_pylist() == [0, 7]
    assert "1 bodies cannot be decoded and are null (corruptBodies=null)" in caplog.text
    assert "offset 7" in caplog.text
    # Who does not read bodies does not meet them.
    assert decode(stored, pa.schema([pa.field("queueOffset", pa.int64())])).num_rows == 2


def test_bodies_that_are_a_hundred_times_larger_are_cut() -> None:
    plain = [bytes([n % 251]) * (300_000 + n) if n % 3 else b"%d" % n for n in range(300)]
    stored = [
        record(
            zlib.compress(body) if n % 3 else body,
            {"TAGS": "AB"[n % 2]},
            sys_flag=int(n % 3 > 0),
            queue_offset=n,
        )
        for n, body in enumerate(plain)
    ]
    kept = np.arange(300) != 7
    schema = pa.schema([field for field in ALL if field.name != "value"])  # the bodies once more
    columns = read_columns(b"".join(stored))
    for some, options in (
        (range(300), {}),
        (range(0, 300, 2), {"tags": ("A",)}),
        ([n for n in range(300) if n != 7], {"kept": kept}),
    ):
        batches = list(record_batches(columns, QUEUE, schema, **options))  # type: ignore[arg-type]
        table = pa.Table.from_batches(batches)
        assert table["body"].to_pylist() == [plain[n] for n in some]
        assert table["queueOffset"].to_pylist() == list(some)
        assert max(batch.nbytes for batch in batches) < 9 << 20
        assert len(batches) <= 1 + sum(map(len, plain)) // (7 << 20)


def test_text_that_is_no_utf8() -> None:
    stored = [record(properties=b"TAGS\x01\xff\x02"), record(properties={"TAGS": "é"})]
    assert decode(stored)["tags"].to_pylist() == ["\ufffd", "é"]
    stored = [record(properties=b"KEYS\x01\xff\x02")]
    assert decode(stored)["key"].to_pylist() == [b"\xff"]


@pytest.mark.parametrize(
    "texts",
    [
        [b"WAIT\x01true\x02a\x01%d\x02WAIT\x01%d\x02" % (n, n) for n in range(5)],
        [b"a\x010\x02", b"a\x011\x02b\x011\x02a\x012\x02a\x013\x02", b"", b"b\x010\x02"],
        [b"aa\x010\x02b\x011\x02", b"a\x010\x02ab\x011\x02", b"aa\x010\x02aa\x011\x02"],
        [b"\xff\x010\x02\xfe\x011\x02"],  # one name, when it is text
        [b"a\x010\x02b\x011\x02", b"b\x010\x02c\x011\x02"],
        [b"", b""],
    ],
    ids=["alike", "mixed", "of two lengths", "no UTF-8", "none twice", "nothing"],
)
def test_a_property_that_comes_twice_is_there_once(texts: list[bytes]) -> None:
    """As for consumers the last one counts; Spark refuses to work with maps that have both."""
    stored = [record(properties=text, queue_offset=n) for n, text in enumerate(texts)]
    wanted = []
    for text in texts:
        pieces = text.decode("utf-8", "replace").split("\x02")
        wanted.append(dict(piece.split("\x01") for piece in pieces if piece))
    for skipped in (0, 1):
        kept = np.arange(len(stored)) >= skipped
        found = decode(stored, kept=kept)["properties"].to_pylist()
        assert list(map(dict, found)) == wanted[skipped:]
        assert list(map(len, found)) == list(map(len, wanted[skipped:]))


def test_tags_are_compared_exactly() -> None:
    """Brokers compare Java's 32-bit hash: "Aa" and "BB" are one to them."""
    tags = ["Aa", "BB", "Aa", None, "C"]
    stored = [
        record(b"%d" % number, {} if tag is None else {"TAGS": tag}, queue_offset=number)
        for number, tag in enumerate(tags)
    ]
    assert decode(stored, tags=("Aa", "C"))["queueOffset"].to_pylist() == [0, 2, 4]
    kept = np.array([False, True, True, True, True])
    assert decode(stored, tags=("Aa", "C"), kept=kept)["body"].to_pylist() == [b"2", b"4"]
    assert decode(stored, tags=("none",)).num_rows == 0


def test_rows_can_be_left_out() -> None:
    stored = [record(b"%d" % number, queue_offset=number) for number in range(5)]
    kept = np.array([True, False, False, True, True])
    assert decode(stored, kept=kept)["body"].to_pylist() == [b"0", b"3", b"4"]
    assert decode(stored, kept=np.zeros(5, np.bool_)).num_rows == 0


def test_batches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = [record(bytes(100), queue_offset=number) for number in range(10)]
    monkeypatch.setattr(decoding, "BATCH_ROWS_MAX", 4)
    found = record_batches(read_columns(b"".join(stored)), QUEUE, ALL)
    assert [batch.num_rows for batch in found] == [4, 4, 2]
    monkeypatch.setattr(decoding, "BATCH_BYTES_MAX", 2 * len(stored[0]) + 1)
    found = record_batches(read_columns(b"".join(stored)), QUEUE, ALL)
    assert [batch.num_rows for batch in found] == [2] * 5


def test_no_records() -> None:
    assert decode([]).num_rows == 0


def test_any_columns_in_any_order(seed: int) -> None:
    source = random.Random(seed)
    stored = [record(b"x", {"TAGS": "T"}, queue_offset=n) for n in range(3)]
    complete = decode(stored)
    for _ in range(20):
        names = source.sample(list(COLUMNS), source.randrange(1, len(COLUMNS) + 1))
        schema = spark.StructType([spark.StructField(n, COLUMNS[n].spark_type) for n in names])
        check_schema(schema)
        assert decode(stored, arrow_schema(schema)).equals(complete.select(names))


def test_no_columns_at_all() -> None:
    batches = list(record_batches(read_columns(record()), QUEUE, pa.schema([])))
    assert [batch.num_rows for batch in batches] in ([0], [1])  # Spark counts nothing here
