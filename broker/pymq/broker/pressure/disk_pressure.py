"""Whether the disk takes writes at once: RocketMQ's "page cache busy", without its lock.

The log is written on the event loop, where a write costs a few microseconds: it ends in the
system's memory. When the disk cannot follow, the system lets writers wait, for seconds or, with a
network disk that is gone, for as long as that lasts; and everybody else would wait with them. So
when there is a sign of that, every write is preceded by a trial in a thread:

========  ==========================================================================================
calm      writes happen at once
suspect   a write took long, or a flush takes long: puts wait for a trial write, which writes what
          is there already. Those that wait too long are refused
busy      a trial takes longer than osPageCacheBusyTimeOutMills: all puts are refused, those that
          wait and those that come
========  ==========================================================================================

Source: RocketMQ DefaultMessageStore.isOSPageCacheBusy, BrokerFastFailure.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from pymq.broker.config import BrokerConfig
from pymq.clock import Clock
from pymq.errors import StoreError
from pymq.net.said_once import SaidOnce
from pymq.store import MessageStore

_log = logging.getLogger(__name__)

#: A write, or a flush, that takes this long makes the disk suspect. A flush of what was sent in
#: half a second takes a large part of a second on many disks that take all writes at once.
SLOW_S, SLOW_FLUSH_S = 0.2, 1.0
#: This often ``step`` must have been called during a trial before that counts as long: when the
#: whole process had to wait, on a busy machine, it says nothing about the disk.
LOOKS_LEAST = 8
#: How long it stays suspect after that.
SUSPECT_S = 5.0


class DiskPressure:
    """Watches writes and flushes of one store, and tries the disk while it is suspect.

    Args:
        executor: has a thread for the trials, and for nothing else.
        flush_begun_s: returns when the flush in progress began, if there is one.

    Attributes:
        is_suspect: whether ``try_write`` has to come before a write.
        is_busy: whether the disk takes nothing.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        store: MessageStore,
        executor: Executor,
        *,
        flush_begun_s: Callable[[], float | None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._store = store
        self._executor = executor
        self._said = SaidOnce(_log)
        self._suspect_until_s = 0.0
        self._flush_begun_s = flush_begun_s
        self._trial: asyncio.Future[None] | None = None
        self._trial_begun_s = 0.0
        self._look_count = 0
        self._then: list[Callable[[], object]] = []
        self.is_suspect = False
        self.is_busy = False

    # --- signs

    def wrote(self, elapsed_s: float) -> None:
        """A write took this long, and everybody waited for it."""
        if elapsed_s >= SLOW_S:
            self._suspect_until_s = self._clock.monotonic_s() + SUSPECT_S
            self.is_suspect = True
            self._said.warn(
                "slow",
                "a write to the log took %.1f s, and all clients waited for it: the disk does not "
                "follow. Look for other processes that write much, a failing disk or a network "
                "disk that hangs. From now on writes are tried first, in a thread",
                elapsed_s,
            )

    def step(self) -> None:
        """Look at the time; called several times a second."""
        now_s = self._clock.monotonic_s()
        begun_s = self._flush_begun_s()
        if begun_s is not None and now_s - begun_s >= SLOW_FLUSH_S:
            self._suspect_until_s = now_s + SUSPECT_S
        self.is_suspect = self._trial is not None or now_s < self._suspect_until_s
        if not self.is_suspect:
            self._said.over("slow", "the disk follows again")
        self._look_count += 1
        waited_ms = self.trial_ms
        if waited_ms >= self._config.page_cache_busy_ms and waited_ms:
            self.is_busy = True
            self._said.warn(
                "busy",
                "the disk has taken no write for %.1f s (osPageCacheBusyTimeOutMills=%d): sends "
                "are refused (SYSTEM_BUSY) until it does. Look for a failing disk, or a network "
                "disk that hangs",
                waited_ms / 1000,
                self._config.page_cache_busy_ms,
            )

    @property
    def is_flushing(self) -> bool:
        """Whether a flush is in progress."""
        return self._flush_begun_s() is not None

    @property
    def trial_ms(self) -> int:
        """How long the trial in progress has taken; 0 if there is none."""
        if self._trial is None or self._look_count < LOOKS_LEAST:
            return 0
        return int((self._clock.monotonic_s() - self._trial_begun_s) * 1000)

    # --- trials

    def try_write(self, then: Callable[[], object]) -> None:
        """Call ``then`` once the disk has taken a write; if a trial is going on, at its end.

        Nothing may be written to the log meanwhile.
        """
        if then not in self._then:
            self._then.append(then)
        if self._trial is not None:
            return
        try:
            job = self._store.durability.begin_trial()
        except StoreError as error:
            _log.debug("no trial: %s", error)  # whatever is wrong, the write says it
            asyncio.get_running_loop().call_soon(self._go_on)
            return
        self._trial_begun_s = self._clock.monotonic_s()
        self._look_count = 0
        self._trial = asyncio.get_running_loop().run_in_executor(self._executor, job.run)
        self._trial.add_done_callback(self._tried)

    def _tried(self, trial: "asyncio.Future[None]") -> None:
        self._trial = None
        if not trial.cancelled():
            trial.exception()  # of no interest: the write that follows says what is wrong
        if self.is_busy:
            self.is_busy = False
            waited_s = self._clock.monotonic_s() - self._trial_begun_s
            self._said.over("busy")
            _log.warning("the disk takes writes again, after %.1f s; so do producers", waited_s)
        self._go_on()

    def _go_on(self) -> None:
        waiting, self._then = self._then, []
        for then in waiting:
            then()

    async def wait_writable(self) -> None:
        """Return when something may be written: at once, or when a trial has ended."""
        if self.is_suspect:
            tried = asyncio.Event()
            self.try_write(tried.set)
            await tried.wait()
