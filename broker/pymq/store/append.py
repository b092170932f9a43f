"""Appending: check, place, encode and write puts. The hot path of the store.

A put is one record, one batch of records of one queue, or one group of records of several queues.
All puts of a call that fit into the current segment are one *run*: one write to the log and one
write of entries per queue. A failed write fails its whole run and everything after it; a put that
breaks a rule fails alone.

Source: RocketMQ CommitLog.asyncPutMessage, MessageExtEncoder, HookUtils.
"""

import struct
from collections.abc import Sequence

from pymq.errors import PymqError
from pymq.protocol.codes import HOST_IPV6_MASK, MessageFlag
from pymq.protocol.copied_records import CopiedRecords
from pymq.protocol.hashes import crc32
from pymq.protocol.multi_dispatch import DISPATCH_MARK
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.protocol.new_records import NewRecords
from pymq.protocol.plain_records import PlainRecords
from pymq.protocol.record import (
    BLANK_BYTES,
    FIXED_BYTES,
    PROPERTIES_BYTES_MAX,
    NewRecord,
    encode_record,
    host_flags,
    topic_field,
)
from pymq.protocol.record_crc import (
    RECORD_CRC_BYTES,
    RECORD_CRC_PREFIX,
    cut_record_crc,
    encode_record_crc,
    with_record_crc_room,
)
from pymq.protocol.staged_records import StagedCopies
from pymq.protocol.tag_codes import delayed_tag_code
from pymq.store.append_batch import place_batch
from pymq.store.append_plain import add_together
from pymq.store.config import StoreConfig
from pymq.store.dispatch import PendingDispatch
from pymq.store.log.commit_log import CommitLog
from pymq.store.multi_dispatch import MultiDispatch
from pymq.store.put_result import PutResult, PutStatus
from pymq.store.puts import Put, RecordGroup
from pymq.store.queues.consume_queue import ENTRY_STRUCT, ConsumeQueue
from pymq.store.queues.queue_table import QueueTable, illegal_name

_PREPARED = int(MessageFlag.TRANSACTION_PREPARED)  # Also set in ROLLBACK, not in COMMIT.
_HOST_BYTES = (8, 20)
#: First byte of a checksum at the end of the properties.
_CRC_FIRST = RECORD_CRC_PREFIX[0]

_OK = PutStatus.OK
_pack_entry = ENTRY_STRUCT.pack


class Appender:
    """Writes lists of new records to the log.

    Args:
        light: lists messages in light queues; None: none are.
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        light: MultiDispatch | None = None,
    ) -> None:
        self._log = log
        self._queues = queues
        self._light = light
        self._body_max = config.message_bytes_max
        self._record_max = config.record_bytes_max
        self._segment_room = config.segment_bytes - BLANK_BYTES
        self._record_crc = config.append_record_crc
        self._delay_levels_ms = config.delay_levels_ms

    def append_run(
        self,
        puts: Sequence[Put],
        results: list[PutResult],
        *,
        now: int,
        store_host: bytes,
    ) -> PendingDispatch | None:
        """Append puts that have no result yet, until one does not fit into the current segment.

        Args:
            puts: all of one call.
            results: of the first of them; one is added for every put written or refused.
            now: store time of all of them, ms.
            store_host: packed address of this broker.

        Returns:
            The queue entries to dispatch; None if nothing was written.

        Raises:
            StoreError: the log could not be written; ``results`` and queues are as before.
        """
        log, first = self._log, len(results)
        run = PendingDispatch(log.end, now, {})
        pieces: list[bytes | memoryview] = []
        try:
            self._fill(run, pieces, puts, results, store_host, log.end + log.room, self._light)
            if not pieces:
                return None
            log.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        except BaseException:
            for queue, (queue_offset, _) in run.groups.items():
                queue.next_offset = queue_offset
            del results[first:]
            raise
        log.store_timestamp = now
        return run

    def _fill(
        self,
        run: PendingDispatch,
        pieces: list[bytes | memoryview],
        puts: Sequence[Put],
        results: list[PutResult],
        store_host: bytes,
        limit: int,
        light: MultiDispatch | None,
    ) -> None:
        """Add puts that have no result yet until one does not fit below ``limit``."""
        # No function calls for the checks of single records: one costs as much as all checks.
        position, now, groups = run.end, run.store_timestamp, run.groups
        overhead = FIXED_BYTES - 16 + (host_bytes := len(store_host))
        by_key = self._queues.by_key
        body_max, record_max, record_crc = self._body_max, self._record_max, self._record_crc
        for index in range(len(results), len(puts)):
            put = puts[index]
            queue = by_key.get((put.topic, put.queue_id)) or self._new_queue(put, results)
            if queue is None:
                continue
            if not isinstance(put, NewRecord) or (light and DISPATCH_MARK in put.properties):
                run.end = position
                if not self._add_many(run, pieces, put, queue, results, store_host, limit=limit):
                    break
                position = run.end
                continue
            text = put.properties
            if record_crc or (
                len(text) >= RECORD_CRC_BYTES and text[-RECORD_CRC_BYTES] == _CRC_FIRST
            ):
                put = self._with_room(put)
            body_bytes, born_bytes = len(put.body), len(put.born_host)
            properties_bytes = len(put.properties)
            size = overhead + born_bytes + body_bytes + len(queue.topic_field) + properties_bytes
            if (
                body_bytes > body_max
                or properties_bytes > PROPERTIES_BYTES_MAX
                or size > record_max
                or born_bytes + host_bytes != 16
                or put.sys_flag & HOST_IPV6_MASK
            ) and (refusal := self._check(put, size, store_host)) is not None:
                results.append(refusal)
                continue
            if position + size > limit:
                break
            is_visible = not put.sys_flag & _PREPARED
            queue_offset = queue.next_offset if is_visible else 0
            try:
                code = self._delayed_code(put, now) if put.topic == SCHEDULE_TOPIC else put.tag_code
                packed = _pack_entry(position, size, code)
                pieces += encode_record(
                    put, queue.topic_field, size=size, queue_offset=queue_offset,
                    physical_offset=position, store_timestamp=now, store_host=store_host,
                )  # fmt: skip
                if record_crc:
                    pieces[-1:] = _with_record_crc(*pieces[-3:])
            except (struct.error, TypeError, OverflowError) as error:
                results.append(_illegal(f"a field is out of its range: {error}"))
                continue
            if is_visible:
                group = groups.get(queue)
                if group is None:
                    groups[queue] = (queue_offset, [packed])
                else:
                    group[1].append(packed)
                queue.next_offset = queue_offset + 1
            position += size
            results.append(PutResult(_OK, position - size, queue_offset, 1, position, now))
        run.end = position

    def _new_queue(self, put: Put, results: list[PutResult]) -> ConsumeQueue | None:
        """Return the queue of a put whose queue did not exist; None, with a result, if illegal."""
        reason = illegal_name(put.topic, put.queue_id) or self._queues.objection(put.topic)
        if reason is not None:
            results.append(_illegal(reason))
            return None
        return self._queues.make(put.topic, put.queue_id)

    def _delayed_code(self, put: NewRecord, now: int) -> int:
        code = delayed_tag_code(put.properties, now, self._delay_levels_ms)
        return put.tag_code if code is None else code

    def _with_room(self, put: NewRecord) -> NewRecord:
        """Return a record with room for its checksum, or without the one it came with."""
        change = with_record_crc_room if self._record_crc else cut_record_crc
        return NewRecord(
            put.topic,
            put.queue_id,
            put.body,
            change(put.properties),
            put.born_host,
            put.born_timestamp,
            put.flag,
            put.sys_flag,
            put.reconsume_times,
            put.prepared_transaction_offset,
            put.tag_code,
        )

    def _check(self, put: NewRecord, size: int, store_host: bytes) -> PutResult | None:
        """Return the refusal of a record that needs a closer look; None if it is accepted."""
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
        if put.sys_flag & HOST_IPV6_MASK & ~flags:
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

    def _add_many(
        self,
        run: PendingDispatch,
        pieces: list[bytes | memoryview],
        put: Put,
        queue: ConsumeQueue,
        results: list[PutResult],
        store_host: bytes,
        *,
        limit: int,
    ) -> bool:
        """Add several records, or one with several places, or the refusal.

        Args:
            queue: the one of a batch, or of the first record.

        Returns:
            False, and nothing was done, if they do not fit.
        """
        if isinstance(put, NewRecord):
            return self._add_listed(run, pieces, put, results, store_host, limit)
        if isinstance(put, (PlainRecords, CopiedRecords, StagedCopies)):
            if run.end + put.record_bytes > limit:
                return False
            results.append(add_together(run, pieces, put, self._queues, store_host))
            return True
        if isinstance(put, RecordGroup):
            return self._add_group(run, pieces, put, results, store_host, limit=limit)
        return self._add_batch(run, pieces, put, queue, results, store_host, limit=limit)

    def _add_listed(
        self,
        run: PendingDispatch,
        pieces: list[bytes | memoryview],
        put: NewRecord,
        results: list[PutResult],
        store_host: bytes,
        limit: int,
    ) -> bool:
        """Add a record that light queues may list as ``_add_many`` does."""
        assert self._light is not None
        record, queues = self._light.place(put)
        places: list[PutResult] = []
        self._fill(run, pieces, (record,), places, store_host, limit, None)
        if places and places[0].status is _OK and queues:
            entry = run.groups[self._queues.by_key[record.topic, record.queue_id]][1][-1]
            self._light.add(run, queues, entry)
        results += places
        return bool(places)

    def _add_group(
        self,
        run: PendingDispatch,
        pieces: list[bytes | memoryview],
        group: RecordGroup,
        results: list[PutResult],
        store_host: bytes,
        *,
        limit: int,
    ) -> bool:
        """Add a group as ``_add_many`` does."""
        start, pieces_before, places = run.end, len(pieces), list[PutResult]()
        before = run.counts()
        self._fill(run, pieces, group.records, places, store_host, limit, self._light)
        refusal = next((place for place in places if place.status is not _OK), None)
        if refusal is None and len(places) == len(group.records):
            group.places = places
            first = places[0]
            results.append(
                PutResult(
                    _OK, start, first.queue_offset, len(places), run.end, first.store_timestamp
                )
            )
            return True
        run.take_back(before)
        del pieces[pieces_before:]
        run.end = start
        if refusal is None and _bytes_at_most(group) <= self._segment_room:
            return False
        results.append(
            refusal or _illegal(f"a group of records that fills more than {self._segment_room} B")
        )
        return True

    def _add_batch(
        self,
        run: PendingDispatch,
        pieces: list[bytes | memoryview],
        batch: NewRecords,
        queue: ConsumeQueue,
        results: list[PutResult],
        store_host: bytes,
        *,
        limit: int,
    ) -> bool:
        """Add a batch, or its refusal; return False, and do nothing, if it does not fit."""
        refusal = self._check_batch(batch, len(store_host))
        if refusal is not None:
            results.append(refusal)
            return True
        start, end = run.end, run.end + batch.record_bytes
        if end > limit:
            return False
        try:
            queue_offset = place_batch(run, pieces, batch, queue, store_host)
        except (PymqError, struct.error, ValueError, OverflowError) as error:
            results.append(_illegal(f"batch cannot be stored: {error}"))
            return True
        run.end = end
        now = run.store_timestamp
        results.append(PutResult(_OK, start, queue_offset, batch.count, end, now))
        return True


def _with_record_crc(
    head: bytes | memoryview, body: bytes | memoryview, tail: bytes | memoryview
) -> tuple[bytes | memoryview, bytes]:
    """Return the tail of an encoded record without the room for its checksum, and the checksum."""
    tail = tail[:-RECORD_CRC_BYTES]
    crc = crc32(tail, crc32(body, crc32(head)))
    return tail, encode_record_crc(crc & 0x7FFFFFFF)


def _bytes_at_most(group: RecordGroup) -> int:
    """Return an upper bound of what a group takes in the log."""
    fixed = FIXED_BYTES + 2 * _HOST_BYTES[1] + RECORD_CRC_BYTES
    return sum(
        fixed + len(topic_field(record.topic.encode())) + len(record.body) + len(record.properties)
        if isinstance(record, NewRecord)
        else record.record_bytes
        for record in group.records
    )


def _illegal(remark: str) -> PutResult:
    return PutResult(PutStatus.MESSAGE_ILLEGAL, remark=remark)
