"""``store.inspection``: whole stores are found whole, and every kind of damage is named."""

import json
import shutil
from pathlib import Path

import pytest
from tests.unit.store.inspection.inspected import (
    SIZES,
    TOPICS,
    assert_whole,
    check,
    fill,
    index_files,
    records,
    the_finding,
    write_tables,
)
from tests.unit.store.stores import (
    FakeClock,
    crashed_copy,
    log_files,
    open_store,
    put_ok,
    record,
    seeded,
)

from pymq.errors import StoreError
from pymq.store import StoreConfig
from pymq.store.inspection import Kind, Severity, check_store, summarize


def test_a_cleanly_stopped_store_is_whole(root: Path) -> None:
    report = assert_whole(root)
    assert not len(report.findings) and report.clean_stop and not report.in_use
    stored = records(root)
    assert report.counts["records"] == report.counts["queueEntries"] == len(stored)
    assert report.log_end == stored[-1].physical_offset + stored[-1].size
    assert (report.first_ms, report.last_ms) == (
        stored[0].store_timestamp,
        stored[-1].store_timestamp,
    )
    assert len(index_files(root)) > 4 and len(log_files(root)) > 4
    assert report.counts["indexEntries"] == 900


def test_an_empty_store_is_whole(tmp_path: Path) -> None:
    open_store(tmp_path / "store").close()
    (tmp_path / "store" / "commitlog").mkdir(exist_ok=True)
    report = assert_whole(tmp_path / "store")
    assert not len(report.findings) and report.first_ms is None


def test_a_killed_store_has_no_damage(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path / "store", clock, **SIZES)
    fill(store, clock, seeded(6))
    store.durability.flush()
    put_ok(store, record(b"not indexed"))
    copy = crashed_copy(tmp_path / "store", tmp_path / "copy")
    report = assert_whole(copy)
    assert not report.clean_stop
    assert the_finding(report, Kind.MARKER, Severity.REPAIR)
    assert assert_whole(tmp_path / "store").in_use
    open_store(copy, clock, **SIZES).close()
    assert not len(assert_whole(copy).findings)
    store.close()


def test_a_store_in_use_is_told_from_one_that_is_not(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", **SIZES)
    put_ok(store, record())
    assert (
        check(tmp_path / "store").in_use
        and summarize(StoreConfig(root_path=tmp_path / "store")).in_use
    )
    with pytest.raises(StoreError, match="another broker"):
        open_store(tmp_path / "store", **SIZES)
    store.close()
    assert not check(tmp_path / "store").in_use


def test_a_store_without_write_permission_is_read(root: Path) -> None:
    for path in [*root.rglob("*"), root]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        assert_whole(root)
        assert summarize(StoreConfig(root_path=root)).message_count == len(records(root))
    finally:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)


def test_no_lock_file_is_made(root: Path) -> None:
    (root / "lock").unlink()
    assert_whole(root)
    assert not (root / "lock").exists()


def test_expired_segments_and_a_topic_that_came_back_are_no_damage(tmp_path: Path) -> None:
    clock, chance, root = FakeClock(), seeded(7), tmp_path / "store"
    store = open_store(root, clock, **SIZES)
    fill(store, clock, chance)
    store.retention.delete_queues("Beta")
    fill(store, clock, chance)
    store.retention.delete_queues("Gamma")
    store.close()
    report = assert_whole(root)
    assert the_finding(report, Kind.DELETED, Severity.NOTE)
    for path in log_files(root)[:4]:
        path.unlink()
    open_store(root, clock, **SIZES).close()
    assert_whole(root)
    # RocketMQ notes nowhere which topics were deleted: only its table of topics tells.
    (root / "queues.json").unlink()
    write_tables(root)
    topics = json.loads((root / "config" / "topics.json").read_text())
    del topics["topicConfigTable"]["Gamma"]
    (root / "config" / "topics.json").write_text(json.dumps(topics))
    assert_whole(root)
    topics["topicConfigTable"]["Gamma"] = {}
    (root / "config" / "topics.json").write_text(json.dumps(topics))
    assert the_finding(check(root), Kind.QUEUE_MISSING).path.parent.name == "Gamma"


def test_where_there_is_no_store_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store is there"):
        check_store(StoreConfig(root_path=tmp_path))


def test_a_summary_says_what_is_there(root: Path) -> None:
    found = summarize(StoreConfig(root_path=root))
    stored = records(root)
    assert found.clean_stop and not found.in_use
    assert found.message_count == len(stored) and found.segment_count == len(log_files(root))
    assert (found.log_first, found.log_end) == (
        0,
        stored[-1].physical_offset + stored[-1].size,
    )
    assert found.last_ms == stored[-1].store_timestamp
    for queue in found.queues:
        own = [r for r in stored if (r.topic, r.queue_id) == (queue.topic, queue.queue_id)]
        assert (queue.queue_first, queue.queue_end) == (0, len(own))
        assert (queue.first_ms, queue.last_ms) == (
            own[0].store_timestamp,
            own[-1].store_timestamp,
        )
    assert sum(one.entry_count for one in found.index_files) == 900
    (group,) = found.groups
    ends = {q.queue_id: q.queue_end for q in found.queues if q.topic == "Alpha"}
    assert group.behind == ends[0] - 3 + ends[1] - 2
    assert found.tables == ["consumerOffset.json", "delayOffset.json", "topics.json"]


def test_a_summary_of_expired_messages_begins_with_the_first_kept(root: Path) -> None:
    for path in log_files(root)[:4]:
        path.unlink()
    found = summarize(StoreConfig(root_path=root))
    stored = records(root)
    assert found.log_first == int(log_files(root)[0].name)
    assert found.message_count == len(stored)
    assert all(one.queue_first > 0 for one in found.queues if one.topic in TOPICS)


def test_a_log_over_several_directories_is_one_log(tmp_path: Path) -> None:
    root, clock = tmp_path / "store", FakeClock()
    paths = {"commit_log_paths": (tmp_path / "one", tmp_path / "two")}
    store = open_store(root, clock, **paths, **SIZES)
    fill(store, clock, seeded(17), 250)
    store.close()
    assert all(len(list(path.iterdir())) > 1 for path in paths["commit_log_paths"])
    config = StoreConfig(root_path=root, **paths)
    assert not len(check_store(config).findings)
    victim = sorted((tmp_path / "two").iterdir())[0]
    victim.rename(tmp_path / "gone")
    finding = the_finding(check_store(config), Kind.LOG_FILE)
    assert finding.path.name == victim.name
    (tmp_path / "gone").rename(victim)
    shutil.copy(victim, tmp_path / "one")
    finding = the_finding(check_store(config), Kind.LOG_FILE)
    assert finding.path == victim and "second file" in finding.found
