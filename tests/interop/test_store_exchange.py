"""A store directory passes between our broker and official ones, in both directions.

One broker writes and ends, cleanly or by SIGKILL; a second one opens its directory, serves all
of it to an official consumer and to our client, and appends; then the first opens it again and
serves everything. Files are small, so that the log and every queue have several.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final, Protocol

import pytest
from tests.administration import admin_of
from tests.crash.servers import broker_process, name_server_process
from tests.interop.conftest import require_peers, some
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.java_scenarios import AWKWARD_TEXT
from tests.interop.java_values import Outgoing, ReceivedMessage
from tests.interop.jvm import JavaClient
from tests.interop.peers import RealBroker, wait_for_route

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import RemoteProtocolError
from pymq.protocol import fastjson
from pymq.protocol import message as properties_of
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message
from pymq.protocol.message import ReceivedMessage as OurMessage
from pymq.protocol.record import decode_records

pytestmark = pytest.mark.interop

QUEUE_COUNT: Final = 4
TOPIC_COUNT: Final = 3
#: Messages of each queue that the first broker writes: more than one queue file of 50 entries.
FIRST_COUNT: Final = 56
#: ... and that the second one adds.
MORE_COUNT: Final = 15
BATCH_COUNT: Final = 6
BROKER_NAME: Final = "broker-a"
CLIENT_VERSION: Final = "5.3.3"
DEADLINE_S: Final = 150.0
OURS: Final = "pymq"
JAVA_OPTIONS: Final = ("-Xms128m", "-Xmx256m", "-XX:MaxDirectMemorySize=256m")
SMALL_FILES: Final = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 1_000}


class BrokerLike(Protocol):
    """What ours and the official broker have in common."""

    @property
    def address(self) -> str: ...

    def kill(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Stored:
    """One message as a consumer gets it. Properties: what the producer set, no more."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    body: bytes
    tags: str | None
    keys: str | None
    properties: tuple[tuple[str, str], ...]
    unique_key: str | None
    born_ms: int
    stored_ms: int

    @property
    def place(self) -> tuple[str, int, int]:
        return (self.topic, self.queue_id, self.queue_offset)


@dataclass(slots=True)
class Site:
    """The directory, who may open it, and what must be in it."""

    home: Path
    name_server: str
    java: JavaClient
    client: BlockingClient
    topics: list[str]
    chance: random.Random
    #: By place; filled by what the first reader saw and the answers to what was sent.
    expected: dict[tuple[str, int, int], Stored] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        return self.home / "store"

    @contextmanager
    def broker(self, kind: str, end: str) -> Iterator[BrokerLike]:
        """Run a broker on the store; ``end`` it by ``stop`` or ``kill`` when all went well."""
        if kind == OURS:
            home = self.home / uuid.uuid4().hex
            home.mkdir()
            with broker_process(home, self.name_server, self.store, **SMALL_FILES) as ours:
                wait_for_route(self.name_server, BROKER_NAME, broker_address=ours.address)
                yield ours
                getattr(ours, end)()
        else:
            with RealBroker(
                kind,
                [self.name_server],
                store_dir=self.store,
                java_options=JAVA_OPTIONS,
                flushConsumerOffsetInterval=200,
                **SMALL_FILES,
            ) as official:
                yield official
                getattr(official, end)()
        for topic in self.topics:
            self.client.forget_route(topic)


@pytest.fixture
def site(tmp_path: Path, seed: int, java_client: Callable[[str], JavaClient]) -> Iterator[Site]:
    require_peers(CLIENT_VERSION)
    topics = [f"exchange-{number}-{uuid.uuid4().hex[:8]}" for number in range(TOPIC_COUNT)]
    with (
        name_server_process(tmp_path) as name_server,
        BlockingClient(name_server.address) as client,
    ):
        yield Site(
            tmp_path,
            name_server.address,
            java_client(CLIENT_VERSION),
            client,
            topics,
            random.Random(seed),
        )


# -------------------------------------------------------------------------------- writing


def create_topics(site: Site) -> None:
    admin = admin_of(site.client)
    for topic in site.topics:
        admin.topics.create(topic, queue_count=QUEUE_COUNT)


def body(site: Site) -> bytes:
    return site.chance.randbytes(int(1_500 ** site.chance.random()))


def send_ours(site: Site, count: int) -> int:
    """Send ``count`` messages to every queue with our client; return how many in all."""
    for topic in site.topics:
        for queue_id in range(QUEUE_COUNT):
            queue = MessageQueue(topic, BROKER_NAME, queue_id)
            for number in range(count - BATCH_COUNT):
                result = site.client.send(our_message(site, topic, number), queue)
                assert result.status == "SEND_OK"
            site.client.send_batch(
                queue, [our_message(site, topic, number) for number in range(BATCH_COUNT)]
            )
    return count * QUEUE_COUNT * TOPIC_COUNT


def our_message(site: Site, topic: str, number: int) -> Message:
    return Message(
        topic,
        body(site),
        tags=[None, "a", "b"][number % 3],
        keys=[f"k{number}", "both"] if number % 2 else None,
        properties={"text": AWKWARD_TEXT, "n": str(number)} if number % 5 == 0 else {},
    )


def send_java(site: Site, count: int) -> int:
    """Send ``count`` messages to every queue with the official client; return how many in all."""
    with JavaProducer(site.java, f"p-{site.topics[0]}", site.name_server) as producer:
        for topic in site.topics:
            for queue_id in range(QUEUE_COUNT):
                futures = []
                for number in range(count):
                    result = producer.send(
                        topic,
                        body(site),
                        tags=[None, "a", "b"][number % 3],
                        keys=f"k{number} both" if number % 2 else None,
                        properties={"text": AWKWARD_TEXT} if number % 5 == 0 else None,
                        queue_id=queue_id,
                    )
                    futures.append(result)
                assert {result.status for result in futures} == {"SEND_OK"}
            batch = [Outgoing(topic, body(site), "c") for _ in range(BATCH_COUNT)]
            assert producer.send_batch(batch).status == "SEND_OK"
    return (count * QUEUE_COUNT + BATCH_COUNT) * TOPIC_COUNT


# -------------------------------------------------------------------------------- reading


def read_ours(site: Site, count: int) -> list[Stored]:
    """Return all messages as our client reads them, once the queues hold ``count``."""
    deadline = time.monotonic() + DEADLINE_S
    while True:  # official brokers acknowledge before a message is in its queue
        bounds: dict[MessageQueue, tuple[int, int]] = {}
        for topic in site.topics:
            bounds |= site.client.bounds(site.client.read_queues(topic))
        total = sum(end - first for first, end in bounds.values())
        if total >= count:
            break
        assert time.monotonic() < deadline, f"{total} of {count} messages: {bounds}"
        time.sleep(0.05)
    assert total == count
    return [
        our_stored(OurMessage.from_record(record, BROKER_NAME), record.size)
        for queue, (first, end) in bounds.items()
        for chunk in site.client.pull_range(queue, first, end)
        for record in decode_records(chunk.buffer, verify=True)
    ]


def our_stored(message: OurMessage, size: int) -> Stored:
    properties = message.properties
    return Stored(
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.physical_offset,
        size,
        message.body,
        message.tags,
        properties.get(properties_of.KEYS),
        users(properties),
        properties.get(properties_of.UNIQUE_KEY),
        message.born_timestamp_ms,
        message.store_timestamp_ms,
    )


def java_stored(message: ReceivedMessage) -> Stored:
    properties = dict(message.properties)
    return Stored(
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.commit_log_offset,
        message.store_size,
        message.body,
        message.tags,
        message.keys,
        users(properties),
        properties.get(properties_of.UNIQUE_KEY),
        message.born_timestamp,
        message.store_timestamp,
    )


def users(properties: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, v) for k, v in properties.items() if k in ("text", "n")))


def read_java(site: Site, group: str, count: int) -> list[Stored]:
    """Return what official push consumers get from all topics; their offsets are committed."""

    def read(topic: str) -> list[Stored]:
        topic_group = f"{group}-{topic}"
        with (
            BlockingClient(site.name_server) as client,  # one per thread
            JavaPushConsumer(site.java, topic_group, site.name_server, topic) as push,
        ):
            found = push.wait_count(count // TOPIC_COUNT, DEADLINE_S)
            push.wait_offsets(
                len(found), lambda: committed_count(client, topic_group, topic), DEADLINE_S
            )
        return list(map(java_stored, found))

    # Side by side: each spends seconds on waiting for itself when it starts and stops.
    with ThreadPoolExecutor(TOPIC_COUNT) as pool:
        return [stored for found in pool.map(read, site.topics) for stored in found]


def check_all(site: Site, found: Sequence[Stored], count: int) -> None:
    """Everything is there once, and what was seen before is as it was."""
    at = {stored.place: stored for stored in found}
    assert len(found) == len(at) == count
    for topic in site.topics:
        for queue_id in range(QUEUE_COUNT):
            offsets = sorted(offset for t, q, offset in at if (t, q) == (topic, queue_id))
            assert offsets == list(range(len(offsets))), f"{topic} queue {queue_id}"
    for place, expected in site.expected.items():
        assert at[place] == expected
    site.expected = at


# --------------------------------------------------------------------------------- offsets


def committed_count(client: BlockingClient, group: str, topic: str) -> int:
    """Return what the group's offsets in the topic's queues add up to."""
    queues = (MessageQueue(topic, BROKER_NAME, queue_id) for queue_id in range(QUEUE_COUNT))
    return sum(client.committed_offset(group, queue) or 0 for queue in queues)


def committed(site: Site, group: str) -> dict[tuple[str, int], int | None]:
    return {
        (topic, queue_id): site.client.committed_offset(
            f"{group}-{topic}", MessageQueue(topic, BROKER_NAME, queue_id)
        )
        for topic in site.topics
        for queue_id in range(QUEUE_COUNT)
    }


def wait_committed(site: Site, group: str) -> dict[tuple[str, int], int]:
    """Wait until the group's offsets are the ends of all queues, also on the disk."""
    ends: dict[tuple[str, int], int] = {}
    for topic, queue_id, offset in site.expected:
        ends[topic, queue_id] = max(offset + 1, ends.get((topic, queue_id), 0))
    deadline = time.monotonic() + DEADLINE_S
    while committed(site, group) != ends or on_disk(site, group) != ends:
        assert time.monotonic() < deadline, (committed(site, group), on_disk(site, group), ends)
        time.sleep(0.05)
    return ends


def on_disk(site: Site, group: str) -> dict[tuple[str, int], int]:
    path = site.store / "config" / "consumerOffset.json"
    try:
        table = fastjson.parse(path.read_text())["offsetTable"]
    except (FileNotFoundError, RemoteProtocolError):
        return {}  # RocketMQ empties its files before it writes them
    return {
        (topic, int(queue_id)): offset
        for topic in site.topics
        for queue_id, offset in table.get(f"{topic}@{group}-{topic}", {}).items()
    }


# ----------------------------------------------------------------------------------- tests


def exchange(site: Site, first: str, second: str, end: str) -> None:
    with site.broker(first, end):
        create_topics(site)
        if first == OURS:
            count = send_ours(site, FIRST_COUNT)
        else:
            count = send_java(site, FIRST_COUNT)
        check_all(site, read_ours(site, count), count)
        check_all(site, read_java(site, "early", count), count)
        early = wait_committed(site, "early")
    assert len(list((site.store / "commitlog").iterdir())) > 2
    files = list((site.store / "consumequeue" / site.topics[0] / "0").iterdir())
    assert len(files) == 2

    with site.broker(second, end):
        assert committed(site, "early") == early
        for topic in site.topics:
            assert len(site.client.read_queues(topic)) == QUEUE_COUNT
        check_all(site, read_java(site, "late", count), count)
        check_all(site, read_ours(site, count), count)
        late = wait_committed(site, "late")
        count += send_java(site, MORE_COUNT)
        count += send_ours(site, MORE_COUNT)
        check_all(site, read_ours(site, count), count)

    with site.broker(first, "stop"):
        assert committed(site, "early") == early
        assert committed(site, "late") == late
        check_all(site, read_ours(site, count), count)
        check_all(site, read_java(site, "last", count), count)
        count += send_java(site, 1)
        check_all(site, read_ours(site, count), count)
    assert not (site.store / "abort").exists()


CASES: Final = tuple(product(["5.3.3", "4.9.7"], ["stop", "kill"]))


@pytest.mark.parametrize(("version", "end"), some(CASES, ("5.3.3", "kill")))
def test_ours_then_official_then_ours(site: Site, version: str, end: str) -> None:
    require_peers(version)
    exchange(site, OURS, version, end)


@pytest.mark.parametrize(("version", "end"), some(CASES, ("4.9.7", "kill")))
def test_official_then_ours_then_official(site: Site, version: str, end: str) -> None:
    require_peers(version)
    exchange(site, version, OURS, end)
