"""Queues that are held back: what consumers see of them, and when."""

import errno
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.queues.extended import EXTENDED
from tests.unit.store.stores import (
    TOPIC,
    FailingFiles,
    bodies,
    crashed_copy,
    failing_in,
    never,
    open_store,
    put_ok,
    record,
)

from pymq.store import Arrival, MessageStore

QUEUES = [(TOPIC, 0), (TOPIC, 1)]


def put(store: MessageStore, *texts: bytes, queue_id: int = 0) -> None:
    put_ok(store, *(record(text, queue_id=queue_id, tag="TagA") for text in texts))


def seen(store: MessageStore) -> list[list[bytes]]:
    return [bodies(store, *queue) for queue in QUEUES]


def test_queues_show_everything_at_once_or_nothing(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, None, files)
    arrivals: list[Arrival] = []
    store.dispatch.listener = arrivals.extend
    put(store, b"before")
    held = store.staging.hold(QUEUES)
    put(store, b"a", b"b")
    put(store, b"c", queue_id=1)
    put(store, b"other queue", queue_id=2)
    for queue_id in ("0", "1"):
        files.on_write = failing_in(queue_id, errno.ENOSPC)
        assert not store.staging.release(held)
        assert seen(store) == [[b"before"], []]
        assert store.dispatch.is_behind
    files.on_write = never
    assert store.staging.release(held)
    assert store.staging.release(held), "idempotent"
    assert seen(store) == [[b"before", b"a", b"b"], [b"c"]]
    assert not store.dispatch.is_behind
    places = [(one.queue_id, one.queue_first, one.queue_end) for one in arrivals]
    assert places == [(0, 0, 1), (2, 0, 1), (0, 1, 3), (1, 0, 1)]
    store.close()
    store = open_store(tmp_path)
    assert seen(store) == [[b"before", b"a", b"b"], [b"c"]]
    store.close()


def test_what_is_shown_is_announced_even_if_others_cannot_be(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, None, files)
    arrivals: list[Arrival] = []
    store.dispatch.listener = arrivals.extend
    held = store.staging.hold(QUEUES[:1])
    put(store, b"a")
    files.on_write = failing_in("1", errno.ENOSPC)
    put(store, b"b", queue_id=1)
    assert store.staging.release(held)
    assert [(one.queue_id, one.queue_end) for one in arrivals] == [(0, 1)]
    files.on_write = never
    store.close()


@pytest.mark.parametrize("settings", [{}, EXTENDED], ids=["", "extension"])
def test_what_recovery_has_shown_is_hidden_again(tmp_path: Path, settings: dict[str, Any]) -> None:
    root = tmp_path / "store"
    store = open_store(root, **settings)
    put(store, *(b"%d" % number for number in range(9)))
    put(store, b"x", b"y", queue_id=1)
    (since,) = (one.physical_offset for one in put_ok(store, record(b"copy", tag="TagA")))
    put(store, b"later")
    put(store, b"copy", b"later", queue_id=1)
    store.close()
    store = open_store(root, **settings)
    shown = seen(store)
    hidden = [shown[0][:9], shown[1][:2]]
    held = store.staging.hold(QUEUES, since=since)
    assert seen(store) == hidden
    put(store, b"new")
    assert seen(store) == hidden and store.dispatch.is_behind
    dead = open_store(crashed_copy(root, tmp_path / "dead"), **settings)
    shown[0].append(b"new")
    assert seen(dead) == shown
    dead.close()
    assert store.staging.release(held)
    assert seen(store) == shown and not store.dispatch.is_behind
    assert bodies(store, TOPIC, 0, ["TagA"]) == shown[0]
    store.close()
    store = open_store(root, **settings)
    assert seen(store) == shown
    store.close()


def test_a_store_that_is_closed_shows_nothing_of_a_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    held = store.staging.hold(QUEUES)
    put(store, b"a")
    store.close()
    assert "a batch of an exactly-once sink is not complete" in caplog.text
    assert store.dispatch.is_holding(held)
    store = open_store(tmp_path)
    assert seen(store) == [[b"a"], []], "the log has it, whoever opens it hides it"
    store.close()
