"""Offsets of groups beyond the end of a queue, and those that only seem to be."""

import json
from pathlib import Path

from tests.unit.store.inspection.inspected import SIZES, check, the_finding
from tests.unit.store.stores import FakeClock, open_store, put_ok, queue_path, record

from pymq.store.inspection import Kind, Severity


def test_consumer_offsets_behind_the_end_are_named(root: Path) -> None:
    (root / "config" / "consumerOffset.json").write_text(
        '{"offsetTable":{"Alpha@group":{0:3,1:2000},"Nowhere@group":{0:5}}}'
    )
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{3:500}}')
    report = check(root)
    assert report.findings.count(Severity.DAMAGE, Kind.CONSUMER_OFFSET) == 2
    assert "2000 of group in Alpha/1" in the_finding(report, Kind.CONSUMER_OFFSET).found


def test_consumer_offsets_from_before_a_deletion_are_forgotten_by_the_next_start(
    root: Path,
) -> None:
    """As offsets of a topic whose deletion the file knows are not."""
    store = open_store(root, FakeClock(), **SIZES)
    assert store.retention.delete_queues("Alpha") > 0
    put_ok(store, record(b"new", topic="Alpha", queue_id=1))
    deleted = store.retention.recorded_deletions()["Alpha"]
    store.close()
    for told, count in ({}, 0), ({"Alpha": deleted}, 1):
        (root / "config" / "consumerOffset.json").write_text(
            json.dumps({"offsetTable": {"Alpha@group": {"1": 2}}, "deletedTopics": told})
        )
        assert check(root).findings.count(Severity.DAMAGE, Kind.CONSUMER_OFFSET) == count


def test_a_consumer_offset_at_an_entry_that_is_made_again_is_right(root: Path) -> None:
    store = open_store(root, FakeClock(), **SIZES)
    _, end = store.queue_bounds("Alpha", 1)
    store.close()
    (root / "config" / "consumerOffset.json").write_text(
        json.dumps({"offsetTable": {"Alpha@group": {"1": end}}})
    )
    (root / "abort").touch()
    (root / "queues.json").unlink()
    (root / "checkpoint").unlink()
    last = max(queue_path(root, "Alpha", 1).iterdir())
    last.unlink()
    report = check(root)
    assert report.findings.count(Severity.REPAIR, Kind.QUEUE_MISSING) > 0
    assert report.findings.count(Severity.DAMAGE, Kind.CONSUMER_OFFSET) == 0
