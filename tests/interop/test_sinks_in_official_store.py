"""The official store on a log with batches of an exactly-once sink: it shows what was published."""

import asyncio
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.cluster.sinks import SinkWriter
from tests.interop.jvm import JavaClient
from tests.interop.official_store import official_store

from pymq.net.channel import AsyncChannel
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

VERSION: Final = "5.3.3"
SEGMENT_BYTES: Final = 1 << 20
QUEUE_FILE_BYTES: Final = 20 * 1000
#: Of level 10, as both have it.
LEVEL_MS: Final = 360_000
TIME: Final = b"TIMER_DELIVER_MS\x01%d\x02" % (time.time_ns() // 1_000_000 + 86_400_000)
#: Where messages wait for consumers, or to be delivered; and how many there are.
QUEUES: Final = {("T", 0): 8, (SCHEDULE_TOPIC, 9): 6, (TIMER_TOPIC, 0): 2}


class ConnectedPeer:
    """A connection to a broker in another thread, with what ``SinkWriter`` uses of a ``Peer``."""

    def __init__(self, channel: AsyncChannel) -> None:
        self.channel = channel

    async def ask(self, code: int, body: bytes = b"", **fields: str) -> Command:
        return await self.channel.request(Command(code, fields, body), 30)

    async def send(self, body: bytes) -> None:
        request = SendRequest("pg", "T", "TBW102", 1, 0, 0, 1, 0, "", 0, False, None, False)
        command = Command(RequestCode.SEND_MESSAGE_V2, request.to_v2(), body)
        assert (await self.channel.request(command, 30)).code == 0


async def write(address: str) -> None:
    """Have two batches published, and parts of others staged, among ordinary messages."""
    channel = await AsyncChannel.connect(address, 30)
    peer: Any = ConnectedPeer(channel)
    writer = SinkWriter(peer)
    keys = b"KEYS\x01k\x02"
    for number in range(2):
        await peer.send(b"before %d" % number)
        run = await writer.stage([b"%d.0" % number, b"%d.1" % number], properties=keys)
        await writer.stage([b"of a task that died"] * 5, properties=keys)
        later = await writer.stage([b"%d.2" % number] * 3, properties=b"DELAY\x0110\x02")
        await writer.stage([b"of a task that died"] * 5, properties=b"DELAY\x0110\x02")
        timed = await writer.stage([b"%d.3" % number], properties=TIME)
        await writer.stage([b"of a task that died"] * 5, properties=TIME)
        await peer.send(b"between %d" % number)
        assert (await writer.publish(number, run, later, timed)).code == 0
    await writer.stage([b"of a query that died"] * 5, properties=keys)
    channel.close()


def test_only_what_was_published_is_shown(
    tmp_path: Path, java_client: Callable[[str], JavaClient]
) -> None:
    small = {"segment_bytes": SEGMENT_BYTES, "queue_file_bytes": QUEUE_FILE_BYTES}
    store = tmp_path / "store"
    with Cluster(store, store_settings=small) as cluster:
        asyncio.run(write(cluster.broker_address))
    ours = entries(store)
    assert [len(of_queue) for of_queue in ours] == list(QUEUES.values())
    now_ms = time.time_ns() // 1_000_000
    assert all(0 <= now_ms + LEVEL_MS - due_ms < 120_000 for _, _, due_ms in ours[1])
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")
    (store / "abort").touch()
    client = java_client(VERSION)
    sizes = {
        "MappedFileSizeCommitLog": SEGMENT_BYTES,
        "MappedFileSizeConsumeQueue": QUEUE_FILE_BYTES,
    }
    with official_store(client, store, **sizes) as official:
        for (topic, queue_id), count in QUEUES.items():
            assert official.getMaxOffsetInQueue(topic, queue_id) == count
        found = official.queryMessage("T", "k", 32, 0, (1 << 62) - 1)
        # The index has the published messages with the key, and none of those staged.
        assert len(list(found.getMessageBufferList())) == 4
    assert entries(store) == ours
    with Cluster(store, store_settings=small):
        pass
    assert entries(store) == ours


def entries(store: Path) -> list[list[tuple[int, int, int]]]:
    """Return the entries of each queue: physical offset, size, tag code."""
    all_found = []
    for topic, queue_id in QUEUES:
        place = store / "consumequeue" / topic / str(queue_id)
        data = b"".join(path.read_bytes() for path in sorted(place.iterdir()))
        found = [struct.unpack_from(">qiq", data, at) for at in range(0, len(data), 20)]
        all_found.append([entry for entry in found if entry[1]])
    return all_found
