"""A store that crashed."""

from pathlib import Path

import pytest
from tests.unit.store.recovery.recovered import TEXTS
from tests.unit.store.stores import (
    crashed_copy,
    open_store,
    put_ok,
    record,
)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A crashed store with 40 messages over two queues in several segments."""
    root = tmp_path / "live"
    store = open_store(root, segment_bytes=1024)
    for number, text in enumerate(TEXTS):
        put_ok(store, record(text, queue_id=number % 2, tag="TagA"))
    copy = crashed_copy(root, tmp_path / "crashed")
    store.close()
    return copy
