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
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offsets: dict[int, int] = {}
        self._version = DataVersion()
        self._moves = 0

    def find(self, level: int) -> int | None:
        """Return the offset of a level; None if nothing of it was ever delivered."""
        return self._offsets.get(level)

    def levels(self) -> list[int]:
        """Return the levels with an offset, ascending."""
        return sorted(self._offsets)

    def record(self, offsets: Mapping[int, int]) -> bool:
        """Take over offsets that may be written; return whether any of them is new."""
        moves = 0
        for level, offset in offsets.items():
            known = self._offsets.get(level)
            if known != offset:
                moves += abs(offset - (known or 0)) or 1
                self._offsets[level] = offset
        before, self._moves = self._moves, self._moves + moves
        if self._moves // VERSION_STEP != before // VERSION_STEP:
            self._version = self._version.next(self._clock.wall_ms())
        return moves > 0

    def take_over(self, table: DelayOffsetTable) -> bool:
        """Have the offsets of a master; return whether any of them is new."""
        is_new = table.offsets != self._offsets
        self._offsets = dict(table.offsets)
        self._version = table.version or self._version
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
        version = max(table.version or DataVersion(), self._version, key=_rank)
        return self.take_over(DelayOffsetTable(offsets=highest, version=version))

    def acted(self) -> None:
        """Have a RocketMQ master that comes back take over what was delivered for it here."""
        self._version = self._version.next(self._clock.wall_ms())

    def table(self) -> DelayOffsetTable:
        """Return all of it."""
        return self.table_of(self._offsets)

    def to_text(self) -> str:
        """Return the text of ``delayOffset.json``."""
        return self.text_of(self._offsets)

    def text_of(self, offsets: Mapping[int, int]) -> str:
        """Return the text of a file with other offsets."""
        return fastjson.dump_pretty(self.table_of(offsets).to_json())

    def table_of(self, offsets: Mapping[int, int]) -> DelayOffsetTable:
        """Return what a file with other offsets holds."""
        return DelayOffsetTable(
            offsets={level: offsets[level] for level in sorted(offsets)}, version=self._version
        )

    def restore(self, value: object) -> None:
        """Take over the contents of ``delayOffset.json``; before 5.x it has no version."""
        table = DelayOffsetTable.from_json(value)
        self._offsets |= table.offsets
        self._version = table.version or self._version


def _rank(version: DataVersion) -> tuple[int, int, int]:
    """Return what RocketMQ compares versions by."""
    return version.state_version, version.counter, version.timestamp_ms
