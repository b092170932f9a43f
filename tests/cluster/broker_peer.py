"""A broker under test and a peer that sends it single requests."""

import asyncio
import dataclasses
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.clock import Clock
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import ConsumerData, Heartbeat
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command, HeaderForm
from pymq.protocol.headers.send import LETTERS, SendRequest
from pymq.protocol.message import decode_properties
from pymq.protocol.record import NewRecord, Record, decode_records
from pymq.store import FlushMode, MessageStore, PutStatus, StoreConfig

DEADLINE_S = 120.0
TIMEOUT_S = 30.0
#: Sends are not refused because somebody else makes this machine's disk slow.
DISK_BUSY_MS = 60_000
SEGMENT_BYTES = 1 << 20
#: What the broker says of every message that is sent alone.
ADDED = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
#: The id that it gives one that has none.
GIVEN_ID = re.compile(r"7F000001[0-9A-F]{24}")
#: Where the messages of tests were born and stored.
HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"


def copy_running(store: Path, target: Path) -> None:
    """Copy the store of a broker that runs: what it would find after a crash."""
    for _ in range(100):
        try:
            shutil.copytree(store, target, ignore=shutil.ignore_patterns("*.tmp"))
        except shutil.Error:
            shutil.rmtree(target)  # A file that was being replaced vanished.
        else:
            return
    raise AssertionError(f"{store}: files vanish all the time")


class Peer:
    """A connection to the broker under test, with the requests of these tests.

    Attributes:
        broker: under test.
        channel: the connection.
        notices: what the broker asked or told over it.
        answers: how its requests are answered, by request code; the others are not.
    """

    channel: AsyncChannel

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.notices: list[Command] = []
        self.answers: dict[int, Callable[[Command], Command]] = {}

    def on_request(self, channel: AsyncChannel, command: Command) -> None:
        self.notices.append(command)
        answer = self.answers.get(command.code)
        if answer is not None:
            channel.respond(command, answer(command))

    async def ask(
        self, code: int, body: bytes = b"", form: HeaderForm = HeaderForm.JSON, **fields: Any
    ) -> Command:
        texts = {
            name: ("true" if value else "false") if isinstance(value, bool) else str(value)
            for name, value in fields.items()
        }
        return await self.channel.request(Command(code, texts, body, form=form), TIMEOUT_S)

    async def send(self, topic: str, body: bytes, **changes: Any) -> Command:
        code = changes.pop("code", RequestCode.SEND_MESSAGE_V2)
        form = changes.pop("form", HeaderForm.JSON)
        request = SendRequest(
            "pg", topic, "TBW102", 4, 0, 0, 1700000000000, 0, "", 0, False, None, False
        )
        fields = dataclasses.replace(request, **changes).to_v2()
        if code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
            names = {letter: name for name, letter in LETTERS.items()}
            fields = {names[letter]: value for letter, value in fields.items()}
        return await self.channel.request(Command(code, fields, body, form=form), TIMEOUT_S)

    def pull_fields(self, topic: str, offset: int, **changes: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "consumerGroup": "g",
            "topic": topic,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": int(PullFlag.SUBSCRIPTION),
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        return fields | changes

    async def pull(self, topic: str, offset: int, **changes: Any) -> Command:
        return await self.ask(
            RequestCode.PULL_MESSAGE, **self.pull_fields(topic, offset, **changes)
        )

    def pull_later(self, topic: str, offset: int, **changes: Any) -> asyncio.Future[Command]:
        fields = self.pull_fields(topic, offset, **changes)
        texts = {name: str(value) for name, value in fields.items()}
        return self.channel.request_nowait(Command(RequestCode.PULL_MESSAGE, texts), TIMEOUT_S)

    async def heartbeat(self, client_id: str, *consumers: ConsumerData, **more: Any) -> None:
        body = Heartbeat(client_id=client_id, consumers=list(consumers), **more)
        answer = await self.ask(RequestCode.HEART_BEAT, body.encode())
        assert answer.code == ResponseCode.SUCCESS


def serve(
    path: Path,
    check: Callable[[Peer], Awaitable[None]],
    *,
    flush: FlushMode = FlushMode.ASYNC,
    store: dict[str, Any] | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> None:
    """Run ``check`` against a broker on ``path``, then close it cleanly."""

    async def run() -> None:
        broker = Broker(
            BrokerConfig(listen_port=0, **{"page_cache_busy_ms": DISK_BUSY_MS, **settings}),
            StoreConfig(
                root_path=path,
                flush_mode=flush,
                segment_bytes=SEGMENT_BYTES,
                # How full this machine's disk is must not matter.
                **{"disk_free_enough_bytes": 1, **(store or {})},
            ),
            clock,
        )
        await broker.start()
        peer = await connect(broker)
        try:
            await asyncio.wait_for(check(peer), DEADLINE_S)
        finally:
            peer.channel.close()
            await broker.close()
            await broker.close()

    asyncio.run(run())


def put_record(path: Path, record: NewRecord) -> None:
    """Store what a broker that ran on ``path`` before has taken."""
    config = StoreConfig(root_path=path, segment_bytes=SEGMENT_BYTES, disk_free_enough_bytes=1)
    store = MessageStore.open(config, Clock())
    (result,) = store.put([record], HOST)
    assert result.status is PutStatus.OK
    store.close()


async def connect(broker: Broker, *, port: int | None = None) -> Peer:
    return await _connected(
        Peer(broker), broker.address if port is None else f"127.0.0.1:{port}"
    )


async def connect_to(address: str) -> Peer:
    """Connect to a broker that is in a thread of its own."""
    broker: Any = None
    return await _connected(Peer(broker), address)


async def _connected(peer: Peer, address: str) -> Peer:
    peer.channel = await AsyncChannel.connect(address, TIMEOUT_S, on_request=peer.on_request)
    return peer


def fields(command: Command) -> dict[str, str]:
    assert command.fields is not None
    return command.fields


def records(command: Command) -> list[Record]:
    return list(decode_records(command.body, verify=True))


def properties_sent(record: Record) -> dict[str, str]:
    """Return the properties of a record without those that the broker added, which are there."""
    found = decode_properties(record.properties)
    assert found.items() >= ADDED.items()
    if GIVEN_ID.fullmatch(found["UNIQ_KEY"]):
        del found["UNIQ_KEY"]
    return {name: value for name, value in found.items() if name not in ADDED}


async def create_topic(peer: Peer, topic: str, *, queues: int = 4, perm: int = 6) -> Command:
    return await peer.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=queues,
        writeQueueNums=queues,
        perm=perm,
        topicFilterType="SINGLE_TAG",
        order=False,
    )
