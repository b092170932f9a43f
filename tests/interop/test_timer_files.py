"""The files of timers: what RocketMQ 5.3.3 writes, kept in a file and written again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.interop.conftest import require_peers
from tests.interop.jvm import JavaClient
from tests.interop.official_store import official_store
from tests.interop.timer_files import CHECKPOINT, EPOCH_MS, Case, cases, official_files

from pymq.store.timer.timer_wheel import SLOT

VERSION = "5.3.3"


def set_field(java: JavaClient, target: Any, name: str, value: Any) -> None:
    field = target.getClass().getDeclaredField(name)
    field.setAccessible(True)
    field.set(target, value)


def written(java: JavaClient, root: Path, case: Case) -> dict[str, Any]:
    """Have the messages of a case wait in the official store; return what is in its files."""
    rocketmq = java.jvm.org.apache.rocketmq
    timer = rocketmq.store.timer
    root.mkdir()
    precision = case.get("precision_ms", 1000)
    with official_store(
        java, root, TimerPrecisionMs=precision, MappedFileSizeTimerLog=case["log_file_bytes"],
        TimerRollWindowSlot=case["roll_window_slots"], MappedFileSizeCommitLog=1 << 16,
    ) as store:  # fmt: skip
        timers = timer.TimerMessageStore(
            store,
            store.getMessageStoreConfig(),
            timer.TimerCheckpoint(str(root / "config" / "timercheck")),
            timer.TimerMetrics(str(root / "config" / "timermetrics")),
            None,
        )
        assert timers.load()
        for now, due, offset, size, topic, is_delete in case["messages"]:
            set_field(java, timers, "currWriteTimeMs", EPOCH_MS + now)
            message = rocketmq.common.message.MessageExt()
            put = rocketmq.common.message.MessageAccessor.putProperty
            put(message, "REAL_TOPIC", topic)
            if is_delete:
                put(message, "TIMER_DEL_UNIQKEY", "k")
            assert timers.doEnqueue(offset, size, EPOCH_MS + due, message)
        timers.getTimerWheel().flush()
        timers.getTimerLog().shutdown()
        log = {path.name: path.read_bytes().hex() for path in (root / "timerlog").iterdir()}
        slots = np.fromfile(root / "timerwheel", SLOT)
        used = np.flatnonzero(slots["moment"])
        found = {"log": log, "slots": [[int(at), *slots[at].item()] for at in used]}
        timers.shutdown()
    return found


def checkpoint_bytes(java: JavaClient, path: Path) -> str:
    checkpoint = java.jvm.org.apache.rocketmq.store.timer.TimerCheckpoint(str(path))
    read, flushed, offset, master, state, stamp, counter = CHECKPOINT
    checkpoint.setLastReadTimeMs(read)
    checkpoint.setLastTimerLogFlushPos(flushed)
    checkpoint.setLastTimerQueueOffset(offset)
    checkpoint.setMasterTimerQueueOffset(master)
    version = checkpoint.getDataVersion()
    for _ in range(counter):  # py4j turns an AtomicLong into a number
        version.nextVersion(state)
    version.setTimestamp(stamp)
    checkpoint.shutdown()
    return path.read_bytes()[:64].hex()


@pytest.mark.interop
def test_files_of_the_official_store_are_as_they_were_kept(
    tmp_path: Path, java_client: Callable[[str], JavaClient]
) -> None:
    require_peers(VERSION)
    java = java_client(VERSION)
    found: dict[str, Any] = {}
    for number, (name, case) in enumerate(cases().items()):
        root = tmp_path / str(number)
        found[name] = case | written(java, root, case)
        shutil.rmtree(root)
    found["checkpoint"] = checkpoint_bytes(java, tmp_path / "timercheck")
    assert found == official_files()
