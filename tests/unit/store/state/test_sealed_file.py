"""Small state files: whole, backed up, never silently empty."""

import json
import logging
from pathlib import Path
from unittest.mock import ANY

import pytest

from pymq.errors import CorruptRecord, DiskFull
from pymq.store import Files
from pymq.store.state.sealed_file import SealedFile, seal, unseal


def test_save_and_load(tmp_path: Path) -> None:
    table = SealedFile(tmp_path / "config" / "topics.json")
    assert table.load(json.loads) is None
    table.save('{"a": 1}')
    assert table.load(json.loads) == {"a": 1}
    table.save('{"a": 2}')
    assert SealedFile(tmp_path / "config" / "topics.json").load(json.loads) == {"a": 2}
    names = sorted(path.name for path in (tmp_path / "config").iterdir())
    assert names == ["topics.json", "topics.json.bak"]
    assert json.loads((tmp_path / "config" / "topics.json.bak").read_text())["a"] == 1


def test_the_checksum_comes_first() -> None:
    assert seal(b'{"a": 1}') == b'{"pymqCrc32":"fba18e97","a": 1}'
    assert seal(b"{}") == b'{"pymqCrc32":"a3a6bf43"}'
    for text in (b'{"a": 1}', b'{\n\t"a": 1\n}', b"{}", b"{ }"):
        assert json.loads(seal(text)) == json.loads(text) | {"pymqCrc32": ANY}
        assert unseal(seal(text)) == text
        assert unseal(text) == text  # as RocketMQ writes it
    with pytest.raises(ValueError, match="not fit its checksum"):
        unseal(seal(b'{"a": 1}').replace(b"1}", b"3}"))
    with pytest.raises(ValueError, match="JSON object"):
        seal(b"[1]")


@pytest.mark.parametrize(
    "damage",
    [b"", bytes(40), b'{"a": ', b"\xff\xfe", b'{"pymqCrc32":"00000000","a": 2}', None],
)
def test_a_damaged_file_falls_back_to_the_backup(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "offsets.json"
    table = SealedFile(path)
    table.save('{"a": 1}')
    table.save('{"a": 2}')
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert table.load(json.loads) == {"a": 1}
    assert "offsets.json" in caplog.text and "backup" in caplog.text
    table.save('{"a": 3}')
    assert table.load(json.loads) == {"a": 3}
    kept = tmp_path / "offsets.json.damaged"
    assert (kept.read_bytes() if kept.exists() else None) == damage


def test_nothing_readable_is_an_error_and_not_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_bytes(b"{")
    with pytest.raises(CorruptRecord, match="offsets.json.*Restore"):
        SealedFile(path).load(json.loads)


def test_a_failed_save_leaves_the_old_state(tmp_path: Path) -> None:
    class Full(Files):
        def write_file(self, path: Path, data: bytes) -> None:
            path.write_bytes(data[:3])
            raise DiskFull(f"{path}: no space")

    path = tmp_path / "offsets.json"
    SealedFile(path).save('{"a": 1}')
    with pytest.raises(DiskFull):
        SealedFile(path, files=Full()).save('{"a": 2}')
    assert SealedFile(path).load(json.loads) == {"a": 1}
    SealedFile(path).save('{"a": 3}')
    assert SealedFile(path).load(json.loads) == {"a": 3}


def test_a_damaged_file_does_not_become_the_backup(tmp_path: Path) -> None:
    class Crashing(Files):
        def rename(self, source: Path, target: Path) -> None:
            if target.suffix == ".json":
                raise DiskFull(f"{target}: as if the machine had stopped here")
            super().rename(source, target)

    path = tmp_path / "offsets.json"
    SealedFile(path).save('{"a": 1}')
    SealedFile(path).save('{"a": 2}')
    path.write_bytes(b"{")
    table = SealedFile(path, files=Crashing())
    assert table.load(json.loads) == {"a": 1}
    with pytest.raises(DiskFull):
        table.save('{"a": 3}')
    assert SealedFile(path).load(json.loads) == {"a": 1}


def test_a_text_that_is_none_keeps_nothing_else_from_being_saved(tmp_path: Path) -> None:
    """A peer's JSON can hold half of a surrogate pair."""
    table = SealedFile(tmp_path / "topics.json")
    table.save(json.dumps({"a": "\ud800", "b": "ü"}, ensure_ascii=False))
    assert table.load(json.loads) == {"a": "?", "b": "ü"}
