"""Checksums of whole records between our broker and the official one, in both directions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.administration import admin_of
from tests.crash.servers import ServerProcess, broker_process, name_server_process
from tests.interop.conftest import require_peers
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.java_values import Outgoing
from tests.interop.jvm import JavaClient
from tests.interop.peers import RealBroker, wait_for_route
from tests.preencoded import lay_out, takes_records

from pymq.client.sockets.bulk_client import BulkClient
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message
from pymq.protocol.record import Record, decode_record, decode_records
from pymq.protocol.record_crc import RecordCrc, check_record_crc
from pymq.protocol.records_body import RecordsBody

pytestmark = pytest.mark.interop

VERSION: Final = "5.3.3"
BROKER_NAME: Final = "broker-a"
DEADLINE_S: Final = 150.0
SMALL_FILES: Final = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 1_000}
JAVA_OPTIONS: Final = ("-Xms128m", "-Xmx256m", "-XX:MaxDirectMemorySize=256m")
FOREIGN: Final = b"__CRC32#\x011234567890\x02"


@dataclass(slots=True)
class Site:
    """A store directory, and clients of whoever has it open."""

    home: Path
    name_server: str
    java: JavaClient
    client: BulkClient
    topic: str

    @property
    def store(self) -> Path:
        return self.home / "store"

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, BROKER_NAME, 0)

    def make_topic(self) -> None:
        admin_of(self.client).topics.create(self.topic, queue_count=1)

    def read(self, count: int) -> list[Record]:
        """Return the records of the queue, which must be this many."""
        self.client.forget_route(self.topic)
        low, end = self.client.bounds([self.queue])[self.queue]
        assert (low, end) == (0, count)
        return [
            record
            for chunk in self.client.pull_range(self.queue, 0, count)
            for record in decode_records(chunk.buffer, verify=True)
        ]

    def on_disk(self) -> list[tuple[Record, RecordCrc]]:
        """Return all records of the topic in the log, and what their checksums say."""
        found = []
        for path in sorted((self.store / "commitlog").iterdir()):
            data = path.read_bytes()
            at = 0
            while data[at + 4 : at + 7] == b"\xda\xa3\x20":
                record = decode_record(data, at, verify=True)
                raw = data[at : at + record.size]
                found.append((record, check_record_crc(raw, len(record.properties))))
                at += record.size
        return [pair for pair in found if pair[0].topic == self.topic]

    def send_java(self) -> int:
        """Send with the official client, single messages and batches; return how many."""
        with JavaProducer(self.java, f"p-{uuid.uuid4().hex[:8]}", self.name_server) as producer:
            for number in range(60):
                result = producer.send(
                    self.topic,
                    bytes(1 + number * 40),
                    tags=[None, "a"][number % 2],
                    keys=f"k{number}" if number % 3 else None,
                    properties={"n": str(number)} if number % 5 == 0 else None,
                )
                assert result.status == "SEND_OK"
            for _ in range(4):
                batch = [Outgoing(self.topic, b"b%d" % number, "c") for number in range(10)]
                assert producer.send_batch(batch).status == "SEND_OK"
        return 100

    def send_ours(self) -> int:
        """Send with our client, in every way it knows; return how many."""
        for number in range(10):
            self.client.send(Message(self.topic, b"%d" % number, tags="a"), self.queue)
        self.client.send_batch(
            self.queue, [Message(self.topic, b"%d" % number) for number in range(10)]
        )
        texts = [b"", b"a\x01b", b"TAGS\x01a\x02", b"a\x01b\x02" + FOREIGN]
        body = encode_batch([(0, b"%d" % number, text) for number, text in enumerate(texts)])
        bodies: list[bytes | RecordsBody] = [body]
        if takes_records(self.client, self.queue):
            bodies.append(lay_out(self.topic, body))
        self.client.send_batches(self.queue, bodies)
        return 20 + 4 * len(bodies)

    def consume_java(self, count: int) -> None:
        """Let an official consumer read everything."""
        group = f"g-{uuid.uuid4().hex[:8]}"
        with JavaPushConsumer(self.java, group, self.name_server, self.topic) as consumer:
            assert len(consumer.wait_count(count, DEADLINE_S)) == count


@pytest.fixture
def site(tmp_path: Path, java_client: Callable[[str], JavaClient]) -> Iterator[Site]:
    require_peers(VERSION)
    with (
        name_server_process(tmp_path) as name_server,
        BulkClient(name_server.address) as client,
    ):
        topic = f"crc-{uuid.uuid4().hex[:8]}"
        yield Site(tmp_path, name_server.address, java_client(VERSION), client, topic)


def run_ours(site: Site, **settings: str) -> ServerProcess:
    home = site.home / uuid.uuid4().hex
    home.mkdir()
    return broker_process(home, site.name_server, site.store, **SMALL_FILES, **settings)


def run_official(site: Site, **settings: bool) -> RealBroker:
    return RealBroker(
        VERSION,
        [site.name_server],
        store_dir=site.store,
        java_options=JAVA_OPTIONS,
        **SMALL_FILES,
        **settings,
    )


def test_what_an_official_broker_writes_is_verified(site: Site) -> None:
    with run_official(site, enabledAppendPropCRC=True) as official:
        site.make_topic()
        count = site.send_java()
        site.consume_java(count)
        official.kill()
    written = site.on_disk()
    assert len(written) == count
    assert {state for _, state in written} == {RecordCrc.FITS}
    with run_ours(site, forceVerifyPropCRC="true") as ours:
        wait_for_route(site.name_server, BROKER_NAME, broker_address=ours.address)
        assert sorted(record.physical_offset for record in site.read(count)) == [
            record.physical_offset for record, _ in written
        ]
        ours.stop()


def test_what_we_write_is_verified_by_an_official_broker(site: Site) -> None:
    with run_ours(site, enabledAppendPropCRC="true") as ours:
        wait_for_route(site.name_server, BROKER_NAME, broker_address=ours.address)
        site.make_topic()
        count = site.send_java() + site.send_ours()
        before = site.read(count)
        ours.kill()
    assert {state for _, state in site.on_disk()} == {RecordCrc.FITS}
    # One more without a checksum, by which to see that the official broker insists on them.
    with run_ours(site) as ours:
        wait_for_route(site.name_server, BROKER_NAME, broker_address=ours.address)
        site.client.forget_route(site.topic)
        site.client.send(Message(site.topic, b"last"), site.queue)
        assert len(site.read(count + 1)) == count + 1
        ours.kill()
    assert (site.store / "abort").exists()
    assert len(list((site.store / "commitlog").iterdir())) > 1
    (site.store / "checkpoint").unlink()  # So that it reads the log from its beginning.
    with run_official(site, forceVerifyPropCRC=True, enabledAppendPropCRC=True) as official:
        assert site.read(count) == before
        site.consume_java(count)
        official.stop()
