"""SIGKILL of the broker while transactions are begun, ended and checked."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from tests.crash.disk import log_records
from tests.crash.kills import (
    END_TIMEOUT_S,
    SenderProcess,
    create_topic,
    damage,
    kill_and_sometimes_again,
)
from tests.crash.ledger import Acknowledged, Event
from tests.crash.servers import broker_process, name_server_process
from tests.crash.transaction_checkers import check_transactions

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.names import HALF_TOPIC

pytestmark = pytest.mark.crash

TOPIC: Final = "ledger"
#: Requests acknowledged between two kills: a random number up to this.
ACKNOWLEDGED_MAX: Final = 200


def run_kills(home: Path, *, flush: str, rounds: int, seed: int) -> list[Event]:
    """Kill the broker ``rounds`` times under load, then let it ask for what is left."""
    chance = random.Random(seed)
    store, ledger = home / "store", home / "ledger"
    with name_server_process(home) as name_server:
        broker = broker_process(
            home,
            name_server.address,
            store,
            flushDiskType=flush,
            flushConsumeQueueThoroughInterval=300,
            transactionTimeOut=300,
            transactionCheckInterval=400,
            transactionCheckMax=100_000,
        )
        command = [
            *(sys.executable, "-m", "tests.crash.transaction_producers"),
            *(name_server.address, TOPIC, str(ledger), str(seed), str(store)),
        ]
        with broker:
            with BlockingClient(name_server.address, timeout_s=20.0) as client:
                create_topic(client, TOPIC)
            with SenderProcess(command, home, ledger) as sender:
                for _ in range(rounds):
                    sender.wait_acknowledged(chance.randint(1, ACKNOWLEDGED_MAX))
                    if chance.random() < 0.3:
                        time.sleep(chance.uniform(0, 0.8))  # into the next round of checks
                    kill_and_sometimes_again(broker, chance)
                    broker.start()
                sender.wait_acknowledged(ACKNOWLEDGED_MAX // 4)
                # Of each round some transactions stay open, to be asked about in the end.
                events = sender.finish(END_TIMEOUT_S + rounds)
            broker.stop()
    return events


def test_every_transaction_ends_once_as_it_should(
    tmp_path: Path, seed: int, feature_kills: int, flush: str
) -> None:
    events = run_kills(tmp_path, flush=flush, rounds=feature_kills, seed=seed)
    store = tmp_path / "store"
    records = list(log_records(store))
    complaints = check_transactions(events, records, topic=TOPIC)
    complaints += damage(store, "in the end", is_stopped=True)
    acknowledged = sum(isinstance(event, Acknowledged) for event in events)
    halves = sum(record.topic == HALF_TOPIC for record in records)
    print(
        f"{flush}, PYMQ_TEST_SEED={seed}: {feature_kills} kills, {acknowledged} acknowledged, "
        f"{halves} half messages and copies, {len(records)} records"
    )
    assert not complaints, "\n".join(complaints)
    assert halves > feature_kills
