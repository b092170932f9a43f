"""Blocking methods made of those of asyncio clients: what an interruption leaves behind."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from pymq.client.threaded.blocking_face import iterated
from pymq.client.threaded.loop_thread import LoopThread, soon

T = TypeVar("T")
DEADLINE_S = 60.0


class Client:
    """Is not yet over with what was interrupted when it is asked for the next thing."""

    def __init__(self) -> None:
        self.is_asking, self.is_ended = threading.Event(), threading.Event()
        self.is_asked_again = threading.Event()

    async def numbers(self) -> AsyncIterator[int]:
        try:
            yield 1
            self.is_asking.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            while not self.is_asked_again.is_set():
                await asyncio.sleep(0.001)
            for _ in range(10):  # until what is asked has begun
                await asyncio.sleep(0)
            raise
        finally:
            self.is_ended.set()


class InterruptedFace:
    """Has one thread with an event loop; Ctrl-C comes when its client waits."""

    numbers = iterated(Client.numbers)

    def __init__(self, thread: LoopThread) -> None:
        self._client = Client()
        self._thread = thread
        self._is_interrupted = False

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._thread.begin(work)
        if self._is_interrupted:
            self._client.is_asked_again.set()
        while not (future.done() or self._is_interrupted):
            if self._client.is_asking.wait(0.01):
                self._is_interrupted = True
                future.cancel()
                raise KeyboardInterrupt
        return future.result(DEADLINE_S)

    def _in_loop(self, function: Callable[[], T]) -> T:
        return self._thread.call(soon(function))


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.close()


def test_an_interrupted_iterator_raises_what_interrupted_it(thread: LoopThread) -> None:
    face = InterruptedFace(thread)
    numbers = face.numbers()
    assert next(numbers) == 1
    with pytest.raises(KeyboardInterrupt):
        next(numbers)
    assert face._client.is_ended.wait(DEADLINE_S)


def test_an_iterator_that_is_left_is_ended(thread: LoopThread) -> None:
    face = InterruptedFace(thread)
    for number in face.numbers():
        assert number == 1
        break
    assert face._client.is_ended.wait(DEADLINE_S)
