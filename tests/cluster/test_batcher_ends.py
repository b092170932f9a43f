"""The blocking Batcher when its producer ends, by a close or by what the program has called."""

import concurrent.futures
import re
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from tests.cluster.running import LIMITS

from pymq import Message, MessageQueue, SendReceipt, blocking
from pymq.client.sending.hooks import SendHook
from pymq.client.threaded import batcher as _batcher
from pymq.errors import ClientClosed
from pymq.testing import Cluster, wait_until

WAIT_S = 20.0


def leave(_: object) -> None:
    sys.exit("enough")


def end_of(future: concurrent.futures.Future[SendReceipt]) -> str:
    """Wait for a future; return what became of it."""
    try:
        return type(future.result(WAIT_S)).__name__
    except Exception as error:
        return type(error).__name__


def test_all_who_hand_over_hear_of_a_close(pymq_cluster: Cluster) -> None:
    """Both have found the producer open; the first hands over, is refused, then the other does."""
    producer = blocking.Producer(pymq_cluster.name_server, **LIMITS).start()
    batcher = blocking.Batcher(producer)
    batcher.send(Message("T", b"first"))
    encode, encoded, may_go_on = batcher._encode, threading.Semaphore(0), threading.Event()

    def slow(*args: Any) -> Any:
        made = encode(*args)
        encoded.release()
        assert may_go_on.wait(WAIT_S)
        return made

    batcher._encode = slow  # type: ignore[method-assign]
    heard: list[str] = []

    def send() -> None:
        with pytest.raises(ClientClosed) as refused:
            batcher.send(Message("T", b"x"))
        heard.append(str(refused.value))

    threads = [threading.Thread(target=send, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
        assert encoded.acquire(timeout=WAIT_S)
    producer.close()
    may_go_on.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(heard) == 3


def test_a_close_that_does_not_wait_fails_what_was_handed_over(
    pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_batcher, "TURN_S", 0)
    monkeypatch.setattr(_batcher, "TAKEN_COUNT", 1)  # in each turn of the loop
    producer = blocking.Producer(pymq_cluster.name_server, **LIMITS).start()
    batcher = blocking.Batcher(producer)
    batcher.send(Message("T", b"first"))
    may_go_on = threading.Event()
    producer._soon(lambda: may_go_on.wait(WAIT_S))
    futures = [batcher.send_nowait(Message("T", b"x" * 50)) for _ in range(5_000)]
    closing = threading.Thread(target=producer.close, args=(0,), daemon=True)
    closing.start()
    wait_until(lambda: not producer._is_open, timeout_s=WAIT_S)
    may_go_on.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    counts = Counter(end_of(one) for one in futures if one.done())
    assert counts["ClientClosed"] > 2_000 and counts.total() == len(futures)
    found = re.search(r"; (\d+) messages of its Batcher had no receipt", caplog.text)
    assert found and int(found[1]) > 2_000


def test_what_came_into_a_batch_before_the_end_keeps_the_outcome_of_that() -> None:
    batcher = blocking.Batcher(blocking.Producer("127.0.0.1:9"))
    futures = [concurrent.futures.Future[SendReceipt]() for _ in range(4)]
    futures[2].cancel()
    with pytest.raises(SystemExit):
        batcher._give([(leave, future) for future in futures])
    assert batcher._handed_count == 4
    futures[0].set_exception(ValueError("of its batch"))
    batcher._refuse(ClientClosed("closed"))
    with pytest.raises(ValueError, match="of its batch"):
        futures[0].result(0)
    errors = [futures[at].exception(0) for at in (1, 3)]
    assert [str(error) for error in errors] == ["closed"] * 2 and errors[0] is not errors[1]
    assert futures[2].cancelled() and batcher._handed_count == 0


class Leaving(SendHook):
    """Ends the program when it sees a certain message."""

    def before(self, messages: Sequence[Message]) -> None:
        if messages[0].body == b"leave":
            leave(None)


@pytest.mark.parametrize("way", ["callback", "hook", "selector"])
def test_all_hear_of_what_ends_the_thread(
    pymq_cluster: Cluster, unawaited: list[str], way: str
) -> None:
    hooks = [Leaving()] if way == "hook" else []
    producer = blocking.Producer(pymq_cluster.name_server, hooks=hooks, **LIMITS).start()
    batcher = blocking.Batcher(producer, linger_s=0.1)
    queue = MessageQueue("T", "broker-a", 0)
    batcher.send(Message("T", b"first"), queue=queue)
    may_go_on = threading.Event()
    producer._soon(lambda: may_go_on.wait(WAIT_S))  # All of them are taken together.
    futures = [batcher.send_nowait(Message("T", b"x")) for _ in range(3)]
    if way == "callback":
        for future in futures:
            future.add_done_callback(leave)  # each of them once more
    elif way == "hook":
        futures.append(batcher.send_nowait(Message("T", b"goes alone", delay_level=1)))
        futures.append(batcher.send_nowait(Message("T", b"leave")))
    else:
        futures.append(batcher.send_nowait(Message("T", b"x"), queue=queue))
        futures.append(batcher.send_nowait(Message("T", b"x"), selector=leave))  # type: ignore[arg-type]
    futures += [batcher.send_nowait(Message("T", b"x")) for _ in range(3)]
    futures += [batcher.send_nowait(Message("U", b"x"), queue=queue) for _ in range(3)]
    thread = producer._thread
    assert thread is not None
    may_go_on.set()
    thread._thread.join(WAIT_S)
    assert not thread._thread.is_alive() and isinstance(thread.failure, SystemExit)
    assert all(future.done() for future in futures)
    with pytest.raises(ClientClosed, match=r"SystemExit\('enough'\) ended its thread"):
        batcher.send(Message("T", b"late"))
    producer.close()
    with batcher._room._lock:
        assert batcher._room._has_room()
    assert not batcher._room._open
    unawaited.clear()  # the log has the traceback
