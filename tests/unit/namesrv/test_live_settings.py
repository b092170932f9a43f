"""Settings of a name server that change while it runs, and their file."""

import errno
import os
import stat
from pathlib import Path

import pytest

from pymq.errors import BrokerSystemError
from pymq.namesrv.config import NamesrvConfig
from pymq.namesrv.live_settings import LiveSettings


def config_at(path: Path) -> NamesrvConfig:
    return NamesrvConfig(kv_config_path=path / "kvConfig.json", allow_config_update=True)


def test_what_the_disk_does_not_confirm_counts_as_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has its new name by then; only a power loss could undo that."""
    sync = os.fsync

    def fail_at_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    config = config_at(tmp_path)
    settings = LiveSettings(config)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail_at_folders)
        with pytest.raises(BrokerSystemError, match=r"Input/output error.* in effect, but the"):
            settings.change({"enableTopicList": "false"})
    again = config_at(tmp_path)
    LiveSettings(again)
    assert not config.enable_topic_list and not again.enable_topic_list
    settings.change({"enableAllTopicList": "false"})
    again = config_at(tmp_path)
    LiveSettings(again)
    assert not again.enable_topic_list and not again.enable_all_topic_list
