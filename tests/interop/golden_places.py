"""Where golden stores are: one address for brokers that run one after the other, and settings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.crash.servers import broker_process, name_server_process
from tests.interop.golden import (
    run_report,
)
from tests.interop.peers import RealBroker, free_port, wait_for_route
from tests.interop.test_store_exchange import BROKER_NAME, OURS, BrokerLike

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.clock import Clock
from pymq.protocol.bodies import MessageQueue
from pymq.store import MessageStore, StoreConfig
from pymq.store.inspection import check_store

VERSIONS: Final = ("4.5.1", "4.9.7", "5.3.3")
TOPIC_COUNT: Final = 3
QUEUE_COUNT: Final = 4
DEADLINE_S: Final = 120.0
POLL_S: Final = 0.05

#: Parts of the usual length: as many files as ever, each so much smaller.
PARTS: Final = 1 if os.environ.get("PYMQ_GOLDEN") == "all" else 4
QUEUE_FILE_ENTRIES: Final = 2_000 // PARTS
SETTINGS: Final = {
    "mappedFileSizeCommitLog": (8 << 20) // PARTS,
    "mappedFileSizeConsumeQueue": 20 * QUEUE_FILE_ENTRIES,
    "maxHashSlotNum": 20_000 // PARTS,
    "maxIndexNum": 40_000 // PARTS,
}
#: Nothing may happen by itself while we compare: half messages are looked at (4.x makes their
#: topics only then), but never old enough to check.
OUR_SETTINGS: Final[dict[str, str | int | bool]] = {
    **SETTINGS,
    "flushDelayOffsetInterval": 500,
    "transactionCheckInterval": 2_000,
    "transactionTimeOut": 86_400_000,
}
OFFICIAL_SETTINGS: Final[dict[str, str | int | bool]] = {
    **OUR_SETTINGS,
    # A busy machine must not make a broker refuse.
    "brokerFastFailureEnable": False,
    "osPageCacheBusyTimeOutMills": 60_000,
    # Else a killed broker may lose what was in the last index file: it deletes the file, but begins
    # to add to the index where the queues end.
    "messageIndexSafe": True,
    "mappedFileSizeTimerLog": 1 << 20,
}
#: Asks for the fate of half messages, once: an answer that takes longer than the interval makes a
#: second copy.
CHECKING_BACK: Final = {"transactionTimeOut": 1_000, "transactionCheckInterval": 15_000}
JAVA_OPTIONS: Final = ("-Xms256m", "-Xmx384m", "-XX:MaxDirectMemorySize=256m")


@dataclass(slots=True)
class Place:
    """One address and one name server, for brokers that run one after the other.

    Offset ids of messages name the address of the broker that stored them, so the next one must
    have the same.
    """

    home: Path
    name_server: str
    port: int
    client: BlockingClient

    @contextmanager
    def broker(
        self, kind: str, store: Path, **properties: str | int | bool
    ) -> Iterator[BrokerLike]:
        """Run a broker on a store; what the block does not end is killed."""
        if kind == OURS:
            home = self.directory("ours")
            settings = {**OUR_SETTINGS, **properties}
            with broker_process(
                home, self.name_server, store, listenPort=self.port, **settings
            ) as ours:
                wait_for_route(self.name_server, BROKER_NAME, broker_address=ours.address)
                yield ours
        else:
            official = RealBroker(
                kind,
                [self.name_server],
                store_dir=store,
                java_options=JAVA_OPTIONS,
                **{**OFFICIAL_SETTINGS, "listenPort": self.port, **properties},
            )
            with official:
                try:
                    yield official
                finally:
                    official.kill()

    def directory(self, name: str) -> Path:
        """Return a new directory."""
        number = len(list(self.home.iterdir()))
        path = self.home / f"{number}-{name}"
        path.mkdir()
        return path

    def report(self, version: str, questions: list[str]) -> list[str]:
        """Return what the running broker reports to the client of a version."""
        home = self.directory("report")
        return run_report(version, home, self.name_server, BROKER_NAME, questions)

    def message_count(self, topics: list[str]) -> int:
        """Return how many messages the running broker serves of some topics."""
        queues = [
            MessageQueue(topic, BROKER_NAME, queue_id)
            for topic in topics
            for queue_id in range(QUEUE_COUNT)
        ]
        for topic in topics:
            self.client.forget_route(topic)
        return sum(end - first for first, end in self.client.bounds(queues).values())

    def wait_message_count(self, topics: list[str], count: int) -> None:
        """Wait until this many are served: official brokers answer before they can be read."""
        wait(lambda: (found := self.message_count(topics)) >= count or f"{found} of {count}")


def wait(condition: Callable[[], bool | str]) -> None:
    """Wait until a condition is True; anything else says what is missing."""
    deadline = time.monotonic() + DEADLINE_S
    while (state := condition()) is not True:
        assert time.monotonic() < deadline, state
        time.sleep(POLL_S)


@contextmanager
def place_in(home: Path) -> Iterator[Place]:
    with (
        name_server_process(home) as name_server,
        BlockingClient(name_server.address, timeout_s=30.0, read_deadline_s=60.0) as client,
    ):
        yield Place(home, name_server.address, free_port(-2, 0, 1), client)


def end_of(broker: BrokerLike, end: str) -> None:
    broker.stop() if end == "stop" else broker.kill()


def config_of(path: Path) -> StoreConfig:
    return StoreConfig(
        root_path=path,
        segment_bytes=SETTINGS["mappedFileSizeCommitLog"],
        queue_file_bytes=SETTINGS["mappedFileSizeConsumeQueue"],
        index_slot_count=SETTINGS["maxHashSlotNum"],
        index_item_limit=SETTINGS["maxIndexNum"],
    )


def open_store(path: Path) -> MessageStore:
    return MessageStore.open(config_of(path), Clock())


def check_whole(path: Path) -> None:
    """``pymq store check`` finds nothing wrong but what an unclean stop leaves."""
    report = check_store(config_of(path))
    assert report.is_whole, list(report.findings.groups())
