"""A slave's offsets follow its master's within milliseconds: what has changed is asked for.

Each question says up to which change this slave has the offsets; a master that acknowledges
commits when slaves have them goes by that. What is told is taken over once this slave has the log
that it speaks of: otherwise messages could count as consumed, when this slave is a master, that it
never got.

A master of RocketMQ's does not know the question; its offsets are copied now and then, all of them
(``MetadataSync``).
"""

import asyncio
import logging
from collections.abc import Callable

from pymq.broker.state.offsets import OffsetTable
from pymq.errors import ConnectionFailed, PymqError, RemoteProtocolError
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.net.waiting import happens
from pymq.protocol.bodies import DelayOffsetTable
from pymq.protocol.codes import AWAIT_OFFSETS, LanguageCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.replication import OffsetsRequest, OffsetsResponse
from pymq.protocol.offset_changes import OffsetChanges

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S, RETRY_S = 3.0, 10.0, 0.5
#: How long a master keeps the question.
CHANGE_WAIT_MS = 2_000
#: A master that does not know the question is asked again after this.
FOREIGN_PAUSE_S = 10.0
#: How long to wait for the log that the offsets speak of, and how often to look.
LEVEL_TIMEOUT_S, _LEVEL_PAUSE_S = 10.0, 0.003
#: What is told is read in a thread from this size on.
LARGE_BYTES = 256 << 10


class OffsetSync:
    """Asks the master for changes of consumer offsets, and of the progress of deliveries.

    Args:
        offsets: of this slave.
        take_delays: takes over up to where the delayed messages of each level are delivered.
        take_timers: takes over how far timers are.
        kept_end: returns the physical offset up to which the slave has the log of the master; None:
            that log is not followed, and nobody is asked.
        broker_id: of this slave.

    Attributes:
        is_foreign: whether the master does not tell; then somebody else has to ask for all.
    """

    def __init__(
        self,
        offsets: OffsetTable,
        take_delays: Callable[[DelayOffsetTable], None],
        take_timers: Callable[[bytes], None],
        kept_end: Callable[[], int | None],
        *,
        broker_id: int,
    ) -> None:
        self._offsets = offsets
        self._take_delays = take_delays
        self._take_timers = take_timers
        self._kept_end = kept_end
        self._broker_id = broker_id
        self._master: str | None = None
        self._channel: AsyncChannel | None = None
        #: The last change that we have; empty: none is known.
        self._position = ""
        #: How often all were asked for again: without a position before, and after, that tells.
        self._begun_again = 0
        self._changed = asyncio.Event()
        self._said = SaidOnce(_log)
        self._tasks = Tasks("offsets")
        self.is_foreign = False

    @property
    def is_current(self) -> bool:
        """Whether the offsets here are those of the master that is followed."""
        knows = self._offsets.is_known if self.is_foreign else bool(self._position)
        return knows and self._kept_end() is not None

    def start(self) -> None:
        """Begin."""
        self._tasks.start("following", self._run())

    def follow(self, master: str | None) -> None:
        """Ask the master at ``host:port``, and none other; None: nobody."""
        if master != self._master:
            self._master = master
            self._position, self.is_foreign = "", False
            self._close_channel()
            self._changed.set()

    def begin(self) -> None:
        """Ask at once: the master's log is followed from now on."""
        self._changed.set()

    def begin_again(self) -> None:
        """Ask for all offsets: some were deleted here, and may be there again."""
        self._position = ""
        self._begun_again += 1
        self._close_channel()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            master, pause_s = self._master, RETRY_S
            if master is None or self._kept_end() is None:
                await self._changed.wait()
                continue
            asked = self._position, self._begun_again
            try:
                pause_s = await self._ask(master)
            except PymqError as error:
                self._close_channel()
                if not self._is_current(master, asked):
                    pause_s = 0.0  # the question was given up here
                else:
                    self._said.warn(
                        "master",
                        "consumer offsets do not follow master %s: %s; trying again every %g s",
                        master,
                        error,
                        RETRY_S,
                    )
            except Exception:
                _log.exception("the offsets of master %s could not be used", master)
            else:
                self._said.over("master")
            if pause_s > 0:
                await happens(self._changed, pause_s)

    async def _ask(self, master: str) -> float:
        """Ask once, and take over what is told; return how long to wait before the next time.

        Raises:
            PymqError: the master does not answer.
        """
        asked, kept_end = (self._position, self._begun_again), self._kept_end() or 0
        request = OffsetsRequest(
            broker_id=self._broker_id, position=self._position, wait_ms=CHANGE_WAIT_MS
        )
        channel = await self._connected(master)
        answer = await channel.request(
            Command(AWAIT_OFFSETS, request.to_fields(), language=LanguageCode.JAVA),
            REQUEST_TIMEOUT_S,
            description="offsets",
        )
        if not self._is_current(master, asked):
            return 0.0
        if answer.code != ResponseCode.SUCCESS:
            self.is_foreign = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            self._position = ""
            return FOREIGN_PAUSE_S if self.is_foreign else RETRY_S
        self.is_foreign = False
        if not answer.body:
            return 0.0
        told = OffsetsResponse.from_fields(answer.fields)
        if len(answer.body) < LARGE_BYTES:
            changes = OffsetChanges.decode(answer.body)
        else:  # all offsets may take a second: the controller has to hear of us meanwhile
            changes = await asyncio.to_thread(OffsetChanges.decode, answer.body)
        if told.log_end < kept_end:
            return RETRY_S  # it has lost its log, and the connection is not known to be lost yet
        if not await self._wait_level(told.log_end):
            return RETRY_S  # far behind: another time
        if self._is_current(master, asked):
            self._offsets.take_changes(changes, told.position)
            self._take_delays(changes.delays)
            if changes.timers:
                self._take_timers(_bytes_of(changes.timers))
            self._position = told.position
        return 0.0

    def _is_current(self, master: str, asked: tuple[str, int]) -> bool:
        """Return whether what was asked of a master may be taken over."""
        is_followed = self._kept_end() is not None
        is_meant = asked == (self._position, self._begun_again)
        return is_followed and master == self._master and is_meant

    async def _connected(self, master: str) -> AsyncChannel:
        if self._channel is None or not self._channel.is_open:
            channel = await AsyncChannel.connect(master, CONNECT_TIMEOUT_S)
            if master != self._master:
                channel.close()
                raise ConnectionFailed(f"{master} is not the master any more")
            self._channel = channel
        return self._channel

    async def _wait_level(self, log_end: int) -> bool:
        """Wait until this slave has the log up to a physical offset; False: it has not."""
        deadline_s = asyncio.get_running_loop().time() + LEVEL_TIMEOUT_S
        while (kept_end := self._kept_end()) is None or kept_end < log_end:
            if kept_end is None or asyncio.get_running_loop().time() > deadline_s:
                return False
            await asyncio.sleep(_LEVEL_PAUSE_S)
        return True

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()
        self._close_channel()


def _bytes_of(text: str) -> bytes:
    """Return what hexadecimal digits say.

    Raises:
        RemoteProtocolError: they are none.
    """
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise RemoteProtocolError(f"timers of the master: {error}") from error
