"""What a clean stop left: any damage to it is noticed, and the file before it counts."""

import json
import logging
from pathlib import Path

import pytest
from tests.unit.store.stores import TOPIC, open_store, put_ok, record

from pymq.store import Files
from pymq.store.state.clean_stop import CleanStop, IndexPosition


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a store that was stopped twice; between that a topic was deleted."""
    store = open_store(tmp_path)
    put_ok(store, record(), record(topic="Gone"))
    store.close()
    store = open_store(tmp_path)
    store.retention.delete_queues("Gone")
    put_ok(store, record())
    store.close()
    return tmp_path


def load(root: Path) -> CleanStop:
    known = CleanStop(Files(), root)
    known.load()
    return known


def test_what_is_noted(root: Path) -> None:
    known = load(root)
    assert known.ends == {(TOPIC, 0): 2} and list(known.deleted) == ["Gone"]
    assert known.log_end > known.deleted["Gone"] > 0
    assert isinstance(known.index, IndexPosition) and known.index.end == known.log_end


def test_any_flipped_bit_is_noticed(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = root / "queues.json"
    data = path.read_bytes()
    (root / "queues.json.bak").unlink()
    right = load(root).__dict__
    unnoticed = 0
    for at in range(len(data)):
        for bit in range(8):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            known = load(root)
            if known.log_end < 0:
                assert not known.ends and not known.deleted and known.index is None
                continue
            # The name of the checksum may be hit, or a blank: the content is what it was.
            unnoticed += 1
            for name in ("log_end", "store_timestamp", "ends", "deleted", "index"):
                assert getattr(known, name) == right[name], (at, bit)
    assert unnoticed <= 8 * len('"crc32": ') + 8 * data.count(b" ")
    assert "the log is read instead" in caplog.text


@pytest.mark.parametrize("damage", [b"", b"{]", b"[1]", b'{"queues": 3}'])
def test_a_damaged_file_falls_back_to_the_one_before(
    root: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "queues.json").write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        known = load(root)
    assert "queues.json.bak is used instead" in caplog.text
    assert list(known.deleted) == ["Gone"]
    store = open_store(root)
    assert store.queues() == [(TOPIC, 0)] and store.queue_bounds(TOPIC, 0) == (0, 2)
    store.close()
    assert load(root).ends == {(TOPIC, 0): 2}


def test_what_is_damaged_becomes_no_backup(root: Path) -> None:
    before = (root / "queues.json.bak").read_bytes()
    (root / "queues.json").write_bytes(b"{]")
    known = load(root)
    known.forget_ends()
    assert (root / "queues.json.bak").read_bytes() == before
    assert load(root).deleted == known.deleted


def test_a_file_that_was_taken_away_is_not_brought_back(root: Path) -> None:
    (root / "queues.json").unlink()
    assert load(root).log_end == -1


def test_files_of_the_first_version_have_no_checksum(root: Path) -> None:
    path = root / "queues.json"
    content = json.loads(path.read_text())
    del content["pymqCrc32"], content["version"]
    path.write_text(json.dumps(content))
    assert load(root).ends == {(TOPIC, 0): 2}
