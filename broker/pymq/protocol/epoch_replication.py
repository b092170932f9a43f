"""What master and slave say to each other when a controller says who is the master.

::

    slave -> master     state 1: handshake   i32 1 | i16 from last file | i16 learner | i64 id
                        state 2: report      i32 2 | i64 physical end of the slave's log
    master -> slave     state 1: its epochs  i32 1 | i32 size | i64 end of its log | i32 last epoch,
                                             then i32 epoch | i64 first, for each
                        state 2: push        i32 2 | i32 size | i64 physical offset | i32 epoch |
                                             i64 first of the epoch | i64 confirmed end, then bytes

All numbers are big-endian and signed. The slave cuts its log where the two begin to differ,
reports its end, and is sent what follows. A push is of one epoch; one of 0 B is a heartbeat.

RocketMQ's slaves take over the epoch of a heartbeat, too, but not ``NO_EPOCH``.

Source: RocketMQ AutoSwitchHAConnection, AutoSwitchHAClient.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from pymq.errors import RemoteProtocolError
from pymq.protocol.epochs import Epoch, Epochs
from pymq.protocol.replication import FrameInbox, LogTail
from pymq.protocol.replication_secret import refusal_at

_STATE = struct.Struct(">i")
_HANDSHAKE = struct.Struct(">ihhq")
_REPORT = struct.Struct(">iq")
_EPOCHS = struct.Struct(">iiqi")
_EPOCH = struct.Struct(">iq")
_PUSH = struct.Struct(">iiqiqq")
_SHAKING, _FOLLOWING = 1, 2
#: Larger bodies are refused: they do not fit into the buffer of RocketMQ's slaves (4 MiB), either.
PUSH_BYTES_MAX = (4 << 20) - _PUSH.size
#: As many as RocketMQ's masters have room for.
EPOCH_COUNT_MAX = 1000
#: Of a heartbeat while there is nothing in the log.
NO_EPOCH = Epoch(-1, 0)


class Handshake(NamedTuple):
    """What a slave begins with.

    Attributes:
        broker_id: the controller's.
        from_last_file: whether an empty log is to get the master's last file only.
        is_learner: whether the slave never joins the sync state set.
    """

    broker_id: int
    from_last_file: bool = False
    is_learner: bool = False


class MasterEpochs(NamedTuple):
    """The epochs of the master, and where its log ends."""

    epochs: Epochs
    end: int


class EpochPush(NamedTuple):
    """A part of the master's log, or a heartbeat.

    Attributes:
        physical_offset: where the body begins; of a heartbeat, where the next one will.
        epoch: of these bytes.
        confirmed_end: physical offset up to which all members of the sync state set have the log.
        body: valid until there is ``room`` for more; empty: a heartbeat.
    """

    physical_offset: int
    epoch: Epoch
    confirmed_end: int
    body: memoryview


def encode_handshake(handshake: Handshake) -> bytes:
    """Return what a slave sends first."""
    one = handshake
    return _HANDSHAKE.pack(_SHAKING, one.from_last_file, one.is_learner, one.broker_id)


def encode_epoch_report(physical_end: int) -> bytes:
    """Return the report of a slave whose log ends at a physical offset."""
    return _REPORT.pack(_FOLLOWING, physical_end)


def encode_master_epochs(epochs: Epochs, end: int) -> bytes:
    """Return a master's answer to a handshake; of many epochs, the latest."""
    entries = epochs.entries[-EPOCH_COUNT_MAX:]
    body = b"".join(_EPOCH.pack(*one) for one in entries)
    return _EPOCHS.pack(_SHAKING, len(body), end, epochs.last_number) + body


def encode_epoch_push_header(
    physical_offset: int, size_bytes: int, epoch: Epoch, confirmed_end: int
) -> bytes:
    """Return what comes before a body of the log; with size 0, a heartbeat."""
    return _PUSH.pack(_FOLLOWING, size_bytes, physical_offset, *epoch, confirmed_end)


#: What a slave says: a handshake, or the end of its log.
SlaveMessage: TypeAlias = Handshake | LogTail | int


class SlaveMessageReader:
    """Finds what a slave says in a stream of bytes, cut anywhere."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[SlaveMessage]:
        """Yield the messages that are complete now, in order.

        Raises:
            RemoteProtocolError: this is not what a slave of an automatic group says.
        """
        data = self._rest + data
        at = 0
        while len(data) - at >= _STATE.size:
            (state,) = _STATE.unpack_from(data, at)
            form = _HANDSHAKE if state == _SHAKING else _REPORT
            if state not in (_SHAKING, _FOLLOWING):
                raise RemoteProtocolError(
                    f"state {state}, expected {_SHAKING} (handshake) or {_FOLLOWING} (report): a "
                    "slave that follows without a controller, enableControllerMode=false"
                )
            if len(data) - at < form.size:
                break
            _, *found = form.unpack_from(data, at)
            at += form.size
            if state == _SHAKING:
                yield Handshake(found[2], bool(found[0]), bool(found[1]))
            else:
                yield found[0]
        self._rest = data[at:]


#: What a master says.
MasterMessage: TypeAlias = MasterEpochs | EpochPush


class MasterMessageReader:
    """Turns what is received, cut anywhere, into what a master says. For one connection."""

    __slots__ = ("_inbox",)

    def __init__(self) -> None:
        self._inbox = FrameInbox(_frame_bytes)

    def room(self) -> memoryview:
        """Return where to put the next bytes; never empty."""
        return self._inbox.room()

    def received(self, count: int) -> Iterator[MasterMessage]:
        """Yield what ``count`` more bytes complete; to be exhausted before ``room``.

        Raises:
            RemoteProtocolError: this is not what a master of an automatic group says.
        """
        for frame in self._inbox.frames(count):
            if _STATE.unpack_from(frame)[0] == _SHAKING:
                yield _parse_epochs(frame)
            else:
                _, _, at, number, first, confirmed = _PUSH.unpack_from(frame)
                yield EpochPush(at, Epoch(number, first), confirmed, frame[_PUSH.size :])


def _parse_epochs(frame: memoryview) -> MasterEpochs:
    end = _EPOCHS.unpack_from(frame)[2]
    try:
        epochs = Epochs.of(Epoch(*one) for one in _EPOCH.iter_unpack(frame[_EPOCHS.size :]))
    except ValueError as error:
        raise RemoteProtocolError(f"the master's epochs: {error}") from error
    return MasterEpochs(epochs, end)


def _frame_bytes(data: memoryview) -> int:
    if len(data) < _EPOCHS.size:
        return _EPOCHS.size
    state, size = struct.unpack_from(">ii", data)
    if state == _SHAKING and 0 <= size <= EPOCH_COUNT_MAX * _EPOCH.size and not size % _EPOCH.size:
        return _EPOCHS.size + int(size)
    if state != _FOLLOWING or not 0 <= size <= PUSH_BYTES_MAX:
        refusal = refusal_at(int.from_bytes(data[:8], "big", signed=True))
        if refusal is not None:
            raise RemoteProtocolError(refusal.text)
        raise RemoteProtocolError(
            f"a frame of state {state} and {size} B, expected state {_SHAKING} or {_FOLLOWING}: "
            "this is not the HA port of a master that has a controller (enableControllerMode=true)"
        )
    return _PUSH.size + int(size)
