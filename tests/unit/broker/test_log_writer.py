"""What is appended in one turn is one append, and everybody is told once what became of it."""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence

import pytest

from pymq.broker.log_writer import GATHERED_COUNT_MAX, LogWriter, Outcome
from pymq.errors import StoreClosed, StoreError
from pymq.protocol.record import NewRecord
from pymq.store import Put, PutResult, PutStatus

Told = list[tuple[str, Outcome, str | None]]


def record(body: bytes) -> NewRecord:
    return NewRecord("T", 0, body, b"", b"\0" * 8, 0)


class Log:
    """Stores in a list; refuses what says so; flushes when told."""

    def __init__(self) -> None:
        self.appends: list[list[bytes]] = []
        self.waiting: list[tuple[int, Callable[[str | None], None]]] = []
        self.failure: Exception | None = None

    def append(self, puts: Sequence[Put]) -> list[PutResult]:
        if self.failure is not None:
            raise self.failure
        bodies = [bytes(put.body) for put in puts if isinstance(put, NewRecord)]
        self.appends.append(bodies)
        return [
            PutResult(PutStatus.BUSY, remark="too much")
            if body == b"refused"
            else PutResult(PutStatus.OK, physical_end=100 * number)
            for number, body in enumerate(bodies, 1)
        ]

    def wait_flushed(self, physical_end: int, done: Callable[[str | None], None]) -> None:
        self.waiting.append((physical_end, done))


class Disk:
    """A disk that is suspect until the test says that it took a write."""

    def __init__(self) -> None:
        self.is_suspect, self.is_busy = True, False
        self.then: list[Callable[[], object]] = []
        self.times: list[float] = []

    def wrote(self, elapsed_s: float) -> None:
        self.times.append(elapsed_s)

    def try_write(self, then: Callable[[], object]) -> None:
        self.then.append(then)


def run(check: Callable[[], None]) -> None:
    async def turns() -> None:
        check()
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(turns())


def teller(told: Told, name: str) -> Callable[[PutResult, Outcome], None]:
    return lambda result, outcome: told.append((name, outcome, result.remark))


def test_one_append_a_turn_and_a_refusal_harms_no_neighbour() -> None:
    log, told = Log(), Told()
    writer = LogWriter(log.append, None)

    def check() -> None:
        for body in (b"a", b"refused", b"b"):
            writer.append(record(body), teller(told, body.decode()))

    run(check)
    assert log.appends == [[b"a", b"refused", b"b"]]
    assert told == [
        ("a", Outcome.STORED, None),
        ("refused", Outcome.REFUSED, "too much"),
        ("b", Outcome.STORED, None),
    ]


@pytest.mark.parametrize(
    ("reason", "outcome"), [(None, Outcome.STORED), ("disk broken", Outcome.DISK_TIMEOUT)]
)
def test_who_waits_is_told_after_the_flush(reason: str | None, outcome: Outcome) -> None:
    log, told = Log(), Told()
    writer = LogWriter(log.append, log.wait_flushed)

    def check() -> None:
        writer.append(record(b"a"), teller(told, "a"))
        writer.append(record(b"b"), teller(told, "b"), wait=False)
        writer.append(record(b"c"), teller(told, "c"))

    run(check)
    assert told == [("b", Outcome.STORED, None)]
    ((physical_end, done),) = log.waiting
    assert physical_end == 300
    done(reason)
    assert told[1:] == [("a", outcome, reason), ("c", outcome, reason)]


@pytest.mark.parametrize("first", ["disk", "slaves"])
@pytest.mark.parametrize(
    ("disk", "slaves", "outcome", "reason"),
    [
        (None, Outcome.STORED, Outcome.STORED, None),
        ("late", Outcome.STORED, Outcome.DISK_TIMEOUT, "late"),
        (None, Outcome.SLAVE_TIMEOUT, Outcome.SLAVE_TIMEOUT, "slaves"),
        ("late", Outcome.NO_SLAVE, Outcome.NO_SLAVE, "slaves"),
    ],
)
def test_who_waits_is_told_when_the_disk_and_the_slaves_have_it(
    first: str, disk: str | None, slaves: Outcome, outcome: Outcome, reason: str | None
) -> None:
    log, told = Log(), Told()
    waiting: list[tuple[int, Callable[[Outcome, str | None], None]]] = []
    writer = LogWriter(
        log.append, log.wait_flushed, wait_replicated=lambda end, done: waiting.append((end, done))
    )
    written: list[int] = []
    writer.on_written = lambda: written.append(len(told))

    def check() -> None:
        writer.append(record(b"a"), teller(told, "a"))
        writer.append(record(b"b"), teller(told, "b"), wait=False)

    run(check)
    assert told == [("b", Outcome.STORED, None)]
    assert written == [1]  # slaves are sent it when answers that do not wait have left
    ((end, flushed),) = log.waiting
    ((replicated_end, replicated),) = waiting
    assert end == replicated_end == 100
    steps: list[Callable[[], None]] = [
        lambda: flushed(disk),
        lambda: replicated(slaves, None if slaves is Outcome.STORED else "slaves"),
    ]
    for step in steps if first == "disk" else steps[::-1]:
        assert len(told) == 1
        step()
    assert told[1:] == [("a", outcome, reason)]
    assert writer.waiting_bytes == 0


def test_a_store_that_fails_is_told_to_everybody(caplog: pytest.LogCaptureFixture) -> None:
    log, told = Log(), Told()
    log.failure = StoreClosed("the store is closed")
    writer = LogWriter(log.append, None)

    def check() -> None:
        writer.append(record(b"a"), teller(told, "a"))
        writer.append(record(b"b"), teller(told, "b"))

    run(check)
    assert told == [(name, Outcome.FAILED, "the store is closed") for name in "ab"]
    assert "2 puts could not be stored" in caplog.text


def test_one_that_fails_to_take_its_outcome_harms_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, told = Log(), Told()
    writer = LogWriter(log.append, None)

    def broken(result: PutResult, outcome: Outcome) -> None:
        raise StoreError("it fails")

    def check() -> None:
        writer.append(record(b"a"), broken)
        writer.append(record(b"b"), teller(told, "b"))

    with caplog.at_level(logging.ERROR):
        run(check)
    assert told == [("b", Outcome.STORED, None)] and "it fails" in caplog.text


def test_waiting_for_one() -> None:
    log = Log()
    writer = LogWriter(log.append, log.wait_flushed)

    async def check() -> None:
        waiting = [
            asyncio.ensure_future(writer.append_and_wait(record(body)))
            for body in (b"a", b"refused", b"cancelled")
        ]
        for _ in range(3):
            await asyncio.sleep(0)
        waiting[2].cancel()
        log.waiting[0][1](None)
        assert (await waiting[0]).physical_end == 100
        with pytest.raises(StoreError, match="refused: too much"):
            await waiting[1]
        again = asyncio.ensure_future(writer.append_and_wait(record(b"d")))
        for _ in range(3):
            await asyncio.sleep(0)
        log.waiting[1][1]("not flushed in time")
        with pytest.raises(StoreError, match="disk timeout: not flushed in time"):
            await again

    asyncio.run(check())


@pytest.mark.parametrize("outcome", [Outcome.STORED, Outcome.SLAVE_TIMEOUT, Outcome.NO_SLAVE])
def test_who_waits_for_one_may_be_told_what_slaves_do(outcome: Outcome) -> None:
    async def check() -> None:
        writer = LogWriter(
            Log().append, None, wait_replicated=lambda end, done: done(outcome, "slaves")
        )
        result, told = await writer.append_and_tell(record(b"a"))
        assert (result.physical_end, told) == (100, outcome)
        assert (await writer.append_and_wait(record(b"b"))).physical_end == 100

    asyncio.run(check())


def test_while_the_disk_is_suspect_puts_wait_for_a_trial() -> None:
    log, told, disk = Log(), Told(), Disk()
    writer = LogWriter(log.append, None, disk)

    def check() -> None:
        writer.append(record(b"a"), teller(told, "a"))
        writer.append(record(b"b"), teller(told, "b"))

    run(check)
    assert log.appends == [] and told == [] and writer.held_put_count == 2
    disk.is_suspect = False
    run(lambda: writer.append(record(b"c"), teller(told, "c")))  # in order, so it waits, too
    assert log.appends == [] and len(disk.then) == 2
    disk.then[0]()
    assert log.appends == [[b"a", b"b", b"c"]] and writer.held_put_count == 0
    run(lambda: writer.append(record(b"d"), teller(told, "d")))
    assert log.appends[1:] == [[b"d"]]
    assert [name for name, outcome, _ in told if outcome is Outcome.STORED] == [*"abcd"]


def test_what_waits_too_long_for_the_disk_is_refused_and_never_stored() -> None:
    log, told, disk = Log(), Told(), Disk()
    writer = LogWriter(log.append, None, disk)
    run(lambda: writer.append(record(b"a"), teller(told, "a")))
    assert writer.refuse_late(60_000) == 0
    assert writer.refuse_late(0) == 1
    ((_, outcome, remark),) = told
    assert outcome is Outcome.REFUSED
    assert re.fullmatch(
        r"\[TIMEOUT_CLEAN_QUEUE\]broker busy, start flow control for a while, "
        r"period in queue: \d+ms, size of queue: 0",
        remark or "",
    )
    run(lambda: writer.append(record(b"b"), teller(told, "b")))
    disk.is_busy = True
    assert writer.refuse_late(60_000) == 1
    assert (told[1][2] or "").startswith("[PCBUSY_CLEAN_QUEUE]broker busy, start flow control")
    disk.then[-1]()
    assert log.appends == []


def test_what_waits_for_a_flush_is_weighed() -> None:
    log, told = Log(), Told()
    writer = LogWriter(log.append, log.wait_flushed)
    run(lambda: writer.append(record(b"a"), teller(told, "a")))
    assert writer.waiting_bytes > 100
    log.waiting[0][1](None)
    assert writer.waiting_bytes == 0


def test_many_puts_of_one_turn_are_not_all_gathered() -> None:
    log, told = Log(), Told()
    writer = LogWriter(log.append, None)

    def check() -> None:
        for _ in range(GATHERED_COUNT_MAX + 1):
            writer.append(record(b"x"), teller(told, "x"))

    run(check)
    assert [len(bodies) for bodies in log.appends] == [GATHERED_COUNT_MAX, 1]
    assert len(told) == GATHERED_COUNT_MAX + 1
