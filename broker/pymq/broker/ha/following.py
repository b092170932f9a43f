"""How a slave talks with its master: without a controller, or with one. See ``Slave``.

With a controller, the slave first cuts its log where that begins to differ from the master's. That
needs a store that is not in use, so it is done elsewhere (``LogDiverged``).

Source: RocketMQ DefaultHAClient, AutoSwitchHAClient.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from pymq.errors import StoreMismatch
from pymq.protocol.epoch_replication import (
    NO_EPOCH,
    EpochPush,
    Handshake,
    MasterEpochs,
    MasterMessage,
    MasterMessageReader,
    encode_epoch_report,
    encode_handshake,
)
from pymq.protocol.epochs import Epoch, Epochs
from pymq.protocol.replication import (
    WHOLE_LOG,
    LogTail,
    Push,
    PushReader,
    encode_report,
    encode_tail,
)
from pymq.store import EpochFile, Replication

_log = logging.getLogger(__name__)

#: What a slave is sent.
Message: TypeAlias = Push | MasterMessage


class LogDiverged(StoreMismatch):
    """The log has bytes that the master's has not.

    Attributes:
        common_end: physical offset up to which both are the same.
    """

    def __init__(self, message: str, common_end: int) -> None:
        super().__init__(message)
        self.common_end = common_end


class Following(Protocol):
    """One slave's language on one connection.

    Attributes:
        tells_tail: whether the master is told what the end of the log is.
    """

    tells_tail: bool

    def room(self) -> memoryview:
        """Return where to put the next bytes; never empty."""

    def received(self, count: int) -> Iterator[Message]:
        """Yield what ``count`` more bytes complete; to be exhausted before ``room``.

        Raises:
            RemoteProtocolError: the master speaks another language.
        """

    def begin(self, physical_end: int, tail: LogTail | None) -> bytes:
        """Return what to say first, with a log that ends there; ``tail``: what its end is."""

    def agree(self, message: MasterEpochs, physical_end: int) -> bytes:
        """Return the answer to the master's epochs.

        Raises:
            LogDiverged: the log has to be cut first.
            StoreMismatch: it is another log.
        """

    def report(self, physical_end: int) -> bytes:
        """Return how to say up to where we keep the log."""

    def take(self, pushes: Sequence[Push | EpochPush], replication: Replication) -> None:
        """Append what pushes hold, as one append if they follow each other: that costs less.

        Raises:
            StoreError: as ``Replication.append``.
        """


class ClassicFollowing:
    """Without a controller.

    Args:
        wants_whole_log: whether an empty store is to get the log from its first file on.
    """

    tells_tail = True

    def __init__(self, *, wants_whole_log: bool) -> None:
        self._wants_whole_log = wants_whole_log
        reader = PushReader()
        self.room, self.received = reader.room, reader.received

    def begin(self, physical_end: int, tail: LogTail | None) -> bytes:
        """Return the first report."""
        if tail is not None:
            return encode_tail(tail) + encode_report(physical_end)
        if physical_end == 0 and self._wants_whole_log:
            return encode_report(WHOLE_LOG) + encode_report(0)
        return encode_report(physical_end)

    def agree(self, message: MasterEpochs, physical_end: int) -> bytes:
        """Return nothing: there are no epochs."""
        raise NotImplementedError

    def report(self, physical_end: int) -> bytes:
        """Return how to say up to where we keep the log."""
        return encode_report(physical_end)

    def take(self, pushes: Sequence[Push | EpochPush], replication: Replication) -> None:
        """Append what pushes hold."""
        for first, bodies in _runs(pushes):
            replication.append(first, *bodies)


class EpochFollowing:
    """With a controller.

    Args:
        handshake: who we are.
        epochs: of our log; what the master says is added.
    """

    tells_tail = False

    def __init__(self, handshake: Handshake, epochs: EpochFile) -> None:
        self._handshake = handshake
        self._epochs = epochs
        reader = MasterMessageReader()
        self.room, self.received = reader.room, reader.received

    def begin(self, physical_end: int, tail: LogTail | None) -> bytes:
        """Return who we are."""
        return encode_handshake(self._handshake)

    def agree(self, message: MasterEpochs, physical_end: int) -> bytes:
        """Return the first report, if our log is the beginning of the master's."""
        if not physical_end:
            self._epochs.save(Epochs())
            return encode_epoch_report(0)
        own = self._epochs.epochs
        common = own.common_end(physical_end, message.epochs, message.end)
        if common is None:
            raise StoreMismatch(
                f"the log here, of epochs {_told(own)}, has none in common with the master's, "
                f"{_told(message.epochs)}: it is another log. Start this broker with an empty store"
            )
        if common < physical_end:
            raise LogDiverged(
                f"the log here ends at physical offset {physical_end}, epochs {_told(own)}; it "
                f"is the master's up to {common} only, epochs {_told(message.epochs)}",
                common,
            )
        self._epochs.save(own.cut(physical_end))
        return encode_epoch_report(physical_end)

    def report(self, physical_end: int) -> bytes:
        """Return how to say up to where we keep the log."""
        return encode_epoch_report(physical_end)

    def take(self, pushes: Sequence[Push | EpochPush], replication: Replication) -> None:
        """Append what pushes hold, and show what is confirmed."""
        for epoch, of_epoch in itertools.groupby(pushes, _epoch_of):
            of_one = list(of_epoch)
            last = of_one[-1]
            assert isinstance(last, EpochPush)
            replication.show_up_to(last.confirmed_end)  # first: or all would be shown at first
            for first, bodies in _runs(of_one):
                epochs = self._epochs.epochs
                if epoch != NO_EPOCH and epoch.number > epochs.last_number:
                    # Before its first byte, or nobody could tell later whose bytes these are.
                    self._epochs.save(epochs.begun(*epoch))
                replication.append(first, *bodies)


def _epoch_of(push: Push | EpochPush) -> Epoch:
    assert isinstance(push, EpochPush)
    return push.epoch


def _runs(pushes: Iterable[Push | EpochPush]) -> Iterator[tuple[int, list[memoryview]]]:
    """Yield (physical offset, bodies) of pushes that follow each other."""
    first, end, bodies = 0, 0, list[memoryview]()
    for push in pushes:
        if not push.body:
            continue
        if bodies and push.physical_offset != end:
            yield first, bodies
            bodies = []
        if not bodies:
            first = end = push.physical_offset
        bodies.append(push.body)
        end += len(push.body)
    if bodies:
        yield first, bodies


def _told(epochs: Epochs) -> str:
    return ", ".join(f"{one.number} from {one.first} on" for one in epochs.entries) or "none"


#: Makes the language of a new connection.
MakeFollowing: TypeAlias = Callable[[], Following]
