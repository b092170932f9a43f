"""How a master talks with its slaves: without a controller, or with one. See ``SlaveConnection``.

Source: RocketMQ DefaultHAConnection, AutoSwitchHAConnection.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from pymq.protocol.epoch_replication import (
    NO_EPOCH,
    SlaveMessage,
    SlaveMessageReader,
    encode_epoch_push_header,
    encode_master_epochs,
)
from pymq.protocol.epochs import Epochs
from pymq.protocol.replication import ReportReader, encode_push_header


class Talk(Protocol):
    """One master's language on one connection."""

    #: Whether a slave says who it is before anything else.
    begins_with_handshake: bool

    def feed(self, data: bytes) -> Iterator[SlaveMessage]:
        """Yield what a slave says.

        Raises:
            RemoteProtocolError: it speaks another language.
        """

    def answer(self, log_end: int) -> bytes:
        """Return the answer to a handshake."""

    def push_header(self, physical_offset: int, size_bytes: int) -> bytes:
        """Return what comes before bytes of the log; of 0 B, a heartbeat."""

    def push_end(self, physical_offset: int) -> int | None:
        """Return the physical offset that a push from some offset on may not pass; None: any."""


class ClassicTalk:
    """Without a controller."""

    begins_with_handshake = False

    def __init__(self) -> None:
        self.feed = ReportReader().feed

    def answer(self, log_end: int) -> bytes:
        """Return nothing: there are no handshakes."""
        raise NotImplementedError

    def push_header(self, physical_offset: int, size_bytes: int) -> bytes:
        """Return what comes before bytes of the log; of 0 B, a heartbeat."""
        return encode_push_header(physical_offset, size_bytes)

    def push_end(self, physical_offset: int) -> int | None:
        """Return that pushes have no end."""
        return None


class EpochTalk:
    """With a controller: pushes say which master wrote them, and what is confirmed.

    Args:
        epochs: of the log.
        confirmed_end: returns the physical offset up to which all members have it.
    """

    begins_with_handshake = True

    def __init__(self, epochs: Epochs, confirmed_end: Callable[[], int]) -> None:
        self._epochs = epochs
        self._confirmed_end = confirmed_end
        self.feed = SlaveMessageReader().feed

    def answer(self, log_end: int) -> bytes:
        """Return the epochs of the log."""
        return encode_master_epochs(self._epochs, log_end)

    def push_header(self, physical_offset: int, size_bytes: int) -> bytes:
        """Return what comes before bytes of the log; of 0 B, a heartbeat."""
        found = self._epochs.at(physical_offset)
        # A heartbeat before the first byte begins no epoch: the next master may begin there, too.
        is_empty = found is None or (not size_bytes and not physical_offset)
        epoch = NO_EPOCH if found is None or is_empty else found[0]
        return encode_epoch_push_header(physical_offset, size_bytes, epoch, self._confirmed_end())

    def push_end(self, physical_offset: int) -> int | None:
        """Return where the epoch of a byte ends."""
        found = self._epochs.at(physical_offset)
        return None if found is None else found[1]
