"""Stores that crashed."""

from pathlib import Path

from tests.unit.store.stores import (
    TOPIC,
    bodies,
    open_store,
)

from pymq.store import MessageStore

COUNT = 40
TEXTS = [b"%d" % number for number in range(COUNT)]


def reopen(root: Path, **changes: object) -> MessageStore:
    return open_store(root, **({"segment_bytes": 1024} | changes))


def assert_whole(store: MessageStore) -> None:
    assert bodies(store) == TEXTS[::2]
    assert bodies(store, TOPIC, 1) == TEXTS[1::2]
