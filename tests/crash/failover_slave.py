"""A simulated broker while it follows a master."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.crash.failover_master import MasterRun
from tests.crash.failover_parts import CONFIG, LOOK_S, Entry
from tests.crash.failover_world import Connection

from pymq.broker.ha.following import EpochFollowing, LogDiverged
from pymq.broker.ha.term import Term
from pymq.errors import StoreError
from pymq.protocol.epoch_replication import Handshake, MasterEpochs

if TYPE_CHECKING:
    from tests.crash.failover_brokers import Broker


class SlaveRun:
    """A broker while it follows a master."""

    def __init__(self, broker: Broker, term: Term) -> None:
        self.broker = broker
        self.term = term
        self.log = broker.disk.log
        self.is_open, self.is_closed = True, False
        self._connection: Connection | None = None
        self._is_waiting = False
        self._is_following = False
        self._reported_end = 0
        self._heard_s = 0.0

    def begin(self) -> None:
        """Begin."""
        self.broker.after(0, self._look)
        self.broker.after(1.0, self._take_offset)

    def close(self) -> None:
        """Stop."""
        self.is_closed = True
        if self._connection is not None:
            self._connection.end(self.broker)

    def _look(self) -> None:
        broker = self.broker
        if self.is_closed:
            return
        connection = self._connection
        if connection is None or not connection.is_open(broker):
            self._is_following = False
            end = len(self.log)
            self._connection = None
            self._flushed(end, lambda reason: self._connect(end))
        elif broker.world.now_s - self._heard_s > CONFIG.silence_ms / 1000:
            connection.end(broker)
        broker.after(LOOK_S, self._look)

    def _flushed(self, end: int, done: Callable[[str | None], None]) -> None:
        if self.broker.settings.is_sync_flush:
            self.broker.wait_flushed(end, done)
        else:
            done(None)

    def _connect(self, end: int) -> None:
        broker = self.broker
        if self.is_closed or self._connection is not None:
            return
        master = broker.peers[self.term.master_id]
        if not isinstance(master.run, MasterRun) or broker.world.is_cut(broker, master):
            return  # it does not say where its slaves connect
        connection = broker.world.connect(broker, master)
        self._connection = connection
        self._heard_s = broker.world.now_s
        self._reported_end = end
        self._is_waiting = False
        following: Any = EpochFollowing(Handshake(broker.id), broker.disk)  # type: ignore[arg-type]
        connection.on_message[0] = lambda message: self._received(connection, following, message)
        connection.send(broker, Handshake(broker.id))

    def _received(self, connection: Connection, following: Any, message: Any) -> None:
        broker = self.broker
        self._heard_s = broker.world.now_s
        if self.is_closed:
            return
        try:
            if isinstance(message, MasterEpochs):
                following.agree(message, self._reported_end)
                broker.watch.agreed(self, message.epochs, self._reported_end)
                connection.send(broker, self._reported_end)
            else:
                following.take([message], self)
                self._is_following = True
        except LogDiverged as error:
            connection.end(broker)
            broker.watch.agreed(self, message.epochs, error.common_end)
            broker.diverged(error.common_end)
        except StoreError as error:
            broker.watch.broken(f"{broker.name} cannot follow: {error}")
        else:
            self._report_soon(connection)

    # --- the log, as following asks for it

    def append(self, physical_offset: int, body: list[Entry]) -> None:
        """Append what the master has sent."""
        if physical_offset != len(self.log):
            raise StoreError(f"{physical_offset} was sent, the log ends at {len(self.log)}")
        self.log += body

    def show_up_to(self, end: int) -> None:
        """Make visible what is confirmed."""
        broker = self.broker
        stored = broker.disk.flushed if broker.settings.is_sync_flush else len(self.log)
        broker.watch.showed(broker, min(end, stored))

    def _report_soon(self, connection: Connection) -> None:
        end = len(self.log)
        if end <= self._reported_end or self._is_waiting:
            return
        self._is_waiting = True

        def flushed(reason: str | None) -> None:
            if connection is not self._connection or self.is_closed:
                return
            self._is_waiting = False
            if end > self._reported_end:
                self._reported_end = end
                connection.send(self.broker, end)
            self._report_soon(connection)

        self._flushed(end, flushed)

    # --- consumers' offsets (ha.metadata)

    def _take_offset(self) -> None:
        broker = self.broker
        if self.is_closed:
            return
        master = broker.peers[self.term.master_id]
        if isinstance(master.run, MasterRun) and not broker.world.is_cut(broker, master):
            offset, end = master.disk.offset, len(master.disk.log)
            broker.after(broker.world.latency_s(), lambda: self._keep_offset(offset, end, 20))
        broker.after(1.0, self._take_offset)

    def _keep_offset(self, offset: int, end: int, tries: int) -> None:
        if self.is_closed or not tries:
            return
        if len(self.log) < end or not self._is_following:
            self.broker.after(0.5, lambda: self._keep_offset(offset, end, tries - 1))
            return

        def flushed(reason: str | None) -> None:
            if not self.is_closed:
                self.broker.disk.offset = offset

        self._flushed(end, flushed)
