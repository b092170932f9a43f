"""Which master wrote which part of a log, and where two logs begin to differ."""

import random

import pytest

from pymq.protocol.epochs import Epoch, Epochs


def of(*entries: tuple[int, int]) -> Epochs:
    return Epochs.of(Epoch(*one) for one in entries)


THREE = of((1, 0), (3, 100), (4, 250))


@pytest.mark.parametrize(
    "entries", [((2, 0), (1, 5)), ((1, 0), (1, 5)), ((1, 5), (2, 4))], ids=str
)
def test_epochs_ascend(entries: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        of(*entries)


def test_the_last_number() -> None:
    assert Epochs().last_number == -1
    assert THREE.last_number == 4


def test_an_epoch_begins_behind_those_that_have_bytes() -> None:
    assert Epochs().begun(1, 0) == of((1, 0))
    assert THREE.begun(6, 300) == of((1, 0), (3, 100), (4, 250), (6, 300))
    assert THREE.begun(6, 250) == of((1, 0), (3, 100), (6, 250))  # 4 has not got a byte
    assert THREE.begun(6, 0) == of((6, 0))
    assert THREE.begun(4, 300) == THREE  # it goes on
    assert THREE.begun(2, 100) == of((1, 0), (2, 100))
    with pytest.raises(ValueError, match="the log has bytes of epoch"):
        THREE.begun(2, 101)


def test_a_cut_takes_epochs_away_that_lose_their_first_byte() -> None:
    assert THREE.cut(251) == THREE
    assert THREE.cut(250) == of((1, 0), (3, 100))
    assert THREE.cut(1) == of((1, 0))
    assert THREE.cut(0) == Epochs()


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        (0, (Epoch(1, 0), 100)),
        (99, (Epoch(1, 0), 100)),
        (100, (Epoch(3, 100), 250)),
        (250, (Epoch(4, 250), None)),
        (1 << 40, (Epoch(4, 250), None)),
    ],
)
def test_the_epoch_of_a_byte(offset: int, found: tuple[Epoch, int | None]) -> None:
    assert THREE.at(offset) == found


def test_bytes_before_the_first_epoch_are_of_none() -> None:
    assert Epochs().at(0) is None
    assert of((2, 50)).at(49) is None


@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "common"),
    [
        # The same epochs: the shorter one.
        (THREE, 300, THREE, 280, 280),
        (THREE, 260, THREE, 280, 260),
        # The other one was ended earlier by a later master.
        (of((1, 0), (3, 100)), 400, of((1, 0), (3, 100), (4, 250)), 300, 250),
        # This one has an epoch that the other one never had.
        (of((1, 0), (2, 90)), 200, of((1, 0), (3, 100)), 150, 90),
        # The same number, begun elsewhere.
        (of((1, 0), (3, 90)), 200, of((1, 0), (3, 100)), 150, 90),
        # Nothing in common, as far as is known.
        (of((1, 10)), 200, of((3, 0)), 150, None),
        (of((1, 0)), 200, of((3, 10)), 150, None),
        (of((5, 0)), 200, of((3, 0)), 150, None),
        (Epochs(), 200, THREE, 300, None),
        (THREE, 300, Epochs(), 0, None),
        # Nothing in common, surely: both have their first bytes from different masters.
        (of((1, 0), (2, 50)), 200, of((3, 0)), 150, 0),
    ],
)
def test_where_two_logs_begin_to_differ(
    own: Epochs, own_end: int, other: Epochs, other_end: int, common: int | None
) -> None:
    assert own.common_end(own_end, other, other_end) == common


class Log:
    """A log whose bytes know who wrote them: (epoch, a number that no other byte has)."""

    def __init__(self) -> None:
        self.content: list[tuple[int, int]] = []
        self.epochs = Epochs()

    def cut(self, end: int) -> None:
        del self.content[end:]
        self.epochs = self.epochs.cut(end)

    def check(self) -> None:
        for at, (number, _) in enumerate(self.content):
            found = self.epochs.at(at)
            assert found is not None and found[0].number == number
            assert found[1] is None or at < found[1]


def test_histories_of_masters_and_slaves(seed: int) -> None:
    for number in range(300):
        dice = random.Random(f"{seed}/{number}")
        logs = [Log() for _ in range(3)]
        epoch = byte = 0
        for _ in range(dice.randint(1, 12)):
            epoch += dice.randint(1, 2)
            master, *slaves = dice.sample(logs, 3)
            master.epochs = master.epochs.begun(epoch, len(master.content))
            for slave in slaves[: dice.randint(0, 2)]:
                follow(slave, master, dice)
            for _ in range(dice.randint(0, 4)):
                byte += 1
                master.content.append((epoch, byte))
            for slave in slaves[: dice.randint(0, 2)]:
                follow(slave, master, dice)
            for log in logs:
                log.check()


def follow(slave: Log, master: Log, dice: random.Random) -> None:
    """Have a slave cut its log where it differs, and take some of what follows."""
    ends = len(slave.content), len(master.content)
    common = 0
    if slave.content:
        found = slave.epochs.common_end(ends[0], master.epochs, ends[1])
        if found is None:
            assert master.epochs.last_number < slave.epochs.last_number or not master.content
            return
        common = found
    agree = next((at for at in range(min(ends)) if slave.content[at] != master.content[at]), None)
    assert common == (min(ends) if agree is None else agree)
    slave.cut(common)
    for one in master.content[common : dice.randint(common, ends[1])]:
        if one[0] > slave.epochs.last_number:
            at = master.epochs.at(len(slave.content))
            assert at is not None
            slave.epochs = slave.epochs.begun(*at[0])
        slave.content.append(one)
