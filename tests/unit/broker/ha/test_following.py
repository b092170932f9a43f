"""What a slave has received together is appended together, as far as it belongs together."""

from typing import Any, cast

from pymq.broker.ha.following import ClassicFollowing, EpochFollowing
from pymq.protocol.epoch_replication import NO_EPOCH, EpochPush, Handshake
from pymq.protocol.epochs import Epoch, Epochs
from pymq.protocol.replication import Push
from pymq.store import EpochFile, Replication


class Log:
    """In place of ``Replication`` and ``EpochFile``: notes what is done, in order."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.epochs = Epochs()

    def append(self, physical_offset: int, *parts: memoryview) -> None:
        self.done.append(("append", physical_offset, *map(bytes, parts)))

    def show_up_to(self, physical_end: int) -> None:
        self.done.append(("show", physical_end))

    def save(self, epochs: Epochs) -> None:
        self.epochs = epochs
        self.done.append(("save", epochs.last_number))


def test_pushes_that_follow_each_other_are_one_append() -> None:
    log = Log()
    pushes = [
        Push(10, memoryview(b"abc")),
        Push(13, memoryview(b"")),  # a heartbeat
        Push(13, memoryview(b"de")),
        Push(20, memoryview(b"f")),  # does not belong there: ``append`` says so
        Push(21, memoryview(b"g")),
    ]
    ClassicFollowing(wants_whole_log=True).take(pushes, cast(Replication, log))
    assert log.done == [("append", 10, b"abc", b"de"), ("append", 20, b"f", b"g")]


def test_heartbeats_append_nothing() -> None:
    log = Log()
    ClassicFollowing(wants_whole_log=True).take([Push(7, memoryview(b""))], cast(Replication, log))
    assert log.done == []


def test_an_epoch_is_known_before_its_first_byte_is_there() -> None:
    log = Log()
    following = EpochFollowing(Handshake(2, False, False), cast(EpochFile, log))
    first, second = Epoch(3, 0), Epoch(5, 4)
    pushes = [
        EpochPush(0, first, 0, memoryview(b"ab")),
        EpochPush(2, first, 1, memoryview(b"cd")),
        EpochPush(4, second, 3, memoryview(b"ef")),
        EpochPush(6, second, 4, memoryview(b"")),
    ]
    following.take(pushes, cast(Replication, log))
    assert log.done == [
        ("show", 1),  # before all of it would be shown
        ("save", 3),
        ("append", 0, b"ab", b"cd"),
        ("show", 4),
        ("save", 5),
        ("append", 4, b"ef"),
    ]
    log.done.clear()
    following.take([EpochPush(6, NO_EPOCH, 6, memoryview(b""))], cast(Replication, log))
    assert log.done == [("show", 6)]
