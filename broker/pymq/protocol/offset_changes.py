"""What a slave is told of its master's offsets: the answer to AWAIT_OFFSETS (479009)."""

from dataclasses import dataclass

from pymq.protocol.bodies import DataVersion, DelayOffsetTable
from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject


@dataclass(slots=True, kw_only=True)
class OffsetChanges(JsonObject):
    """Offsets that have changed, or all of them."""

    #: ``topic@group`` -> queue id -> next queue offset to consume; without queues: it has none.
    offsets: dict[str, dict[int, int]] = wire("offsetTable", default_factory=dict)
    #: Whether these are all that there are. (A pymq before this was told does not say so.)
    is_whole: bool = wire("whole", default=False)
    #: Those that the group's members have not been told of yet; always all.
    resets: dict[str, dict[int, int]] = wire("resets", default_factory=dict)
    version: DataVersion | None = wire("dataVersion", default=None)
    #: Up to where the delayed messages are delivered; always all.
    delays: DelayOffsetTable = wire("delays", default_factory=DelayOffsetTable)
    #: How far timers are, as GET_TIMER_CHECK_POINT tells it, in hexadecimal digits.
    timers: str | None = wire("timers", default=None)
