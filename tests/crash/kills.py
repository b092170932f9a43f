"""Kills a broker again and again while another process sends, then looks at what is left."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.administration import admin_of
from tests.crash.checkers import Found, check_history, check_index
from tests.crash.disk import file_count, log_entries, queue_entries
from tests.crash.ledger import Acknowledged, Attempted, Event, Failed, LedgerWatch, parse_ledger
from tests.crash.patience import patiently
from tests.crash.producers import TIMEOUT_S
from tests.crash.servers import (
    POLL_S,
    REPOSITORY,
    ServerFailed,
    ServerProcess,
    broker_process,
    name_server_process,
)
from tests.interop.processes import guard

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.record import decode_records
from pymq.store import StoreConfig
from pymq.store.config import DELAY_LEVELS_MS
from pymq.store.inspection import Severity, check_store

TOPIC: Final = "ledger"
QUEUE_COUNT: Final = 4
#: The first kills, this many, are each followed by a check of the whole store.
CHECK_COUNT: Final = 6
#: Requests acknowledged between two kills: a random number up to this.
ACKNOWLEDGED_MAX: Final = 1_000
#: One kill in this many is followed by another while the broker starts again.
START_KILL_IN: Final = 4
#: The second one comes after a random time up to this, before or just after it is ready.
START_KILL_S: Final = 1.5
PROGRESS_TIMEOUT_S: Final = 240.0
END_TIMEOUT_S: Final = 300.0

#: (name server, topic, ledger) -> command of a process that sends until its input ends.
SenderCommand = Callable[[str, str, Path], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Report:
    """What a run did, and what is wrong with its outcome."""

    kill_count: int
    attempted_count: int
    acknowledged_count: int
    unknown_count: int
    refused_count: int
    found_count: int
    log_file_count: int
    queue_file_count: int
    seconds: float
    complaints: list[str]

    def __str__(self) -> str:
        return (
            f"{self.kill_count} kills in {self.seconds:.1f} s: {self.attempted_count} messages "
            f"attempted, {self.acknowledged_count} acknowledged, {self.unknown_count} unknown, "
            f"{self.refused_count} refused, {self.found_count} found; {self.log_file_count} log "
            f"files, {self.queue_file_count} queue files; {len(self.complaints)} complaints"
        )


class SenderProcess:
    """The process that sends and writes the ledger.

    Args:
        numbers: of its producers, if others write this ledger, too.
    """

    def __init__(
        self, command: Sequence[str], home: Path, ledger: Path, numbers: range | None = None
    ) -> None:
        self._numbers = numbers
        self._errors = home / "sender.log"
        self._ledger = ledger
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=home,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        guard.watch(self._process.pid)
        self._watch: LedgerWatch | None = None

    def wait_acknowledged(self, more: int) -> None:
        """Wait until this many more requests were acknowledged.

        Raises:
            ServerFailed: no progress, or the process ended.
        """
        deadline = time.monotonic() + PROGRESS_TIMEOUT_S
        while self._watch is None:
            if self._ledger.exists():
                self._watch = LedgerWatch(self._ledger, self._numbers)
            self._check(deadline)
        count = self._watch.acknowledged_count()
        target = count + more
        while count < target:
            self._check(deadline)
            before, count = count, self._watch.acknowledged_count()
            if count > before:
                deadline = time.monotonic() + PROGRESS_TIMEOUT_S

    def _check(self, deadline: float) -> None:
        if self._process.poll() is not None or time.monotonic() > deadline:
            raise ServerFailed(
                f"the sender (exit {self._process.poll()}) got nothing acknowledged for "
                f"{PROGRESS_TIMEOUT_S:g} s:\n{self._errors.read_text(errors='replace')[-4000:]}"
            )
        time.sleep(POLL_S)

    def finish(self, timeout_s: float = END_TIMEOUT_S) -> list[Event]:
        """Tell it to stop, wait for its end, and return the ledger, which nobody else writes.

        Args:
            timeout_s: how long it may take to end what it has begun.

        Raises:
            ServerFailed: it failed.
        """
        self.stop(timeout_s)
        return parse_ledger(self._ledger.read_text().splitlines(keepends=True))

    def stop(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Tell it to stop, and wait for its end.

        Raises:
            ServerFailed: it failed.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(timeout_s)
        guard.forget(self._process.pid)
        if code != 0:
            text = self._errors.read_text(errors="replace")[-4000:]
            raise ServerFailed(f"the sender failed (exit {code}):\n{text}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            guard.forget(self._process.pid)
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._watch is not None:
            self._watch.close()


def python_sender(
    seed: int, *, first: int = 0, timeout_s: float = TIMEOUT_S, pause_s: float = 0.0
) -> SenderCommand:
    """Return the command of ``producers``.

    Args:
        first: number of the first producer.
        timeout_s: of a send.
        pause_s: after each.
    """

    def command(name_server: str, topic: str, ledger: Path) -> Sequence[str]:
        return [
            sys.executable, "-m", "tests.crash.producers",
            name_server, topic, str(ledger), str(seed), str(first), str(timeout_s), str(pause_s),
        ]  # fmt: skip

    return command


def run_kills(
    home: Path, sender_command: SenderCommand, *, flush: str, rounds: int, seed: int
) -> Report:
    """Kill the broker ``rounds`` times under load, and check everything in the end.

    Args:
        home: empty directory for all files.
        sender_command: who sends.
        flush: ``ASYNC_FLUSH`` or ``SYNC_FLUSH``.
        rounds: how many kills; those while it starts come on top.
        seed: of the moments.

    Returns:
        Figures, and what is wrong.

    Raises:
        ServerFailed: something does not run at all.
    """
    chance = random.Random(seed)
    complaints: list[str] = []
    store, ledger = home / "store", home / "ledger"
    begun = time.monotonic()
    kill_count = 0
    with name_server_process(home) as name_server:
        # So that there is a checkpoint to begin at.
        settings = {"flushDiskType": flush, "flushConsumeQueueThoroughInterval": 300}
        broker = broker_process(home, name_server.address, store, **settings)
        with broker, BlockingClient(name_server.address, timeout_s=20.0) as client:
            create_topic(client, TOPIC)
            with SenderProcess(
                sender_command(name_server.address, TOPIC, ledger), home, ledger
            ) as sender:
                for number in range(rounds):
                    sender.wait_acknowledged(chance.randint(1, ACKNOWLEDGED_MAX))
                    if number < CHECK_COUNT:
                        complaints += damage(store, "under load")
                    kill_count += kill_and_sometimes_again(broker, chance)
                    if number < CHECK_COUNT:
                        complaints += damage(store, f"after kill {number}")
                    broker.start()
                sender.wait_acknowledged(ACKNOWLEDGED_MAX // 4)
                events = sender.finish()
            found = read_all(client, TOPIC)
            broker.stop()
    complaints += damage(store, "in the end", is_stopped=True)
    complaints += check_history(events, found)
    complaints += check_index(queue_entries(store, TOPIC), log_entries(store, TOPIC))
    keys = {event.request: event.keys for event in events if isinstance(event, Attempted)}
    refused = [event for event in events if isinstance(event, Failed) and event.is_known]
    settled = [event for event in events if isinstance(event, Acknowledged)]
    attempted_count = sum(map(len, keys.values()))
    acknowledged_count = sum(len(keys[event.request]) for event in settled)
    refused_count = sum(len(keys[event.request]) for event in refused)
    return Report(
        kill_count,
        attempted_count,
        acknowledged_count,
        attempted_count - acknowledged_count - refused_count,
        refused_count,
        len(found),
        file_count(store, "commitlog"),
        file_count(store, "consumequeue"),
        time.monotonic() - begun,
        complaints,
    )


def damage(
    store: Path,
    when: str,
    *,
    is_stopped: bool = False,
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS,
) -> list[str]:
    """Return what ``pymq store check`` calls damage; of a store left in order, any finding."""
    report = check_store(StoreConfig(root_path=store, delay_levels_ms=delay_levels_ms))
    return [
        f"{when}: {finding}"
        for severity, _, _, kept in report.findings.groups()
        for finding in kept
        if is_stopped or severity is Severity.DAMAGE
    ]


def kill_and_sometimes_again(
    broker: ServerProcess, chance: random.Random, killed: Callable[[], None] = lambda: None
) -> int:
    """Kill it; now and then once more while it starts again. Return how often.

    Args:
        killed: called after each time.
    """
    broker.kill()
    killed()
    if chance.randrange(START_KILL_IN):
        return 1
    broker.spawn()
    time.sleep(chance.uniform(0, START_KILL_S))
    broker.kill()
    killed()
    return 2


def create_topic(client: BlockingClient, topic: str, queue_count: int = QUEUE_COUNT) -> None:
    """Create a topic, once a broker is registered that can have it.

    Raises:
        PymqError: there is none for a long time.
    """
    patiently(lambda: admin_of(client).topics.create(topic, queue_count=queue_count))


def read_all(client: BlockingClient, topic: str) -> list[Found]:
    """Return all messages of a topic as the broker serves them, queue by queue.

    Raises:
        PymqError: they cannot be read, or one is damaged.
    """
    queues = patiently(lambda: client.read_queues(topic))
    return [
        Found(record.queue_id, record.queue_offset, record.physical_offset, record.body)
        for queue, (first, end) in client.bounds(queues).items()
        for chunk in client.pull_range(queue, first, end)
        for record in decode_records(chunk.buffer, verify=True)
    ]
