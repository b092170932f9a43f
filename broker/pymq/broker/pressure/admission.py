"""Which requests are refused because the broker is busy: the dispatcher's ``Admission``.

Says SYSTEM_BUSY, in RocketMQ's words. Producers of pymq, and of Java from 5.3.0 on, send to another
broker then; those of Java 4.5.1 to 5.2.0 do not try again. Consumers wait, and ask again.

=======================  ===================================================================
``[REJECTREQUEST]``      a send while the disk takes nothing, or while more sends wait for it
                         than memory is meant for
``[OVERLOAD]``           as many requests of this class wait as may
``[TIMEOUT_CLEAN_QUEUE]``  the request waited longer for its turn than its class may
``[PCBUSY_CLEAN_QUEUE]``   a send that waited when the disk stopped taking anything
=======================  ===================================================================

Source: RocketMQ NettyRemotingAbstract.processRequestCommand, BrokerFastFailure.
"""

import logging
from collections import Counter

from pymq.broker.config import BrokerConfig
from pymq.broker.log_writer import LATE_REMARK, LogWriter
from pymq.broker.pressure.disk_pressure import DiskPressure
from pymq.broker.pressure.request_classes import (
    ACK,
    LITE_PULL,
    NEEDS_DISK,
    PULL,
    QUERY,
    SEND,
    TRANSACTION,
    RequestClass,
    class_of,
)
from pymq.clock import Clock
from pymq.errors import BrokerError, refusal
from pymq.net.said_once import SaidOnce
from pymq.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)

_REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
_OVERLOADED = "[OVERLOAD]system busy, start flow control for a while"
#: A broker that was late for less than this has been stopped by something else, such as a busy
#: machine, and catches up; RocketMQ, whose threads go on meanwhile, refuses at once.
LATE_LEAST_S = 2.0
#: Requests that are late again within this time have been late all the time.
LATE_PAUSE_S = 0.5
#: A limit counts as no longer reached when this share of it is free again.
_FREE_AGAIN = 0.5


#: By the names of RocketMQ's queues.
_REPORTED = (
    (SEND, "sendThreadPool"),
    (PULL, "pullThreadPool"),
    (LITE_PULL, "litePullThreadPool"),
    (QUERY, "queryThreadPool"),
    (ACK, "ackThreadPool"),
)


class Admission:
    """Refuses requests; see the module.

    Args:
        disk: says whether it takes messages.
        log_writer: knows which sends wait for the disk.

    Attributes:
        is_strained: whether requests need a look at all. Set once in a while, asked for every
            read of a socket.
    """

    def __init__(
        self, config: BrokerConfig, clock: Clock, disk: DiskPressure, log_writer: LogWriter
    ) -> None:
        self._config = config
        self._clock = clock
        self._disk = disk
        self._log_writer = log_writer
        self._waiting: Counter[RequestClass] = Counter()
        self._said = SaidOnce(_log)
        self._is_full = False
        #: When requests were late last, and since when they are again and again.
        self._late_at_s = self._late_since_s = float("-inf")
        self.is_strained = False

    def step(self) -> bool:
        """Look at the disk and at what waits, refuse what is late; called many times a second.

        Returns:
            Whether anything waits for the disk.
        """
        self._disk.step()
        # A trial that only waits for its thread, on a busy machine, is no reason.
        is_stuck = self._disk.trial_ms >= self._config.page_cache_busy_ms / 2
        if self._disk.is_busy or (is_stuck and self._config.fast_failure):
            self._log_writer.refuse_late(self._config.send_wait_ms)
        waiting_bytes, most = self._log_writer.waiting_bytes, self._config.in_flight_bytes_max
        if waiting_bytes > most:
            self._is_full = True
            self._said.warn(
                "bytes",
                "sends that wait for the disk take about %d MiB, the limit is %d "
                "(pymqInFlightBytesMax): more are refused (SYSTEM_BUSY) until half of it is free. "
                "The disk is slower than the producers: use a faster one, fewer producers or "
                "flushDiskType=ASYNC_FLUSH",
                waiting_bytes >> 20,
                most >> 20,
            )
        elif self._is_full and waiting_bytes <= most * _FREE_AGAIN:
            self._is_full = False
            self._said.over("bytes", "sends are taken again")
        self.is_strained = self._is_full or self._disk.is_suspect or self._disk.is_busy
        if self._clock.monotonic_s() - self._late_at_s > LATE_PAUSE_S:
            self._said.over("late", "requests are handled in time again")
        return self.is_strained or waiting_bytes > 0 or self._disk.is_flushing

    # --- requests that arrive

    def check(self, code: int, waited_s: float, behind_count: int) -> None:
        """Refuse a request, or do nothing.

        Args:
            code: of the request.
            waited_s: since it was read.
            behind_count: requests that were read with it, and follow it.

        Raises:
            BrokerError: SYSTEM_BUSY.
        """
        if code in NEEDS_DISK:
            if self._disk.is_busy or self._is_full:
                raise _busy(_REJECTED)
            if self._log_writer.held_put_count >= self._config.waiting_send_count_max:
                self._overloaded(SEND, self._log_writer.held_put_count)
        kind = class_of(code)
        if kind.wait_field is not None:
            wait_ms = getattr(self._config, kind.wait_field)
            if waited_s * 1000 >= wait_ms and self._is_late_for_long():
                self._said.warn(
                    "late",
                    "%s are refused (SYSTEM_BUSY): one waited %d ms for its turn, the limit is %d. "
                    "More requests arrive than one core handles: use more brokers or batches",
                    kind.name,
                    waited_s * 1000,
                    wait_ms,
                )
                raise _busy(LATE_REMARK.format(waited_s * 1000, behind_count))

    def _is_late_for_long(self) -> bool:
        """Return whether requests have been late for a while, and not only after one long turn."""
        now_s = self._clock.monotonic_s()
        if now_s - self._late_at_s > LATE_PAUSE_S:
            self._late_since_s = now_s
        self._late_at_s = now_s
        return self._config.fast_failure and now_s - self._late_since_s >= LATE_LEAST_S

    # --- handlers that wait

    def begin_wait(self, code: int) -> None:
        """A handler is about to wait.

        Raises:
            BrokerError: as many of its class wait as may.
        """
        kind = class_of(code)
        count = self._waiting[kind]
        if count >= getattr(self._config, kind.count_field):
            self._overloaded(kind, count)
        self._waiting[kind] = count + 1

    def end_wait(self, code: int) -> None:
        """A handler has waited."""
        kind = class_of(code)
        self._waiting[kind] = count = self._waiting[kind] - 1
        if count <= getattr(self._config, kind.count_field) * _FREE_AGAIN:
            self._said.over(kind, "%s are taken again", kind.name)

    def _overloaded(self, kind: RequestClass, count: int) -> None:
        self._said.warn(
            kind,
            "%d %s wait for a disk or a peer, as many as may (%s): more are refused (SYSTEM_BUSY). "
            "Look for a slow disk, or for clients that ask for much at once",
            count,
            kind.name,
            kind.count_field,
        )
        raise _busy(_OVERLOADED)

    def waiting_count(self, kind: RequestClass) -> int:
        """Return how many requests of a class wait."""
        held = self._log_writer.held_put_count if kind is SEND else 0
        return self._waiting[kind] + held

    def report(self) -> dict[str, str]:
        """Return what waits, as a broker reports its queues of requests."""
        found = {"pageCacheLockTimeMills": str(self._disk.trial_ms)}
        for kind, name in _REPORTED:
            found[f"{name}QueueSize"] = str(self.waiting_count(kind))
            found[f"{name}QueueCapacity"] = str(getattr(self._config, kind.count_field))
            found[f"{name}QueueHeadWaitTimeMills"] = str(
                self._log_writer.held_ms if kind is SEND else 0
            )
        found["EndTransactionQueueSize"] = str(self.waiting_count(TRANSACTION))
        most = self._config.waiting_transaction_count_max
        found["EndTransactionThreadPoolQueueCapacity"] = str(most)
        return found


def _busy(remark: str) -> BrokerError:
    return refusal(ResponseCode.SYSTEM_BUSY, remark)
