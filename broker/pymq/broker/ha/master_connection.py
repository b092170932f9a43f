"""A slave's connection to its master: what arrives is appended, and how far it is kept is told."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import cast

from pymq.broker.ha.following import Following
from pymq.broker.log_writer import WaitFlushed
from pymq.errors import PymqError, StoreError
from pymq.protocol.addresses import join_address
from pymq.protocol.epoch_replication import EpochPush, MasterEpochs
from pymq.protocol.replication import LogTail, Push
from pymq.store import Replication

_log = logging.getLogger(__name__)


class MasterConnection(asyncio.BufferedProtocol):
    """The slave's end of one connection.

    Args:
        following: the language to speak.
        replication: the log.
        wait_flushed: waits until the log is on the disk; None: what is written counts as received.
        on_taken: called with how many bytes of the log were appended.

    Attributes:
        tells_tail: see ``Following``.
        peer: address of the master; None: there is no connection.
        ended: done when the connection is; its exception says why.
        heard_s: when the master last said something, on the event loop's clock.
        spoken_s: when we last did.
    """

    def __init__(
        self,
        following: Following,
        replication: Replication,
        wait_flushed: WaitFlushed | None,
        on_taken: Callable[[int], None],
    ) -> None:
        self._following = following
        self.tells_tail = following.tells_tail
        self._replication = replication
        self._wait_flushed = wait_flushed
        self._on_taken = on_taken
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.peer: str | None = None
        self._reported_end = 0
        self._is_waiting = False
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.heard_s = self.spoken_s = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = join_address(*name[:2]) if name else None

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to put what arrives."""
        return self._following.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Append what has arrived."""
        if self.ended.done():
            return
        self.heard_s = self._loop.time()
        pushes: list[Push | EpochPush] = []
        try:
            for message in self._following.received(nbytes):
                if not isinstance(message, MasterEpochs):
                    pushes.append(message)
                    continue
                self._take(pushes)
                pushes = []
                self._send(self._following.agree(message, self._reported_end))
            self._take(pushes)
        except PymqError as error:
            self._end(error)
        except Exception as error:
            _log.exception("what the master sent could not be appended")
            self._end(ConnectionAbortedError(f"an error of our own: {error}"))
        else:
            self._report_soon()

    def _take(self, pushes: Sequence[Push | EpochPush]) -> None:
        """Append what has arrived together."""
        if pushes:
            self._following.take(pushes, self._replication)
            self._on_taken(sum(len(one.body) for one in pushes))

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._transport = None
        self._end(exc or ConnectionResetError("the master has closed the connection"))

    def give_up(self, reason: str) -> None:
        """End it for a reason."""
        self._end(ConnectionAbortedError(reason))

    def _end(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
            self.close()

    def close(self) -> None:
        """Close the connection; idempotent."""
        self.ended.cancel()  # unless it is known why
        if self._transport is not None:
            self._transport.abort()

    # --- what we say

    def begin(self, physical_end: int, tail: LogTail | None) -> None:
        """Tell the master who we are, or where our log ends, and with what."""
        self._reported_end = physical_end
        self._send(self._following.begin(physical_end, tail))

    def report(self) -> None:
        """Tell the master up to where we keep its log."""
        self._send(self._following.report(self._reported_end))

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
            self.spoken_s = self._loop.time()

    def _report_soon(self) -> None:
        """Tell the master once what has arrived is kept."""
        end = self._replication.kept_end
        if end <= self._reported_end:
            return
        if self._wait_flushed is None:
            self._kept(end)
        elif not self._is_waiting:
            self._is_waiting = True

            def flushed(reason: str | None) -> None:
                self._is_waiting = False
                if reason is not None:
                    self._end(StoreError(f"its log is not on the disk: {reason}"))
                    return
                self._kept(end)
                if not self.ended.done():
                    self._report_soon()

            self._wait_flushed(end, flushed)

    def _kept(self, end: int) -> None:
        if end > self._reported_end:
            self._reported_end = end
            self.report()
