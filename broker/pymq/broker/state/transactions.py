"""Which half messages are open, and where to read on after a restart.

Every half message is closed once: by an op record that names its offset in the half topic. A check
stores a half message again, as a copy with a new offset, and closes the old one; so a transaction
has exactly one open offset until it ends. ``half_cursor`` is the first offset that may be open;
ops below ``op_cursor`` close only offsets below ``half_cursor``.

Transactions are not entered here when they begin: what is not closed is open.

Source: RocketMQ TransactionalMessageServiceImpl.check, calculateOpOffset.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence

from pymq.protocol.transaction_records import Identity


class OpenTransactions:
    """Open and closed offsets of the half topic.

    Args:
        half_cursor, op_cursor: where the half and the op topic are read from after a restart.
    """

    def __init__(self, half_cursor: int = 0, op_cursor: int = 0) -> None:
        self.half_cursor = half_cursor
        self.op_cursor = op_cursor
        #: From half_cursor on.
        self._closed: set[int] = set()
        #: The highest half offset that each op closes, from op_cursor on.
        self._ops: dict[int, int] = {}
        #: Of transactions that were copied: every older offset -> the open one, and the reverse.
        self._newest: dict[int, int] = {}
        self._older: dict[int, list[int]] = {}
        #: Of copies whose older offsets are not known, because a start found them in the log.
        self._found: dict[Identity, int] = {}
        self._identities: dict[int, Identity] = {}

    def is_open(self, offset: int) -> bool:
        """Has an offset of the half topic not been closed?"""
        return offset >= self.half_cursor and offset not in self._closed

    def open_runs(
        self, end: int, start: int = 0, *, count_max: int = sys.maxsize
    ) -> Iterator[tuple[int, int]]:
        """Yield (first, end) of adjacent open offsets of a range, in order.

        Args:
            end, start: of the range.
            count_max: a longer run is yielded in pieces of this many, each as soon as it is found.
        """
        first = None
        for offset in range(max(start, self.half_cursor), end):
            if offset in self._closed:
                if first is not None:
                    yield first, offset
                first = None
            elif first is None:
                first = offset
            elif offset - first == count_max:
                yield first, offset
                first = offset
        if first is not None:
            yield first, end

    def current(self, offset: int, identity: Identity | None) -> int | None:
        """Return the open offset of a transaction.

        Args:
            offset: of its half message, or of a copy.
            identity: of that.

        Returns:
            None if it has ended.
        """
        newest = self._newest.get(offset, offset)
        if self.is_open(newest):
            return newest
        found = None if identity is None else self._found.get(identity)
        return found if found is not None and self.is_open(found) else None

    def close(self, offset: int, op_offset: int | None) -> None:
        """End a transaction.

        Args:
            offset: the open one.
            op_offset: where in the op topic this is recorded; None: nowhere.
        """
        for older in self._older.pop(offset, ()):
            del self._newest[older]
        self._forget_identity(offset)
        self.restore([offset], op_offset)

    def are_open_alone(self, offsets: Sequence[int]) -> bool:
        """Are offsets of the half topic open, and none of them one of several of a transaction?"""
        return not any(
            not self.is_open(one) or one in self._older or one in self._identities
            for one in offsets
        )

    def close_many(self, offsets: Sequence[int], op_offset: int) -> None:
        """End transactions for which ``are_open_alone`` holds.

        Args:
            offsets: of them.
            op_offset: where in the op topic the first end is recorded; the others follow.
        """
        self._ops.update(zip(itertools.count(op_offset), offsets, strict=False))
        self._closed.update(offsets)
        self._advance()

    def supersede(self, offset: int, copy: int, op_offset: int | None) -> None:
        """Replace the open offset of a transaction by that of a copy.

        Args:
            offset: the open one.
            copy: the new one.
            op_offset: as in ``close``.
        """
        older = [*self._older.pop(offset, ()), offset]
        self._older[copy] = older
        self._newest.update(dict.fromkeys(older, copy))
        identity = self._forget_identity(offset)
        if identity is not None:
            self.find_copy(copy, identity)
        self.restore([offset], op_offset)

    def find_copy(self, offset: int, identity: Identity) -> None:
        """Record the identity of an open copy whose older offsets are not known."""
        self._found[identity] = offset
        self._identities[offset] = identity

    def _forget_identity(self, offset: int) -> Identity | None:
        identity = self._identities.pop(offset, None)
        if identity is not None and self._found.get(identity) == offset:
            del self._found[identity]
        return identity

    def restore(self, offsets: list[int], op_offset: int | None) -> None:
        """Close the offsets that an op names."""
        if op_offset is not None:
            self._ops[op_offset] = max(offsets, default=-1)
        self._closed.update(offset for offset in offsets if offset >= self.half_cursor)
        self._advance()

    def _advance(self) -> None:
        """Move the cursors over what is closed."""
        cursor, closed = self.half_cursor, self._closed
        while cursor in closed:
            closed.remove(cursor)
            cursor += 1
        self.half_cursor = cursor
        ops, op_cursor = self._ops, self.op_cursor
        while ops.get(op_cursor, cursor) < cursor:
            del ops[op_cursor]
            op_cursor += 1
        self.op_cursor = op_cursor
