"""SIGKILL of the broker while messages are popped in order, acknowledged, changed and forgotten."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from tests.cluster.pops import PopConsumer
from tests.crash.delayed_producers import BrokerLine
from tests.crash.disk import log_records, saved_table
from tests.crash.kills import SenderProcess, create_topic, damage, kill_and_sometimes_again
from tests.crash.ledger import Acknowledged, Event
from tests.crash.patience import patiently_async
from tests.crash.pop_consumers import GROUPS, command
from tests.crash.pop_order_checkers import check_ordered_pops
from tests.crash.pop_order_consumers import OFFSETS, ORDERS
from tests.crash.pop_order_history import Death, History, saved_offsets, saved_pops
from tests.crash.servers import broker_process, name_server_process

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.codes import RequestCode, ResponseCode

pytestmark = pytest.mark.crash

TOPIC: Final = "ledger"
#: Requests acknowledged between two kills: a random number up to this.
ACKNOWLEDGED_MAX: Final = 400


@dataclass(slots=True)
class Run:
    """What was done to a broker, and what it left.

    Attributes:
        deaths: the last one is a clean stop.
        left: groups that popped something in the end.
    """

    events: Sequence[Event]
    deaths: list[Death]
    left: list[str]


def death(store: Path) -> Death:
    """Return what is left of a broker that has just ended."""
    return Death(
        time.time_ns() // 1_000_000,
        saved_offsets(saved_table(store, OFFSETS), TOPIC),
        saved_pops(saved_table(store, ORDERS), TOPIC),
    )


async def groups_with_messages(name_server: str) -> list[str]:
    """Return the groups that pop something."""
    line = BrokerLine(name_server, TOPIC)
    found = []
    for group in GROUPS:
        fields = PopConsumer(None, TOPIC, group).pop_fields(order=True, attemptId="the last")
        request = command(RequestCode.POP_MESSAGE, **fields)
        answer = await patiently_async(partial(line.send, request))
        if answer.code != ResponseCode.POLLING_TIMEOUT:
            found.append(f"{group}: {answer.code} {answer.remark}")
    line.close()
    return found


def run_kills(home: Path, *, flush: str, rounds: int, seed: int) -> Run:
    """Kill the broker ``rounds`` times under load, then have everything acknowledged.

    What is saved then has to be enough for a broker that comes after one more kill.
    """
    chance = random.Random(seed)
    store, ledger = home / "store", home / "ledger"
    deaths: list[Death] = []
    with name_server_process(home) as name_server:
        broker = broker_process(
            home,
            name_server.address,
            store,
            flushDiskType=flush,
            flushConsumeQueueThoroughInterval=300,
            flushConsumerOffsetInterval=chance.choice([50, 200, 600]),
        )
        command_line = [
            *(sys.executable, "-m", "tests.crash.pop_order_consumers"),
            *(name_server.address, TOPIC, str(ledger), str(seed), str(store)),
        ]
        with broker:
            with BlockingClient(name_server.address, timeout_s=20.0) as client:
                create_topic(client, TOPIC)
            with SenderProcess(command_line, home, ledger) as sender:
                for _ in range(rounds):
                    sender.wait_acknowledged(chance.randint(1, ACKNOWLEDGED_MAX))
                    kill_and_sometimes_again(broker, chance, lambda: deaths.append(death(store)))
                    broker.start()
                sender.wait_acknowledged(ACKNOWLEDGED_MAX // 4)
                events = sender.finish()
            broker.kill()
            deaths.append(death(store))
            broker.start()
            left = asyncio.run(groups_with_messages(name_server.address))
            broker.stop()
    deaths.append(death(store))
    return Run(events, deaths, left)


def test_queues_stay_in_order_and_nothing_is_left_out(
    tmp_path: Path, seed: int, feature_kills: int, flush: str
) -> None:
    run = run_kills(tmp_path, flush=flush, rounds=feature_kills, seed=seed)
    records = list(log_records(tmp_path / "store"))
    complaints = check_ordered_pops(run.events, records, run.deaths, topic=TOPIC, groups=GROUPS)
    complaints += [f"LEFT in the end: {one}" for one in run.left]
    complaints += damage(tmp_path / "store", "in the end", is_stopped=True)
    history = History(run.events)
    kinds = [event.request[-1] for event in run.events if isinstance(event, Acknowledged)]
    again = len(history.keys) - len({(queue, offset) for queue, offset, _ in history.keys})
    print(
        f"{flush}, PYMQ_TEST_SEED={seed}: {len(run.deaths) - 1} kills, {kinds.count('s')} messages "
        f"sent, {len(history.keys)} popped, {again} of them again, {len(history.lost)} pops "
        f"unanswered, {kinds.count('a')} acknowledgements and {kinds.count('c')} changes answered"
    )
    assert not complaints, "\n".join(complaints)
    assert again
    assert "c" in kinds
