"""Some rows of one decoded buffer, as Arrow arrays.

Fields are cut out of the received bytes by ``arrow_arrays``. Exceptions (compressed bodies,
malformed properties or UTF-8, hosts of two sizes) are handled for the rows concerned and cost the
others nothing.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.columns.arrow_arrays import Longs, as_text, contents, cut_out, cut_out_pairs
from pymq.columns.arrow_package import pa, pc
from pymq.columns.compressed_bodies import Rows
from pymq.protocol.addresses import join_address
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import MessageFlag
from pymq.protocol.property_index import PropertyIndex
from pymq.protocol.record import offset_message_id, unpack_host
from pymq.protocol.record_batch import RecordColumns

#: Of the two columns that are not a single number or string.
TIMESTAMP = pa.timestamp("us", tz="UTC")
STRING_MAP = pa.map_(pa.string(), pa.string())

#: The years 1 to 9999.
_TIME_MIN_MS, _TIME_MAX_MS = -62_135_596_800_000, 253_402_300_799_999
_BORN_IPV6 = int(MessageFlag.BORN_HOST_IPV6)
_STORE_IPV6 = int(MessageFlag.STORE_HOST_IPV6)


class RecordRows:
    """Some rows of one decoded buffer, as Arrow arrays.

    Args:
        records: the buffer's records.
        rows: which of them, ascending.
        queue: whose they are.
        plain: bodies of compressed ones, by their place among the rows.
    """

    def __init__(
        self,
        records: RecordColumns,
        rows: Rows,
        queue: MessageQueue,
        plain: Mapping[int, bytes | None] | None = None,
    ) -> None:
        self.records = records
        self.rows = rows
        self.queue = queue
        self._plain = plain or {}
        self.count = len(records.starts[rows])

    def field(self, name: str) -> npt.NDArray[Any]:
        """Return one of the fields of ``RecordColumns`` for these rows."""
        found: npt.NDArray[Any] = getattr(self.records, name)[self.rows]
        return found

    @cached_property
    def properties(self) -> PropertyIndex:
        """Where names and values stand in these rows' properties."""
        texts = cut_out(self.records.buffer, self.field("properties_start"), self.field("ends"))
        return PropertyIndex(*contents(texts))

    def constant(self, text: str) -> pa.Array:
        """Return a string column with one value."""
        return pa.repeat(pa.scalar(text, pa.string()), self.count)

    def bodies(self) -> pa.Array:
        """Return the bodies, compressed ones as their producer wrote them."""
        bodies = cut_out(self.records.buffer, self.field("body_start"), self.field("body_end"))
        if not self._plain:
            return bodies
        order = np.arange(self.count)
        order[list(self._plain)] = self.count + np.arange(len(self._plain))
        plain = pa.array(list(self._plain.values()), pa.binary())
        return pa.concat_arrays([bodies, plain]).take(pa.array(order))

    def property_bytes(self, name: str) -> pa.Array:
        """Return a property's values as a binary column, null where it is not."""
        found, start, end = self.properties.find(name.encode())
        return cut_out(self.properties.text, start, end, valid=found)

    def one_property(self, name: str) -> pa.Array:
        """Return a property's values as a string column, null where it is not."""
        values = self.property_bytes(name)
        return values.view(pa.string()) if self.properties.is_ascii else as_text(values)

    def property_maps(self) -> pa.Array:
        """Return all properties as a map column; of several of one name the last one counts."""
        *edges, first_entry = self.properties.entries
        names, values = map(as_text, cut_out_pairs(self.properties.text, *edges))
        last = _last_of_each_name(names, first_entry)
        if last is not None:
            names, values = names.take(pa.array(last)), values.take(pa.array(last))
            first_entry = np.searchsorted(last, first_entry)
        offsets = pa.array(first_entry.astype(np.int32))
        return pa.MapArray.from_arrays(offsets, names, values, STRING_MAP)

    def message_ids(self) -> pa.Array:
        """Return what identifies messages: their producer's key, else their place in the log."""
        keys = self.one_property("UNIQ_KEY")
        if not keys.null_count:
            return keys
        missing = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
        buffer = self.records.buffer
        start = self.field("store_host_start")[missing].tolist()
        width = np.where(self.field("sys_flag")[missing] & _STORE_IPV6, 20, 8).tolist()
        offsets = self.field("physical_offset")[missing].tolist()
        ids = [
            offset_message_id(buffer[at : at + size].tobytes(), offset)
            for at, size, offset in zip(start, width, offsets, strict=True)
        ]
        return pc.replace_with_mask(keys, keys.is_null(), pa.array(ids, pa.string()))

    def born_hosts(self) -> pa.Array:
        """Return producers' addresses as ``host:port``; there are few different ones."""
        start = self.field("born_host_start")
        wide = (self.field("sys_flag") & _BORN_IPV6) != 0
        packed = cut_out(self.records.buffer, start, start + np.where(wide, 20, 8))
        encoded = packed.dictionary_encode()
        texts = [join_address(*unpack_host(host)) for host in encoded.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(encoded.indices)

    def times(self, name: str) -> pa.Array:
        """Return a field of milliseconds as a column of timestamps.

        What is not of the years 1 to 9999 is null: a producer may say anything, and few programs
        show other years.
        """
        times_ms = self.field(name)
        known = (times_ms >= _TIME_MIN_MS) & (times_ms <= _TIME_MAX_MS)
        if known.all():
            return pa.array(times_ms * 1000).cast(TIMESTAMP)
        return pa.array(np.where(known, times_ms, 0) * 1000, mask=~known).cast(TIMESTAMP)


def _last_of_each_name(names: pa.Array, first_entry: Longs) -> Longs | None:
    """Return which entries no later one of the same row and name replaces; None: all.

    Args:
        names: strings.
        first_entry: shape (n + 1,): the index of each row's first entry.
    """
    if not len(names):
        return None
    rows, each = len(first_entry) - 1, int(first_entry[1])
    if each and (np.diff(first_entry) == each).all():
        # Usually all rows have the same names in the same order, and one of them tells.
        text, start = contents(names)
        lengths = np.diff(start).reshape(rows, each)
        alike = (lengths == lengths[0]).all()
        if alike and (text.reshape(rows, -1) == text[: start[each]]).all():
            places = {name: place for place, name in enumerate(names[:each].to_pylist())}
            if len(places) == each:
                return None
            kept: Longs = first_entry[:-1, None] + np.sort(list(places.values()))
            return kept.reshape(-1)
    encoded = names.dictionary_encode()
    row = np.repeat(np.arange(rows), np.diff(first_entry))
    of_row = row * len(encoded.dictionary) + encoded.indices.to_numpy()
    order = np.argsort(of_row, kind="stable")  # they are nearly sorted
    is_last = np.append(np.diff(of_row[order]), 1) != 0
    return None if is_last.all() else np.sort(order[is_last])
