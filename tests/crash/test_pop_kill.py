"""SIGKILL of the broker while messages are popped, acknowledged, changed and forgotten."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from tests.crash.disk import log_records
from tests.crash.kills import SenderProcess, create_topic, damage, kill_and_sometimes_again
from tests.crash.ledger import Acknowledged, Event, Noted
from tests.crash.pop_checkers import check_pops
from tests.crash.pop_consumers import GROUPS
from tests.crash.servers import broker_process, name_server_process

from pymq.client.sockets.blocking_client import BlockingClient

pytestmark = pytest.mark.crash

TOPIC: Final = "ledger"
#: Requests acknowledged between two kills: a random number up to this.
ACKNOWLEDGED_MAX: Final = 400


def run_kills(home: Path, *, flush: str, rounds: int, seed: int) -> Sequence[Event]:
    """Kill the broker ``rounds`` times under load, then have everything acknowledged."""
    chance = random.Random(seed)
    store, ledger = home / "store", home / "ledger"
    with name_server_process(home) as name_server:
        broker = broker_process(
            home,
            name_server.address,
            store,
            flushDiskType=flush,
            flushConsumeQueueThoroughInterval=300,
            flushConsumerOffsetInterval=chance.choice([100, 1000, 5000]),
            reviveQueueNum=chance.choice([1, 8]),
        )
        command = [
            *(sys.executable, "-m", "tests.crash.pop_consumers"),
            *(name_server.address, TOPIC, str(ledger), str(seed), str(store)),
        ]
        with broker:
            with BlockingClient(name_server.address, timeout_s=20.0) as client:
                create_topic(client, TOPIC)
            with SenderProcess(command, home, ledger) as sender:
                for _ in range(rounds):
                    sender.wait_acknowledged(chance.randint(1, ACKNOWLEDGED_MAX))
                    kill_and_sometimes_again(broker, chance)
                    broker.start()
                sender.wait_acknowledged(ACKNOWLEDGED_MAX // 4)
                events = sender.finish()
            broker.stop()
    return events


def test_popped_messages_come_back_until_they_are_acknowledged(
    tmp_path: Path, seed: int, feature_kills: int, flush: str
) -> None:
    events = run_kills(tmp_path, flush=flush, rounds=feature_kills, seed=seed)
    records = list(log_records(tmp_path / "store"))
    complaints = check_pops(events, records, topic=TOPIC, groups=GROUPS)
    complaints += damage(tmp_path / "store", "in the end", is_stopped=True)
    kinds = [event.request[-1] for event in events if isinstance(event, Acknowledged)]
    popped = sum(isinstance(event, Noted) and event.request[-1] == "p" for event in events)
    again = sum(record.reconsume_times > 0 for record in records)
    print(
        f"{flush}, PYMQ_TEST_SEED={seed}: {feature_kills} kills, {kinds.count('s')} messages sent, "
        f"{popped} popped, {kinds.count('a')} acknowledgements and {kinds.count('c')} changes "
        f"answered, {again} came back, {len(records)} records"
    )
    assert not complaints, "\n".join(complaints)
    assert again
    assert "c" in kinds
