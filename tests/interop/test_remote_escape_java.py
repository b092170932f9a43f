"""What is due while a master is away is stored by another group: ours and official brokers alike.

The master of a group is killed; its slave acts, and has another group store what becomes due. When
the master is back, what was delivered there is not delivered again, and the rest is.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.crash.servers import ServerProcess, broker_process, name_server_process
from tests.interop.conftest import require_peers, some
from tests.interop.peers import RealBroker, free_port
from tests.interop.test_acting_master_java import (
    ACTING,
    VERSION,
    eventually,
    log_end,
)

from pymq.client.blocking import BlockingClient
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

    def __init__(self, home: Path, server: str, kind: str, name: str) -> None:
        self._home, self._server, self._kind, self._name = home, server, kind, name
        self.master = self._broker("master", brokerRole="ASYNC_MASTER")

    def slave(self) -> ServerProcess | RealBroker:
        return self._broker("slave", brokerRole="SLAVE", brokerId=1)

    def _broker(self, role: str, **more: str | int) -> ServerProcess | RealBroker:
        home = self._home / f"{self._name} {role}"
        home.mkdir()
        properties = {
            **ESCAPING, **more, "brokerName": self._name, "haListenPort": free_port(0)
        }
        if self._kind == "java":
            return RealBroker(VERSION, [self._server], store_dir=home / "store", **properties)
        return broker_process(home, self._server, home / "store", **properties)


def put(address: str, body: bytes, properties: str, queue_id: int) -> None:
    channel = BlockingChannel.connect(*split_address(address), timeout_s=5.0)
    try:
        now_ms = time.time_ns() // 1_000_000
        header = SendRequest(
            *("pg", TOPIC, "TBW102", 4, queue_id, 0, now_ms, 0, properties, 0, False, None),
            batch=False,
        )
        answer = channel.request(Command(RequestCode.SEND_MESSAGE_V2, header.to_v2(), body), 5.0)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    finally:
        channel.close()


def bodies(client: BlockingClient, name: str) -> Counter[bytes]:
    """Return what a group has in the topic."""
    found: Counter[bytes] = Counter()
    queues = [MessageQueue(TOPIC, name, queue_id) for queue_id in range(QUEUES)]
    for queue, (first, end) in client.bounds(queues).items():
        for chunk in client.pull_range(queue, first, end):
            found.update(bytes(record.body) for record in decode_records(chunk.buffer))
    return found


@pytest.mark.parametrize(
    ("kind", "other"),
    some(
        [("pymq", "pymq"), ("pymq", "java"), ("java", "pymq"), ("java", "java")],
        ("pymq", "pymq"),
        ("pymq", "java"),
        ("java", "pymq"),
    ),
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
        client = enter(BlockingClient(server, timeout_s=10.0))
        admin_of(client).topics.create(TOPIC, queue_count=QUEUES)
        slave = enter(pair.slave())
        time.sleep(12.0 if kind == "java" else 1.0)  # RocketMQ's slaves ask for topics after 10 s
        sent: dict[str, set[bytes]] = {"meanwhile": set(), "later": set()}
        for number in range(20):
            for when, level, delay_s in (("meanwhile", 1, MEANWHILE_S), ("later", 2, LATER_S)):
                how = f"DELAY\x01{level}" if number % 2 else f"TIMER_DELAY_SEC\x01{delay_s}"
                body = f"{when} {number}".encode()
                put(pair.master.address, body, how, number % QUEUES)
                sent[when].add(body)
        begun_s = time.monotonic()
        end = log_end(client, pair.master.address)
        eventually(lambda: log_end(client, slave.address) >= end, "the slave has the log")
        time.sleep(3.5 if kind == "java" else 1.0)  # until it knows how far timers are

        pair.master.kill()
        eventually(
            lambda: sent["meanwhile"] <= bodies(client, NAMES[1]).keys(), "it is at the other group"
        )
        assert bodies(client, NAMES[1]).keys() == sent["meanwhile"]
        pair.master.start()
        assert time.monotonic() - begun_s < LATER_S - 10, "the machine is too slow for this test"

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
