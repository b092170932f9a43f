"""Extension units and bit maps: official brokers and our store write one after the other.

An official broker calculates the bit maps of a consumer with an SQL92 subscription. Every byte of
its extension files follows from the messages, and is compared. Our store filters by its units and
appends its own; then our broker goes on with the same filters, and the official broker after it.
"""

from __future__ import annotations

import copy
import json
import random
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from tests.administration import admin_of
from tests.crash.servers import name_server_process
from tests.interop.conftest import require_peers, some
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.jvm import JavaClient
from tests.interop.peers import RealBroker

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.clock import Clock
from pymq.filter.bloom import BloomFilter
from pymq.protocol.hashes import java_hash
from pymq.protocol.message import decode_properties
from pymq.protocol.record import NewRecord, Record, decode_record, decode_records, pack_host
from pymq.store import MessageStore, PutStatus, Selection, StoreConfig
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

CLIENT_VERSION: Final = "5.3.3"
UNIT: Final = struct.Struct(">hqqh")
ENTRY: Final = struct.Struct(">qiq")
FILE_BYTES: Final = 1_000
SIZES: Final = {
    "mappedFileSizeCommitLog": 1 << 16,
    "mappedFileSizeConsumeQueue": 1_000,
    "mappedFileSizeConsumeQueueExt": FILE_BYTES,
}
JAVA_OPTIONS: Final = ("-Xms128m", "-Xmx256m", "-XX:MaxDirectMemorySize=256m")
HOST: Final = pack_host("127.0.0.1", 10911)
BLOOM: Final = BloomFilter()
SQL: Final = "n > 5"
COUNT: Final = 70
MORE: Final = 40
DEADLINE_S: Final = 120.0


class Site:
    """A store directory, one topic of one queue in it, and a group with an SQL92 filter."""

    def __init__(self, home: Path, name_server: str, java: JavaClient) -> None:
        self.store = home / "store"
        self.name_server = name_server
        self.java = java
        self.topic = f"extended-{uuid.uuid4().hex[:8]}"
        self.group = f"sql-{uuid.uuid4().hex[:8]}"
        self.positions = BLOOM.positions(f"{self.group}#{self.topic}")

    def official(self, version: str) -> RealBroker:
        return RealBroker(
            version,
            [self.name_server],
            store_dir=self.store,
            java_options=JAVA_OPTIONS,
            enableConsumeQueueExt=True,
            enableCalcFilterBitMap=True,
            enablePropertyFilter=True,
            **SIZES,
        )

    @contextmanager
    def serving(self) -> Iterator[Site]:
        """Serve the store with our broker; yields this site as its clients see it."""
        cluster = Cluster(
            self.store,
            broker={"property_filter": True, "bit_maps": True},
            store_settings={
                "segment_bytes": SIZES["mappedFileSizeCommitLog"],
                "queue_file_bytes": SIZES["mappedFileSizeConsumeQueue"],
                "queue_extension": True,
                "queue_extension_file_bytes": FILE_BYTES,
            },
        )
        with cluster:
            served = copy.copy(self)
            served.name_server = cluster.name_server
            yield served

    def ours(self, *, extended: bool = True) -> MessageStore:
        config = StoreConfig(
            root_path=self.store,
            segment_bytes=SIZES["mappedFileSizeCommitLog"],
            queue_file_bytes=SIZES["mappedFileSizeConsumeQueue"],
            queue_extension=extended,
            queue_extension_file_bytes=FILE_BYTES,
        )
        return MessageStore.open(
            config, Clock(), bit_map_of=lambda _, stored: self.bit_map_of(decode_record(stored))
        )

    def bit_map_of(self, record: Record) -> bytes | None:
        """Return what an official broker computes; nobody hits what is to be hidden."""
        if record.topic != self.topic:
            return None
        is_wanted = number_of(record) > 5 and not record.body.startswith(b"hidden")
        return BLOOM.bit_map([self.positions] if is_wanted else [])

    def filter_is_saved(self) -> bool:
        """Tell whether the group's filter would outlive a kill; it is saved every 10 s."""
        try:
            return self.group in (self.store / "config" / "consumerFilter.json").read_text()
        except FileNotFoundError:  # not yet, or it is just being replaced
            return False

    def filter_born_ms(self) -> int:
        """Return since when bit maps take account of the group's filter, as it is saved."""
        saved = json.loads((self.store / "config" / "consumerFilter.json").read_text())
        groups = saved["filterDataByTopic"][self.topic]["groupFilterData"]
        return int(groups[self.group]["bornTime"])

    def extension(self) -> dict[int, bytes]:
        paths = (self.store / "consumequeue_ext" / self.topic / "0").iterdir()
        return {int(path.name): path.read_bytes() for path in paths}

    def addresses(self, count: int) -> list[int]:
        paths = sorted((self.store / "consumequeue" / self.topic / "0").iterdir())
        data = b"".join(path.read_bytes() for path in paths)[: count * ENTRY.size]
        return [code for _, _, code in ENTRY.iter_unpack(data)]

    def consumer(self, expression: str, **options: Any) -> JavaPushConsumer:
        return JavaPushConsumer(
            self.java,
            options.pop("group", f"g-{uuid.uuid4().hex[:8]}"),
            self.name_server,
            self.topic,
            expression,
            **options,
        )

    def send(self, first: int, count: int) -> list[bytes]:
        """Send messages with the official client; tag and number follow from the index."""
        texts = [b"%d" % number for number in range(first, first + count)]
        with JavaProducer(self.java, f"p-{self.topic}", self.name_server) as producer:
            for number, text in enumerate(texts, first):
                result = producer.send(
                    self.topic, text, tags=tag(number), properties={"n": str(number % 10)}
                )
                assert result.status == "SEND_OK"
        return texts


def tag(number: int) -> str | None:
    return [None, "a", "b", "long-tag-with-a-negative-hash"][number % 4]


def number_of(record: Record) -> int:
    return int(decode_properties(record.properties)["n"])


def records(store: MessageStore, topic: str, tags: Sequence[str] | None = None) -> list[Record]:
    """Return all messages of queue 0, or those that pass the filter by tag code."""
    codes = None if tags is None else np.array(sorted(map(java_hash, tags)), np.int64)
    offset, end = store.queue_bounds(topic, 0)
    found: list[Record] = []
    while offset < end:
        result = store.read(
            topic, 0, offset, count_max=100, bytes_max=1 << 20, selection=Selection(codes)
        )
        found += [one for buffer in result.buffers for one in decode_records(buffer, verify=True)]
        offset = result.next_queue_offset
    return found


def expected_files(
    stored: Sequence[Record], bit_map_of: Callable[[Record], bytes | None]
) -> tuple[dict[int, bytes], list[int]]:
    """Return the extension's files and the addresses of the units, built one by one."""
    files = {0: b""}
    base, addresses = 0, []
    for record in stored:
        bits = bit_map_of(record) or b""
        tags = decode_properties(record.properties).get("TAGS")
        code = java_hash(tags) if tags else 0
        unit = UNIT.pack(20 + len(bits), code, record.store_timestamp, len(bits)) + bits
        if len(files[base]) + len(unit) + 4 > FILE_BYTES:
            files[base] += b"\xff\xff"
            base += FILE_BYTES
            files[base] = b""
        addresses.append(base + len(files[base]) - (1 << 63))
        files[base] += unit
    return {base: data.ljust(FILE_BYTES, b"\0") for base, data in files.items()}, addresses


def check(site: Site, count: int) -> None:
    """Our store reads all, filters by the units, and the files are what they must be."""
    for extended in (False, True):
        store = site.ours(extended=extended)
        stored = records(store, site.topic)
        assert [record.queue_offset for record in stored] == list(range(count))
        for tags in (["a"], ["b", "long-tag-with-a-negative-hash"], ["none"]):
            found = [record.body for record in records(store, site.topic, tags)]
            assert found == [
                record.body
                for record in stored
                if decode_properties(record.properties).get("TAGS") in tags
            ]
        store.close()
    files, addresses = expected_files(stored, site.bit_map_of)
    assert site.addresses(count) == addresses
    assert site.extension() == files


def append(site: Site, first: int, count: int) -> list[bytes]:
    """Store messages ourselves; some whose bit map hides them from the group."""
    store = site.ours()
    texts = []
    for number in range(first, first + count):
        text = b"hidden %d" % number if number % 7 == 0 else b"%d" % number
        tags = tag(number)
        properties = b"n\x01%d\x02" % (number % 10)
        if tags is not None:
            properties += b"TAGS\x01%s\x02" % tags.encode()
        code = 0 if tags is None else java_hash(tags)
        entry = NewRecord(site.topic, 0, text, properties, HOST, 1, tag_code=code)
        (result,) = store.put([entry], HOST)
        assert result.status is PutStatus.OK
        texts.append(text)
    store.close()
    return texts


def wanted_by_sql(texts: Sequence[bytes]) -> set[bytes]:
    return {text for text in texts if not text.startswith(b"hidden") and int(text[-1:]) > 5}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("version", "end"),
    some(product(["5.3.3", "4.9.7"], ["stop", "kill"]), ("5.3.3", "kill")),
)
def test_units_are_exchanged(
    tmp_path: Path, java_client: Callable[[str], JavaClient], version: str, end: str
) -> None:
    require_peers(version)
    with name_server_process(tmp_path) as name_server:
        site = Site(tmp_path, name_server.address, java_client(CLIENT_VERSION))
        with site.official(version) as broker:
            with BlockingClient(name_server.address) as client:
                admin_of(client).topics.create(site.topic, queue_count=1)
            with site.consumer(SQL, selector="sql", group=site.group) as by_sql:
                # Until the broker has it, the first messages would go without a bit map.
                wait_for(site.filter_is_saved)
                texts = site.send(0, COUNT)
                wait_for(lambda: len(by_sql.messages) >= len(wanted_by_sql(texts)))
            getattr(broker, end)()
        check(site, COUNT)
        texts += append(site, COUNT, MORE)
        check(site, COUNT + MORE)

        born_ms = site.filter_born_ms()
        with (
            site.serving() as served,
            served.consumer(SQL, selector="sql", group=site.group) as by_sql,
        ):
            texts += served.send(COUNT + MORE, COUNT)
            check_hidden(by_sql, texts[COUNT:])
        check(site, len(texts))
        assert site.filter_born_ms() == born_ms

        with (
            site.official(version),
            site.consumer(SQL, selector="sql", group=site.group) as by_sql,
            site.consumer("a") as by_tag,
            site.consumer("*") as all_of_it,
        ):
            more = site.send(len(texts), COUNT)
            texts += more
            assert len(all_of_it.wait_count(len(texts))) == len(texts)
            wanted = {text for text in texts if tag(int(text.split()[-1])) == "a"}
            assert {one.body for one in by_tag.wait_count(len(wanted))} == wanted
            check_hidden(by_sql, more)
        check(site, len(texts))
        assert site.filter_born_ms() == born_ms, "each broker has read the filters of the other"


def check_hidden(by_sql: JavaPushConsumer, texts: Sequence[bytes]) -> None:
    """Wait for those that are wanted; none that its bit map hides comes."""
    wanted = wanted_by_sql(texts)
    wait_for(lambda: wanted <= {one.body for one in by_sql.messages})
    assert not [one for one in by_sql.messages if one.body.startswith(b"hidden")]


@pytest.mark.parametrize("version", ["5.3.3", "4.9.7"])
def test_bloom_filters_agree(
    java_client: Callable[[str], JavaClient], version: str, seed: int
) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    official = java_client(version).jvm.org.apache.rocketmq.filter.util.BloomFilter
    for error_percent in range(1, 100):
        for name_count in (1, 2, 7, 8, 32, 33, 128, 1000, dice.randrange(1, 100_000)):
            theirs = official.createByFn(error_percent, name_count)
            ours = BloomFilter(error_percent=error_percent, name_count=name_count)
            assert (ours.hash_count, ours.bit_count) == (theirs.getK(), theirs.getM())
            name = "".join(dice.choices("abXY#%-_09é世😀", k=dice.randrange(50)))
            assert ours.positions(name) == tuple(theirs.calcBitPositions(name)), name
