"""Reading entries of queues without their records."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.store.queues.consume_queue import BLANK_SIZE, ConsumeQueue
from pymq.store.queues.queue_extension import ADDRESS_MAX
from pymq.store.queues.queue_table import QueueTable
from pymq.store.write_gate import WriteGate


@dataclass(frozen=True, slots=True)
class Unit:
    """What the extension of a queue says of a message.

    Attributes:
        size, bit_map: of the unit in bytes, and of which filters the message passes.
        tag_code, store_timestamp: of the message; ms.
    """

    size: int
    tag_code: int
    store_timestamp: int
    bit_map: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a queue.

    Attributes:
        tag_code: as it is stored: the address of a unit if there should be one.
        unit: None if there is none.
    """

    physical_offset: int
    size: int
    tag_code: int
    unit: Unit | None

    @property
    def has_address(self) -> bool:
        """Is its tag code the address of a unit?"""
        return self.tag_code <= ADDRESS_MAX


class EntryReader:
    """Reads what entries say themselves.

    Args:
        queues: hold the entries.
        gate: knows whether the store is open.
    """

    def __init__(self, queues: QueueTable, gate: WriteGate) -> None:
        self._queues = queues
        self._gate = gate

    def tag_codes(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the tag codes of consecutive visible entries, and which of them are known.

        Args:
            topic, queue_id, queue_offset: where to start.
            count_max: entries wanted at most.

        Returns:
            int64 and bool, shape (n,); none outside of the queue, fewer where a file is missing.
            Those whose unit of the extension is lost are unknown.

        Raises:
            CorruptRecord: a file is gone.
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.end_offset:
            return np.empty(0, np.int64), np.empty(0, np.bool_)
        count = min(count_max, queue.end_offset - queue_offset)
        return queue.tag_codes(queue.entries(queue_offset, count))

    def record_sizes(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int
    ) -> npt.NDArray[np.int64]:
        """Return the sizes of the records of consecutive visible entries.

        Args:
            topic, queue_id, queue_offset: where to start.
            count_max: entries wanted at most.

        Returns:
            int64, shape (n,), B; 0 for entries without a record. None outside of the queue, fewer
            where a file is missing.

        Raises:
            CorruptRecord: a file is gone.
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.end_offset:
            return np.empty(0, np.int64)
        count = min(count_max, queue.end_offset - queue_offset)
        sizes = queue.entries(queue_offset, count)["size"].astype(np.int64)
        sizes[(sizes == BLANK_SIZE) | (sizes < 0)] = 0  # A negative one is damage, found by reads.
        return sizes

    def listed(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int
    ) -> list[Entry] | None:
        """Return consecutive visible entries, as they are stored.

        Args:
            topic, queue_id, queue_offset: where to start.
            count_max: entries wanted at most.

        Returns:
            None if there is nothing at that place.

        Raises:
            CorruptRecord: a file is gone.
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.end_offset:
            return None
        count = min(count_max, queue.end_offset - queue_offset)
        entries = queue.entries(queue_offset, count)
        units = _units(queue, entries["tag_code"].astype(np.int64))
        return [
            Entry(place, size, code, unit)
            for (place, size, code), unit in zip(entries.tolist(), units, strict=True)
        ]


def _units(queue: ConsumeQueue, codes: npt.NDArray[np.int64]) -> Iterator[Unit | None]:
    """Return the unit of each entry of a queue, by its tag code."""
    addressed = codes <= ADDRESS_MAX
    found: Iterator[Unit | None] = iter(())
    if queue.extension is not None and addressed.any():
        addresses = codes[addressed]
        units, known = queue.extension.units(addresses)
        most = int(units["bit_map_bytes"][known].max(initial=0))
        units, known = queue.extension.units(addresses, bit_map_bytes=most)
        found = (
            _unit(one) if is_known else None for one, is_known in zip(units, known, strict=True)
        )
    return (next(found, None) if has_unit else None for has_unit in addressed.tolist())


def _unit(unit: Any) -> Unit:
    size = int(unit["bit_map_bytes"])
    return Unit(
        int(unit["size"]),
        int(unit["tag_code"]),
        int(unit["store_timestamp"]),
        unit["bit_map"].tobytes()[:size],
    )
