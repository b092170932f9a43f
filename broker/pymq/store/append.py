"""One put: check, place, encode, write, stage. The hot path of the store.

All records of a put that fit into the current segment are one *run*: one write to the log and
one entry write per queue. A failed write fails its whole run and everything after it; a put
that breaks a rule fails alone.

Source: RocketMQ CommitLog.asyncPutMessage, MessageExtEncoder, HookUtils.
"""

import struct
from collections.abc import Sequence

import numpy as np

from pymq.errors import PymqError
from pymq.protocol.hashes import crc32
from pymq.protocol.new_records import NewRecords
from pymq.protocol.record import (
    BLANK_BYTES,
    OVERHEAD_BYTES,
    PROPERTIES_BYTES_MAX,
    NewRecord,
    encode_record,
    host_flags,
)
from pymq.protocol.record_crc import (
    RECORD_CRC_BYTES,
    RECORD_CRC_PREFIX,
    cut_record_crc,
    encode_record_crc,
    with_record_crc_room,
)
from pymq.store.config import StoreConfig
from pymq.store.dispatch import PendingDispatch
from pymq.store.log.commit_log import CommitLog
from pymq.store.put_result import PutResult, PutStatus
from pymq.store.queues.consume_queue import ENTRY, ENTRY_STRUCT, ConsumeQueue
from pymq.store.queues.queue_table import QueueTable, illegal_name

_PREPARED = 0x4  # Set in TRANSACTION_PREPARED and TRANSACTION_ROLLBACK, not in COMMIT.
_V6_FLAGS = 0x30
_HOST_BYTES = (8, 20)
#: How a checksum that ends a properties text begins.
_CRC_FIRST = RECORD_CRC_PREFIX[0]


_OK = PutStatus.OK
_pack_entry = ENTRY_STRUCT.pack


class Appender:
    """Writes lists of new records to the log."""

    def __init__(self, config: StoreConfig, log: CommitLog, queues: QueueTable) -> None:
        self._log = log
        self._queues = queues
        self._body_max = config.message_bytes_max
        self._record_max = config.record_bytes_max
        self._segment_room = config.segment_bytes - BLANK_BYTES
        self._record_crc = config.append_record_crc

    def append_run(
        self,
        puts: Sequence[NewRecord | NewRecords],
        first: int,
        results: list[PutResult],
        *,
        now: int,
        store_host: bytes,
    ) -> PendingDispatch | None:
        """Append puts from ``first`` on until one does not fit into the current segment.

        Args:
            puts: all of one call.
            first: index of the first one to write; ``results`` has as many elements.
            results: one element is added for every put written or refused.
            now: store time of all of them, ms.
            store_host: our packed address.

        Returns:
            What is to be dispatched; None if nothing was written.

        Raises:
            StoreError: the log could not be written; ``results`` and queues are as before.
        """
        log = self._log
        start = position = log.end
        limit = start + log.room
        pieces: list[bytes | memoryview] = []
        groups: dict[ConsumeQueue, tuple[int, list[bytes]]] = {}
        by_key = self._queues.by_key
        host_bytes = len(store_host)
        overhead = OVERHEAD_BYTES - 16 + host_bytes
        body_max = self._body_max
        record_crc = self._record_crc
        try:
            for index in range(first, len(puts)):
                put = puts[index]
                queue = by_key.get((put.topic, put.queue_id))
                if queue is None:
                    reason = illegal_name(put.topic, put.queue_id)
                    if reason is not None:
                        results.append(_illegal(reason))
                        continue
                    queue = self._queues.make(put.topic, put.queue_id)
                if not isinstance(put, NewRecord):
                    # A batch: rare beside its records, so its path is its own function.
                    refusal = self._check_batch(put, host_bytes)
                    if refusal is not None:
                        results.append(refusal)
                        continue
                    size = put.record_bytes
                    if position + size > limit:
                        break
                    try:
                        offset = self._place_batch(
                            put, queue, position, now, store_host, pieces, groups
                        )
                    except (PymqError, struct.error, ValueError, OverflowError) as error:
                        results.append(_illegal(f"batch cannot be stored: {error}"))
                        continue
                    position += size
                    results.append(
                        PutResult(_OK, position - size, offset, put.count, position, now)
                    )
                    continue
                properties = put.properties
                properties_bytes = len(properties)
                if record_crc:
                    put = _with_properties(put, with_record_crc_room(properties))
                    properties_bytes = len(put.properties)
                elif properties_bytes >= RECORD_CRC_BYTES and (
                    properties[-RECORD_CRC_BYTES] == _CRC_FIRST  # which is rare, so look closely
                ):
                    put = _with_properties(put, cut_record_crc(properties))
                    properties_bytes = len(put.properties)
                body_bytes = len(put.body)
                born_bytes = len(put.born_host)
                variable = body_bytes + len(queue.topic_bytes) + properties_bytes
                size = overhead + born_bytes + variable
                sys_flag = put.sys_flag
                if (
                    body_bytes > body_max
                    or properties_bytes > PROPERTIES_BYTES_MAX
                    or size > self._record_max
                    or born_bytes + host_bytes != 16
                    or sys_flag & _V6_FLAGS
                ):
                    refusal = self._check(put, size, store_host)
                    if refusal is not None:
                        results.append(refusal)
                        continue
                if position + size > limit:
                    break
                visible = not sys_flag & _PREPARED
                offset = queue.next_offset if visible else 0
                try:
                    packed = _pack_entry(position, size, put.tag_code)
                    pieces += encode_record(
                        put,
                        queue.topic_bytes,
                        size=size,
                        queue_offset=offset,
                        physical_offset=position,
                        store_timestamp=now,
                        store_host=store_host,
                    )
                    if record_crc:
                        pieces[-1:] = _with_record_crc(*pieces[-3:])
                except (struct.error, TypeError, OverflowError) as error:
                    results.append(_illegal(f"a field is out of its range: {error}"))
                    continue
                if visible:
                    group = groups.get(queue)
                    if group is None:
                        groups[queue] = (offset, [packed])
                    else:
                        group[1].append(packed)
                    queue.next_offset = offset + 1
                position += size
                results.append(PutResult(_OK, position - size, offset, 1, position, now))
            if position == start:
                return None
            log.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        except BaseException:
            for queue, (offset, _) in groups.items():
                queue.next_offset = offset
            del results[first:]
            raise
        log.store_timestamp = now
        return PendingDispatch(position, now, groups)

    def _check(self, put: NewRecord, size: int, store_host: bytes) -> PutResult | None:
        """Return the refusal of a record that is not plainly good, None if it is good."""
        if len(put.properties) > PROPERTIES_BYTES_MAX:
            with_crc = " with the checksum (append_record_crc)" if self._record_crc else ""
            return PutResult(
                PutStatus.PROPERTIES_SIZE_EXCEEDED,
                remark=f"properties of {len(put.properties)} B{with_crc}, "
                f"expected 0..{PROPERTIES_BYTES_MAX}",
            )
        if len(put.body) > self._body_max:
            return _illegal(
                f"body of {len(put.body)} B, expected 0..{self._body_max} "
                "(message_bytes_max, RocketMQ maxMessageSize)"
            )
        if size > self._record_max:
            return _illegal(f"record of {size} B, expected at most {self._record_max} B")
        if len(put.born_host) not in _HOST_BYTES or len(store_host) not in _HOST_BYTES:
            return _illegal("a packed host has 8 or 20 bytes")
        flags = host_flags(put.born_host, store_host)
        if put.sys_flag & _V6_FLAGS & ~flags:
            return _illegal("the system flag says IPv6, the host is IPv4")
        return None

    def _check_batch(self, batch: NewRecords, host_bytes: int) -> PutResult | None:
        assert batch.record_crc == self._record_crc, "made for a store with another setting"
        if batch.count < 1:
            return _illegal("an empty batch")
        largest = int(batch.sizes.max())
        if largest > self._record_max:
            return _illegal(
                f"batch with a record of {largest} B, expected at most {self._record_max} B"
            )
        if batch.record_bytes > self._segment_room:
            return _illegal(
                f"batch of {batch.record_bytes} B, expected at most {self._segment_room} B: "
                "it must fit into one commit-log file"
            )
        if host_bytes not in _HOST_BYTES:
            return _illegal("a packed host has 8 or 20 bytes")
        return None

    def _place_batch(
        self,
        batch: NewRecords,
        queue: ConsumeQueue,
        position: int,
        now: int,
        store_host: bytes,
        pieces: list[bytes | memoryview],
        groups: dict[ConsumeQueue, tuple[int, list[bytes]]],
    ) -> int:
        """Add a batch to the run; return the queue offset of its first record."""
        offset = queue.next_offset
        data = batch.encode(
            physical_offset=position,
            queue_offset=offset,
            store_timestamp=now,
            store_host=store_host,
        )
        if len(data) != batch.record_bytes:
            raise ValueError(f"encoded to {len(data)} B, expected {batch.record_bytes}")
        rows = np.empty(batch.count, ENTRY)
        rows["physical_offset"] = batch.starts + position
        rows["size"] = batch.sizes
        rows["tag_code"] = batch.tag_codes
        pieces.append(data)
        group = groups.get(queue)
        if group is None:
            groups[queue] = (offset, [rows.tobytes()])
        else:
            group[1].append(rows.tobytes())
        queue.next_offset = offset + batch.count
        return offset


def _with_properties(put: NewRecord, properties: bytes) -> NewRecord:
    return NewRecord(
        put.topic,
        put.queue_id,
        put.body,
        properties,
        put.born_host,
        put.born_timestamp,
        put.flag,
        put.sys_flag,
        put.reconsume_times,
        put.prepared_transaction_offset,
        put.tag_code,
    )


def _with_record_crc(
    head: bytes | memoryview, body: bytes | memoryview, tail: bytes | memoryview
) -> tuple[bytes | memoryview, bytes]:
    """Return the tail of an encoded record, and its checksum in the place of the room for it."""
    tail = tail[:-RECORD_CRC_BYTES]
    crc = crc32(tail, crc32(body, crc32(head)))
    return tail, encode_record_crc(crc & 0x7FFFFFFF)


def _illegal(remark: str) -> PutResult:
    return PutResult(PutStatus.MESSAGE_ILLEGAL, remark=remark)
