"""Room for sends that threads begin: who waits for it, and who must never wait."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from pymq.client.threaded.thread_window import ThreadWindow
from pymq.errors import ClientClosed, TooManyPending
from pymq.testing import wait_until

DEADLINE_S = 60.0


def begun(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def is_open() -> None:
    """The client is."""


def wait_waiting(window: ThreadWindow, count: int) -> None:
    wait_until(lambda: len(window._waiting) == count, timeout_s=DEADLINE_S)


def test_all_who_wait_hear_that_the_client_is_closed() -> None:
    closed: list[bool] = []
    errors: list[Exception] = []
    window = ThreadWindow(1, 1000)

    def check_open() -> None:
        if closed:
            raise ClientClosed("it is closed")

    def begin() -> None:
        try:
            window.wait_begin(object(), 1, 10 * DEADLINE_S, check_open)
        except ClientClosed as error:
            errors.append(error)

    window.wait_begin("first", 1, 0, check_open)
    threads = [begun(begin) for _ in range(4)]
    wait_waiting(window, 4)
    closed.append(True)
    window.end("first")  # the only one
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(errors) == 4


def test_a_send_that_is_over_waits_for_no_thread() -> None:
    """A handler of a signal may have interrupted that thread, and wait for the event loop."""
    counting, go_on = threading.Event(), threading.Event()

    class Interrupted(ThreadWindow):
        def _has_room(self) -> bool:
            counting.set()
            return go_on.wait(DEADLINE_S)

    window = Interrupted(2, 1000)
    thread = begun(lambda: window.wait_begin(object(), 1, 0, is_open))
    assert counting.wait(DEADLINE_S)
    ending = begun(lambda: window.end("another"))
    ending.join(DEADLINE_S / 2)
    assert not ending.is_alive()
    go_on.set()
    thread.join(DEADLINE_S)


def test_a_large_send_that_is_over_lets_several_begin() -> None:
    window = ThreadWindow(10, 1000)
    window.wait_begin("large", 1000, 0, is_open)
    waited: list[float] = []
    for _ in range(4):
        begun(lambda: waited.append(window.wait_begin(object(), 1, 10 * DEADLINE_S, is_open)))
    wait_waiting(window, 4)
    window.end("large")
    wait_until(lambda: len(waited) == 4, timeout_s=DEADLINE_S)


def test_who_gives_up_leaves_the_room_to_the_next() -> None:
    window = ThreadWindow(1, 1000)
    window.wait_begin("first", 1, 0, is_open)
    with pytest.raises(TooManyPending, match=r"^1 sends with 1 B are unanswered"):
        window.wait_begin(object(), 1, 0.01, is_open)
    assert not window._waiting
    window.end("first")
    assert window.wait_begin(object(), 1, 0, is_open) == 0


def test_many_threads_share_a_window_and_all_get_through() -> None:
    window = ThreadWindow(3, 40)
    at_work = SimpleQueue[object]()
    counts: list[int] = []

    def send() -> None:
        for number in range(200):
            ticket = object()
            window.wait_begin(ticket, number % 20 + 1, DEADLINE_S, is_open)
            at_work.put(ticket)
            counts.append(at_work.qsize())

    threads = [begun(send) for _ in range(8)]
    for _ in range(8 * 200):
        window.end(at_work.get(timeout=DEADLINE_S))
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(counts) == 8 * 200 and max(counts) <= 3
    for _ in range(3):
        window.wait_begin(object(), 1, 0, is_open)  # All of the room is there again.


def test_what_is_over_twice_or_was_never_counted_makes_no_room() -> None:
    window = ThreadWindow(2, 1000)
    window.wait_begin("first", 10, 0, is_open)
    window.wait_begin("second", 20, 0, is_open)
    for ticket in ("first", "unknown", "first"):
        window.end(ticket)
    with window._lock:
        assert window._has_room()
    assert (window._open, window._size_bytes) == ({"second": 20}, 20)
