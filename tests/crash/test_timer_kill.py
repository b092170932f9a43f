"""SIGKILL of the broker while messages wait for a time of their own, are recalled and delivered."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
from tests.crash.disk import log_records, queue_entries
from tests.crash.kills import (
    CHECK_COUNT,
    SenderProcess,
    create_topic,
    damage,
    kill_and_sometimes_again,
)
from tests.crash.ledger import Acknowledged, Event
from tests.crash.servers import broker_process, name_server_process
from tests.crash.timer_checkers import RECALLED, TimerKill, check_timers

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import decode_properties
from pymq.protocol.names import TIMER_TOPIC
from pymq.store import Files
from pymq.store.timer.timer_checkpoint import TimerCheckpoint

pytestmark = pytest.mark.crash

TOPIC: Final = "ledger"
#: Requests acknowledged between two kills: a random number up to this.
ACKNOWLEDGED_MAX: Final = 300
DELIVERED_TIMEOUT_S: Final = 240.0


def checkpoint(store: Path) -> TimerCheckpoint:
    """Return what timercheck says."""
    return TimerCheckpoint.load(Files(), store / "config" / "timercheck") or TimerCheckpoint()


def _recorder(kills: list[TimerKill], store: Path) -> Callable[[], None]:
    """Return what records a kill: a start in between delivers and saves, too."""
    before_ms = time.time_ns() // 1_000_000

    def killed() -> None:
        nonlocal before_ms
        after_ms = time.time_ns() // 1_000_000
        kills.append(TimerKill(before_ms, after_ms, checkpoint(store).read_ms))
        before_ms = after_ms

    return killed


def wait_delivered(store: Path) -> None:
    """Wait until the broker has saved that everything is delivered."""
    deadline = time.monotonic() + DELIVERED_TIMEOUT_S
    due_ms = max(
        int(decode_properties(record.properties)["TIMER_OUT_MS"])
        for record in log_records(store)
        if record.topic == TIMER_TOPIC
    )
    while True:
        saved, end = checkpoint(store), len(queue_entries(store, TIMER_TOPIC))
        if saved.read_ms > due_ms and saved.queue_offset == end:
            return
        assert time.monotonic() < deadline, f"delivered {saved}, waiting for {due_ms} and {end}"
        time.sleep(0.2)


def run_kills(
    home: Path, *, flush: str, rounds: int, seed: int
) -> tuple[Sequence[Event], list[TimerKill], list[str]]:
    """Kill the broker ``rounds`` times under load, then let it deliver what is left."""
    chance = random.Random(seed)
    store, ledger = home / "store", home / "ledger"
    kills: list[TimerKill] = []
    complaints: list[str] = []
    with name_server_process(home) as name_server:
        broker = broker_process(
            home,
            name_server.address,
            store,
            flushDiskType=flush,
            flushConsumeQueueThoroughInterval=300,
            timerFlushIntervalMs=chance.choice([50, 300, 1000]),
            timerRollWindowSlot=3,
            mappedFileSizeTimerLog=100 * 52 + 16,
            recallMessageEnable="true",
        )
        command = [
            *(sys.executable, "-m", "tests.crash.timer_producers"),
            *(name_server.address, TOPIC, str(ledger), str(seed)),
        ]
        with broker:
            with BlockingClient(name_server.address, timeout_s=20.0) as client:
                create_topic(client, TOPIC)
            with SenderProcess(command, home, ledger) as sender:
                for number in range(rounds):
                    sender.wait_acknowledged(chance.randint(1, ACKNOWLEDGED_MAX))
                    kill_and_sometimes_again(broker, chance, _recorder(kills, store))
                    if number < CHECK_COUNT:
                        complaints += damage(store, f"after kill {number}")
                    broker.start()
                sender.wait_acknowledged(ACKNOWLEDGED_MAX // 4)
                events = sender.finish()
            wait_delivered(store)
            broker.stop()
    return events, kills, complaints


def test_no_timer_message_is_lost_or_early(
    tmp_path: Path, seed: int, feature_kills: int, flush: str
) -> None:
    events, kills, complaints = run_kills(tmp_path, flush=flush, rounds=feature_kills, seed=seed)
    records = list(log_records(tmp_path / "store"))
    complaints += check_timers(events, records, kills)
    complaints += damage(tmp_path / "store", "in the end", is_stopped=True)
    settled = [event.request for event in events if isinstance(event, Acknowledged)]
    recalled = sum(request.endswith(RECALLED) for request in settled)
    print(
        f"{flush}, PYMQ_TEST_SEED={seed}: {len(kills)} kills, {len(settled)} acknowledged, "
        f"{recalled} of them recalls, {len(records)} records"
    )
    assert not complaints, "\n".join(complaints)
    assert recalled
