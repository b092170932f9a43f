"""SIGKILL of the broker's process: no send that is reported as surely not stored is ever found.

Unlike the senders of ``test_kill``, these send again after a failure, as they do by default. The
first attempt may have been stored although the last one was refused by a closed port.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.crash.kills import create_topic, read_all
from tests.crash.servers import ServerProcess, broker_process, name_server_process

from pymq.client.sending.producer import Producer
from pymq.client.sending.send_encoding import encode_batch as encode_messages
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import PymqError
from pymq.protocol.message import Message

pytestmark = pytest.mark.crash

TOPIC: Final = "failed"
KILL_COUNT: Final = 5
PRODUCER_COUNT: Final = 6
IN_FLIGHT: Final = 25
BATCH: Final = 5
ACKNOWLEDGED_MIN: Final = 200
FAILED_MIN: Final = 150
DEADLINE_S: Final = 240.0
#: Of an answer to somebody who waits for it: long enough for a slow machine.
ANSWER_S: Final = 20.0
#: For each send: less than the broker is away, so that sends fail.
GIVEN_UP_S: Final = 0.5


class Outcomes:
    """What the senders were told about each body. For several threads."""

    def __init__(self) -> None:
        self.acknowledged: set[bytes] = set()
        self.known_failed: dict[bytes, str] = {}
        self.unknown: dict[bytes, str] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    def bodies(self, kind: str, count: int) -> list[bytes]:
        """Return new bodies, unlike all others."""
        return [f"{kind}-{next(self._numbers)}".encode() for _ in range(count)]

    def stored(self, bodies: list[bytes]) -> None:
        with self._changed:
            self.acknowledged.update(bodies)
            self._changed.notify_all()

    def failed(self, bodies: list[bytes], error: PymqError) -> None:
        table = self.known_failed if error.outcome_known else self.unknown
        with self._changed:
            table.update(dict.fromkeys(bodies, repr(error)))
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_S), f"waited for {what}"

    @property
    def failed_count(self) -> int:
        return len(self.known_failed) + len(self.unknown)


async def send_forever(producer: Producer, outcomes: Outcomes, turn: int) -> None:
    """Send single messages, batches, or futures begun together, as ``turn`` says."""
    while True:
        bodies = outcomes.bodies(["single", "batch", "nowait"][turn % 3], 1 if turn % 3 == 0 else 5)
        messages = [Message(TOPIC, body) for body in bodies]
        if turn % 3 == 1:
            await _one(producer.send_batch(messages), bodies, outcomes)
            continue
        sends = [producer.send_nowait(message) for message in messages]
        for send in sends:  # of those after one at which we are cancelled, too
            send.add_done_callback(lambda done: done.cancelled() or done.exception())
        for body, send in zip(bodies, sends, strict=True):
            await _one(send, [body], outcomes)


async def _one(send: Awaitable[object], bodies: list[bytes], outcomes: Outcomes) -> None:
    try:
        await send
    except PymqError as error:
        outcomes.failed(bodies, error)
    else:
        outcomes.stored(bodies)


async def produce(name_server: str, outcomes: Outcomes, stopped: threading.Event) -> None:
    producers = [Producer(name_server, deadline_s=GIVEN_UP_S) for _ in range(PRODUCER_COUNT)]
    for producer in producers:
        await producer.start()
    tasks = [
        asyncio.ensure_future(send_forever(producer, outcomes, turn))
        for producer in producers
        for turn in range(IN_FLIGHT)
    ]
    await asyncio.to_thread(stopped.wait)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for producer in producers:
        await producer.close()


def send_blocking(name_server: str, outcomes: Outcomes, stopped: threading.Event) -> None:
    """Send single messages, batches and pipelines of batches over a blocking client."""
    with BulkClient(name_server, timeout_s=ANSWER_S) as client:
        queue = client.write_queues(TOPIC)[0]
        ids = (f"{number:032X}" for number in itertools.count())
        for turn in itertools.count():
            if stopped.is_set():
                return
            kind = ["blocking", "blocking-batch", "blocking-pipeline"][turn % 3]
            bodies = outcomes.bodies(kind, 1 if turn % 3 == 0 else BATCH)
            messages = [Message(TOPIC, body) for body in bodies]
            try:
                if turn % 3 == 0:
                    client.send(messages[0])
                elif turn % 3 == 1:
                    client.send_batch(None, messages)
                else:
                    client.send_batches(
                        queue, [encode_messages([one], ids, 4096).body for one in messages]
                    )
            except PymqError as error:
                count = acknowledged_before(error)
                outcomes.stored(bodies[:count])
                outcomes.failed(bodies[count:], error)
            else:
                outcomes.stored(bodies)


def acknowledged_before(error: PymqError) -> int:
    """Return how many batches of a pipeline were acknowledged: the first ones, in one queue."""
    for note in getattr(error, "__notes__", ()):
        if found := re.fullmatch(r"(\d+) batches were acknowledged before", note):
            return int(found[1])
    return 0


@contextmanager
def senders(name_server: str, outcomes: Outcomes) -> Iterator[None]:
    """Run all senders on threads of their own."""
    stopped = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    threads = [guarded(lambda: asyncio.run(produce(name_server, outcomes, stopped)))]
    threads += [guarded(lambda: send_blocking(name_server, outcomes, stopped)) for _ in range(4)]
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert not failures, failures


def kill_and_restart(broker: ServerProcess, outcomes: Outcomes, chance: random.Random) -> None:
    """Kill the broker under load, let sends fail for a while, start it again."""
    enough = len(outcomes.acknowledged) + chance.randint(ACKNOWLEDGED_MIN, 3 * ACKNOWLEDGED_MIN)
    outcomes.wait(lambda: len(outcomes.acknowledged) >= enough, "acknowledgements")
    failed = outcomes.failed_count
    broker.kill()
    outcomes.wait(lambda: outcomes.failed_count >= failed + FAILED_MIN, "failures")
    broker.start()


def test_no_send_that_surely_failed_is_found(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    outcomes = Outcomes()
    with name_server_process(tmp_path) as name_server:
        settings = {"flushDiskType": "SYNC_FLUSH"}
        broker = broker_process(tmp_path, name_server.address, tmp_path / "store", **settings)
        with broker, BulkClient(name_server.address, timeout_s=ANSWER_S) as client:
            create_topic(client, TOPIC)
            with senders(name_server.address, outcomes):
                for _ in range(KILL_COUNT):
                    kill_and_restart(broker, outcomes, chance)
                enough = len(outcomes.acknowledged) + ACKNOWLEDGED_MIN
                outcomes.wait(lambda: len(outcomes.acknowledged) >= enough, "a last stretch")
            found = {message.body for message in read_all(client, TOPIC)}
    print(
        f"PYMQ_TEST_SEED={seed}: {len(outcomes.acknowledged)} acknowledged, "
        f"{len(outcomes.known_failed)} surely failed, {len(outcomes.unknown)} unknown, of which "
        f"{len(found & outcomes.unknown.keys())} were found"
    )
    assert not outcomes.acknowledged - found
    wrong = sorted(found & outcomes.known_failed.keys())
    assert not wrong, [(body, outcomes.known_failed[body]) for body in wrong[:5]]
    assert outcomes.known_failed and outcomes.unknown
