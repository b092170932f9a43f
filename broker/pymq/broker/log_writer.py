"""The only way for a message into the log, whoever writes it.

Everything that is appended in one turn of the event loop, by any number of connections, becomes one
append to the log. The caller is told when the promise of the flush mode holds: at once, or after
the flush that covers its message.

While the disk is suspect, what a turn brought waits for a trial (``DiskPressure``). What waits too
long is refused with RocketMQ's words for that.

Source: RocketMQ CommitLog.asyncPutMessage, handleDiskFlushAndHA, BrokerFastFailure.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from time import monotonic
from typing import Protocol, TypeAlias

from pymq.errors import StoreError
from pymq.store import Put, PutResult, PutStatus

_log = logging.getLogger(__name__)


class Outcome(Enum):
    """What became of a put (RocketMQ PutMessageStatus, as far as it is about durability)."""

    STORED = "stored"  #: as safe as the flush mode promises, if the sender waits for that
    DISK_TIMEOUT = "disk timeout"  #: stored, but not proven to be on the disk
    SLAVE_TIMEOUT = "slave timeout"  #: stored, but not proven to be at enough slaves
    NO_SLAVE = "no slave"  #: stored, but too few slaves follow
    REFUSED = "refused"  #: not stored; the result says why
    FAILED = "failed"  #: a bug or a closed store; it may have been stored


#: Looked up for every message; members of an enumeration are slow to find.
_STORED, _REFUSED, _OK = Outcome.STORED, Outcome.REFUSED, PutStatus.OK

_AT_LEAST_HERE = frozenset((Outcome.STORED, Outcome.SLAVE_TIMEOUT, Outcome.NO_SLAVE))

#: Gets the result of a put and its outcome; ``result.remark`` is the reason for anything but
#: STORED. Called once, on the event loop; must not raise.
Done: TypeAlias = Callable[[PutResult, Outcome], None]
#: Stores puts in one append; returns one result each.
Append: TypeAlias = Callable[[Sequence[Put]], list[PutResult]]
#: Calls back when the log is flushed up to a physical offset, or with the reason why it cannot be.
WaitFlushed: TypeAlias = Callable[[int, Callable[[str | None], None]], None]


#: Calls back when enough slaves have the log up to a physical offset, with STORED, or with
#: SLAVE_TIMEOUT or NO_SLAVE and the reason.
WaitReplicated: TypeAlias = Callable[[int, Callable[[Outcome, str | None], None]], None]

#: A put, who is told what became of it, and whether the flush mode's promise is to hold then.
_Pending: TypeAlias = tuple[Put, Done, bool]
#: A write that takes less is nobody's concern.
_NOTED_S = 0.1
#: More puts are not gathered for one append: their bodies are all in memory.
GATHERED_COUNT_MAX = 1024
#: Roughly what a waiting put takes in memory, besides several copies of its bytes.
_PUT_BYTES, _COPIES = 2048, 3
#: Remarks of what was refused, with how long it waited in ms and how many still wait.
LATE_REMARK = (
    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: {:.0f}ms, "
    "size of queue: {}"
)
_BUSY = (
    "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: {:.0f}ms, "
    "size of queue: {}"
)


class Pressure(Protocol):
    """Says whether the disk takes writes at once; see ``DiskPressure``."""

    is_suspect: bool
    is_busy: bool

    def wrote(self, elapsed_s: float) -> None:
        """A write took this long."""

    def try_write(self, then: Callable[[], object]) -> None:
        """Call ``then`` once the disk has taken a write."""


class Appends(Protocol):
    """Stores messages: ``LogWriter`` here, ``escape.writer`` at other brokers."""

    def append(self, put: Put, done: Done, *, wait: bool = True) -> None:
        """Store one; as ``LogWriter.append``."""


class LogWriter:
    """Gathers puts and reports their outcomes.

    Args:
        append: stores them, and makes them visible if they are visible at once.
        wait_flushed: with SYNC_FLUSH, waits for the flush; None with ASYNC_FLUSH.
        disk: says whether a write may be slow; None: it never is.
        wait_replicated: with SYNC_MASTER, waits for slaves; None: nobody waits for them.
    """

    def __init__(
        self,
        append: Append,
        wait_flushed: WaitFlushed | None,
        disk: Pressure | None = None,
        wait_replicated: WaitReplicated | None = None,
    ) -> None:
        self._append = append
        self._wait_flushed = wait_flushed
        self._wait_replicated = wait_replicated
        self._may_wait = wait_flushed is not None or wait_replicated is not None
        self._disk = disk
        self._pending: list[_Pending] = []
        #: What waits for the disk, by the time at which it came.
        self._held: deque[tuple[float, list[_Pending]]] = deque()
        self.held_put_count = 0
        #: Called after each append, when answers that need not wait have left.
        self.on_written: Callable[[], None] = lambda: None
        #: When the write in progress began, by ``time.monotonic``; read by another thread.
        self.writing_since_s: float | None = None
        #: Roughly what the puts that wait for a flush take in memory.
        self.waiting_bytes = 0

    def append(self, put: Put, done: Done, *, wait: bool = True) -> None:
        """Append in this turn of the event loop.

        Args:
            put: what to store; its buffers are kept until then.
            done: gets the outcome.
            wait: whether to call ``done`` only when the flush mode's promise holds.
        """
        pending = self._pending
        if not pending:
            asyncio.get_running_loop().call_soon(self.write)
        pending.append((put, done, wait))
        if len(pending) >= GATHERED_COUNT_MAX:
            self.write()

    async def append_and_wait(self, put: Put) -> PutResult:
        """Append, and return its place once the flush mode's promise holds.

        It counts as stored whatever slaves do: for what is not lost with it if it is lost, or what
        another try would store twice. Clients that go by it are told more (``append_and_tell``).

        Raises:
            StoreError: it is not stored, or not proven to be.
        """
        result, outcome = await self.append_and_tell(put)
        if outcome not in _AT_LEAST_HERE:
            raise StoreError(f"message for topic {put.topic}: {outcome.value}: {result.remark}")
        return result

    async def append_and_tell(self, put: Put) -> tuple[PutResult, Outcome]:
        """Append, and return what becomes of it, as ``append`` tells it."""
        told: asyncio.Future[tuple[PutResult, Outcome]]
        told = asyncio.get_running_loop().create_future()

        def done(result: PutResult, outcome: Outcome) -> None:
            if not told.done():  # it is when the waiting task was cancelled
                told.set_result((result, outcome))

        self.append(put, done)
        return await told

    def write(self) -> int:
        """Append what this turn brought; return how many puts."""
        pending, self._pending = self._pending, []
        disk = self._disk
        if disk is not None and (disk.is_suspect or self._held):
            if pending:
                self._held.append((monotonic(), pending))
                self.held_put_count += len(pending)
                disk.try_write(self._write_held)
            return 0
        return self._write(pending) if pending else 0

    # --- while the disk is suspect

    @property
    def held_ms(self) -> int:
        """How long the put that waits longest has waited for the disk."""
        return int((monotonic() - self._held[0][0]) * 1000) if self._held else 0

    def _write_held(self) -> None:
        """Append what waited for the disk."""
        held, self._held = self._held, deque()
        self.held_put_count = 0
        pending = [one for _, waiting in held for one in waiting]
        if pending:
            self._write(pending)

    def refuse_late(self, wait_ms: float) -> int:
        """Refuse puts that have waited for the disk this long, all if it is busy; return how many.

        Called several times a second.
        """
        held, now_s = self._held, monotonic()
        is_busy = self._disk is not None and self._disk.is_busy
        count = 0
        while held and (is_busy or (now_s - held[0][0]) * 1000 >= wait_ms):
            since_s, waiting = held.popleft()
            self.held_put_count -= len(waiting)
            count += len(waiting)
            text = _BUSY if is_busy else LATE_REMARK
            text = text.format((now_s - since_s) * 1000, self.held_put_count)
            refused = PutResult(PutStatus.BUSY, remark=text)
            for _, done, _ in waiting:
                _tell(done, refused, _REFUSED)
        return count

    # --- appending

    def _write(self, pending: list[_Pending]) -> int:
        self.writing_since_s = begun_s = monotonic()
        try:
            results = self._append([put for put, _, _ in pending])
        except Exception as error:
            _log.exception("%d puts could not be stored", len(pending))
            failed = PutResult(PutStatus.NOT_WRITABLE, remark=str(error))
            for _, done, _ in pending:
                _tell(done, failed, Outcome.FAILED)
            return len(pending)
        finally:
            self.writing_since_s = None
        if self._disk is not None and (elapsed_s := monotonic() - begun_s) > _NOTED_S:
            self._disk.wrote(elapsed_s)
        waiting: list[tuple[Done, PutResult]] = []
        for (_, done, wait), result in zip(pending, results, strict=True):
            outcome = _STORED if result.status is _OK else _REFUSED
            if wait and outcome is _STORED and self._may_wait:
                waiting.append((done, result))
                continue
            try:
                done(result, outcome)
            except Exception:
                _log_untaken(outcome)
        if waiting:
            self._wait(waiting)
        self.on_written()
        return len(pending)

    def _wait(self, waiting: list[tuple[Done, PutResult]]) -> None:
        """Tell the outcomes once the log is flushed, and slaves have it, as far as that counts."""
        physical_end = max(result.physical_end for _, result in waiting)
        size = physical_end - waiting[0][1].physical_offset
        weight = len(waiting) * _PUT_BYTES + size * _COPIES
        self.waiting_bytes += weight

        left = (self._wait_flushed is not None) + (self._wait_replicated is not None)
        worst, why = _STORED, None

        def is_safe(outcome: Outcome, reason: str | None) -> None:
            nonlocal left, worst, why
            left -= 1
            # What slaves lack is told rather than what the disk does, as in RocketMQ.
            if outcome is not _STORED and worst in (_STORED, Outcome.DISK_TIMEOUT):
                worst, why = outcome, reason
            if left:
                return
            self.waiting_bytes -= weight
            for done, result in waiting:
                if why is not None:
                    result.remark = why
                _tell(done, result, worst)

        def flushed(reason: str | None) -> None:
            is_safe(_STORED if reason is None else Outcome.DISK_TIMEOUT, reason)

        if self._wait_flushed is not None:
            self._wait_flushed(physical_end, flushed)
        if self._wait_replicated is not None:
            self._wait_replicated(physical_end, is_safe)


def _tell(done: Done, result: PutResult, outcome: Outcome) -> None:
    try:
        done(result, outcome)
    except Exception:
        _log_untaken(outcome)


def _log_untaken(outcome: Outcome) -> None:
    _log.exception("the outcome of a put (%s) could not be handled", outcome.value)
