"""Stored records -> Arrow record batches, without a Python statement per message."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StructType

from pymq.columns.arrow_arrays import cuts
from pymq.columns.compressed_bodies import Rows, Unpacked, unpacked
from pymq.columns.record_rows import RecordRows
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.record_batch import RecordColumns
from pyspark_pymq.source.bad_records import BadRecords
from pyspark_pymq.source.columns import BODY_COLUMNS, COLUMNS
from pyspark_pymq.values.formats import Decoder, ValueFormat
from pyspark_pymq.values.spark_types import arrow_type

#: Measured best for the way to the JVM: from 10,000 rows of 100 B, from 1,000 of 1 KiB.
BATCH_ROWS_MAX = 16_384
BATCH_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """The columns of decoded bodies: their names, and what decodes them."""

    names: frozenset[str]
    decoder: Decoder


def value_column(values: ValueFormat, schema: StructType) -> ValueColumn | None:
    """Return the columns of decoded bodies, if a schema that was checked has any."""
    fields = [
        given
        for given in schema.fields
        if given.name in BODY_COLUMNS and not isinstance(given.dataType, BinaryType)
    ]
    if not fields:
        return None
    kind = fields[0].dataType
    names = frozenset(given.name for given in fields)
    return ValueColumn(names, values.decoder(kind, arrow_type(kind)))


def record_batches(
    records: RecordColumns,
    queue: MessageQueue,
    schema: pa.Schema,
    *,
    kept: npt.NDArray[np.bool_] | None = None,
    tags: Sequence[str] = (),
    value: ValueColumn | None = None,
    bad: BadRecords | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield records as batches of at most ``BATCH_ROWS_MAX`` rows.

    Those of a batch take ``BATCH_BYTES_MAX`` at most as they are stored, and so do its bodies
    that were compressed, unless a single message takes more.

    Args:
        records: of one queue.
        queue: the queue.
        schema: names and types of the columns, as ``arrow_schema`` makes it.
        kept: rows to yield; all of them when None.
        tags: yield only messages that carry exactly one of these; none means all. Brokers
            compare hashes of tags, so that others come through now and then.
        value: the columns of decoded bodies, if there are any.
        bad: what becomes of bodies that cannot be decoded; they are errors by default.

    Raises:
        RemoteProtocolError: a body cannot be decoded.
        PymqError: a bad record cannot be put aside.
    """
    bad = bad or BadRecords()
    reads_bodies = not BODY_COLUMNS.isdisjoint(schema.names)
    wanted = None if kept is None or kept.all() else np.flatnonzero(kept)
    if tags:
        everything = RecordRows(records, slice(None) if wanted is None else wanted, queue)
        matching = pc.is_in(everything.one_property("TAGS"), pa.array(tags, pa.string()))
        hits = np.flatnonzero(matching.to_numpy(zero_copy_only=False))
        wanted = hits if wanted is None else wanted[hits]
    sizes = records.size if wanted is None else records.size[wanted]
    for first, end in cuts(sizes, rows_max=BATCH_ROWS_MAX, bytes_max=BATCH_BYTES_MAX):
        rows: Rows = slice(first, end) if wanted is None else wanted[first:end]
        parts: Iterable[Unpacked] = (Unpacked(rows, {}),)
        if reads_bodies:
            parts = unpacked(records, rows, bytes_max=BATCH_BYTES_MAX)
        for part in parts:
            piece = RecordRows(records, part.rows, queue, part.plain)
            values: dict[str, pa.Array] = {}
            undecodable: Mapping[int, str] = {}
            if value is not None:
                decoded = value.decoder.decode(piece.bodies())
                values, undecodable = dict.fromkeys(value.names, decoded.values), decoded.bad
            good = bad.sift(piece, part.corrupt, undecodable)
            arrays = [
                values[name] if name in values else COLUMNS[name].fill(piece)
                for name in schema.names
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            yield batch if good is None else batch.filter(pa.array(good))
