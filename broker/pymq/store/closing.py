"""What has to be on the disk before a stop counts as clean."""

import logging

from pymq.errors import FlushFailed, StoreError
from pymq.store.dispatch import Dispatch
from pymq.store.durability import Durability
from pymq.store.keys import Keys
from pymq.store.opening import StoreParts
from pymq.store.timer.timer_store import TimerStore
from pymq.store.write_gate import WriteGate

_log = logging.getLogger(__name__)

#: How long keys are indexed; the rest is left to the next start.
CLOSE_INDEXING_S = 10.0


def flush_all(
    parts: StoreParts,
    *,
    dispatch: Dispatch,
    durability: Durability,
    keys: Keys,
    gate: WriteGate,
) -> None:
    """Flush everything and remove the abort marker; it stays if something is left undone.

    Raises:
        DiskFull, FlushFailed, StoreError: the log could not be flushed.
    """
    log, index = parts.log, parts.index
    # Also what is not confirmed: if it is cut off, so are its queue entries.
    dispatch.limit = None
    log.scrub()
    durability.flush()
    if parts.timers is not None:
        _flush_timers(parts.timers)
    is_indexed = keys.index_rest(CLOSE_INDEXING_S)
    try:
        parts.queues.finish_removals()
        durability.flush_queues()
    except FlushFailed:
        raise
    except StoreError as error:
        # The log is safe, and queues and index can be rebuilt from it.
        _log.warning("queues or index could not be saved (%s); the next start does it", error)
        return
    log.segments.drop_prepared()
    parts.checkpoint.save()
    if dispatch.is_behind:
        _log.warning(
            "not all records could be indexed (%s); the next start does it",
            gate.refusal or "a batch of an exactly-once sink is not complete",
        )
        return
    if not is_indexed:
        _log.warning("not all keys could be indexed; the next start does it")
        return
    # One without files was told where to begin, and will be told again: see ``QueueTable.begin``.
    ends = {
        (one.topic, one.queue_id): one.end_offset
        for one in parts.queues
        if one.end_offset and one.bases
    }
    note = None if index is None else index.position
    parts.clean_stop.save_clean_stop(log, ends, note)
    parts.abort.remove()


def _flush_timers(timers: TimerStore) -> None:
    try:
        timers.flush()
    except StoreError as error:
        # All messages that wait are in the log.
        _log.warning("the files of timers could not be saved (%s); the next start does it", error)
