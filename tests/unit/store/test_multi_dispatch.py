"""Messages that are listed in light queues: their places, and what is left after a crash."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import (
    HOST,
    FailingFiles,
    FakeClock,
    batch,
    bodies,
    config,
    crashed_copy,
    failing_in,
    never,
    open_store,
    put_ok,
    queue_path,
    record,
    seeded,
)

from pymq.protocol.message import decode_properties, encode_properties
from pymq.protocol.multi_dispatch import DISPATCH, OFFSETS
from pymq.protocol.record import NewRecord, decode_records
from pymq.store import FlushMode, MessageStore, PutStatus, RecordGroup
from pymq.store.inspection import check_store
from pymq.store.rebuild import rebuild_store

ON: dict[str, Any] = {"light_queues": True, "multi_dispatch": True}
A, B, C = "%LMQ%a", "%LMQ%b", "%LMQ%c"


def listed(body: bytes, *names: str, topic: str = "Par", **more: Any) -> NewRecord:
    new = record(body, topic=topic, **more)
    new.properties = encode_properties({"K": "v", DISPATCH: ",".join(names)})
    return new


def light(store: MessageStore, name: str) -> list[bytes]:
    """Return the bodies of a light queue; each message has to know its place there."""
    first, end = store.queue_bounds(name, 0)
    found = []
    for offset in range(first, end):
        result = store.read(name, 0, offset, count_max=1, bytes_max=1 << 20)
        (one,) = decode_records(result.buffers[0], verify=True)
        said = decode_properties(one.properties)
        names, offsets = said[DISPATCH].split(","), said[OFFSETS].split(",")
        assert dict(zip(names, offsets, strict=True))[name] == str(offset)
        found.append(one.body)
    return found


def complaints(root: Path, **changes: Any) -> list[str]:
    """Return what the check of a closed store finds."""
    report = check_store(config(root, **changes))
    return [str(group) for group in report.findings.groups() if group[0].name != "NOTE"]


def test_a_message_has_a_place_in_every_light_queue_that_it_names(tmp_path: Path) -> None:
    store = open_store(tmp_path, **ON)
    results = put_ok(
        store,
        record(b"plain", topic="Par"),
        listed(b"two", A, B),
        listed(b"one", A, queue_id=3),
        listed(b"twice", C, C, A),
    )
    assert [result.queue_offset for result in results] == [0, 1, 0, 2]
    assert bodies(store, "Par") == [b"plain", b"two", b"twice"]
    assert light(store, A) == [b"two", b"one", b"twice"]
    assert light(store, B) == [b"two"]
    assert light(store, C) == [b"twice"]
    assert store.light_queues is not None and store.light_queues.count == 3
    store.close()
    assert not complaints(tmp_path)


def test_what_only_waits_is_not_listed_yet(tmp_path: Path) -> None:
    store = open_store(tmp_path, **ON)
    put_ok(
        store,
        listed(b"1", A, topic="%RETRY%g"),
        listed(b"2", A, topic="rmq_sys_wheel_timer"),
        listed(b"3", A, topic="SCHEDULE_TOPIC_XXXX"),
        listed(b"4", A, topic="RMQ_SYS_TRANS_HALF_TOPIC"),
        listed(b"5", A, sys_flag=0x4),
    )
    assert store.queue_bounds(A, 0) == (0, 0)
    store.close()


@pytest.mark.parametrize("names", [["other"], [A, "other"], ["%LMQ%x/y", A], ["", A], [","]])
def test_what_cannot_be_listed_is_stored_without_a_place(tmp_path: Path, names: list[str]) -> None:
    """An acknowledged message, perhaps one that was delayed, must not be lost for its names."""
    store = open_store(tmp_path, **ON)
    new = record(b"m", topic="Par")
    forged = f"{DISPATCH}\x01{','.join(names)}\x02{OFFSETS}\x017,8\x02"
    new.properties = forged.encode()
    put_ok(store, new, listed(b"good", A))
    assert bodies(store, "Par") == [b"m", b"good"]
    assert light(store, A) == [b"good"]
    store.close()
    assert not complaints(tmp_path)


def test_nothing_is_listed_unless_it_is_enabled(tmp_path: Path) -> None:
    for changes in ({}, {"light_queues": True}, {"multi_dispatch": True}):
        store = open_store(tmp_path, **changes)
        put_ok(store, listed(b"m", A))
        assert store.light_queues is None and store.queue_bounds(A, 0) == (0, 0)
        store.close()


def test_a_refused_group_leaves_no_place(tmp_path: Path) -> None:
    store = open_store(tmp_path, **ON)
    group = RecordGroup((listed(b"1", A), listed(b"2", A, B), record(b"", topic="no/such")))
    (result,) = store.put([group], HOST)
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    put_ok(store, RecordGroup((listed(b"3", A), listed(b"4", A, B))))
    assert light(store, A) == [b"3", b"4"] and light(store, B) == [b"4"]
    store.close()
    assert not complaints(tmp_path)


def test_a_failed_write_leaves_no_place(tmp_path: Path) -> None:
    files = FailingFiles()
    clock = FakeClock()
    store = open_store(tmp_path, clock, files, **ON)
    put_ok(store, listed(b"1", A))
    files.on_write = failing_in("commitlog", 28)
    assert store.put([listed(b"2", A, B)], HOST)[0].status is PutStatus.NOT_WRITABLE
    files.on_write = never
    clock.now_ms += 5000
    put_ok(store, listed(b"3", A, B))
    assert light(store, A) == [b"1", b"3"] and light(store, B) == [b"3"]
    store.close()


@pytest.mark.parametrize("lost", [[A], [A, B], ["Par"], ["Par", A, B]])
@pytest.mark.parametrize("settings", [ON, {}])
def test_lost_light_queues_are_made_again(
    tmp_path: Path, lost: list[str], settings: dict[str, Any]
) -> None:
    """By the next start, enabled or not, and by the rebuilding of a store."""
    store = open_store(tmp_path / "0", **ON)
    for number in range(60):
        put_ok(store, listed(b"%d" % number, *([A, B] if number % 3 else [A])))
    wanted = {name: light(store, name) for name in (A, B)}
    store.close()
    for how in ("start", "rebuild"):
        root = tmp_path / how
        shutil.copytree(tmp_path / "0", root)
        for topic in lost:
            shutil.rmtree(queue_path(root, topic).parent)
        assert complaints(root)
        if how == "rebuild":
            rebuild_store(config(root, **settings), FakeClock())
            assert not complaints(root)
        store = open_store(root, **settings)
        assert {name: light(store, name) for name in (A, B)} == wanted
        assert len(bodies(store, "Par")) == 60
        store.close()
        assert not complaints(root)


def test_a_deleted_light_queue_begins_again(tmp_path: Path) -> None:
    store = open_store(tmp_path / "0", **ON)
    put_ok(store, listed(b"1", A, B), listed(b"2", A, B))
    assert store.retention.delete_queues(A) == 1
    put_ok(store, listed(b"3", A, B))
    assert light(store, A) == [b"3"] and light(store, B) == [b"1", b"2", b"3"]
    assert store.light_queues is not None and store.light_queues.count == 2
    after = open_store(crashed_copy(tmp_path / "0", tmp_path / "1"), **ON)
    assert light(after, A) == [b"3"] and light(after, B) == [b"1", b"2", b"3"]
    for one in (store, after):
        one.close()
    assert not complaints(tmp_path / "1")


def test_messages_of_a_light_queue_itself(tmp_path: Path) -> None:
    """They and listed ones are counted together."""
    store = open_store(tmp_path / "0", **ON)
    put_ok(store, listed(b"1", A), record(b"2", topic=A), listed(b"3", A), record(b"4", topic=A))
    for path in (tmp_path / "1", tmp_path / "2"):
        after = open_store(crashed_copy(tmp_path / "0", path), **ON)
        assert after.queue_bounds(A, 0) == (0, 4)
        after.close()
        shutil.rmtree(queue_path(path, A).parent)
        assert complaints(path)
        after = open_store(path, **ON)
        assert after.queue_bounds(A, 0) == (0, 4)
        after.close()
        assert not complaints(path)
    store.close()


class Model:
    """What light queues and ordinary ones hold."""

    def __init__(self) -> None:
        self.queues: dict[str, list[bytes]] = {}

    def add(self, body: bytes, *queues: str) -> None:
        for queue in dict.fromkeys(queues):
            self.queues.setdefault(queue, []).append(body)

    def check(self, store: MessageStore) -> None:
        for name, texts in self.queues.items():
            found = light(store, name) if name.startswith("%LMQ%") else bodies(store, name)
            assert found == texts, name


@pytest.mark.parametrize("mode", FlushMode)
@pytest.mark.parametrize("round_", range(3))
def test_places_survive_crashes(tmp_path: Path, seed: int, mode: FlushMode, round_: int) -> None:
    dice = seeded(seed + round_)
    settings = ON | {
        "segment_bytes": dice.choice([1024, 4096, 1 << 16]),
        "queue_file_bytes": dice.choice([20, 200, 6000]),
        "queue_extension": dice.random() < 0.3,
        "append_record_crc": dice.random() < 0.3,
        "flush_mode": mode,
    }
    print(settings)
    root, clock, model = tmp_path / "0", FakeClock(), Model()
    store = open_store(root, clock, **settings)
    number = 0

    def make(dice: random.Random) -> Any:
        nonlocal number
        number += 1
        body = b"%d:" % number + bytes(dice.randint(0, 60))
        if dice.random() < 0.2 and not settings["append_record_crc"]:
            model.add(body, "Par")
            return batch([body], topic="Par")
        names = dice.choices([A, B, C], k=dice.randint(1, 3)) if dice.random() < 0.7 else []
        model.add(body, "Par", *names)
        return listed(body, *names) if names else record(body, topic="Par")

    put_ok(store, make(dice))  # an empty store cannot be checked
    for step in range(60):
        clock.now_ms += dice.randint(-5, 2000)
        action = dice.random()
        if action < 0.6:
            put_ok(store, *[make(dice) for _ in range(dice.randint(1, 6))])
        elif action < 0.7:
            store.durability.flush()
        elif action < 0.75:
            store.durability.flush_queues()
        elif action < 0.85:
            store.close()
            assert not complaints(root, **settings)
            store = open_store(root, clock, **settings)
        else:
            root = crashed_copy(root, tmp_path / f"{step + 1}")
            if dice.random() < 0.5:
                shutil.rmtree(queue_path(root, dice.choice([A, B, "Par"])).parent, True)
            store.close()
            store = open_store(root, clock, **settings)
        store.durability.flush()
        model.check(store)
    store.close()
    assert not complaints(root, **settings)
