"""The file of epochs: RocketMQ's format, its backup, and death at every step."""

import zlib
from pathlib import Path

import pytest

from pymq.errors import CorruptRecord
from pymq.protocol.epochs import Epoch, Epochs
from pymq.store import EpochFile
from pymq.store.state.epoch_file import NAME
from pymq.testing.faulty_files import Crashed, Fault, FaultyFiles, Keep

ONE = Epochs((Epoch(1, 0),))
TWO = Epochs((Epoch(1, 0), Epoch(3, 4098)))
LINES = b"1-0\n3-4098\n"
CONTENT = b"2\n%d\n%s" % (zlib.crc32(LINES) & 0x7FFFFFFF, LINES)


def test_the_checksum_has_lost_its_highest_bit() -> None:
    assert zlib.crc32(LINES) >> 31, "choose lines whose checksum has one"


def test_the_file_is_that_of_rocketmq(tmp_path: Path) -> None:
    file = EpochFile(tmp_path)
    assert file.load() == Epochs()
    file.save(TWO)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert file.epochs == TWO == EpochFile(tmp_path).load()


def test_the_previous_one_is_the_backup(tmp_path: Path) -> None:
    file = EpochFile(tmp_path)
    file.save(ONE)
    file.save(TWO)
    file.save(TWO)  # nothing new
    assert (tmp_path / f"{NAME}.bak").read_bytes().endswith(b"\n1-0\n")
    (tmp_path / NAME).unlink()
    assert EpochFile(tmp_path).load() == ONE


def test_without_epochs_there_is_no_file(tmp_path: Path) -> None:
    file = EpochFile(tmp_path)
    file.save(ONE)
    file.save(TWO)
    file.save(Epochs())
    assert list(tmp_path.iterdir()) == []
    assert EpochFile(tmp_path).load() == Epochs()


def test_it_may_be_elsewhere(tmp_path: Path) -> None:
    EpochFile(tmp_path, path=tmp_path / "other").save(ONE)
    assert EpochFile(tmp_path).load() == Epochs()
    assert EpochFile(tmp_path, path=tmp_path / "other").load() == ONE


def test_a_checksum_of_0_is_none(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"2\n0\n" + LINES)
    assert EpochFile(tmp_path).load() == TWO


DAMAGED = [
    b"",
    b"0\n0\n",
    b"2\n",
    CONTENT[:-1],
    CONTENT[:-2],
    CONTENT.replace(b"4098", b"4099"),
    CONTENT.replace(b"2\n", b"3\n", 1),
    b"2\n0\n3-0\n1-4098\n",
    b"1\n0\n1:0\n",
    b"1\n0\n1-0-0\n",
    b"\xff\xff\xff",
]


@pytest.mark.parametrize("data", [one for one in DAMAGED if one != CONTENT[:-1]])
def test_the_backup_replaces_what_is_damaged(tmp_path: Path, data: bytes) -> None:
    file = EpochFile(tmp_path)
    file.save(ONE)
    file.save(TWO)
    (tmp_path / NAME).write_bytes(data)
    assert EpochFile(tmp_path).load() == ONE
    (tmp_path / f"{NAME}.bak").write_bytes(data)
    with pytest.raises(CorruptRecord, match="start this broker with an empty store"):
        EpochFile(tmp_path).load()


@pytest.mark.parametrize("after", [TWO, Epochs()], ids=["replaced", "removed"])
@pytest.mark.parametrize("keep", [Keep.NOTHING, Keep.BYTES, Keep.ALL])
def test_the_old_or_the_new_ones_are_there_whenever_the_process_dies(
    tmp_path: Path, keep: Keep, after: Epochs
) -> None:
    found = set()
    for at in range(1, 40):
        root = tmp_path / str(at)
        root.mkdir()
        EpochFile(root).save(ONE)
        file = EpochFile(root, files=FaultyFiles(Fault(at=at, keep=keep)))
        file.load()
        try:
            file.save(after)
        except Crashed:
            found.add(EpochFile(root).load())
            continue
        assert EpochFile(root).load() == after
        break
    else:
        pytest.fail("it never ended")
    assert at > 2
    assert found <= {ONE, after}
