"""Store times and offsets of times, read from the files: the same as through the maps."""

from pathlib import Path

import pytest
from tests.unit.store.stores import FakeClock, open_store, put_ok, record, seeded

from pymq.errors import StoreError
from pymq.store import MessageStore


def filled(path: Path, clock: FakeClock, count: int = 300) -> MessageStore:
    """Return a store of small files with two queues."""
    store = open_store(path, clock, queue_file_bytes=20 * 20)
    for number in range(count):
        clock.now_ms += number % 7
        put_ok(store, record(b"%d" % number, topic="T", queue_id=number % 2))
    return store


def found(store: MessageStore, queue_id: int, timestamp_ms: int, *, upper: bool) -> int:
    job = store.begin_offset_search("T", queue_id, timestamp_ms, upper=upper)
    job.run()
    return job.result()


def times(store: MessageStore, *messages: tuple[str, int, int]) -> list[int | None]:
    job = store.begin_time_lookup(messages)
    job.run()
    return job.result()


@pytest.mark.parametrize("upper", [False, True])
def test_jobs_find_what_the_store_finds(tmp_path: Path, seed: int, upper: bool) -> None:
    dice, clock = seeded(seed), FakeClock()
    first_ms = clock.now_ms
    store = filled(tmp_path, clock)
    for _ in range(100):
        moment = dice.randint(first_ms - 5, clock.now_ms + 5)
        queue_id = dice.randint(0, 2)  # the last one does not exist
        expected = store.offset_by_time("T", queue_id, moment, upper=upper)
        assert found(store, queue_id, moment, upper=upper) == expected
    messages = [(dice.choice("TU"), dice.randint(0, 2), dice.randint(-2, 160)) for _ in range(100)]
    assert times(store, *messages) == [store.message_time(*one) for one in messages]
    store.close()


def test_messages_that_expire_while_a_job_waits_have_no_time(tmp_path: Path) -> None:
    clock = FakeClock()
    store = filled(tmp_path, clock)
    end_ms = clock.now_ms
    search = store.begin_offset_search("T", 0, end_ms)
    lookup = store.begin_time_lookup([("T", 0, 0), ("T", 0, 149)])
    for path in sorted((tmp_path / "commitlog").iterdir())[:3]:
        path.unlink()
    search.run()
    lookup.run()
    assert search.result() == store.offset_by_time("T", 0, end_ms)
    assert lookup.result() == [None, store.message_time("T", 0, 149)]
    store.close()


def test_a_queue_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    store = filled(tmp_path, FakeClock())
    job = store.begin_time_lookup([("T", 0, 5)])
    path = sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())[0]
    path.write_bytes(path.read_bytes()[:110])
    job.run()
    with pytest.raises(StoreError, match="ends inside entry 5; restart to rebuild it"):
        job.result()
    store.close()


def test_a_record_is_prefetched_by_its_place_alone(tmp_path: Path) -> None:
    store = filled(tmp_path, FakeClock())
    place = store.physical_offset("T", 1, 3)
    assert place is not None
    store.begin_record_prefetch(place).run()
    with pytest.raises(StoreError, match="the log shows"):
        store.begin_record_prefetch(store.log_end)
    with pytest.raises(StoreError, match="the log shows"):
        store.begin_record_prefetch(-1)
    store.close()
