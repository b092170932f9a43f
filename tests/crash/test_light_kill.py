"""SIGKILL of the broker while messages are listed in light queues, at once or with a delay."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.crash.checkers import check_index
from tests.crash.delay_checkers import Kill
from tests.crash.disk import log_by_topic, log_records, queues_by_topic
from tests.crash.kills import (
    CHECK_COUNT,
    SenderProcess,
    create_topic,
    damage,
    kill_and_sometimes_again,
)
from tests.crash.ledger import Acknowledged, Event, LedgerWriter, parse_ledger
from tests.crash.light_checkers import check_light, listing_of
from tests.crash.light_producers import TOPICS, read_all
from tests.crash.servers import broker_process, name_server_process
from tests.crash.test_delayed_kill import LEVELS_MS, recorder, wait_delivered

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.multi_dispatch import is_light

pytestmark = pytest.mark.crash

#: Requests acknowledged between two kills: a random number up to this.
ACKNOWLEDGED_MAX: Final = 300


@dataclass(slots=True)
class Run:
    """What was done to a store, and what was wrong with it on the way."""

    events: Sequence[Event]
    kills: list[Kill]
    complaints: list[str]


def run_kills(home: Path, *, flush: str, rounds: int, seed: int) -> Run:
    """Kill the broker ``rounds`` times under load, then let it deliver what is left."""
    chance = random.Random(seed)
    store, ledger, last = home / "store", home / "ledger", home / "last"
    kills: list[Kill] = []
    complaints: list[str] = []
    with name_server_process(home) as name_server:
        broker = broker_process(
            home,
            name_server.address,
            store,
            flushDiskType=flush,
            flushConsumeQueueThoroughInterval=300,
            flushDelayOffsetInterval=200,
            messageDelayLevel="1s 2s 3s",
            enableLmq="true",
            enableMultiDispatch="true",
        )
        command = [
            *(sys.executable, "-m", "tests.crash.light_producers"),
            *(name_server.address, str(ledger), str(seed)),
        ]
        with broker:
            with BlockingClient(name_server.address, timeout_s=20.0) as client:
                for topic in TOPICS:
                    create_topic(client, topic)
            with SenderProcess(command, home, ledger) as sender:
                for number in range(rounds):
                    sender.wait_acknowledged(chance.randint(1, ACKNOWLEDGED_MAX))
                    kill_and_sometimes_again(broker, chance, recorder(kills, store))
                    if number < CHECK_COUNT:
                        complaints += damage(
                            store, f"after kill {number}", delay_levels_ms=LEVELS_MS
                        )
                    broker.start()
                sender.wait_acknowledged(ACKNOWLEDGED_MAX // 4)
                events = sender.finish()
            wait_delivered(store)
            counts = dict.fromkeys(filter(is_light, queues_by_topic(store)), 0)
            counts |= {name: len(some) for name, some in listing_of([*log_records(store)]).items()}
            with LedgerWriter(last) as writer:
                asyncio.run(read_all(name_server.address, writer, counts))
            events += parse_ledger(last.read_text().splitlines(keepends=True))
            broker.stop()
    complaints += damage(store, "in the end", is_stopped=True, delay_levels_ms=LEVELS_MS)
    return Run(events, kills, complaints)


def test_light_queues_list_every_message_once(
    tmp_path: Path, seed: int, feature_kills: int, flush: str
) -> None:
    run = run_kills(tmp_path, flush=flush, rounds=feature_kills, seed=seed)
    store = tmp_path / "store"
    records, queues = list(log_records(store)), queues_by_topic(store)
    light = {name: entries for name, entries in queues.items() if is_light(name)}
    complaints = run.complaints + check_light(
        run.events, records, light, run.kills, topics=TOPICS, levels_ms=LEVELS_MS
    )
    by_topic = log_by_topic(store)
    for topic in TOPICS:
        complaints += check_index(queues[topic], by_topic[topic])
    acknowledged = sum(isinstance(event, Acknowledged) for event in run.events)
    print(
        f"{flush}, PYMQ_TEST_SEED={seed}: {len(run.kills)} kills, {acknowledged} messages "
        f"acknowledged, {len(records)} records, {sum(map(len, light.values()))} entries in "
        f"{len(light)} light queues"
    )
    assert not complaints, "\n".join(complaints)
    assert all(map(len, light.values()))
    assert len(light) > len(TOPICS)
