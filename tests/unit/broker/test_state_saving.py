"""Tables on the disk: any number of them, saved after changes or at intervals."""

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pymq.broker.state_saving import StateSaving
from pymq.errors import StoreError
from pymq.protocol import fastjson


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
            soon.on_change = saving.add("a.json", soon, is_about_log=True)
            saving.add_periodic("b.json", sometimes, interval_s=3600)
            saving.start()
            soon.put(1)
            sometimes.put(2)
            flushes.release()  # for the one that is saved soon
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
