"""Groups of our brokers, and of ours and official ones, under either controller.

The master is killed twice, so that each of two brokers takes over from the other. What was
acknowledged is there, at the same offsets, and in the end the logs are the same, byte by byte.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.crash.servers import ServerProcess, broker_process
from tests.interop.conftest import require_peers, some
from tests.interop.controllers import (
    BROKER_NAME,
    DEADLINE_S,
    PymqController,
    RealController,
    controlled_broker,
    eventually,
    known_state_of,
    state_of,
)
from tests.interop.java_client import JavaProducer
from tests.interop.java_values import JavaError
from tests.interop.jvm import JavaClient
from tests.interop.mqadmin import Mqadmin
from tests.interop.peers import RealBroker, RealNameServer, free_port

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.record import decode_records

pytestmark = pytest.mark.interop

VERSION = "5.3.3"
TOPIC, QUEUE_COUNT = "mixed", 4
SEGMENT_BYTES = 1 << 20
MESSAGE_BYTES = 3_000


@contextmanager
def controller(kind: str, folder: Path) -> Iterator[str]:
    """Run a controller; yield its address."""
    if kind == "pymq":
        with PymqController(folder, f"file:{folder / 'state'}") as ours:
            yield ours.address
    else:
        with RealController(VERSION, folder, scanNotActiveBrokerInterval=1000) as official:
            yield official.address


def make_broker(
    kind: str, folder: Path, name_server: str, controllers: str
) -> ServerProcess | RealBroker:
    """Return a broker of the group, not started yet."""
    if kind == "java":
        return controlled_broker(VERSION, name_server, controllers, folder / "store")
    folder.mkdir()
    return broker_process(
        folder,
        name_server,
        folder / "store",
        brokerName=BROKER_NAME,
        brokerRole="SYNC_MASTER",
        enableControllerMode="true",
        controllerAddr=controllers,
        haListenPort=free_port(0),
        mappedFileSizeCommitLog=SEGMENT_BYTES,
        mappedFileSizeConsumeQueue=6_000_000,
        pymqHaMetadataInterval=500,
    )


class Sent:
    """What the official producer was told."""

    def __init__(self, producer: JavaProducer) -> None:
        self._producer = producer
        self._number = 0
        self.acknowledged: dict[bytes, str] = {}

    def probe(self) -> bool:
        """Send once; return whether that was stored, at one broker at least."""
        try:
            self._producer.send(TOPIC, b"probe")
        except JavaError:
            return False
        return True

    def send(self, count: int) -> None:
        """Have messages acknowledged, however often they have to be sent for that."""
        wanted, deadline = len(self.acknowledged) + count, time.monotonic() + DEADLINE_S
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline, "nothing is acknowledged"
            self._number += 1
            body = b"%d " % self._number + bytes(MESSAGE_BYTES)
            try:
                result = self._producer.send(TOPIC, body)
            except JavaError:
                continue
            if result.status == "SEND_OK":
                self.acknowledged[body] = result.offset_msg_id


def stored(client: BlockingClient) -> dict[bytes, list[int]]:
    """Return body -> physical offsets of the topic's messages."""
    found: dict[bytes, list[int]] = {}
    for queue, (first, end) in client.bounds(client.read_queues(TOPIC)).items():
        for chunk in client.pull_range(queue, first, end):
            for record in decode_records(chunk.buffer, verify=True):
                found.setdefault(record.body, []).append(record.physical_offset)
    return found


def log(root: Path) -> bytes:
    paths = sorted((root / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in paths if path.stat().st_size == SEGMENT_BYTES)


@pytest.mark.by_turns(of="kills beside Java", turn="mixed")
@pytest.mark.parametrize(
    ("controlled_by", "first", "second"),
    some(
        [("java", "pymq", "java"), ("java", "pymq", "pymq"), ("pymq", "java", "pymq")],
        ("java", "pymq", "java"),
    ),
)
def test_each_takes_over_from_the_other(
    controlled_by: str,
    first: str,
    second: str,
    tmp_path: Path,
    java_client: Callable[[str], JavaClient],
    capsys: pytest.CaptureFixture[str],
) -> None:
    require_peers(VERSION)
    with ExitStack() as stack:
        name_server = stack.enter_context(RealNameServer(VERSION))
        address = stack.enter_context(controller(controlled_by, tmp_path / "controller"))
        brokers: dict[int, ServerProcess | RealBroker] = {}
        for number, kind in ((1, first), (2, second)):
            folder = tmp_path / f"b{number}"
            brokers[number] = make_broker(kind, folder, name_server.address, address)
            stack.enter_context(brokers[number])

        def in_sync() -> bool:
            return state_of(address)[1] == {1, 2}

        eventually(in_sync, "both are in sync")
        client = stack.enter_context(BlockingClient(name_server.address))
        admin_of(client).topics.create(TOPIC, queue_count=QUEUE_COUNT)
        producer = JavaProducer(
            java_client(VERSION),
            f"mixed-{tmp_path.name}",
            name_server.address,
            PollNameServerInterval=500,
            RetryTimesWhenSendFailed=0,
            SendMsgTimeout=3000,
        )
        report = []
        with producer:
            sent = Sent(producer)
            sent.send(500)
            for turn in range(2):
                master = known_state_of(address)[0].master_broker_id
                assert master is not None
                brokers[master].kill()
                at_s = time.monotonic()
                other = 3 - master
                eventually(lambda n=other: state_of(address)[0].master_broker_id == n, "elected")
                elected_s = time.monotonic() - at_s
                eventually(sent.probe, "producers go on")
                report.append(f"elected {elected_s:.2f} s, stored {time.monotonic() - at_s:.2f} s")
                brokers[master].start()
                eventually(in_sync, f"both are in sync again after turn {turn}")
                sent.send(200)
        mqadmin, at = Mqadmin(java_client(VERSION)), name_server.address
        shown = mqadmin.run(at, "getSyncStateSet", "-a", address, "-b", BROKER_NAME)
        assert shown.count("InSyncReplica:") == 2, shown
        shown = mqadmin.run(at, "getBrokerEpoch", "-n", at, "-b", BROKER_NAME)
        assert shown.count("Epoch: EpochEntry{epoch=3") == 2, shown
        # RocketMQ acknowledges before a message is in its queue.
        eventually(lambda: sent.acknowledged.keys() <= stored(client).keys(), "nothing is lost")
        found = stored(client)
        found.pop(b"probe", None)
        twice = [body[:8] for body, places in found.items() if len(places) > 1]
        assert not twice
        moved = [
            body[:8]
            for body, message_id in sent.acknowledged.items()
            if int(message_id[-16:], 16) not in found[body]
        ]
        assert not moved
        for broker in brokers.values():
            broker.stop()
    one, two = (log(tmp_path / f"b{number}" / "store").rstrip(b"\0") for number in (1, 2))
    assert min(len(one), len(two)) > len(sent.acknowledged) * MESSAGE_BYTES
    assert one.startswith(two) or two.startswith(one)
    with capsys.disabled():
        print(f"\n{controlled_by} controller, {first} then {second}: {'; '.join(report)}")
