"""How far the delayed messages of each level have been delivered, as it is known on the disk.

Source: RocketMQ ScheduleMessageService (offsetTable, dataVersion), DelayOffsetSerializeWrapper.
"""

from collections.abc import Mapping

from pymq.clock import Clock
from pymq.protocol import fastjson
from pymq.protocol.bodies import DataVersion, DelayOffsetTable

#: The version of the table changes once in this many deliveries (RocketMQ
#: delayOffsetUpdateVersionStep).
VERSION_STEP = 200


class DelayOffsets:
    """Delay level, from 1 -> queue offset of the next message to deliver.

    Levels that the settings no longer have are kept: they may come back.

    Attributes:
        ahead: delay level -> queue offsets of messages that have been delivered although an earlier
            one of their level has not.
        is_changed: set when a master has told something new; see ``BusyTable``.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offsets: dict[int, int] = {}
        self._version = DataVersion()
        self._moves = 0
        self.ahead: dict[int, list[int]] = {}
        self.is_changed = False

    def find(self, level: int) -> int | None:
        """Return the offset of a level; None if nothing of it was ever delivered."""
        return self._offsets.get(level)

    def levels(self) -> list[int]:
        """Return the levels with an offset, ascending."""
        return sorted(self._offsets)

    def record(self, offsets: Mapping[int, int], ahead: dict[int, list[int]]) -> bool:
        """Take over offsets that may be written; return whether any of them is new."""
        is_new, self.ahead = ahead != self.ahead, ahead
        moves = 0
        for level, offset in offsets.items():
            known = self._offsets.get(level)
            if known != offset:
                moves += abs(offset - (known or 0)) or 1
                self._offsets[level] = offset
        before, self._moves = self._moves, self._moves + moves
        if self._moves // VERSION_STEP != before // VERSION_STEP:
            self._version = self._version.next(self._clock.wall_ms())
        return is_new or moves > 0

    def take_over(self, table: DelayOffsetTable) -> bool:
        """Have the offsets of a master; return whether any of them is new."""
        ahead = table.ahead or {}
        is_new = (table.offsets, ahead) != (self._offsets, self.ahead)
        self._offsets, self.ahead = dict(table.offsets), ahead
        self._version = table.version or self._version
        self.is_changed |= is_new
        return is_new

    def take_back(self, table: DelayOffsetTable) -> bool:
        """Have the offsets of a slave that may have acted for us; return whether any is new.

        Both logs are the same, so the higher one is true of each level, whatever the versions say:
        they change once in ``VERSION_STEP`` deliveries only.
        """
        highest = self._offsets | {
            level: max(offset, self._offsets.get(level, 0))
            for level, offset in table.offsets.items()
        }
        theirs, ours = table.ahead or {}, self.ahead
        ahead = {
            level: sorted({*theirs.get(level, ()), *ours.get(level, ())})
            for level in theirs.keys() | ours.keys()
        }
        version = max(table.version or DataVersion(), self._version, key=_rank)
        return self.take_over(DelayOffsetTable(offsets=highest, ahead=ahead, version=version))

    def acted(self) -> None:
        """Have a RocketMQ master that comes back take over what was delivered for it here."""
        self._version = self._version.next(self._clock.wall_ms())

    def table(self) -> DelayOffsetTable:
        """Return all of it."""
        return self.table_of(self._offsets, self.ahead)

    def to_text(self) -> str:
        """Return the text of ``delayOffset.json``."""
        return fastjson.dump_pretty(self.table().to_json())

    def table_of(
        self, offsets: Mapping[int, int], ahead: dict[int, list[int]]
    ) -> DelayOffsetTable:
        """Return what a file with other offsets holds."""
        return DelayOffsetTable(
            offsets={level: offsets[level] for level in sorted(offsets)},
            ahead=ahead or None,
            version=self._version,
        )

    def restore(self, value: object) -> None:
        """Take over the contents of ``delayOffset.json``; before 5.x it has no version."""
        table = DelayOffsetTable.from_json(value)
        self._offsets |= table.offsets
        self.ahead = table.ahead or {}
        self._version = table.version or self._version


def _rank(version: DataVersion) -> tuple[int, int, int]:
    """Return what RocketMQ compares versions by."""
    return version.state_version, version.counter, version.timestamp_ms
