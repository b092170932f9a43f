"""Stored records -> Arrow record batches, without a Python statement per message."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pymq.protocol.bodies import MessageQueue
from pymq.protocol.record_batch import RecordColumns
from pyspark_pymq.binary_arrays import cuts
from pyspark_pymq.compressed_bodies import Rows, Unpacked, unpacked
from pyspark_pymq.record_rows import RecordRows
from pyspark_pymq.source_columns import COLUMNS

#: Measured best for the way to the JVM: from 10,000 rows of 100 B, from 1,000 of 1 KiB.
BATCH_ROWS_MAX = 16_384
BATCH_BYTES_MAX = 8 << 20


def record_batches(
    records: RecordColumns,
    queue: MessageQueue,
    schema: pa.Schema,
    *,
    kept: npt.NDArray[np.bool_] | None = None,
    tags: Sequence[str] = (),
    null_corrupt: bool = False,
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
        null_corrupt: a body that cannot be decompressed is null; otherwise it is an error.

    Raises:
        RemoteProtocolError: a body cannot be decompressed.
    """
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
        if "body" in schema.names:
            parts = unpacked(
                records, rows, queue, bytes_max=BATCH_BYTES_MAX, null_corrupt=null_corrupt
            )
        for part in parts:
            piece = RecordRows(records, part.rows, queue, part.plain)
            arrays = [COLUMNS[field.name].fill(piece) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
