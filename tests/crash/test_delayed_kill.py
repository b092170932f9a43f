"""SIGKILL of the broker while messages are delayed, delivered and sent back."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.crash.delay_checkers import Kill, check_delays
from tests.crash.delayed_producers import GROUP
from tests.crash.disk import log_records, queue_entries, saved_table
from tests.crash.kills import SenderProcess, create_topic, kill_and_sometimes_again
from tests.crash.ledger import Acknowledged, Event
from tests.crash.servers import broker_process, name_server_process

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.store import StoreConfig
from pymq.store.inspection import check_store

pytestmark = pytest.mark.crash

TOPIC: Final = "ledger"
LEVELS_MS: Final = (1000, 2000, 3000)
#: Requests acknowledged between two kills: a random number up to this.
ACKNOWLEDGED_MAX: Final = 200
DELIVERED_TIMEOUT_S: Final = 240.0


@dataclass(slots=True)
class Run:
    """What was done to a store."""

    events: Sequence[Event]
    kills: list[Kill]


def saved_offsets(store: Path) -> dict[int, int]:
    """Return what delayOffset.json says."""
    table = saved_table(store, "delayOffset.json").get("offsetTable", {})
    return {int(level): offset for level, offset in table.items()}


def recorder(kills: list[Kill], store: Path) -> Callable[[], None]:
    """Return what records a kill: a start in between delivers and saves, too."""
    before_ms = time.time_ns() // 1_000_000

    def killed() -> None:
        nonlocal before_ms
        after_ms = time.time_ns() // 1_000_000
        kills.append(Kill(before_ms, after_ms, saved_offsets(store)))
        before_ms = after_ms

    return killed


def wait_delivered(store: Path) -> None:
    """Wait until the broker has saved that everything is delivered."""
    deadline = time.monotonic() + DELIVERED_TIMEOUT_S
    while True:
        ends: dict[int, int] = {}
        for entry in queue_entries(store, SCHEDULE_TOPIC):
            level = entry.queue_id + 1
            ends[level] = max(ends.get(level, 0), entry.queue_offset + 1)
        saved = saved_offsets(store)
        if saved == ends:
            return
        assert time.monotonic() < deadline, f"delivered {saved} of {ends}"
        time.sleep(0.2)


def run_kills(home: Path, *, flush: str, rounds: int, seed: int) -> Run:
    """Kill the broker ``rounds`` times under load, then let it deliver what is left."""
    chance = random.Random(seed)
    store, ledger = home / "store", home / "ledger"
    kills: list[Kill] = []
    with name_server_process(home) as name_server:
        broker = broker_process(
            home,
            name_server.address,
            store,
            flushDiskType=flush,
            flushConsumeQueueThoroughInterval=300,
            flushDelayOffsetInterval=200,
            messageDelayLevel="1s 2s 3s",
        )
        command = [
            *(sys.executable, "-m", "tests.crash.delayed_producers"),
            *(name_server.address, TOPIC, str(ledger), str(seed)),
        ]
        with broker:
            with BlockingClient(name_server.address, timeout_s=20.0) as client:
                create_topic(client, TOPIC)
            with SenderProcess(command, home, ledger) as sender:
                for _ in range(rounds):
                    sender.wait_acknowledged(chance.randint(1, ACKNOWLEDGED_MAX))
                    kill_and_sometimes_again(broker, chance, recorder(kills, store))
                    broker.start()
                sender.wait_acknowledged(ACKNOWLEDGED_MAX // 4)
                events = sender.finish()
            wait_delivered(store)
            broker.stop()
    return Run(events, kills)


def test_nothing_delayed_is_lost_or_early(
    tmp_path: Path, seed: int, feature_kills: int, flush: str
) -> None:
    run = run_kills(tmp_path, flush=flush, rounds=feature_kills, seed=seed)
    store = tmp_path / "store"
    records = list(log_records(store))
    complaints = check_delays(
        run.events, records, run.kills, topic=TOPIC, group=GROUP, levels_ms=LEVELS_MS
    )
    found = check_store(StoreConfig(root_path=store, delay_levels_ms=LEVELS_MS)).findings
    complaints += [str(finding) for _, _, _, kept in found.groups() for finding in kept]
    acknowledged = sum(isinstance(event, Acknowledged) for event in run.events)
    parked = sum(record.topic == SCHEDULE_TOPIC for record in records)
    print(
        f"{flush}, PYMQ_TEST_SEED={seed}: {len(run.kills)} kills, {acknowledged} acknowledged, "
        f"{parked} delayed, {len(records)} records"
    )
    assert not complaints, "\n".join(complaints)
    assert parked > len(run.kills)
