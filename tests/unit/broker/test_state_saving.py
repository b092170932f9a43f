"""Tables on the disk: any number of them, saved after changes or at intervals."""

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pymq.broker import state_saving
from pymq.broker.forgotten_files import ORDERS, SINKS, forget_files
from pymq.broker.state_saving import StateSaving
from pymq.errors import LocalProtocolError, PymqError, StoreError
from pymq.protocol import fastjson
from pymq.store.state.sealed_file import SealedFile


class Counts:
    """A table of a feature that is not there yet."""

    def __init__(self) -> None:
        self.value: object = 0
        self.is_changed = False
        self.on_change: Callable[[], None] = lambda: None

    def put(self, value: int) -> None:
        self.value, self.is_changed = value, True
        self.on_change()

    def to_text(self) -> str:
        return fastjson.dump_pretty({"value": self.value})

    def restore(self, value: object) -> None:
        assert isinstance(value, dict)
        self.value = value["value"]


def run(folder: Path, work: Callable[[StateSaving], Coroutine[None, None, None]]) -> None:
    async def nothing() -> None:
        pass

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(work(StateSaving(folder, executor, announced=nothing, flushed=nothing)))


def saved(path: Path) -> object:
    try:
        return json.loads(path.read_text())["value"]
    except FileNotFoundError:  # also between two renames of a save
        return None


async def written(path: Path, value: object) -> None:
    async with asyncio.timeout(60):
        while saved(path) != value:
            await asyncio.sleep(0.005)


def test_tables_are_saved_each_in_its_way_and_read_again(tmp_path: Path) -> None:
    async def work(saving: StateSaving) -> None:
        soon, sometimes = Counts(), Counts()
        soon.on_change = saving.add("a.json", soon)
        saving.add_periodic("b.json", sometimes, interval_s=0.01)
        saving.load()  # there is nothing yet
        saving.start()
        soon.put(1)
        sometimes.put(2)
        await written(tmp_path / "a.json", 1)
        await written(tmp_path / "b.json", 2)
        await saving.close()

    async def again(saving: StateSaving) -> None:
        soon, sometimes = Counts(), Counts()
        saving.add("a.json", soon)
        saving.add_periodic("b.json", sometimes, interval_s=3600)
        saving.load()
        assert (soon.value, sometimes.value) == (1, 2)
        saving.start()
        sometimes.put(3)
        await saving.close()  # what is not due yet is saved at the end
        await written(tmp_path / "b.json", 3)

    run(tmp_path, work)
    run(tmp_path, again)


def test_a_table_that_cannot_be_saved_is_tried_again(tmp_path: Path) -> None:
    async def work(saving: StateSaving) -> None:
        table = Counts()
        saving.add_periodic("config/a.json", table, interval_s=3600)
        (tmp_path / "config").write_text("in the way")
        saving.start()
        table.put(7)
        with pytest.raises(StoreError):
            await saving.save()
        (tmp_path / "config").unlink()
        await saving.close()
        await written(tmp_path / "config/a.json", 7)

    run(tmp_path, work)


def test_a_table_that_seldom_changes_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody may create another topic for days, and the broker may be killed."""
    monkeypatch.setattr(state_saving, "RETRY_S", 0.01)

    async def work(saving: StateSaving) -> None:
        table = Counts()
        table.on_change = saving.add("config/a.json", table)
        (tmp_path / "config").write_text("in the way")
        saving.start()
        table.put(7)
        async with asyncio.timeout(60):
            while "trying again every 0.01 s" not in caplog.text:
                await asyncio.sleep(0.005)
        (tmp_path / "config").unlink()
        await written(tmp_path / "config/a.json", 7)
        await saving.close()

    run(tmp_path, work)


@pytest.mark.parametrize("is_saved_soon", [True, False])
def test_so_is_one_that_is_saved_at_long_intervals(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_saved_soon: bool,
) -> None:
    """After a change that was to be saved sooner, or an administrative one."""
    monkeypatch.setattr(state_saving, "RETRY_S", 0.01)

    async def work(saving: StateSaving) -> None:
        table = Counts()
        save_soon = saving.add_periodic("config/a.json", table, interval_s=3600)
        (tmp_path / "config").write_text("in the way")
        saving.start()
        await asyncio.sleep(0)
        table.put(7)
        if is_saved_soon:
            save_soon()
        else:
            with pytest.raises(StoreError):
                await saving.save()
        async with asyncio.timeout(60):
            while "trying again every 0.01 s" not in caplog.text:
                await asyncio.sleep(0.005)
        (tmp_path / "config").unlink()
        await written(tmp_path / "config/a.json", 7)
        await saving.close()

    run(tmp_path, work)


def test_what_counts_messages_is_saved_after_they_are(tmp_path: Path) -> None:
    """A power loss would take messages that the file counts."""

    async def check(executor: ThreadPoolExecutor) -> None:
        may_go_on, begun = asyncio.Event(), asyncio.Event()

        async def nothing() -> None:
            pass

        async def flushed() -> None:
            begun.set()
            await may_go_on.wait()

        saving = StateSaving(tmp_path, executor, announced=nothing, flushed=flushed)
        table = Counts()
        saving.add_periodic("a.json", table, interval_s=3600)
        table.put(1)
        save = asyncio.ensure_future(saving.save())
        await begun.wait()
        table.put(2)  # may not be flushed yet
        assert saved(tmp_path / "a.json") is None
        may_go_on.set()
        await save
        assert saved(tmp_path / "a.json") == 1
        await saving.close()
        assert saved(tmp_path / "a.json") == 2
        table.put(3)
        may_go_on.clear()
        begun.clear()
        save = asyncio.ensure_future(saving.save())
        await begun.wait()
        save.cancel()
        await asyncio.wait([save])
        may_go_on.set()
        await saving.save()
        assert saved(tmp_path / "a.json") == 3

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(check(executor))


def test_what_is_said_of_the_log_waits_until_the_log_is_on_the_disk(tmp_path: Path) -> None:
    async def work() -> None:
        is_broken = True
        flushes = asyncio.Semaphore(0)

        async def flushed() -> None:
            await flushes.acquire()
            if is_broken:
                raise StoreError("the log is not on the disk")

        async def nothing() -> None:
            pass

        with ThreadPoolExecutor(1) as executor:
            saving = StateSaving(tmp_path, executor, announced=nothing, flushed=flushed)
            soon, sometimes = Counts(), Counts()
            soon.on_change = saving.add_periodic("a.json", soon, interval_s=3600)
            saving.add_periodic("b.json", sometimes, interval_s=3600)
            saving.start()
            soon.put(1)
            sometimes.put(2)
            for _ in range(3):  # one for the one that is saved soon
                flushes.release()
            with pytest.raises(StoreError, match="the log is not on the disk"):
                await saving.save()
            assert not os.listdir(tmp_path)
            is_broken = False
            for _ in range(4):
                flushes.release()
            await saving.save()
            assert saved(tmp_path / "a.json") == 1
            assert saved(tmp_path / "b.json") == 2
            await saving.close()

    asyncio.run(work())


class BrokenLog:
    """A log that is on the disk, or is not."""

    def __init__(self) -> None:
        self.is_broken = True
        self.asked_count = 0

    async def flushed(self) -> None:
        self.asked_count += 1
        if self.is_broken:
            raise StoreError("the log is not on the disk")

    async def asked(self, count: int) -> None:
        """Return when it was waited for so often again."""
        until = self.asked_count + count
        async with asyncio.timeout(60):
            while self.asked_count < until:
                await asyncio.sleep(0.002)


async def announced() -> None:
    pass


def test_what_waits_for_the_log_stops_no_other_file(tmp_path: Path) -> None:
    log = BrokenLog()

    async def work() -> None:
        with ThreadPoolExecutor(1) as executor:
            saving = StateSaving(tmp_path, executor, announced=announced, flushed=log.flushed)
            counted, unsayable, other = Counts(), Counts(), Counts()
            saving.add_periodic("a.json", counted, interval_s=3600)
            saving.add_periodic("b.json", unsayable, interval_s=3600)
            save_other = saving.add("c.json", other)
            counted.put(1)
            unsayable.value, unsayable.is_changed = "\ud800", True  # of no UTF-8 text
            other.put(2)
            save_other()
            with pytest.raises(StoreError, match="the log is not on the disk"):
                await saving.save()
            assert saved(tmp_path / "c.json") == 2
            other.put(3)
            save_other()
            with pytest.raises(StoreError):
                await saving.close()
            assert saved(tmp_path / "c.json") == 3
            log.is_broken, unsayable.value = False, 4
            await saving.save()
            assert (saved(tmp_path / "a.json"), saved(tmp_path / "b.json")) == (1, 4)

    asyncio.run(work())


def test_files_wait_for_the_log_together(tmp_path: Path) -> None:
    """A slow disk is waited for once, not once for each of them."""

    async def work() -> None:
        all_wait = asyncio.Event()
        waiting: list[int] = []

        async def flushed() -> None:
            waiting.append(1)
            if len(waiting) == 3:
                all_wait.set()
            await asyncio.wait_for(all_wait.wait(), 60)

        with ThreadPoolExecutor(1) as executor:
            saving = StateSaving(tmp_path, executor, announced=announced, flushed=flushed)
            for name in ("a.json", "b.json", "c.json"):
                table = Counts()
                saving.add_periodic(name, table, interval_s=3600)
                table.put(1)
            await saving.save()
            assert sorted(os.listdir(tmp_path)) == ["a.json", "b.json", "c.json"]

    asyncio.run(work())


def test_what_is_not_saved_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = BrokenLog()

    def said() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]

    async def work() -> None:
        with ThreadPoolExecutor(1) as executor:
            saving = StateSaving(tmp_path, executor, announced=announced, flushed=log.flushed)
            table = Counts()
            saving.add_periodic("a.json", table, interval_s=0.01)
            table.put(1)
            saving.start()
            for count in (1, 2):
                await log.asked(5)
                assert said() == count * [
                    "a.json is not saved: the log is not on the disk; trying again every 0.01 s"
                ]
                log.is_broken = False
                await written(tmp_path / "a.json", count)
                log.is_broken = True
                table.put(count + 1)
            log.is_broken = False
            await saving.close()

    asyncio.run(work())


def test_the_next_run_goes_on_with_what_could_not_be_saved(tmp_path: Path) -> None:
    """It is in the same process: what the file says may be older than what was acknowledged."""
    log = BrokenLog()
    unsaved: dict[str, str] = {}

    async def work(executor: ThreadPoolExecutor) -> None:
        def make() -> tuple[StateSaving, Counts, Counts]:
            saving = StateSaving(
                *(tmp_path, executor), announced=announced, flushed=log.flushed, unsaved=unsaved
            )
            soon, sometimes = Counts(), Counts()
            soon.on_change = saving.add("a.json", soon)
            saving.add_periodic("b.json", sometimes, interval_s=3600)
            saving.load()
            return saving, soon, sometimes

        log.is_broken = False
        saving, soon, sometimes = make()
        soon.put(1)
        sometimes.put(2)
        await saving.close()
        assert not unsaved
        saving, soon, sometimes = make()
        log.is_broken = True
        (tmp_path / "a.json.tmp").mkdir()  # it cannot be written
        soon.put(3)
        sometimes.put(4)
        with pytest.raises(StoreError):
            await saving.close()
        assert (saved(tmp_path / "a.json"), saved(tmp_path / "b.json")) == (1, 2)
        make()  # a run that does not get as far as to start
        saving, soon, sometimes = make()
        assert (soon.value, sometimes.value) == (3, 4)
        log.is_broken = False
        with pytest.raises(StoreError):
            await saving.close()
        assert list(unsaved) == ["a.json"]
        assert saved(tmp_path / "b.json") == 4
        saving, soon, sometimes = make()
        assert (soon.value, sometimes.value) == (3, 4)
        (tmp_path / "a.json.tmp").rmdir()
        await saving.save()  # although nothing has changed since
        assert saved(tmp_path / "a.json") == 3
        assert not unsaved

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(work(executor))


def test_a_table_that_others_use_is_not_loaded_in_a_thread(tmp_path: Path) -> None:
    async def work(saving: StateSaving) -> None:
        own, shared = Counts(), Counts()
        saving.add_periodic("a.json", own, interval_s=3600)
        saving.add_periodic("b.json", shared, interval_s=3600, is_shared=True)
        await asyncio.to_thread(saving.load)
        assert (own.value, shared.value) == (1, 0)
        saving.load_shared()
        assert (own.value, shared.value) == (1, 2)

    SealedFile(tmp_path / "a.json").save('{"value":1}')
    SealedFile(tmp_path / "b.json").save('{"value":2}')
    run(tmp_path, work)


def test_a_slave_forgets_what_was_not_saved_like_what_was(tmp_path: Path) -> None:
    SealedFile(tmp_path / "config" / SINKS).save('{"n":1}')
    unsaved = {SINKS: "{}", ORDERS: "{}", "topics.json": "{}"}
    forget_files(tmp_path, unsaved)
    assert list(unsaved) == ["topics.json"]
    assert not os.listdir(tmp_path / "config")


def test_what_has_no_text_keeps_nothing_else_from_the_next_run(tmp_path: Path) -> None:
    log = BrokenLog()
    unsaved: dict[str, str] = {}

    class Unsayable(Counts):
        def to_text(self) -> str:
            raise LocalProtocolError("it has no JSON form")

    async def work(executor: ThreadPoolExecutor) -> None:
        saving = StateSaving(
            *(tmp_path, executor), announced=announced, flushed=log.flushed, unsaved=unsaved
        )
        for name, table in (("a.json", Unsayable()), ("b.json", Counts())):
            saving.add_periodic(name, table, interval_s=3600)
            table.put(5)
        with pytest.raises(PymqError):
            await saving.close()
        assert list(unsaved) == ["b.json"]

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(work(executor))
