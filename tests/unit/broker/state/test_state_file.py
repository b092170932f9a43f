"""One table's file: who writes it, and who waits for that."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pymq.broker.state.state_file import StateFile
from pymq.errors import LocalProtocolError, StoreError
from pymq.store.state.sealed_file import SealedFile

DEADLINE_S = 60.0
THREAD = ThreadPoolExecutor(1)


class SlowDisk:
    """Holds the first save of a file in its thread; counts those that run at the same time."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.most = 0
        self._running, self._count, self._fails = 0, 0, fails
        self._lock = threading.Lock()
        save = SealedFile.save

        def slow(file: SealedFile, text: str) -> None:
            if file._path != path:  # of a broker that other tests have left running
                save(file, text)
                return
            with self._lock:
                self._running += 1
                self._count += 1
                is_first = self._count == 1
                self.most = max(self.most, self._running)
            try:
                if is_first:
                    self.begun.set()
                    assert self.go_on.wait(DEADLINE_S)
                    if self._fails:
                        raise StoreError("the disk refused")
                save(file, text)
            finally:
                with self._lock:
                    self._running -= 1

        monkeypatch.setattr(SealedFile, "save", slow)


@pytest.mark.parametrize("fails", [False, True])
def test_a_save_whose_task_was_cancelled_is_waited_for_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The thread goes on: two would write the same temporary file."""
    path = tmp_path / "config" / "a.json"
    disk = SlowDisk(path, monkeypatch, fails=fails)
    texts = iter(['{"n": 1}', '{"n": 2}'])

    async def work(executor: ThreadPoolExecutor) -> None:
        file = StateFile(
            path, to_text=lambda: next(texts), restore=lambda _: None, executor=executor
        )
        file.changed()
        first = asyncio.create_task(file.save())
        await asyncio.to_thread(disk.begun.wait, DEADLINE_S)
        first.cancel()
        if not fails:
            file.changed()  # else the next save has to notice that the first one failed
        second = asyncio.create_task(file.save())
        for _ in range(5):
            await asyncio.sleep(0)
        disk.go_on.set()
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(asyncio.CancelledError):
                await first
            await second

    with ThreadPoolExecutor(4) as executor:
        asyncio.run(work(executor))
    assert disk.most == 1
    assert '"n": 2' in path.read_text()


def test_what_only_the_backup_had_is_the_file_again_after_the_next_save(tmp_path: Path) -> None:
    """A process that died between two renames has left no file, and the table may never change."""
    path = tmp_path / "topics.json"
    for text in ('{"a":1}', '{"a":2}'):
        SealedFile(path).save(text)
    path.unlink()
    found: list[object] = []
    file = StateFile(path, to_text=lambda: '{"a":1}', restore=found.append, executor=THREAD)
    file.load()
    assert found == [{"a": 1}] and not path.exists()
    asyncio.run(file.save())
    assert path.exists() and SealedFile(path).load(str) == '{"a":1}'
    again = StateFile(path, to_text=lambda: '{"a":3}', restore=found.append, executor=THREAD)
    again.load()
    asyncio.run(again.save())
    assert SealedFile(path).load(str) == '{"a":1}'  # nothing had changed


def test_what_could_not_be_written_down_is_not_taken_for_saved(tmp_path: Path) -> None:
    texts: list[str] = []

    def to_text() -> str:
        if not texts:
            raise LocalProtocolError("it has no JSON form")
        return texts.pop()

    async def work(executor: ThreadPoolExecutor) -> None:
        path = tmp_path / "a.json"
        file = StateFile(path, to_text=to_text, restore=lambda value: None, executor=executor)
        file.changed()
        for _ in range(2):
            with pytest.raises(LocalProtocolError):
                await file.save()
        texts.append('{"n": 1}')
        await file.save()
        assert '"n": 1' in path.read_text()

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(work(executor))


def test_a_file_that_is_nested_deeper_than_requests_is_read(tmp_path: Path) -> None:
    """It was written when requests could be as deep."""
    path = tmp_path / "a.json"
    path.write_text("[" * 300 + "]" * 300)
    found: list[object] = []
    StateFile(path, to_text=str, restore=found.append, executor=THREAD).load()
    assert found
