"""What is due while a master is away is stored by another group: ours and official brokers alike.

The master of a group is killed; its slave acts, and has another group store what becomes due. When
the master is back, what was delivered there is not delivered again, and the rest is.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.crash.servers import ServerProcess, broker_process, name_server_process
from tests.interop.conftest import require_peers
from tests.interop.peers import RealBroker, free_port
from tests.interop.test_acting_master_java import (
    ACTING,
    ASK_S,
    VERSION,
    eventually,
    log_end,
)

from pymq import ReceivedMessage, SimpleConsumer, TransactionStatus, blocking
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import PymqError
from pymq.net.blocking import BlockingChannel
from pymq.protocol.addresses import split_address
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.record import decode_records

pytestmark = pytest.mark.interop

TOPIC, QUEUES = "escaped", 2
NAMES = ("broker-a", "broker-b")
#: Due while the master is away, and when it is back for long.
MEANWHILE_S, LATER_S = 14, 75
ESCAPING: dict[str, str | int] = {
    **ACTING,
    "enableRemoteEscape": "true",
    "messageDelayLevel": f"{MEANWHILE_S}s {LATER_S}s",
    "mappedFileSizeCommitLog": 1 << 20,
}


class Group:
    """A master and perhaps a slave, of ours or official ones."""

    def __init__(self, home: Path, server: str, kind: str, name: str, **more: str | int) -> None:
        self._home, self._server, self._kind, self._name = home, server, kind, name
        self._more = more
        self.master = self._broker("master", brokerRole="ASYNC_MASTER")

    def slave(self) -> ServerProcess | RealBroker:
        return self._broker("slave", brokerRole="SLAVE", brokerId=1)

    def _broker(self, role: str, **more: str | int) -> ServerProcess | RealBroker:
        home = self._home / f"{self._name} {role}"
        home.mkdir()
        properties = {
            **ESCAPING,
            **self._more,
            **more,
            "brokerName": self._name,
            "haListenPort": free_port(0),
        }
        if self._kind == "java":
            return RealBroker(VERSION, [self._server], store_dir=home / "store", **properties)
        return broker_process(home, self._server, home / "store", **properties)


def ask(address: str, *commands: Command) -> list[Command]:
    channel = BlockingChannel.connect(*split_address(address), timeout_s=ASK_S)
    try:
        return [channel.request(command, ASK_S) for command in commands]
    finally:
        channel.close()


def put(address: str, messages: Sequence[tuple[bytes, str, int]]) -> None:
    """Send messages: the body, the properties and the queue of each."""
    headers = [
        SendRequest(
            *("pg", TOPIC, "TBW102", 4, queue_id, 0, time.time_ns() // 1_000_000, 0, properties),
            *(0, False, None),
            batch=False,
        )
        for _, properties, queue_id in messages
    ]
    commands = [
        Command(RequestCode.SEND_MESSAGE_V2, header.to_v2(), body)
        for header, (body, _, _) in zip(headers, messages, strict=True)
    ]
    for answer in ask(address, *commands):
        assert answer.code == ResponseCode.SUCCESS, answer.remark


def knows_topic(address: str) -> bool:
    (answer,) = ask(address, Command(RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC}))
    return answer.code == ResponseCode.SUCCESS


def bodies(client: BlockingClient, name: str) -> Counter[bytes]:
    """Return what a group has in the topic."""
    found: Counter[bytes] = Counter()
    queues = [MessageQueue(TOPIC, name, queue_id) for queue_id in range(QUEUES)]
    for queue, (first, end) in client.bounds(queues).items():
        for chunk in client.pull_range(queue, first, end):
            found.update(bytes(record.body) for record in decode_records(chunk.buffer))
    return found


@pytest.mark.by_turns("kind", "other")
@pytest.mark.parametrize(
    ("kind", "other"),
    [("pymq", "pymq"), ("pymq", "java"), ("java", "pymq"), ("java", "java")],
)
def test_what_is_due_is_stored_elsewhere(kind: str, other: str, tmp_path: Path) -> None:
    if "java" in (kind, other):
        require_peers(VERSION)
    with ExitStack() as stack:
        enter = stack.enter_context
        server = enter(name_server_process(tmp_path, supportActingMaster="true")).address
        pair, there = (
            Group(tmp_path, server, one, name)
            for one, name in zip((kind, other), NAMES, strict=True)
        )
        enter(pair.master)
        enter(there.master)
        client = enter(BlockingClient(server))
        admin_of(client).topics.create(TOPIC, queue_count=QUEUES)
        slave = enter(pair.slave())
        # RocketMQ's slaves ask for topics after 10 s.
        eventually(lambda: knows_topic(slave.address), "the slave knows the topic")
        sent: dict[str, set[bytes]] = {"meanwhile": set(), "later": set()}
        messages = []
        for number in range(20):
            for when, level, delay_s in (("meanwhile", 1, MEANWHILE_S), ("later", 2, LATER_S)):
                how = f"DELAY\x01{level}" if number % 2 else f"TIMER_DELAY_SEC\x01{delay_s}"
                body = f"{when} {number}".encode()
                messages.append((body, how, number % QUEUES))
                sent[when].add(body)
        begun_s = time.monotonic()
        put(pair.master.address, messages)
        end = log_end(client, pair.master.address)
        eventually(lambda: log_end(client, slave.address) >= end, "the slave has the log")
        time.sleep(3.5 if kind == "java" else 1.0)  # until it knows how far timers are

        pair.master.kill()
        eventually(
            lambda: sent["meanwhile"] <= bodies(client, NAMES[1]).keys(), "it is at the other group"
        )
        elsewhere = bodies(client, NAMES[1]).keys()
        if time.monotonic() - begun_s < LATER_S:  # else a slow machine's slave stores the rest, too
            assert elsewhere == sent["meanwhile"]
        pair.master.start()

        def is_back() -> bool:
            try:
                return sent["later"] <= everything().keys()
            except PymqError:
                return False  # its route is not known yet

        def everything() -> Counter[bytes]:
            return bodies(client, NAMES[0]) + bodies(client, NAMES[1])

        eventually(is_back, "the master delivers what is due then")
        time.sleep(3.0)
        found = everything()
        print(f"{kind} to {other}: {sum(found.values())} of {sum(map(len, sent.values()))}")
        assert found.keys() == sent["meanwhile"] | sent["later"]
        if kind == "pymq":
            assert set(found.values()) == {1}, {one: n for one, n in found.items() if n > 1}


def test_transactions_and_popped_messages_go_to_an_official_group(tmp_path: Path) -> None:
    """Its broker asks the producer, and has the retry topic popped."""
    require_peers(VERSION)
    # RocketMQ records an end after three seconds: checks that come sooner commit once more.
    quick = {"transactionTimeOut": 1_000, "transactionCheckInterval": 6_000}
    asked: Counter[bytes] = Counter()

    def check(message: ReceivedMessage) -> TransactionStatus:
        asked[message.body] += 1
        return TransactionStatus.COMMIT

    with ExitStack() as stack:
        enter = stack.enter_context
        server = enter(name_server_process(tmp_path, supportActingMaster="true")).address
        pair = Group(tmp_path, server, "pymq", NAMES[0], **quick)
        there = Group(tmp_path, server, "java", NAMES[1], **quick)
        for one in (pair.master, there.master):
            enter(one)
        client = enter(BlockingClient(server))
        admin_of(client).topics.create(TOPIC, queue_count=QUEUES)
        admin_of(client).groups.create("popper")
        slave = enter(pair.slave())
        popped = {b"popped %d" % number for number in range(10)}
        opened = {b"open %d" % number for number in range(10)}
        half = "TRAN_MSG\x01true\x02UNIQ_KEY\x01K%d\x02PGROUP\x01tx\x02"
        address = pair.master.address
        put(address, [(body, "", n % QUEUES) for n, body in enumerate(sorted(popped))])
        # Long enough for the master to be gone by then.
        got = asyncio.run(pop(server, 10, 10.0))
        assert got == Counter(dict.fromkeys(popped, 1))
        put(address, [(body, half % n, n % QUEUES) for n, body in enumerate(sorted(opened))])
        end = log_end(client, pair.master.address)
        eventually(lambda: log_end(client, slave.address) >= end, "the slave has the log")
        time.sleep(1.0)

        pair.master.kill()
        enter(blocking.Producer(server, group="tx", check_transaction=check, check_topics=[TOPIC]))
        eventually(lambda: opened <= bodies(client, NAMES[1]).keys(), "transactions are committed")
        assert asyncio.run(pop(server, 10, 120.0, only=popped)) == got
        pair.master.start()
        time.sleep(14.0)  # for checks and revivals of what the slave has dealt with
        assert asked.keys() == opened
        assert bodies(client, NAMES[1]) == Counter(dict.fromkeys(opened, 1))
        assert bodies(client, NAMES[0]) == Counter(dict.fromkeys(popped, 1))


async def pop(
    server: str, count: int, invisible_s: float, only: set[bytes] | None = None
) -> Counter[bytes]:
    """Receive so many messages, and acknowledge none of them, but all others."""
    got: Counter[bytes] = Counter()
    consumer = SimpleConsumer(server, "popper", from_where="earliest")
    async with consumer.subscribe(TOPIC), asyncio.timeout(120):
        while got.total() < count:
            for message in await consumer.receive(32, invisible_s, timeout_s=2):
                if only is None or message.body in only:
                    got[message.body] += 1
                else:
                    await consumer.ack(message)
    return got
