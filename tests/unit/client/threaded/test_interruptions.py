"""Ctrl-C at any moment of what threads call: nothing stays locked, begun or counted."""

import asyncio
import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.interrupting import Moments

from pymq.client.threaded.calls import CallFuture
from pymq.client.threaded.futures import ThreadFuture
from pymq.client.threaded.loop_thread import LoopThread, soon
from pymq.client.threaded.thread_window import ThreadWindow
from pymq.errors import ClientClosed

WAIT_S = 20.0

#: Coroutines that a call was interrupted before it could begin them.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.close()


# --- futures


@pytest.mark.parametrize(
    "work",
    [
        lambda future: future.done(),
        lambda future: future.add_done_callback(lambda _: None),
        lambda future: future.result(0.001),
        lambda future: future.exception(0),
        lambda future: future.cancelled(),
    ],
)
def test_an_interruption_leaves_no_future_locked(work: Callable[[Any], object]) -> None:
    moments = Moments()
    for _ in moments:
        future: ThreadFuture[int] = ThreadFuture()
        with contextlib.suppress(TimeoutError):
            moments.call(functools.partial(work, future))
        ending = threading.Thread(target=future.set_result, args=(1,), daemon=True)
        ending.start()
        ending.join(WAIT_S)
        assert not ending.is_alive(), f"after moment {moments.count}"
        assert future.result(0) == 1
    assert moments.count > 1


def test_futures_are_those_of_the_standard_library() -> None:
    first, second, failed = (ThreadFuture[int]() for _ in range(3))
    with pytest.raises(TimeoutError):
        first.result(0.001)
    with pytest.raises(TimeoutError):
        first.exception(0)
    threading.Timer(0.01, first.set_result, (1,)).start()
    assert first.result(WAIT_S) == 1 and first.exception() is None
    threading.Timer(0.01, second.set_result, (2,)).start()
    assert second.result() == 2
    assert list(concurrent.futures.as_completed([first, second], WAIT_S))
    error = ValueError("x")
    threading.Timer(0.01, failed.set_exception, (error,)).start()
    done, _ = concurrent.futures.wait([first, second, failed], WAIT_S)
    assert len(done) == 3 and failed.exception() is error
    with pytest.raises(ValueError, match="x"):
        failed.result()

    async def wrapped() -> int:
        future: ThreadFuture[int] = ThreadFuture()
        threading.Timer(0.01, future.set_result, (3,)).start()
        return await asyncio.wrap_future(future)

    assert asyncio.run(wrapped()) == 3
    cancelled: ThreadFuture[int] = ThreadFuture()
    threading.Timer(0.01, cancelled.cancel).start()
    with pytest.raises(concurrent.futures.CancelledError):
        cancelled.result()


def test_a_future_with_another_lock_is_a_plain_one() -> None:
    future: ThreadFuture[int] = ThreadFuture()
    future._condition = threading.Condition()
    with pytest.raises(TimeoutError):
        future.result(0.001)
    threading.Timer(0.01, future.set_result, (1,)).start()
    assert future.result(WAIT_S) == 1


# --- calls


def test_what_an_interrupted_call_has_begun_is_over_before_the_next(thread: LoopThread) -> None:
    async def others() -> int:
        return len(asyncio.all_tasks()) - 1

    moments = Moments()
    for _ in moments:
        moments.call(lambda: thread.call(asyncio.sleep(0.01)))
        assert thread.call(others()) == 0, f"after moment {moments.count}"
    assert moments.count > 10


def test_an_interruption_leaves_no_loop_waiting(thread: LoopThread) -> None:
    moments = Moments()
    for _ in moments:
        moments.call(lambda: thread.begin(asyncio.sleep(0)).result())
        assert thread.begin(soon(int)).result(WAIT_S) == 0


def test_a_future_that_is_cancelled_cancels_its_coroutine(thread: LoopThread) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    future = thread.begin(work())
    thread.call(soon(int))  # It has begun.
    assert future.cancel() and future.cancel()
    thread.call(soon(int))
    assert ended == ["work"]
    early: CallFuture[None] = CallFuture()
    early.cancel()
    assert thread.begin(work(), early) is early
    thread.call(soon(int))
    assert ended == ["work"]  # It was cancelled before it began.


def test_others_hear_of_the_end_of_the_thread_once(
    caplog: pytest.LogCaptureFixture, unawaited: list[str]
) -> None:
    ends: list[str] = []

    def end() -> None:
        ends.append(threading.current_thread().name)
        if len(ends) == 1:
            raise SystemExit  # by the callback of a future, for instance
        if len(ends) == 2:
            raise ValueError("a fault")

    thread = LoopThread("test", end)
    assert thread.call(soon(int)) == 0
    thread.close()
    assert ends == ["test"] * 2 and "its end failed" in caplog.text
    unawaited.clear()  # the log has the traceback
    with pytest.raises(ClientClosed):
        thread.call(soon(int))


# --- room


def test_an_interruption_leaves_nothing_counted() -> None:
    window = ThreadWindow(1, 1000)
    moments = Moments()
    for _ in moments:
        ticket = object()
        moments.call(functools.partial(window.wait_begin, ticket, 7, 0, lambda: None))
        window.end(ticket)
        moments.call(lambda: window._begin("next", 1))
        window.end("next")
        with window._lock:
            assert window._has_room()
        assert (len(window._open), window._size_bytes) == (0, 0), f"after {moments.count}"
    assert moments.count > 1
