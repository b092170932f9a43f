"""Consume queues that the official store and ours make of one log: the same, to the byte."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.interop.conftest import require_peers
from tests.interop.jvm import JavaClient
from tests.interop.official_store import official_store
from tests.interop.peers import free_port
from tests.unit.store.stores import (
    TOPIC,
    FakeClock,
    batch,
    bodies,
    log_files,
    open_store,
    put_ok,
    queue_path,
    record,
    record_of_size,
)

pytestmark = pytest.mark.interop

VERSION = "5.3.3"
SEGMENT_BYTES = 1024
QUEUE_FILE_BYTES = 200
SIZES = {
    "MappedFileSizeCommitLog": SEGMENT_BYTES,
    "MappedFileSizeConsumeQueue": QUEUE_FILE_BYTES,
    "MaxHashSlotNum": 50,
    "MaxIndexNum": 100,
}
#: A topic that only V2 records can hold.
LONG_TOPIC = "%RETRY%" + "g" * 200


def build(root: Path) -> None:
    """Write a clean store: queue 2 has old messages only."""
    clock = FakeClock()
    store = open_store(root, clock, segment_bytes=SEGMENT_BYTES)
    put_ok(store, *[record_of_size(150, queue_id=2)] * 6)
    for number in range(35):
        clock.now_ms += 10
        put_ok(store, record_of_size(250, tag="TagA"))
        if number % 3 == 0:
            put_ok(store, record_of_size(120, queue_id=1))
    store.close()
    (root / "queues.json").unlink()  # The official store knows nothing of it.


def queue_files(root: Path) -> dict[str, bytes]:
    directory = root / "consumequeue"
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def compare(java: JavaClient, root: Path) -> list[tuple[int, int]]:
    """Open two copies, with either store; return the bounds of queues 0 to 2."""
    other = root.with_name("official")
    shutil.copytree(root, other)
    with official_store(java, other, **SIZES) as official:
        expected = [
            (official.getMinOffsetInQueue(TOPIC, n), official.getMaxOffsetInQueue(TOPIC, n))
            for n in range(3)
        ]
    store = open_store(root, segment_bytes=SEGMENT_BYTES)
    found = [store.queue_bounds(TOPIC, queue_id) for queue_id in range(3)]
    store.close()
    assert found == expected
    assert queue_files(root) == queue_files(other)
    return found


@pytest.mark.parametrize("dropped", [0, 1, 2, 5])
def test_rebuilt_queues(
    tmp_path: Path, java_client: Callable[[str], JavaClient], dropped: int
) -> None:
    """Entries in front of the first one that is left are blank, and not shown."""
    require_peers(VERSION)
    build(tmp_path / "ours")
    for path in log_files(tmp_path / "ours")[:dropped]:
        path.unlink()
    shutil.rmtree(tmp_path / "ours" / "consumequeue")
    bounds = compare(java_client(VERSION), tmp_path / "ours")
    assert bounds[2] == ((0, 6) if not dropped else (0, 0))
    assert bounds[0][1] == 35 and (bounds[0][0] > 0) == (dropped > 1)


@pytest.mark.parametrize("dropped", [1, 2, 3])
def test_bounds_after_retention(
    tmp_path: Path, java_client: Callable[[str], JavaClient], dropped: int
) -> None:
    """A queue none of whose messages are left keeps counting where it was."""
    require_peers(VERSION)
    build(tmp_path / "ours")
    for path in log_files(tmp_path / "ours")[:dropped]:
        path.unlink()
    assert compare(java_client(VERSION), tmp_path / "ours")[2] == (6, 6)
    store = open_store(tmp_path / "ours", segment_bytes=SEGMENT_BYTES)
    assert put_ok(store, record_of_size(150, queue_id=2))[0].queue_offset == 6
    store.close()


def test_a_lost_queue_after_a_kill(
    tmp_path: Path, java_client: Callable[[str], JavaClient]
) -> None:
    require_peers(VERSION)
    build(tmp_path / "ours")
    shutil.rmtree(queue_path(tmp_path / "ours", TOPIC, 1))
    (tmp_path / "ours" / "abort").write_text("1")
    (tmp_path / "ours" / "checkpoint").unlink()
    assert compare(java_client(VERSION), tmp_path / "ours") == [(0, 35), (0, 12), (0, 6)]


def test_queue_ids_that_are_no_numbers(
    tmp_path: Path, java_client: Callable[[str], JavaClient]
) -> None:
    require_peers(VERSION)
    build(tmp_path / "ours")
    (source,) = sorted(queue_path(tmp_path / "ours", TOPIC, 2).iterdir())
    for name in ("abc", "007", "99999999999", "1.5", "-1"):
        queue_path(tmp_path / "ours").with_name(name).mkdir()
        shutil.copy(source, queue_path(tmp_path / "ours").with_name(name))
    assert compare(java_client(VERSION), tmp_path / "ours") == [(0, 35), (0, 12), (0, 6)]


def test_topics_above_127_bytes(
    tmp_path: Path, java_client: Callable[[str], JavaClient]
) -> None:
    """Either store writes V2 records for them, which both read; ours rebuilds their queue."""
    require_peers(VERSION)
    java = java_client(VERSION)
    message_class = java.jvm.org.apache.rocketmq.common.message.MessageExtBrokerInner
    address = java.jvm.java.net.InetSocketAddress("127.0.0.1", 10911)
    sizes = SIZES | {"MappedFileSizeCommitLog": 1 << 16, "HaListenPort": free_port(0)}
    with official_store(java, tmp_path / "store", **sizes) as official:
        official.start()
        for number in range(12):
            message = message_class()
            message.setTopic(LONG_TOPIC if number % 2 else TOPIC)
            message.setBody(b"%d" % number)
            message.setQueueId(0)
            message.setKeys("k")
            message.setBornHost(address)
            message.setStoreHost(address)
            message.setVersion(
                java.jvm.org.apache.rocketmq.common.message.MessageVersion.valueOfMagicCode(
                    -626843477 if number % 2 else -626843481
                )
            )
            assert official.putMessage(message).isOk()
    files = queue_files(tmp_path / "store")
    for turn in range(2):
        store = open_store(tmp_path / "store", segment_bytes=1 << 16)
        assert bodies(store, LONG_TOPIC) == [b"%d" % number for number in range(1, 12, 2)]
        assert bodies(store) == [b"%d" % number for number in range(0, 12, 2)]
        store.close()
        assert queue_files(tmp_path / "store") == files
        if turn == 0:
            shutil.rmtree(tmp_path / "store" / "consumequeue" / LONG_TOPIC)
    store = open_store(tmp_path / "store", segment_bytes=1 << 16)
    results = put_ok(
        store, record(b"ours", topic=LONG_TOPIC), batch([b"batch"], topic=LONG_TOPIC)
    )
    store.close()
    with official_store(java, tmp_path / "store", **sizes) as official:
        assert official.getMaxOffsetInQueue(LONG_TOPIC, 0) == 8
        for result, body in zip(results, (b"ours", b"batch"), strict=True):
            found = official.lookMessageByOffset(result.physical_offset)
            assert (found.getTopic(), bytes(found.getBody())) == (LONG_TOPIC, body)
