"""A store with timer messages passes from an official broker to ours, and back, after kill -9.

What one of them holds the other delivers when it is due, and recalls by the handle that the first
one gave.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from tests.administration import admin_of
from tests.crash.servers import broker_process
from tests.interop.conftest import require_peers
from tests.interop.peers import RealBroker, RealNameServer, wait_for_route
from tests.interop.test_delays_and_retries import Asker

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.message import decode_properties
from pymq.protocol.names import TIMER_TOPIC
from pymq.store import StoreConfig
from pymq.store.inspection import check_store

pytestmark = pytest.mark.interop

VERSION: Final = "5.3.3"
BROKER_NAME: Final = "broker-a"
SETTINGS: Final = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 6_000,
    "mappedFileSizeTimerLog": 100 * 52 + 16,
    "recallMessageEnable": "true",
}
#: What the next broker delivers is due after this; it has started by then, or it is overdue.
HELD_S: Final = {"ours": 8, "official": 16}
DEADLINE_S: Final = 150.0
#: A recall that is asked for so long before the message is due is not too late.
RECALL_MS: Final = 3000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Ledger:
    """What was sent, and what must become of it.

    Attributes:
        due_ms: when each message is due.
        handles: of those that were not recalled yet.
        recalled: those of which a recall was acknowledged.
        before: those that were seen delivered.
    """

    topic: str
    due_ms: dict[str, int] = field(default_factory=dict)
    handles: dict[str, str] = field(default_factory=dict)
    recalled: set[str] = field(default_factory=set)
    before: set[str] = field(default_factory=set)

    def send(self, broker: Asker, key: str, after_s: int) -> None:
        """Send a message; handles are divided by blanks, so its key must not have any."""
        self.due_ms[key] = now_ms() + after_s * 1000
        text = f"TIMER_DELIVER_MS\x01{self.due_ms[key]}\x02UNIQ_KEY\x01{key}\x02"
        answer = broker.send(self.topic, text)
        assert answer.code == ResponseCode.SUCCESS, answer
        self.handles[key] = (answer.fields or {})["recallHandle"]

    def recall(self, broker: Asker, key: str) -> None:
        is_early = now_ms() < self.due_ms[key] - RECALL_MS
        answer = broker.ask(
            RequestCode.RECALL_MESSAGE,
            topic=self.topic,
            recallHandle=self.handles.pop(key),
            producerGroup="pg",
        )
        if is_early:  # A machine may be so slow that the message is due already.
            assert answer.code == ResponseCode.SUCCESS, answer
            self.recalled.add(key)
        else:
            del self.due_ms[key]

    def check(self, broker: Asker, keys: set[str]) -> None:
        """Wait until these are delivered; nothing is early, or there though it was recalled.

        What was delivered just before a kill may be delivered once more.
        """
        keys &= self.due_ms.keys() - self.recalled
        wait(lambda: keys <= {key for key, _ in self._delivered(broker)} or f"{keys}")
        delivered = self._delivered(broker)
        names = [key for key, _ in delivered]
        twice = {key for key in names if names.count(key) > 1}
        assert twice <= self.before, names
        assert not self.recalled & set(names), (self.recalled, names)
        for key, store_ms in delivered:
            assert store_ms >= self.due_ms.get(key, 0), key
        self.before |= set(names)

    def _delivered(self, broker: Asker) -> list[tuple[str, int]]:
        return [
            (decode_properties(record.properties)["UNIQ_KEY"], record.store_timestamp)
            for record in broker.records(self.topic, 0)
        ]


def wait(condition: Callable[[], bool | str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while (state := condition()) is not True:
        assert time.monotonic() < deadline, state
        time.sleep(0.1)


@contextmanager
def official(name_server: str, store: Path) -> Iterator[Asker]:
    broker = RealBroker(VERSION, [name_server], store_dir=store, brokerName=BROKER_NAME, **SETTINGS)
    with broker, Asker(broker.address) as asker:
        yield asker
        broker.kill()


@contextmanager
def ours(name_server: str, home: Path, store: Path) -> Iterator[Asker]:
    with broker_process(home, name_server, store, **SETTINGS) as broker:
        wait_for_route(name_server, BROKER_NAME, broker_address=broker.address)
        with Asker(broker.address) as asker:
            yield asker
        broker.kill()


def check_whole(store: Path) -> None:
    report = check_store(StoreConfig(root_path=store))
    assert report.is_whole, list(report.findings.groups())


def test_what_waits_is_held_recalled_and_delivered_by_whoever_serves_the_store(
    tmp_path: Path,
) -> None:
    require_peers(VERSION)
    ledger = Ledger(f"timers-{uuid.uuid4().hex[:8]}")
    store = tmp_path / "store"
    with RealNameServer(VERSION) as name_server:
        address = name_server.address
        with official(address, store) as broker:
            with BlockingClient(address) as client:
                admin_of(client).topics.create(ledger.topic, queue_count=1)
            ledger.send(broker, "official-delivered", 1)
            ledger.check(broker, {"official-delivered"})
            ledger.send(broker, "official-recalled-by-itself", HELD_S["ours"])
            ledger.recall(broker, "official-recalled-by-itself")
            ledger.send(broker, "official-held", HELD_S["ours"])
            ledger.send(broker, "official-recalled-by-ours", HELD_S["ours"])
            ledger.send(broker, "official-due-at-the-third", HELD_S["ours"] + HELD_S["official"])
            broker.records(TIMER_TOPIC, 5)
        check_whole(store)
        with ours(address, tmp_path, store) as broker:
            ledger.recall(broker, "official-recalled-by-ours")
            ledger.check(broker, {"official-delivered", "official-held"})
            ledger.send(broker, "ours-delivered", 1)
            ledger.send(broker, "ours-held", HELD_S["official"])
            ledger.send(broker, "ours-recalled-by-official", HELD_S["official"])
            ledger.check(broker, {"ours-delivered"})
        check_whole(store)
        with official(address, store) as broker:
            ledger.recall(broker, "ours-recalled-by-official")
            ledger.check(broker, set(ledger.due_ms))
        check_whole(store)
    assert len(ledger.recalled) >= 1
