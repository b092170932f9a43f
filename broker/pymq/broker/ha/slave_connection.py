"""One slave that follows this master: it is sent the log, and says how far it has come.

What was just written is sent from the map of its file, on the event loop. A slave that is far
behind is sent what threads read, so that old pages of the log never hold the loop up.

Source: RocketMQ DefaultHAConnection (4.x: HAConnection).
"""

import asyncio
import logging
from typing import Protocol, cast

from pymq.broker.disk_executor import DiskExecutor
from pymq.broker.ha.byte_rate import ByteRate
from pymq.broker.ha.caught_up import CaughtUp
from pymq.broker.ha.log_tails import is_ours
from pymq.broker.ha.sent_ends import SentEnds
from pymq.broker.ha.talk import Talk
from pymq.errors import OffsetOutOfRange, RemoteProtocolError, StoreError
from pymq.net.tasks import Tasks
from pymq.protocol.addresses import join_address
from pymq.protocol.admin_bodies import SlaveStatus
from pymq.protocol.epoch_replication import Handshake
from pymq.protocol.replication import WHOLE_LOG, LogTail
from pymq.protocol.replication_secret import Refusal, encode_refusal
from pymq.store import ReadJob, Replication

_log = logging.getLogger(__name__)

#: Sent in one turn of the event loop; others have their turns, too.
TURN_BYTES = 256 << 10
#: A slave that is further behind is sent what was read in a thread, in pieces of this size.
FAR_BYTES, READ_BYTES = 8 << 20, 1 << 20
#: What the system has not taken yet of what was sent, at most.
_UNSENT_BYTES_MAX = 4 << 20


class Master(Protocol):
    """What a connection asks of the listener that it belongs to."""

    replication: Replication
    disk: DiskExecutor
    tasks: Tasks
    batch_bytes: int
    gather_s: float
    sends_whole_log: bool
    sent_ends: SentEnds

    def talk(self) -> Talk:
        """Return the language of a new connection."""

    def identified(self, connection: "SlaveConnection") -> bool:
        """Take who a slave is; False: it may not stay."""

    def joined(self, connection: "SlaveConnection") -> bool:
        """Take a new connection; False: it may not stay."""

    def confirmed(self, connection: "SlaveConnection") -> None:
        """The slave has more of the log than before."""

    def left(self, connection: "SlaveConnection") -> None:
        """A connection is gone."""

    def refused(self, connection: "SlaveConnection", cause: str, cure: str) -> None:
        """Say why a slave cannot follow, once."""


class SlaveConnection(asyncio.Protocol):
    """The master's end of one connection.

    Attributes:
        is_proven: whether the slave has proven that it is one: then it is pymq's.
        peer: address of the slave; ``host``: without the port.
        sent_end: physical offset up to which the log was sent; None: the slave has said nothing.
        confirmed_end: physical offset up to which the slave has the log; -1: unknown.
        claimed_end: the same, as far as the slave is believed.
        handshake: who the slave is, if slaves say so.
        rate: of what was sent of the log.
        caught_up: when the slave had everything.
        heard_s, spoken_s: when the slave last said something, and we did; ``loop.time``.
    """

    def __init__(self, master: Master, *, is_proven: bool) -> None:
        self._master = master
        self.is_proven = is_proven
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._talk = master.talk()
        self._tail: LogTail | None = None
        self._is_comparing = False
        self._wants_whole_log = False
        self._is_paused = False
        self._is_scheduled = False
        self._resumed: asyncio.Future[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self.peer = self.host = "?"
        self.sent_end: int | None = None
        self.confirmed_end = self.claimed_end = -1
        self.handshake: Handshake | None = None
        self.rate = ByteRate()
        self.caught_up = CaughtUp()
        self.heard_s = self.spoken_s = self._loop.time()

    # --- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, if this peer may follow."""
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.host = name[0] if name else "?"
        self.peer = join_address(*name[:2]) if name else "?"
        self._transport.set_write_buffer_limits(_UNSENT_BYTES_MAX)
        if not self._master.joined(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """The slave says how far it is."""
        self.heard_s = self._loop.time()
        try:
            for message in self._talk.feed(data):
                if not self.is_open:
                    return  # what comes after a report that was refused does not count, either
                if isinstance(message, Handshake):
                    self._shake(message)
                elif isinstance(message, LogTail):
                    self._tail = message
                else:
                    self._take(message)
        except RemoteProtocolError as error:
            self._refuse(
                f"it does not talk as slaves of this broker do: {error}",
                "give master and slaves the same enableControllerMode",
            )

    def pause_writing(self) -> None:
        """The slave does not take what was sent as fast as it is written here."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """It does again."""
        self._is_paused = False
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self._transport = None
        if self._catching_up is not None:
            self._catching_up.cancel()
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        self._master.left(self)

    def status(self, log_end: int, *, gap_max: int) -> SlaveStatus:
        """Return how far the slave is; ``gap_max`` bytes behind, it does not count as in sync."""
        behind = log_end - max(self.claimed_end, 0)
        return SlaveStatus(
            peer=self.peer,
            confirmed_end=max(self.confirmed_end, 0),
            sent_end=-1 if self.sent_end is None else self.sent_end,
            behind_bytes=behind,
            in_sync=self.claimed_end >= 0 and behind < gap_max,
            bytes_per_s=self.rate.per_s,
            broker_id=None if self.handshake is None else self.handshake.broker_id,
            behind_ms=self.caught_up.behind_ms(behind, self._loop.time()),
        )

    @property
    def is_open(self) -> bool:
        """Whether the slave can be sent anything."""
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # --- what the slave says

    def _shake(self, handshake: Handshake) -> None:
        """Tell the slave our epochs, so that it can cut its log where it begins to differ."""
        if self.handshake is not None:  # nor may it ask for more answers than it takes
            self._refuse("it says twice who it is", "this is not a slave of this broker")
            return
        self.handshake = handshake
        self._wants_whole_log = not handshake.from_last_file
        if not self._master.identified(self):
            self.abort()
        elif self.is_open:
            assert self._transport is not None
            self._transport.write(self._talk.answer(self._master.replication.readable_end))

    def _take(self, report: int) -> None:
        if self._talk.begins_with_handshake and self.handshake is None:
            self._refuse("it does not say who it is", "this is not a slave of this broker")
        elif self._is_comparing:
            pass  # it says the same again
        elif self.sent_end is None:
            self._begin(report)
        elif report > self.sent_end or report < 0:
            self._refuse(
                f"it confirms the log up to {report}, but was sent it up to {self.sent_end}",
                "this is not a slave of this broker: look what runs there",
            )
        elif report > self.confirmed_end:
            self.confirmed_end = report
            self.claimed_end = max(report, self.claimed_end)
            self._look_how_far()
            self._master.confirmed(self)

    def _look_how_far(self) -> None:
        log_end = self._master.replication.readable_end
        self.caught_up.look(self.confirmed_end, log_end, self._loop.time())

    def _begin(self, report: int) -> None:
        """Begin to send, from where the slave's log ends."""
        replication = self._master.replication
        if report == WHOLE_LOG and self.handshake is None:
            self._wants_whole_log = True
            return
        if report > replication.readable_end or report < 0:
            self._refuse(
                f"its log ends at physical offset {report}, but this one at "
                f"{replication.readable_end}: it follows another master, or this one has lost the "
                "end of its log",
                "see which of the two has what was acknowledged; start the other one with an "
                "empty store",
                Refusal.LOG_AHEAD if report > 0 else None,
            )
            return
        if self._tail is not None:
            self._is_comparing = True
            self._master.tasks.start("comparing", self._compare(self._tail, report))
            return
        self._follow_from(report)

    async def _compare(self, tail: LogTail, report: int) -> None:
        """Begin to send if the slave's log is the beginning of ours."""
        master = self._master
        is_same = await is_ours(master.replication, master.disk, tail, report)
        self._is_comparing, self._tail = False, None
        if is_same:
            self._follow_from(report)
        else:
            self._refuse(
                f"its log ends at physical offset {report}, and has other bytes before that than "
                f"this one, somewhere from {tail.first} on: this master has lost the end of its "
                "log and taken other messages since, or the slave has another broker's store",
                "see which of the two has what was acknowledged; start the other one with an "
                "empty store",
                Refusal.LOG_DIVERGED,
            )

    def _follow_from(self, report: int) -> None:
        if not self.is_open:
            return
        replication = self._master.replication
        if report == 0:
            whole = self._wants_whole_log or self._master.sends_whole_log
            self.sent_end = replication.first if whole else replication.last_file_first
        else:
            self.sent_end = report
        self.claimed_end = self.confirmed_end = report
        if not self.is_proven:
            self.confirmed_end = self._master.sent_ends.credible(self.host, report)
        _log.info("slave %s follows from physical offset %d on", self.peer, self.sent_end)
        self._master.confirmed(self)
        self.send_heartbeat()  # so that it knows that it follows
        self.send()

    def _refuse(self, cause: str, cure: str, told: Refusal | None = None) -> None:
        self._master.refused(self, cause, cure)
        if told is None or not self.is_open:
            self.abort()
            return
        assert self._transport is not None
        self._transport.write(encode_refusal(told))
        self._transport.close()  # once that is sent; a slave that does not read is silent, too

    # --- what it is sent

    @property
    def behind_bytes(self) -> int:
        """How much of the log the slave was not sent yet."""
        at = self.sent_end
        return 0 if at is None else self._master.replication.readable_end - at

    def send(self) -> None:
        """Send what is new, as much as one turn of the event loop may take."""
        sent = 0
        while (behind := self.behind_bytes) > 0 and self._may_send:
            if behind > FAR_BYTES:
                self._catching_up = self._master.tasks.start("catching up", self._catch_up())
                return
            if not sent and behind < TURN_BYTES and (pause_s := self._pause_s()) > 0:
                self._send_later(pause_s)
                return
            if sent >= TURN_BYTES:
                self._send_later(0)
                return
            assert self.sent_end is not None
            try:
                part = self._master.replication.part(self.sent_end, self._master.batch_bytes)
            except StoreError as error:
                self._lost(error)
                return
            self._write(part)
            sent += len(part)

    @property
    def _may_send(self) -> bool:
        is_busy = self._is_paused or self._is_scheduled or self._catching_up is not None
        return not is_busy and self.is_open

    def _pause_s(self) -> float:
        """Return how long to gather more of the log before it is sent."""
        gather_s = self._master.gather_s
        return gather_s and self.spoken_s + gather_s - self._loop.time()

    def _send_later(self, delay_s: float) -> None:
        self._is_scheduled = True

        def send() -> None:
            self._is_scheduled = False
            self.send()

        self._loop.call_later(delay_s, send)

    async def _catch_up(self) -> None:
        """Send what threads read, until the slave is not far behind any more."""
        assert self.sent_end is not None
        try:
            reading: asyncio.Task[ReadJob] | None = self._begin_read(self.sent_end)
            while reading is not None:
                job = await reading
                if job.error is not None:
                    raise job.error
                if not self.is_open:
                    return
                is_far = self.behind_bytes - len(job.data) > FAR_BYTES // 2
                reading = self._begin_read(self.sent_end + len(job.data)) if is_far else None
                self._write(memoryview(job.data))
                await self._writable()
        except StoreError as error:
            self._lost(error)
        finally:
            self._catching_up = None
        self.send()

    def _begin_read(self, physical_offset: int) -> "asyncio.Task[ReadJob]":
        master = self._master
        job = master.replication.begin_read(physical_offset, READ_BYTES)
        return master.tasks.start("read", master.disk.run(job.run, lambda: job))

    async def _writable(self) -> None:
        if self._is_paused and self.is_open:
            self._resumed = self._loop.create_future()
            await self._resumed
            self._resumed = None

    def _write(self, part: memoryview) -> None:
        assert self._transport is not None
        assert self.sent_end is not None
        size = self._master.batch_bytes
        pieces: list[bytes | memoryview] = []
        at = 0
        while at < len(part):
            end = self._talk.push_end(self.sent_end)
            piece = part[at : at + (size if end is None else min(size, end - self.sent_end))]
            pieces += self._talk.push_header(self.sent_end, len(piece)), piece
            self.sent_end += len(piece)
            at += len(piece)
        self._master.sent_ends.sent(self.host, self.sent_end)
        self._transport.writelines(pieces)
        self._look_how_far()
        self.rate.count(len(part))
        self.spoken_s = self._loop.time()

    def send_heartbeat(self) -> None:
        """Tell the slave that we are there."""
        if self.sent_end is not None and self._may_send:
            assert self._transport is not None
            self._transport.write(self._talk.push_header(self.sent_end, 0))
            self.spoken_s = self._loop.time()

    def _lost(self, error: StoreError) -> None:
        """What the slave needs next cannot be read."""
        if isinstance(error, OffsetOutOfRange):
            self._refuse(
                f"it needs the log from physical offset {self.sent_end} on, which has been "
                f"deleted: this one begins at {self._master.replication.first}",
                "start the slave with an empty store, or with a copy of this one",
                # To an empty slave of RocketMQ it would be the beginning of the log.
                Refusal.LOG_DELETED if self.claimed_end > 0 else None,
            )
        else:
            self._refuse(f"the log cannot be read: {error}", "see the errors of the disk")
