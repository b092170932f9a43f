"""The key-value configuration and its file."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from pymq.errors import BrokerSystemError, ConfigurationError
from pymq.namesrv.kv import KVConfig


def test_values_come_and_go() -> None:
    kv = KVConfig()
    assert kv.value("N", "a") is None
    assert kv.table("N") is None
    kv.put("N", "a", "1")
    kv.put("N", "b", "2")
    kv.put("N", "a", "3")
    assert kv.table("N") == {"a": "3", "b": "2"}
    kv.delete("N", "a")
    kv.delete("N", "a")
    kv.delete("M", "a")
    assert kv.value("N", "a") is None
    assert kv.table("M") is None


def test_what_was_put_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kvConfig.json"
    kv = KVConfig.load(path)
    assert not path.exists()
    kv.put("ORDER_TOPIC_CONFIG", "Tö", "broker-a:4")
    kv.put("N", "a", "1")
    kv.delete("N", "a")
    assert json.loads(path.read_text("utf-8")) == {
        "configTable": {"ORDER_TOPIC_CONFIG": {"Tö": "broker-a:4"}, "N": {}}
    }
    assert KVConfig.load(path).value("ORDER_TOPIC_CONFIG", "Tö") == "broker-a:4"
    assert [entry.name for entry in path.parent.iterdir()] == ["kvConfig.json"]


@pytest.mark.parametrize(
    "content", [b'{"configTable":', b"[]", b"\xff", b'{"configTable":{"N":1}}']
)
def test_a_damaged_file_is_an_error_and_stays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"kvConfig\.json.*move it away"):
        KVConfig.load(path)
    assert path.read_bytes() == content


def test_a_path_that_is_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read"):
        KVConfig.load(tmp_path)
    with pytest.raises(ConfigurationError, match="cannot read"):
        KVConfig.load(tmp_path / ("x" * 300))


def test_what_cannot_be_written_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = KVConfig.load(path)
    kv.put("N", "a", "1")
    (tmp_path / "kvConfig.json.tmp").mkdir()  # in the way of the fresh file
    with pytest.raises(BrokerSystemError, match="cannot write") as caught:
        kv.put("N", "a", "2")
    assert caught.value.code == 1
    assert kv.value("N", "a") == "1"
    assert KVConfig.load(path).value("N", "a") == "1"


def test_what_the_disk_does_not_confirm_counts_as_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has its new name by then; only a power loss could undo that."""
    path = tmp_path / "kvConfig.json"
    kv = KVConfig.load(path)
    kv.put("N", "a", "1")
    sync = os.fsync

    def fail_at_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_at_folders)
    with pytest.raises(BrokerSystemError, match=r"Input/output error.* in effect, but the disk"):
        kv.put("N", "a", "2")
    assert kv.value("N", "a") == KVConfig.load(path).value("N", "a") == "2"
