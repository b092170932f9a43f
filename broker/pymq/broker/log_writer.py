"""The only way for a message into the log, whoever writes it.

Everything that is appended in one turn of the event loop, by any number of connections, becomes one
append to the log. The caller is told when the promise of the flush mode holds: at once, or after
the flush that covers its message.

Source: RocketMQ CommitLog.asyncPutMessage, handleDiskFlushAndHA.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeAlias

from pymq.errors import StoreError
from pymq.store import Put, PutResult, PutStatus

_log = logging.getLogger(__name__)


class Outcome(Enum):
    """What became of a put (RocketMQ PutMessageStatus, as far as it is about durability)."""

    STORED = "stored"  #: as safe as the flush mode promises, if the sender waits for that
    DISK_TIMEOUT = "disk timeout"  #: stored, but not proven to be on the disk
    REFUSED = "refused"  #: not stored; the result says why
    FAILED = "failed"  #: a bug or a closed store; it may have been stored


#: Looked up for every message; members of an enumeration are slow to find.
_STORED, _REFUSED, _OK = Outcome.STORED, Outcome.REFUSED, PutStatus.OK

#: Gets the result of a put and its outcome; ``result.remark`` is the reason for anything but
#: STORED. Called once, on the event loop; must not raise.
Done: TypeAlias = Callable[[PutResult, Outcome], None]
#: Stores puts in one append; returns one result each.
Append: TypeAlias = Callable[[Sequence[Put]], list[PutResult]]
#: Calls back when the log is flushed up to a physical offset, or with the reason why it cannot be.
WaitFlushed: TypeAlias = Callable[[int, Callable[[str | None], None]], None]


class LogWriter:
    """Gathers puts and reports their outcomes.

    Args:
        append: stores them, and makes them visible if they are visible at once.
        wait_flushed: with SYNC_FLUSH, waits for the flush; None with ASYNC_FLUSH.
    """

    def __init__(self, append: Append, wait_flushed: WaitFlushed | None) -> None:
        self._append = append
        self._wait_flushed = wait_flushed
        self._pending: list[tuple[Put, Done, bool]] = []

    def append(self, put: Put, done: Done, *, wait: bool = True) -> None:
        """Append in this turn of the event loop.

        Args:
            put: what to store; its buffers are kept until then.
            done: gets the outcome.
            wait: whether to call ``done`` only when the flush mode's promise holds.
        """
        if not self._pending:
            asyncio.get_running_loop().call_soon(self.write)
        self._pending.append((put, done, wait))

    async def append_and_wait(self, put: Put) -> PutResult:
        """Append, and return its place once the flush mode's promise holds.

        Raises:
            StoreError: it is not stored, or not proven to be.
        """
        told: asyncio.Future[tuple[PutResult, Outcome]]
        told = asyncio.get_running_loop().create_future()

        def done(result: PutResult, outcome: Outcome) -> None:
            if not told.done():  # it is when the waiting task was cancelled
                told.set_result((result, outcome))

        self.append(put, done)
        result, outcome = await told
        if outcome is not Outcome.STORED:
            raise StoreError(f"message for topic {put.topic}: {outcome.value}: {result.remark}")
        return result

    def write(self) -> int:
        """Append what this turn brought; return how many puts."""
        pending, self._pending = self._pending, []
        if not pending:
            return 0
        try:
            results = self._append([put for put, _, _ in pending])
        except Exception as error:
            _log.exception("%d puts could not be stored", len(pending))
            failed = PutResult(PutStatus.NOT_WRITABLE, remark=str(error))
            for _, done, _ in pending:
                try:
                    done(failed, Outcome.FAILED)
                except Exception:
                    _log_untaken(Outcome.FAILED)
            return len(pending)
        waiting: list[tuple[Done, PutResult]] = []
        for (_, done, wait), result in zip(pending, results, strict=True):
            outcome = _STORED if result.status is _OK else _REFUSED
            if wait and outcome is _STORED and self._wait_flushed is not None:
                waiting.append((done, result))
                continue
            try:
                done(result, outcome)
            except Exception:
                _log_untaken(outcome)
        if waiting:
            assert self._wait_flushed is not None
            physical_end = max(result.physical_end for _, result in waiting)
            self._wait_flushed(physical_end, functools.partial(_flushed, waiting))
        return len(pending)


def _flushed(waiting: list[tuple[Done, PutResult]], reason: str | None) -> None:
    for done, result in waiting:
        outcome = _STORED
        if reason is not None:
            result.remark = reason
            outcome = Outcome.DISK_TIMEOUT
        try:
            done(result, outcome)
        except Exception:
            _log_untaken(outcome)


def _log_untaken(outcome: Outcome) -> None:
    _log.exception("the outcome of a put (%s) could not be handled", outcome.value)
