"""A master and its slave for tests, and what is asked of them."""

import dataclasses
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.administration import admin_of
from tests.interop.peers import free_port

from pymq.broker.replication_config import Role
from pymq.client.operations import SendStatus
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.net.blocking import BlockingChannel
from pymq.protocol.addresses import split_address
from pymq.protocol.bodies import DelayOffsetTable, GroupConfig, MessageQueue
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.message import Message
from pymq.protocol.record import decode_records
from pymq.store.timer.timer_checkpoint import TimerCheckpoint
from pymq.testing import Cluster

DEADLINE_S = 60.0

#: What a busy machine takes long for is not to be asked for twice.
TIMEOUT_S = 30.0

#: Answers to pulls of a slave that has nothing, perhaps not yet.
NOTHING = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.TOPIC_NOT_EXIST,
)

SEGMENT_BYTES = 1 << 20

#: What ``make_tables`` makes: the queues of a topic, the retries of a group, and its offset.
TABLES = 3, 5, "4"


def eventually(condition: Callable[[], bool], what: str = "") -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what or condition
        time.sleep(0.02)


class Pair:
    """A master and a slave, which can be stopped and started."""

    def __init__(
        self,
        root: Path,
        stack: ExitStack,
        *,
        replication: dict[str, Any] | None = None,
        slave_replication: dict[str, Any] | None = None,
        slave_read: bool = True,
        broker: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.roots = {"master": root / "master", "slave": root / "slave"}
        store = {"segment_bytes": SEGMENT_BYTES, **settings.pop("store_settings", {})}
        common: dict[str, Any] = {"store_settings": store, **settings}
        # A disk that is slow for a moment is no reason to refuse messages.
        broker = {"page_cache_busy_ms": 60_000, **(broker or {})}
        self.master = Cluster(
            self.roots["master"], replication=replication, broker=broker | own_port(), **common
        )
        stack.enter_context(self.master)
        self.slave = Cluster(
            self.roots["slave"],
            broker={
                **broker,
                **own_port(),
                "broker_id": 1,
                "slave_read": slave_read,
                "name_servers": (self.master.name_server,),
            },
            replication={
                "role": Role.SLAVE,
                "metadata_interval_ms": 500,
                **(slave_replication or {}),
            },
            **common,
        )
        stack.enter_context(self.slave)
        self.client = stack.enter_context(
            BlockingClient(
                [self.master.name_server], timeout_s=TIMEOUT_S, read_deadline_s=DEADLINE_S
            )
        )
        self.admin = admin_of(self.client)

    def log(self, name: str, end: int) -> bytes:
        """Return the log of one of them up to an offset."""
        data = b""
        while len(data) < end:
            path = self.roots[name] / "commitlog" / f"{len(data):020d}"
            if not path.exists():
                return data
            data += path.read_bytes()[: end - len(data)]
        return data

    @property
    def end(self) -> int:
        return int(self.admin.brokers.state(self.master.broker_address)["commitLogMaxOffset"])

    def wait_equal(self) -> None:
        """Wait until the slave has the log of the master."""
        end = self.end
        eventually(lambda: self.slave_end() >= end, f"the slave is at {self.slave_end()} of {end}")
        assert self.log("slave", end) == self.log("master", end)

    def wait_told(self) -> None:
        """Wait until the slave knows what of delayed messages and timers its master delivered."""
        timers = progress_at(self.master)[1]

        def is_told() -> bool:
            found = progress_at(self.slave)
            return found[0] == progress_at(self.master)[0] and found[1] >= timers

        eventually(is_told, f"{progress_at(self.slave)} of {progress_at(self.master)}")

    def slave_end(self) -> int:
        return int(self.admin.brokers.state(self.slave.broker_address)["commitLogMaxOffset"])

    def ask_pull(self, topic: str, queue_id: int, offset: int) -> Command:
        """Return the slave's answer to a pull."""
        fields = {
            "consumerGroup": "reader",
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": str(int(PullFlag.SUBSCRIPTION)),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "0",
            "subscription": "*",
        }
        return self.ask(RequestCode.PULL_MESSAGE, fields)

    def pull(self, topic: str, queue_id: int, offset: int) -> list[bytes]:
        """Return the bodies of messages that the slave serves."""
        answer = self.ask_pull(topic, queue_id, offset)
        if answer.code in NOTHING:
            return []
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
        return [record.body for record in decode_records(answer.body)]

    def admin_json(self, code: int) -> Any:
        """Return what the master answers to a request without fields."""
        answer = ask(self.master.broker_address, Command(code))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return json.loads(bytes(answer.body))

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        """Return what the slave answers."""
        return ask(self.slave.broker_address, Command(code, fields, body))


@contextmanager
def pair_of(root: Path, **settings: Any) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(root, stack, **settings)


def own_port() -> dict[str, int]:
    """Return a port that nobody else takes while its broker is stopped, nor those beside it."""
    return {"listen_port": free_port(-2, 0, 1)}


def ask(address: str, command: Command, timeout_s: float = TIMEOUT_S) -> Command:
    channel = BlockingChannel.connect(*split_address(address), timeout_s=TIMEOUT_S)
    try:
        return channel.request(command, timeout_s=timeout_s)
    finally:
        channel.close()


def progress_at(cluster: Cluster) -> tuple[DelayOffsetTable, int]:
    """Return how far a broker knows delayed messages to be delivered, and, in ms, timers."""
    delays = ask(cluster.broker_address, Command(RequestCode.GET_ALL_DELAY_OFFSET))
    timers = ask(cluster.broker_address, Command(RequestCode.GET_TIMER_CHECK_POINT))
    checkpoint = TimerCheckpoint.decode(bytes(timers.body))
    table = dataclasses.replace(DelayOffsetTable.decode(delays.body), version=None)
    return table, 0 if checkpoint is None else checkpoint.read_ms


def slaves_of(pair: Pair) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pair.admin_json(RequestCode.GET_BROKER_HA_STATUS)[
        "haConnectionInfo"
    ]
    return found


def send(pair: Pair, bodies: list[bytes], topic: str = "T") -> None:
    for body in bodies:
        pair.client.send(Message(topic=topic, body=body))


def status_of(pair: Pair) -> SendStatus:
    return pair.client.send(Message(topic="T", body=b"x")).status


def plain_send(topic: str, properties: str, body: bytes = b"x") -> Command:
    request = SendRequest(
        "pg", topic, "TBW102", 4, 0, 0, 1700000000000, 0, "", 0, False, None, False
    )
    fields = dataclasses.replace(request, properties=properties).to_v2()
    return Command(RequestCode.SEND_MESSAGE_V2, fields, body)


def bodies_at(cluster: Cluster) -> list[bytes]:
    with BlockingClient(cluster.name_server, timeout_s=TIMEOUT_S) as client:
        return [
            record.body
            for queue, (first, end) in client.bounds(client.read_queues("T")).items()
            for chunk in client.pull_range(queue, first, end)
            for record in decode_records(chunk.buffer, verify=True)
        ]


def ha_socket(pair: Pair) -> socket.socket:
    assert pair.master._broker is not None
    found = pair.master._broker._ha_socket
    assert found is not None
    return socket.create_connection(found.getsockname(), timeout=DEADLINE_S)


def make_tables(pair: Pair) -> None:
    """Have a topic, a group and an offset, and wait until the slave has them."""
    pair.admin.topics.create("T", queue_count=3)
    pair.admin.groups.create(GroupConfig(group="g", retry_max_times=5))
    send(pair, [b"%d" % number for number in range(10)])
    pair.client.commit_offset("g", MessageQueue("T", pair.master.broker_name, 0), 4)
    pair.wait_equal()
    eventually(lambda: tables_at_slave(pair) == TABLES)


def tables_at_slave(pair: Pair) -> tuple[int | None, int | None, str | None]:
    """Return what a slave has of what ``make_tables`` makes."""
    topic = pair.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
    group = pair.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
    queue = {"consumerGroup": "g", "topic": "T", "queueId": "0", "setZeroIfNotFound": "false"}
    offset = pair.ask(RequestCode.QUERY_CONSUMER_OFFSET, queue)
    return (
        None if topic.code else json.loads(bytes(topic.body))["readQueueNums"],
        None if group.code else json.loads(bytes(group.body))["retryMaxTimes"],
        (offset.fields or {}).get("offset"),
    )


def make_topic(at: Cluster, topic: str) -> None:
    """Make a topic with one queue at one broker, whatever name servers say."""
    queues = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "order": "false"}
    fields = {"topic": topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", **queues}
    answer = ask(at.broker_address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def wait_refused(caplog: pytest.LogCaptureFixture, cause: str) -> None:
    """Wait until a slave was refused some times: its tables were looked at as often meanwhile."""

    def times() -> int:
        told = [one.getMessage() for one in caplog.records if one.name.endswith("ha.slave")]
        return sum(cause in text for text in told)

    eventually(lambda: times() > 4, f"{cause}: {times()} times")
