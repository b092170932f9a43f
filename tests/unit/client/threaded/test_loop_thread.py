"""Clients whose event loop runs in a thread: who closes them, and at the end of a process."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pymq.client.threaded.threaded_client import Threaded
from pymq.errors import ClientClosed, ConfigurationError

DEADLINE_S = 300.0

PROGRAM = """
import multiprocessing
import sys

from pymq.client.threaded.threaded_client import Threaded


class Client(Threaded):
    def __init__(self):
        super().__init__(lambda: None)

    def start(self):
        self._start(self.work, "client")

    def close(self):
        self._stop(self.closed)

    async def work(self):
        pass

    async def closed(self, _):
        sys.stdout.write("closed")


def leave_open():
    closed, left = Client(), Client()
    closed.start()
    left.start()
    closed.close()
    sys.stdout.write(" ")


if __name__ == "__main__":
    if sys.argv[1] == "main":
        leave_open()
    else:
        child = multiprocessing.get_context(sys.argv[1]).Process(target=leave_open)
        child.start()
        child.join()
"""


@pytest.mark.parametrize("method", ["main", "fork", "spawn", "forkserver"])
def test_what_is_left_open_is_closed_when_its_process_ends(tmp_path: Path, method: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, path, method], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (done.stdout, done.stderr) == ("closed closed", "")


class Client(Threaded[Any]):
    """Counts how often it was closed."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.closed_count = 0

    async def work(self) -> int:
        return 1

    async def close_here(self) -> None:
        self.close()

    def close(self) -> None:
        self._stop(lambda _: self._count())

    async def _count(self) -> None:
        self.closed_count += 1


def test_one_that_would_close_itself_stays_open() -> None:
    client = Client()
    client._start(client.work, "client")
    with pytest.raises(ClientClosed, match="own thread"):
        client._call(client.close_here())
    assert client._call(client.work()) == 1
    assert not client.closed_count
    client.close()
    client.close()
    assert client.closed_count == 1
    with pytest.raises(ClientClosed, match="not open"):
        client._call(client.work())


class GreenThread(threading.Thread):
    """A thread as gevent and eventlet make them: in the thread that starts it."""

    def start(self) -> None:
        try:
            self.run()
        except RuntimeError:
            pass  # only printed: a thread has nobody to tell


def test_green_threads_are_named_as_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()

    async def begin() -> None:
        """Another client's loop runs in this thread."""
        with monkeypatch.context() as patched:
            patched.setattr(threading, "Thread", GreenThread)
            with pytest.raises(ConfigurationError, match=r"green .*gevent.* prefork or threads"):
                client._start(client.work, "client")

    asyncio.run(begin())
    client.close()
    client._start(client.work, "client")
    assert client._call(client.work()) == 1
    client.close()


def test_who_closes_second_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A listener may hang in the close of a thread that does not keep the process alive."""
    monkeypatch.setattr("pymq.client.threaded.threaded_client.CLOSE_S", 0.1)
    closing, may_end = threading.Event(), threading.Event()

    class Hanging(Client):
        async def _count(self) -> None:
            closing.set()
            await asyncio.to_thread(may_end.wait, DEADLINE_S)
            await super()._count()

    client = Hanging()
    client._start(client.work, "client")
    closer = threading.Thread(target=client.close, daemon=True)
    closer.start()
    assert closing.wait(DEADLINE_S)
    second = threading.Thread(target=client.close, daemon=True)
    second.start()
    second.join(DEADLINE_S)
    has_returned = not second.is_alive()
    may_end.set()
    closer.join(DEADLINE_S)
    assert has_returned and client.closed_count == 1
    assert "is still closing after" in caplog.text


def leave(_: object) -> None:
    sys.exit("enough")


def test_what_ends_its_thread_is_named_and_told_to_all_who_wait(
    caplog: pytest.LogCaptureFixture, unawaited: list[str]
) -> None:
    """SystemExit passes through event loops, and nobody hears of it in a thread."""
    client = Client()
    client._start(client.work, "client")
    thread = client._thread
    assert thread is not None
    waiting = [client._begin(asyncio.Event().wait()) for _ in range(3)]
    for future in waiting:
        future.add_done_callback(leave)  # each of them once more
    may_end = asyncio.Event()
    client._begin(may_end.wait()).add_done_callback(leave)
    client._soon(may_end.set)
    with pytest.raises(ClientClosed):
        client._call(asyncio.Event().wait())
    thread._thread.join(DEADLINE_S)
    assert not thread._thread.is_alive()
    assert all(future.cancelled() for future in waiting)
    with pytest.raises(ClientClosed, match=r"SystemExit\('enough'\) ended its thread"):
        client._call(client.work())
    client.close()
    client.close()
    assert not client.closed_count
    (record,) = caplog.records
    assert record.levelname == "CRITICAL" and record.exc_info
    assert "client: SystemExit('enough')" in record.getMessage()
    unawaited.clear()  # the log has the traceback


def test_who_raises_it_in_what_is_waited_for_hears_it(unawaited: list[str]) -> None:
    async def work() -> None:
        sys.exit("enough")

    client = Client()
    client._start(client.work, "client")
    with pytest.raises(SystemExit, match="enough"):
        client._call(work())
    client.close()
    unawaited.clear()
