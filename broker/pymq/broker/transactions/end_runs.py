"""Ends many transactions at a time, as a producer's threads ask for it together.

A run is taken as a whole or not at all; if anything about one of its transactions is not usual, its
ends are handled one by one by ``handlers.transactions``, which knows the rules.

Source: RocketMQ EndTransactionProcessor.
"""

from collections.abc import Sequence

from pymq.broker.cold_reads import ColdReads
from pymq.broker.message_hooks import asked_for
from pymq.broker.transactions.transactions import Transactions
from pymq.errors import CorruptRecord, OffsetOutOfRange
from pymq.net.dispatcher import RequestRun
from pymq.protocol.codes import TRANSACTION_MASK, MessageFlag
from pymq.protocol.message import (
    PRODUCER_GROUP,
    REAL_TOPIC,
    TAGS,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
    find_property,
)
from pymq.protocol.multi_dispatch import DISPATCH_MARK
from pymq.protocol.names import HALF_TOPIC
from pymq.protocol.parking import is_usual_place, real_place
from pymq.protocol.plain_ends import PlainEnds
from pymq.protocol.plain_records import PlainRecords, StoredPlain, read_plain
from pymq.protocol.tag_codes import tag_code
from pymq.protocol.transaction_records import CHECK_IMMUNITY_S, Identity
from pymq.store import MessageStore, StoreConfig

_COMMIT = int(MessageFlag.TRANSACTION_COMMIT)
_DECISIONS = {_COMMIT, int(MessageFlag.TRANSACTION_ROLLBACK)}
_INNER_BATCH = int(MessageFlag.INNER_BATCH)
_HALF_TOPIC = b"%c%b" % (len(HALF_TOPIC), HALF_TOPIC.encode())
_PRODUCER_GROUP, _UNIQUE_KEY = PRODUCER_GROUP.encode(), UNIQUE_KEY.encode()
_REAL_TOPIC, _TAGS = f"\x02{REAL_TOPIC}\x01".encode(), TAGS.encode()
#: Of half messages that are looked at one by one.
_UNUSUAL = TRANSACTION_CHECK_TIMES.encode(), CHECK_IMMUNITY_S.encode(), DISPATCH_MARK


class EndRuns:
    """Takes the runs of plain ends of a broker.

    Args:
        store: to be read where it is in memory.
        cold_reads: know where that is.
        store_host: our packed address.
    """

    def __init__(
        self,
        store_config: StoreConfig,
        store: MessageStore,
        cold_reads: ColdReads,
        transactions: Transactions,
        store_host: bytes,
    ) -> None:
        self._store = store
        self._cold_reads = cold_reads
        self._transactions = transactions
        self._is_possible = store_config.takes_plain(store_host)
        self._bytes_max = store_config.together_bytes_max

    def take(self, run: RequestRun[PlainEnds]) -> bool:
        """End the transactions of a run; False, and nothing happens, if one is not usual."""
        ends = run.plain
        if not self._is_possible or not _DECISIONS.issuperset(ends.decisions):
            return False
        halves = self._read(ends)
        if halves is None or not _are_usual(ends, halves):
            return False
        owners = _identities(halves)
        committed = _committed(ends, halves)
        if owners is None or committed is None:
            return False
        if sum(records.record_bytes for records in committed) > self._bytes_max:
            return False

        def ended(code: int, remark: str | None) -> None:
            run.respond_encoded(code, b"")

        return self._transactions.end_many(ends.queue_offsets, owners, committed, ended)

    def _read(self, ends: PlainEnds) -> list[StoredPlain] | None:
        """Return the half messages of ends; None if one is not there, or not a plain one."""
        if not self._cold_reads.is_in_memory(min(ends.physical_offsets)):
            return None
        halves = []
        for physical_offset, queue_offset in zip(
            ends.physical_offsets, ends.queue_offsets, strict=True
        ):
            try:
                view = self._store.record_view(physical_offset)
            except (OffsetOutOfRange, CorruptRecord):
                return None
            half = read_plain(view, _HALF_TOPIC)
            if half is None or half.queue_offset != queue_offset or half.sys_flag & _INNER_BATCH:
                return None
            halves.append(half)
        return halves


def _are_usual(ends: PlainEnds, halves: Sequence[StoredPlain]) -> bool:
    """Are the half messages those of the producer, and ordinary messages otherwise?"""
    texts = [half.properties for half in halves]
    joined = b"\x02" + b"\x02".join(texts)
    group = ends.header.producer_group.encode()
    return (
        asked_for(joined) == [TRANSACTION_PREPARED]
        and not any(name in joined for name in _UNUSUAL)
        and all(find_property(text, _PRODUCER_GROUP) == group for text in texts)
    )


def _identities(halves: Sequence[StoredPlain]) -> list[Identity] | None:
    """Return the identity of each half message; None if one has none."""
    found = [
        Identity(key, half.born_timestamp, half.born_host)
        for half in halves
        if (key := find_property(half.properties, _UNIQUE_KEY)) is not None
    ]
    return found if len(found) == len(halves) else None


def _committed(ends: PlainEnds, halves: Sequence[StoredPlain]) -> list[PlainRecords] | None:
    """Return the messages of the transactions that are committed; None if one is not usual."""
    alike: dict[tuple[str, bytes, int], list[tuple[int, StoredPlain, int]]] = {}
    place_of: dict[bytes, tuple[str, int] | None] = {}
    for half, physical_offset, decision in zip(
        halves, ends.physical_offsets, ends.decisions, strict=True
    ):
        if decision != _COMMIT:
            continue
        # We put the place behind all other properties: few ends of them differ.
        text = half.properties
        end = text[text.rfind(_REAL_TOPIC) :]
        if end not in place_of:
            place_of[end] = real_place(end)
        place = place_of[end]
        if place is None or not is_usual_place(*place):
            return None
        topic, queue_id = place
        same = alike.setdefault((topic, half.born_host, half.sys_flag), [])
        same.append((queue_id, half, physical_offset))
    return [
        PlainRecords(
            topic,
            [queue_id for queue_id, _, _ in messages],
            [half.body for _, half, _ in messages],
            [half.properties for _, half, _ in messages],
            born_host=born_host,
            born_timestamps=[half.born_timestamp for _, half, _ in messages],
            flags=[half.flag for _, half, _ in messages],
            sys_flag=sys_flag & ~TRANSACTION_MASK | _COMMIT,
            tag_codes=[_tag_code(half) for _, half, _ in messages],
            prepared_offsets=[physical_offset for _, _, physical_offset in messages],
        )
        for (topic, born_host, sys_flag), messages in alike.items()
    ]


def _tag_code(half: StoredPlain) -> int:
    if _TAGS not in half.properties:
        return 0
    return tag_code((find_property(half.properties, _TAGS) or b"").decode(errors="replace"))
