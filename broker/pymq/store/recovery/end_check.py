"""Whether a log ends where it should: what was safe on the disk must be there.

Looked at when a store is opened, and by a broker of a group with a controller before it says how
far its log goes: who is elected and cannot open its log keeps the group without a master.
"""

from pymq.errors import CorruptRecord
from pymq.store.config import StoreConfig
from pymq.store.log.segments import Segments
from pymq.store.state.checkpoint import CHECKPOINT_NAME, Checkpoint
from pymq.store.state.clean_stop import NAME, CleanStop


class LogEndMissing(CorruptRecord):
    """The end of the log is damaged or missing, and was safe on the disk.

    Attributes:
        found: what is wrong, without what can be done about it.
    """

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(f"{found}. {advice}")
        self.found = found


def check_clean_stop(config: StoreConfig, stop: CleanStop, *, end: int, newest_ms: int) -> None:
    """Raise if a log ends before the place where it ended at the last clean stop.

    Args:
        config: of the store.
        stop: the last clean one.
        end: physical offset after the last valid record.
        newest_ms: the latest store time of what was read; 0: there was nothing.

    Raises:
        LogEndMissing: it does.
    """
    if end < stop.log_end and newest_ms <= stop.store_timestamp:
        paths = ", ".join(map(str, config.log_paths))
        raise LogEndMissing(
            f"{paths}: the log ends at physical offset {end}, but reached {stop.log_end} at its "
            "last clean stop: a file is missing (is its disk mounted?) or damaged",
            "Restore it from a copy or a slave; to give up what is missing, remove "
            f"{config.root_path / NAME}",
        )


def check_flushed(
    config: StoreConfig, segments: Segments, checkpoint: Checkpoint, *, end: int, newest_ms: int
) -> None:
    """Raise if a log ends before the place up to which it was flushed.

    Args:
        config: of the store.
        segments: of the log.
        checkpoint: says where that is.
        end, newest_ms: as for ``check_clean_stop``.

    Raises:
        LogEndMissing: it does.
    """
    if end < checkpoint.flushed_end and newest_ms <= checkpoint.log_timestamp:
        path = segments.find(min(end, segments[-1].end - 1)).path if len(segments) else None
        raise LogEndMissing(
            f"{path or config.log_paths[0]}: the log ends at physical offset {end}, but was safe "
            f"on the disk up to {checkpoint.flushed_end}: its last records are damaged or missing"
            + ("" if path else " (is its disk mounted?)"),
            f"Restore the file from a copy or a slave; to give up what is after {end}, remove "
            f"{config.root_path / CHECKPOINT_NAME}",
        )
