"""A store with open transactions passes from an official broker to ours, and back."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.administration import admin_of
from tests.crash.servers import broker_process
from tests.interop.conftest import require_peers
from tests.interop.java_scenarios import ClientFactory
from tests.interop.java_transactions import (
    JavaTransactionProducer,
    stored_count,
    stored_records,
    wait_until,
)
from tests.interop.jvm import JavaClient
from tests.interop.peers import RealBroker, RealNameServer, wait_for_route

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC

pytestmark = pytest.mark.interop

BROKER_NAME: Final = "broker-a"
GROUP: Final = "exchange"
FILES: Final = {"mappedFileSizeCommitLog": 1 << 18, "mappedFileSizeConsumeQueue": 2_000}
AGAIN: Final = "again: commit"
#: Nothing is checked.
NEVER: Final = {"transactionTimeOut": 86_400_000}
#: What is open is checked soon.
SOON: Final = {
    "transactionTimeOut": 500,
    "transactionCheckInterval": 500,
    "transactionCheckMax": 10_000,
    "transactionOpBatchInterval": 100,  # 5.x would check what it has not recorded
}


@dataclass(frozen=True, slots=True)
class Site:
    """A store directory, and who may serve it."""

    home: Path
    name_server: str
    client: JavaClient
    topic: str

    @contextmanager
    def official(self, version: str, **settings: int) -> Iterator[str]:
        """Have an official broker serve it, and kill it in the end."""
        broker = RealBroker(
            version,
            [self.name_server],
            store_dir=self.home / "store",
            brokerName=BROKER_NAME,
            **FILES,
            **settings,
        )
        with broker:
            yield broker.address
            broker.kill()  # a clean stop takes long

    @contextmanager
    def ours(self, end: str, **settings: int) -> Iterator[str]:
        """Have our broker serve it, and stop or kill it in the end."""
        known = {name: value for name, value in settings.items() if "OpBatch" not in name}
        broker = broker_process(self.home, self.name_server, self.home / "store", **FILES, **known)
        with broker:
            wait_for_route(self.name_server, BROKER_NAME, broker_address=broker.address)
            yield broker.address
            broker.stop() if end == "stop" else broker.kill()

    def producer(self, always: str | None = None) -> JavaTransactionProducer:
        return JavaTransactionProducer(self.client, GROUP, self.name_server, always=always)

    def committed(self, address: str) -> list[str]:
        """Return the bodies of the topic's messages, sorted."""
        return sorted(one.body.decode() for one in stored_records(address, self.topic))


def send_all(site: Site, producer: JavaTransactionProducer, prefix: str) -> None:
    """Send messages of every outcome; each body says where it comes from, and its outcome."""
    for answers in ("commit", "rollback", "unknown,commit", "unknown,rollback", "unknown"):
        producer.send(site.topic, f"{prefix}: {answers}".encode(), answers)


def checked(producer: JavaTransactionProducer) -> Counter[str]:
    return Counter(one.body.decode() for one in producer.checked)


def settled(producer: JavaTransactionProducer, still_open: set[str]) -> Counter[str]:
    """Wait until only what is open is asked about, in some rounds; return how often all was.

    What has just ended may be asked about while its end is under way.
    """
    counts: Counter[str] = Counter()

    def is_settled() -> bool:
        nonlocal counts
        before = checked(producer)
        wait_until(
            lambda: all(checked(producer)[one] > before[one] + 2 for one in still_open), "checks"
        )
        counts = checked(producer)
        return all(counts[one] == before[one] for one in counts.keys() - still_open)

    wait_until(is_settled, "what has ended is not asked about any more")
    return counts


@pytest.mark.parametrize(("version", "end"), [("4.9.7", "stop"), ("5.3.3", "kill")])
def test_open_transactions_go_there_and_back(
    version: str, end: str, tmp_path: Path, java_client: ClientFactory
) -> None:
    """Whoever serves them asks about those that are open, and nobody commits one twice."""
    require_peers(version)
    records_at_once = version.startswith("4.")
    topic = f"exchange-{uuid.uuid4().hex[:8]}"
    with RealNameServer(version) as name_server:
        site = Site(tmp_path, name_server.address, java_client(version), topic)
        with site.official(version, **NEVER) as address:
            with BlockingClient(name_server.address) as client:
                admin_of(client).topics.create(topic, queue_count=1)
            with site.producer() as producer:
                send_all(site, producer, "official")
                # Decisions are not answered.
                wait_until(lambda: site.committed(address) == ["official: commit"], "the commit")
                if records_at_once:
                    wait_until(lambda: stored_count(address, HALF_OP_TOPIC) == 2, "both")
        # 5.x has not recorded what has just ended; ours finds the committed message.
        with site.ours(end, **SOON) as address, site.producer() as producer:
            send_all(site, producer, "ours")
            expected = ["official: commit", "official: unknown,commit"]
            expected += [f"ours{one[8:]}" for one in expected]
            wait_until(lambda: site.committed(address) == expected, "commits by ours")
            asked = settled(producer, {"official: unknown", "ours: unknown"})
            assert asked["official: unknown,commit"] and asked["ours: unknown,rollback"]
            ended = {"official: commit"}
            if records_at_once:
                ended.add("official: rollback")
            assert not asked.keys() & ended
        with site.official(version, **SOON) as address, site.producer(always="commit") as producer:
            producer.send(topic, AGAIN.encode(), "commit")  # now brokers know the producer
            left = {"official: unknown", "ours: unknown"}
            wait_until(
                lambda: left <= set(site.committed(address)), "commits by the official broker"
            )
            with producer_quiet(producer, address):
                # It may ask about what it has committed and not recorded yet, and commit it twice.
                found = [one for one in site.committed(address) if one not in {AGAIN, *left}]
                assert found == sorted(expected)
                assert checked(producer).keys() - {AGAIN} == left


@contextmanager
def producer_quiet(producer: JavaTransactionProducer, address: str) -> Iterator[None]:
    """Wait until nothing more is asked, and half messages are not copied any more."""
    known: list[tuple[int, int]] = []

    def is_quiet() -> bool:
        known.append((len(producer.checked), stored_count(address, HALF_TOPIC)))
        return len(known) > 15 and len(set(known[-15:])) == 1  # looked at every 0.1 s

    wait_until(is_quiet, "quiet")
    yield
