"""What blocks, in a thread of its own: results, errors, and the end of the process."""

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from pymq.net.threads import in_thread

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO")


def test_the_result_comes_from_another_thread_that_sees_what_the_caller_sees() -> None:
    def look(argument: int) -> tuple[int, str, str, bool]:
        thread = threading.current_thread()
        return argument, WHO.get(), thread.name, thread.daemon

    async def test() -> None:
        WHO.set("caller")
        assert await in_thread("a name", look, 7) == (7, "caller", "a name", True)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("error", "expected"),
    [(OSError("disk"), OSError), (StopIteration(), RuntimeError)],
    ids=["error", "one that no future takes"],
)
def test_what_it_raises_is_raised(error: Exception, expected: type[Exception]) -> None:
    def fail() -> None:
        raise error

    async def test() -> None:
        with pytest.raises(expected, match="disk|StopIteration"):
            await in_thread("a name", fail)

    asyncio.run(test())


def test_who_is_cancelled_does_not_wait_for_the_thread() -> None:
    may_end, ended = threading.Event(), threading.Event()

    def work() -> None:
        assert may_end.wait(60)
        ended.set()

    async def test() -> None:
        working = in_thread("a name", work)
        working.cancel()
        await asyncio.wait([working])
        assert working.cancelled() and not ended.is_set()
        may_end.set()
        assert await in_thread("another", ended.wait, 60)

    asyncio.run(test())


class _Main:
    """The main thread of an interpreter that exits, or of another one."""

    def __init__(self, is_alive: bool) -> None:
        self._is_alive = is_alive

    def is_alive(self) -> bool:
        return self._is_alive


def refuse(*_: Any) -> None:
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_where_no_thread_can_be_started_any_more_it_is_done_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                in_thread("a name", int, "7")
            patched.setattr(threading, "main_thread", lambda: _Main(is_alive=False))
            found = in_thread("a name", int, "7")
        assert await found == 7

    asyncio.run(test())
