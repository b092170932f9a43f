"""Topics that differ only in case, where the file system cannot tell their names apart."""

import dataclasses
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.folding_files import FoldingFiles
from tests.unit.store.stores import (
    HOST,
    bodies,
    crashed_copy,
    open_store,
    put_ok,
    queue_path,
    record,
)
from tests.unit.store.test_replication import Link

from pymq.errors import StoreMismatch
from pymq.protocol.message import encode_properties
from pymq.protocol.multi_dispatch import DISPATCH
from pymq.protocol.record import NewRecord
from pymq.store import FlushMode, MessageStore, PutStatus
from pymq.store.puts import RecordGroup

BOTH = "topic 'orders'.*topic 'Orders'"


def folding(root: Path, **changes: Any) -> MessageStore:
    return open_store(root, files=FoldingFiles(), **changes)


@pytest.mark.parametrize("mode", FlushMode)
def test_the_second_topic_is_refused_and_no_other(tmp_path: Path, mode: FlushMode) -> None:
    store = folding(tmp_path, flush_mode=mode)
    first, second, third = store.put(
        [record(b"0", topic="Orders"), record(topic="orders"), record(b"1", topic="Orders")], HOST
    )
    assert (first.status, third.status) == (PutStatus.OK, PutStatus.OK)
    assert second.status is PutStatus.MESSAGE_ILLEGAL
    assert second.remark is not None
    assert "'orders'" in second.remark and "'Orders'" in second.remark
    (grouped,) = store.put([RecordGroup((record(topic="other"), record(topic="ORDERS")))], HOST)
    assert grouped.status is PutStatus.MESSAGE_ILLEGAL
    store.durability.flush()
    assert store.not_writable_reason is None
    store.close()
    store = folding(tmp_path, flush_mode=mode)
    assert bodies(store, "Orders") == [b"0", b"1"]
    (result,) = store.put([record(topic="orders", queue_id=1)], HOST)
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    store.close()


def test_elsewhere_they_are_two_topics(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, record(b"0", topic="Orders"), record(b"1", topic="orders"))
    assert not store.folds_case
    assert bodies(store, "Orders") == [b"0"] and bodies(store, "orders") == [b"1"]
    store.close()


def test_the_name_is_free_again_when_the_other_topic_is_deleted(tmp_path: Path) -> None:
    store = folding(tmp_path)
    put_ok(store, record(b"0", topic="Orders"))
    store.retention.delete_queues("Orders")
    put_ok(store, record(b"1", topic="orders"))
    store.close()
    store = folding(tmp_path)
    assert bodies(store, "orders") == [b"1"] and bodies(store, "Orders") == []
    store.close()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_nor_with_a_directory_that_was_not_empty(tmp_path: Path, is_restarted: bool) -> None:
    """Somebody's file keeps it: at the next start, what is in it would be the other topic's."""
    store = folding(tmp_path)
    put_ok(store, record(topic="Orders"))
    (tmp_path / "consumequeue" / "Orders" / ".DS_Store").write_bytes(b"x")
    store.retention.delete_queues("Orders")
    if is_restarted:
        store.close()
        store = folding(tmp_path)
    (result,) = store.put([record(topic="orders")], HOST)
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    put_ok(store, record(b"again", topic="Orders"))
    store.close()


def test_light_queues(tmp_path: Path) -> None:
    store = folding(tmp_path, light_queues=True, multi_dispatch=True)

    def listed(body: bytes, *names: str) -> NewRecord:
        properties = encode_properties({DISPATCH: ",".join(names)})
        return dataclasses.replace(record(body), properties=properties)

    put_ok(store, listed(b"0", "%LMQ%a"))
    put_ok(store, listed(b"1", "%LMQ%A"))
    put_ok(store, listed(b"2", "%LMQ%b", "%LMQ%B"))
    assert store.queue_bounds("%LMQ%a", 0) == (0, 1)
    assert bodies(store) == [b"0", b"1", b"2"] and ("%LMQ%A", 0) not in store.queues()
    assert store.light_queues is not None
    for names in (["%LMQ%A"], ["%LMQ%b", "%LMQ%B"]):
        assert "lower case" in str(store.light_queues.objection("T", names))
    assert store.light_queues.objection("T", ["%LMQ%a"]) is None
    store.close()


def test_a_log_with_both_says_what_is_wrong(tmp_path: Path) -> None:
    """It may come from a file system that tells them apart: nothing is lost, there it opens."""
    store = open_store(tmp_path / "s")
    put_ok(store, record(b"0", topic="Orders"), record(b"1", topic="orders"))
    crashed = crashed_copy(tmp_path / "s", tmp_path / "crashed")
    store.close()
    shutil.rmtree(queue_path(crashed, "orders", 0).parent)
    for _ in range(2):
        with pytest.raises(StoreMismatch, match=BOTH):
            folding(crashed)
    store = open_store(crashed)
    assert bodies(store, "Orders") == [b"0"] and bodies(store, "orders") == [b"1"]
    store.close()


def test_a_slave_says_what_it_cannot_take(tmp_path: Path, seed: int) -> None:
    master, slave = open_store(tmp_path / "m"), folding(tmp_path / "s")
    put_ok(master, record(b"0", topic="Orders"))
    dice = random.Random(seed)
    Link(master, slave, piece_max=999).carry(dice)
    end = slave.log_end
    put_ok(master, record(b"1", topic="orders"), record(b"2", topic="Orders"))
    for _ in range(2):
        with pytest.raises(StoreMismatch, match=BOTH):
            Link(master, slave, piece_max=999).carry(dice)
        assert slave.log_end == end and bodies(slave, "Orders") == [b"0"]
    slave.close()
    slave = open_store(tmp_path / "s")
    Link(master, slave, piece_max=999).carry(dice)
    assert bodies(slave, "Orders") == [b"0", b"2"] and bodies(slave, "orders") == [b"1"]
    slave.close()
    master.close()


@pytest.mark.parametrize("folds", [False, True])
def test_nothing_is_kept_of_queues_that_are_gone(tmp_path: Path, folds: bool) -> None:
    """Light queues come and go by the million."""
    store = open_store(tmp_path, files=FoldingFiles() if folds else None)
    put_ok(store, record(topic="Orders"), record(topic="Orders", queue_id=1))
    table = store._parts.queues
    for number in range(100):
        table.remove(table.make(f"%LMQ%client{number}", 0))
    table.remove(table.make("Other", 0))
    (first,) = [one for one in table.of_topic("Orders") if one.queue_id == 0]
    table.remove(first)
    assert len(table._spellings) <= 1
    assert (table.objection("orders") is not None) is folds
    store.close()
