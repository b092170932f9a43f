"""Is the end of a slave's log a part of its master's? Without a controller, no epochs tell it.

Two logs may be of one length and differ: a master that has lost the end of its log in a loss of
power takes other messages at the same physical offsets. So a slave of pymq says what the end of its
log is, and the master compares that with its own. The last record alone tells them apart: it says
when and where it was stored. So what is compared need not be longer than one record.
"""

import logging

from pymq.broker.disk_executor import DiskExecutor
from pymq.errors import StoreError
from pymq.protocol.replication import LogTail, tail_of
from pymq.store import ReadJob, Replication

_log = logging.getLogger(__name__)

#: More than the largest record by default (maxMessageSize, 4 MiB). It lies in one file of the log.
TAIL_BYTES_MAX = (4 << 20) + (64 << 10)


async def read_tail(replication: Replication, disk: DiskExecutor, end: int) -> LogTail | None:
    """Return what the end of a slave's log is; None: it has just begun a file.

    Args:
        end: physical offset of the end.

    Raises:
        StoreError: it cannot be read.
    """
    first = max(replication.file_first(end), end - TAIL_BYTES_MAX, replication.first)
    return await _tail_of(replication, disk, first, end) if first < end else None


async def is_ours(replication: Replication, disk: DiskExecutor, tail: LogTail, end: int) -> bool:
    """Return whether the end of a slave's log is a part of ours, as far as we still have it.

    Args:
        tail: what it is.
        end: physical offset of the end, not beyond ours.
    """
    if not replication.file_first(end) <= tail.first < end or end - tail.first > TAIL_BYTES_MAX:
        return False  # with files of other sizes, say
    if tail.first < replication.first:
        return True  # it has expired here, so nobody can tell
    try:
        return await _tail_of(replication, disk, tail.first, end) == tail
    except StoreError as error:
        _log.warning("the end of a slave's log is not compared with this one: %s", error)
        return True


async def _tail_of(replication: Replication, disk: DiskExecutor, first: int, end: int) -> LogTail:
    job = replication.begin_read(first, end - first)
    found: list[LogTail] = []

    def run(job: ReadJob) -> None:
        job.run()
        if job.error is None:
            found.append(tail_of(first, job.data))

    await disk.run(lambda: run(job), lambda: None)
    if job.error is not None:
        raise job.error
    return found[0]
