"""Bugs that killing has found, each made again without chance; see README.md."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pymq.clock import Clock
from pymq.protocol.record import NewRecord, pack_host
from pymq.store import MessageStore, StoreConfig

HOST = pack_host("127.0.0.1", 10911)
TOPIC = "found"


def open_store(root: Path, **changes: Any) -> MessageStore:
    values: dict[str, Any] = {"segment_bytes": 1 << 16, "queue_file_bytes": 200} | changes
    return MessageStore.open(StoreConfig(root_path=root, **values), Clock())


def put(store: MessageStore, count: int) -> None:
    store.put([NewRecord(TOPIC, 0, b"%d" % n, b"", HOST, 1) for n in range(count)], HOST)


def killed_copy(root: Path, store: MessageStore) -> Path:
    """Return what a SIGKILL at this moment would leave: all that was written, nothing closed."""
    return Path(shutil.copytree(root, root.with_name("killed")))


def test_killed_while_a_queue_file_is_made(tmp_path: Path) -> None:
    """Killed between the creation of a queue file and the setting of its size.

    Recovery found the empty file where it had to make one, and no start succeeded any more:
    "create: File exists".
    """
    store = open_store(tmp_path / "store")
    put(store, 10)  # entries of a whole file
    put(store, 1)
    killed = killed_copy(tmp_path / "store", store)
    store.close()
    second_file = killed / "consumequeue" / TOPIC / "0" / f"{200:020d}"
    assert second_file.stat().st_size == 200
    second_file.write_bytes(b"")
    again = open_store(killed)
    try:
        assert again.queue_bounds(TOPIC, 0) == (0, 11)
    finally:
        again.close()
