"""Light queues (LMQ): a store passes from our broker to an official one and back."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.crash.servers import broker_process, name_server_process
from tests.interop.conftest import require_peers
from tests.interop.java_transactions import wait_until
from tests.interop.peers import RealBroker

from pymq.errors import RemoteProtocolError
from pymq.net.blocking import BlockingChannel
from pymq.protocol import fastjson
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.message import decode_properties
from pymq.protocol.multi_dispatch import DISPATCH, OFFSETS
from pymq.protocol.record import Record, decode_records
from pymq.store import StoreConfig
from pymq.store.inspection import check_store

pytestmark = pytest.mark.interop

VERSION: Final = "5.3.3"
TIMEOUT_S: Final = 30.0
PARENT, A, B, C = "parent", "%LMQ%a", "%LMQ%b", "%LMQ%c"
GROUP: Final = "%LMQ%group"
SETTINGS: Final = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2_000,
    # What a killed broker has not saved is delivered again.
    "flushConsumerOffsetInterval": 200,
    "flushDelayOffsetInterval": 200,
}


class LightClient:
    """Asks one broker what clients of light queues ask."""

    def __init__(self, channel: BlockingChannel) -> None:
        self._channel = channel

    def ask(self, code: int, **fields: object) -> Command:
        command = Command(code, {name: str(value) for name, value in fields.items()})
        return self._channel.request(command, TIMEOUT_S)

    def send(self, body: bytes, *queues: str, more: str = "") -> Command:
        """Send a message for the parent topic that names light queues."""
        named = f"{DISPATCH}\x01{','.join(queues)}\x02" if queues else ""
        header = SendRequest(
            producer_group="producers",
            topic=PARENT,
            default_topic="TBW102",
            default_topic_queue_count=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=int(time.time() * 1000),
            flag=0,
            properties=f"{named}UNIQ_KEY\x01{body.hex():0>32}\x02{more}",
            reconsume_times=0,
            unit_mode=False,
            max_reconsume_times=None,
            batch=False,
        )
        command = Command(RequestCode.SEND_MESSAGE_V2, header.to_v2(), body)
        return self._channel.request(command, TIMEOUT_S)

    def pull(self, queue: str, offset: int = 0) -> list[Record]:
        answer = self.ask(
            RequestCode.PULL_MESSAGE,
            consumerGroup=GROUP,
            topic=queue,
            queueId=0,
            queueOffset=offset,
            maxMsgNums=32,
            sysFlag=4,
            commitOffset=0,
            suspendTimeoutMillis=0,
            subscription="*",
            subVersion=0,
            expressionType="TAG",
        )
        return list(decode_records(answer.body)) if answer.code == ResponseCode.SUCCESS else []

    def bodies(self, queue: str, offset: int = 0) -> list[bytes]:
        return [bytes(one.body) for one in self.pull(queue, offset)]

    def bounds(self) -> list[tuple[str | None, ...]]:
        codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        return [
            tuple(
                (self.ask(code, topic=queue, queueId=0).fields or {}).get("offset")
                for code in codes
            )
            for queue in (PARENT, A, B, C)
        ]

    def commit(self, offset: int) -> int:
        return self.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup=GROUP,
            topic=A,
            queueId=0,
            commitOffset=offset,
        ).code

    def committed(self) -> str | None:
        answer = self.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=GROUP, topic=A, queueId=0
        )
        return (answer.fields or {}).get("offset")


class Site:
    """A store with light queues, and who may serve it."""

    def __init__(self, home: Path, name_server: str) -> None:
        home.mkdir()
        self._home = home
        self.store = home / "store"
        self._name_server = name_server

    def saved_offset(self) -> int | None:
        """Return what the file of offsets in light queues says."""
        table = self._saved("lmqConsumerOffset.json", "lmqOffsetTable")
        return table.get(f"{A}@{GROUP}")

    def delivered_count(self) -> int | None:
        """Return how many delayed messages are delivered by what the file of these offsets says."""
        return self._saved("delayOffset.json", "offsetTable").get("1")

    def _saved(self, name: str, table: str) -> dict[str, int]:
        path = self.store / "config" / name
        try:
            found: dict[str, int] = fastjson.parse(path.read_text())[table]
        except (FileNotFoundError, RemoteProtocolError):  # it is being written
            return {}
        return found

    def wait_saved(self, offset: int, delivered: int) -> None:
        """Wait until a broker that is killed takes nothing back, nor delivers anything again."""
        wait_until(lambda: self.saved_offset() == offset, "the offset is saved")
        wait_until(lambda: self.delivered_count() == delivered, "what is delivered is saved")

    @contextmanager
    def official(self) -> Iterator[LightClient]:
        """Have an official broker serve it, and kill it in the end."""
        broker = RealBroker(
            VERSION,
            [self._name_server],
            store_dir=self.store,
            enableLmq=True,
            enableMultiDispatch=True,
            **SETTINGS,
        )
        with broker, _connected(broker.address) as client:
            yield client
            broker.kill()

    @contextmanager
    def ours(self) -> Iterator[LightClient]:
        """Have our broker serve it, and kill it in the end."""
        broker = broker_process(
            self._home,
            self._name_server,
            self.store,
            enableLmq="true",
            enableMultiDispatch="true",
            **SETTINGS,
        )
        with broker, _connected(broker.address) as client:
            yield client
            broker.kill()


@contextmanager
def _connected(address: str) -> Iterator[LightClient]:
    host, _, port = address.rpartition(":")
    channel = BlockingChannel.connect(host, int(port), timeout_s=TIMEOUT_S)
    try:
        yield LightClient(channel)
    finally:
        channel.close()


def fill(client: LightClient) -> None:
    """Send messages for one and two light queues, in any order, and a delayed one."""
    end = len(client.bodies(A))
    for number in range(12):
        queues = [[A], [A, B], [B, A], []][number % 4]
        answer = client.send(b"m%d" % number, *queues, more="TAGS\x01t\x02")
        assert answer.code == ResponseCode.SUCCESS, answer
    assert client.send(b"late", A, more="DELAY\x011\x02").code == ResponseCode.SUCCESS
    wait_until(lambda: client.bodies(A, end)[-1:] == [b"late"], "the delayed message is listed")


def seen(client: LightClient, offset: int = 0) -> list[object]:
    """Return what consumers of light queues see from an offset on."""
    found: list[object] = [client.bounds(), client.committed()]
    for queue in (A, B, C):
        for one in client.pull(queue, offset):
            listed = decode_properties(one.properties)
            found.append((queue, one.topic, one.queue_offset, one.body, listed.get(OFFSETS)))
    return found


def test_a_store_passes_there_and_back(tmp_path: Path) -> None:
    require_peers(VERSION)
    with name_server_process(tmp_path) as name_server:
        pass_to_and_fro(Site(tmp_path / "home", name_server.address))


def pass_to_and_fro(one: Site) -> None:
    with one.ours() as client:
        fill(client)
        assert client.commit(7) == ResponseCode.SUCCESS
        before = seen(client)
        one.wait_saved(7, 1)
    shutil.rmtree(one.store / "consumequeue" / A)  # made again from the log by whoever comes next
    with one.official() as client:
        assert seen(client) == before
        fill(client)
        assert client.send(b"theirs", A, C).code == ResponseCode.SUCCESS
        wait_until(lambda: client.bodies(C) == [b"theirs"], "it is listed")
        assert client.commit(9) == ResponseCode.SUCCESS
        # The first time a RocketMQ broker saves offsets is ten seconds after its start. By then it
        # has also listed what it lists again after a start.
        one.wait_saved(9, 2)
        after = seen(client, 8)
    with one.ours() as client:
        assert seen(client, 8) == after
        assert client.send(b"ours", A, B).code == ResponseCode.SUCCESS
        assert client.bodies(A, 20)[-2:] == [b"theirs", b"ours"]
    report = check_store(StoreConfig(root_path=one.store))
    assert report.is_whole, list(report.findings.groups())
