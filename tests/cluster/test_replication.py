"""A master and its slave, over real sockets: the same log, the same tables, whatever happens."""

import dataclasses
import json
import random
import shutil
import socket
import struct
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
from pymq.errors import BrokerError
from pymq.net.blocking import BlockingChannel
from pymq.protocol.addresses import split_address
from pymq.protocol.bodies import DelayOffsetTable, GroupConfig, MessageQueue
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.message import Message
from pymq.protocol.record import decode_records
from pymq.protocol.replication_secret import Refusal, encode_refusal
from pymq.store import StoreConfig
from pymq.store.inspection import check_store
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


def own_port() -> dict[str, int]:
    """Return a port that nobody else takes while its broker is stopped, nor those beside it."""
    return {"listen_port": free_port(-2, 0, 1)}


@contextmanager
def pair_of(root: Path, **settings: Any) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(root, stack, **settings)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with pair_of(tmp_path) as one:
        yield one


def send(pair: Pair, bodies: list[bytes], topic: str = "T") -> None:
    for body in bodies:
        pair.client.send(Message(topic=topic, body=body))


def test_a_slave_serves_what_was_sent_to_its_master(pair: Pair) -> None:
    pair.admin.topics.create("T", queue_count=4)
    pair.admin.groups.create(GroupConfig(group="reader"))
    sent = [b"%d" % n for n in range(100)]
    send(pair, sent)
    pair.wait_equal()
    eventually(lambda: pair.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}).code == 0)
    eventually(
        lambda: pair.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "reader"}).code == 0
    )

    def found() -> list[bytes]:
        return sorted(body for queue_id in range(4) for body in pair.pull("T", queue_id, 0))

    eventually(lambda: found() == sorted(sent))


def test_consumer_offsets_and_deletions_follow(pair: Pair) -> None:
    pair.admin.topics.create("T", queue_count=1)
    send(pair, [b"%d" % n for n in range(10)])
    (queue,) = pair.client.read_queues("T")
    pair.admin.groups.create("g")
    pair.client.commit_offset("g", queue, 7)
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "setZeroIfNotFound": "false"}

    def offset() -> str | None:
        answer = pair.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        return (answer.fields or {}).get("offset")

    eventually(lambda: offset() == "7")
    config = {"topic": "T"}
    eventually(lambda: pair.ask(RequestCode.GET_TOPIC_CONFIG, config).code == 0)
    pair.admin.topics.delete("T")
    eventually(
        lambda: pair.ask(RequestCode.GET_TOPIC_CONFIG, config).code == ResponseCode.TOPIC_NOT_EXIST
    )
    eventually(lambda: not (pair.roots["slave"] / "consumequeue" / "T").exists())
    eventually(lambda: offset() is None)
    pair.admin.topics.create("T", queue_count=1)
    send(pair, [b"new"])
    pair.wait_equal()
    eventually(lambda: pair.ask(RequestCode.GET_TOPIC_CONFIG, config).code == 0)
    eventually(lambda: pair.pull("T", 0, 0) == [b"new"])


@pytest.mark.parametrize("who", ["master", "slave", "both"])
def test_a_restart_goes_on_where_it_was(pair: Pair, who: str) -> None:
    pair.admin.topics.create("T", queue_count=1)
    sent = [b"%d" % n for n in range(50)]
    send(pair, sent[:20])
    if who in ("slave", "both"):
        pair.slave.stop_broker()
        send(pair, sent[20:40])
    if who in ("master", "both"):
        pair.master.restart_broker()
    pair.slave.start_broker()
    send(pair, sent[40:] if who != "master" else sent[20:])
    pair.wait_equal()
    eventually(lambda: pair.pull("T", 0, 0) == sent[:32])
    eventually(lambda: pair.pull("T", 0, 32) == sent[32:])
    pair.slave.stop_broker()
    report = check_store(StoreConfig(root_path=pair.roots["slave"], segment_bytes=SEGMENT_BYTES))
    assert [group for group in report.findings.groups() if group[0].name != "NOTE"] == []


def test_a_slave_that_comes_late_gets_everything(tmp_path: Path, seed: int) -> None:
    """Far more than is sent from memory, while more is sent."""
    dice = random.Random(seed)
    with pair_of(tmp_path) as pair:
        pair.admin.topics.create("T", queue_count=3)
        pair.slave.stop_broker()
        queues = pair.client.write_queues("T")
        for n in range(40):
            batch = [Message(topic="T", body=dice.randbytes(4_000)) for _ in range(200)]
            pair.client.send_batch(queues[n % 3], batch)
        assert pair.end > 24 << 20
        pair.slave.start_broker()
        send(pair, [b"%d" % n for n in range(100)])
        pair.wait_equal()


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_master_knows_how_far_its_slave_is(tmp_path: Path, flush: str) -> None:
    with pair_of(tmp_path, flush=flush) as pair:
        send(pair, [b"%d" % n for n in range(10)])
        eventually(lambda: confirmed(pair) == pair.end)


def confirmed(pair: Pair) -> int:
    slaves = slaves_of(pair)
    assert len(slaves) <= 1
    return int(slaves[0]["slaveAckOffset"]) if slaves else -1


def slaves_of(pair: Pair) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pair.admin_json(RequestCode.GET_BROKER_HA_STATUS)[
        "haConnectionInfo"
    ]
    return found


def test_a_synchronous_master_waits_for_its_slave(tmp_path: Path) -> None:
    rules = {"role": Role.SYNC_MASTER, "slave_timeout_ms": 60_000}
    with pair_of(tmp_path, replication=rules) as pair:
        pair.admin.topics.create("T", queue_count=1)
        eventually(lambda: status_of(pair) is SendStatus.OK)
        for n in range(50):
            assert status_of(pair) is SendStatus.OK
            assert n < pair.slave_end() >= pair.end  # it is there, not on its way
        pair.slave.stop_broker()
        eventually(lambda: not slaves_of(pair))
        assert status_of(pair) is SendStatus.SLAVE_NOT_AVAILABLE
        pair.slave.start_broker()
        eventually(lambda: status_of(pair) is SendStatus.OK)
        pair.wait_equal()


def status_of(pair: Pair) -> SendStatus:
    return pair.client.send(Message(topic="T", body=b"x")).status


def test_a_slave_that_confirms_nothing_makes_sends_late(tmp_path: Path) -> None:
    rules = {"role": Role.SYNC_MASTER, "slave_timeout_ms": 300}
    with pair_of(tmp_path, replication=rules) as pair:
        pair.admin.topics.create("T", queue_count=1)
        pair.slave.stop_broker()
        with ha_socket(pair) as peer:
            peer.sendall(struct.pack(">q", 0))
            eventually(lambda: status_of(pair) is SendStatus.FLUSH_SLAVE_TIMEOUT)
        eventually(lambda: status_of(pair) is SendStatus.SLAVE_NOT_AVAILABLE)


def test_what_is_sent_back_and_may_be_lost_with_the_master_is_not_taken(tmp_path: Path) -> None:
    """With SUCCESS its consumer would commit beyond it, perhaps at another broker."""
    rules = {"role": Role.SYNC_MASTER, "slave_timeout_ms": 300}
    with pair_of(tmp_path, replication=rules) as pair:
        pair.admin.topics.create("T", queue_count=1)
        pair.admin.groups.create("g")
        pair.slave.stop_broker()

        def send_back(level: int) -> Command:
            fields = {"offset": "0", "group": "g", "delayLevel": str(level)}
            command = Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
            return ask(pair.master.broker_address, command)

        def answers(*expected: int) -> bool:
            return tuple(send_back(level).code for level in (0, -1)) == expected

        eventually(lambda: status_of(pair) is SendStatus.SLAVE_NOT_AVAILABLE)
        # Nobody lacks it who could take over, and another try would store it twice.
        assert answers(ResponseCode.SUCCESS, ResponseCode.SUCCESS)
        with ha_socket(pair) as peer:
            peer.sendall(struct.pack(">q", 0))
            late = ResponseCode.FLUSH_SLAVE_TIMEOUT
            eventually(lambda: status_of(pair) is SendStatus.FLUSH_SLAVE_TIMEOUT)
            assert answers(late, late)
            assert "slaveTimeout" in (send_back(0).remark or "")
            # So does who is refused that, whatever the status of such a send is.
            for delay in ("", "DELAY\x011\x02"):
                answer = ask(pair.master.broker_address, plain_send("%RETRY%g", delay))
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "may be lost with this broker" in (answer.remark or "")


def test_a_recall_that_may_be_lost_with_the_master_is_not_done(tmp_path: Path) -> None:
    rules = {"role": Role.SYNC_MASTER, "slave_timeout_ms": 300}
    with pair_of(tmp_path, replication=rules, broker={"recall_messages": True}) as pair:
        pair.admin.topics.create("T", queue_count=1)
        pair.slave.stop_broker()
        with ha_socket(pair) as peer:
            peer.sendall(struct.pack(">q", 0))
            eventually(lambda: status_of(pair) is SendStatus.FLUSH_SLAVE_TIMEOUT)
            timer = plain_send("T", "TIMER_DELAY_MS\x01600000\x02UNIQ_KEY\x01K\x02")
            sent = ask(pair.master.broker_address, timer)
            assert sent.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            handle = (sent.fields or {})["recallHandle"]
            fields = {"topic": "T", "recallHandle": handle, "producerGroup": "pg"}
            answer = ask(pair.master.broker_address, Command(RequestCode.RECALL_MESSAGE, fields))
            assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT, answer


def plain_send(topic: str, properties: str, body: bytes = b"x") -> Command:
    request = SendRequest(
        "pg", topic, "TBW102", 4, 0, 0, 1700000000000, 0, "", 0, False, None, False
    )
    fields = dataclasses.replace(request, properties=properties).to_v2()
    return Command(RequestCode.SEND_MESSAGE_V2, fields, body)


def test_messages_are_refused_while_too_few_follow(tmp_path: Path) -> None:
    rules = {"role": Role.SYNC_MASTER, "in_sync_replicas_min": 2, "slave_timeout_ms": 60_000}
    with pair_of(tmp_path, replication=rules) as pair:
        pair.admin.topics.create("T", queue_count=1)
        eventually(lambda: confirmed(pair) >= 0)
        assert status_of(pair) is SendStatus.OK
        pair.slave.stop_broker()
        eventually(lambda: not slaves_of(pair))
        before = pair.end
        with pytest.raises(BrokerError, match="in-sync replicas not enough"):
            for _ in range(100):
                status_of(pair)
        assert pair.end - before < 100 * 200
        stored = pair.end
        with pytest.raises(BrokerError, match="in-sync replicas not enough"):
            status_of(pair)
        assert pair.end == stored


def test_a_slave_takes_nothing(pair: Pair) -> None:
    refused = pair.ask(RequestCode.SEND_MESSAGE_V2, {"a": "pg", "b": "T"}, b"body")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "slave mode" in (refused.remark or "")
    for code in (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_SUBSCRIPTIONGROUP):
        refused = pair.ask(code, {"topic": "X", "groupName": "X"})
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "from slave broker" in (refused.remark or "")
    assert pair.ask(RequestCode.END_TRANSACTION, {}).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_readers_that_are_not_late_are_sent_back_to_the_master(pair: Pair) -> None:
    pair.admin.topics.create("T", queue_count=1)
    send(pair, [b"1", b"2"])
    pair.wait_equal()
    eventually(lambda: pair.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}).code == 0)
    eventually(lambda: pair.pull("T", 0, 0) == [b"1", b"2"])
    for offset in (2, 7):  # nothing new; and what this slave may not have yet
        answer = pair.ask_pull("T", 0, offset)
        fields = answer.fields or {}
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (fields["nextBeginOffset"], fields["suggestWhichBrokerId"]) == (str(offset), "0")
    pair.master.stop_broker()
    eventually(lambda: pair.ask_pull("T", 0, 2).code == ResponseCode.PULL_NOT_FOUND)
    answer = pair.ask_pull("T", 0, 7)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert (answer.fields or {})["nextBeginOffset"] == "7"
    assert pair.pull("T", 0, 0) == [b"1", b"2"]


def test_a_reset_is_told_by_the_master_only(pair: Pair) -> None:
    pair.admin.topics.create("T", queue_count=1)
    send(pair, [b"1", b"2"])
    pair.wait_equal()
    eventually(lambda: pair.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}).code == 0)
    pair.admin.groups.create("reader")
    reset = {"topic": "T", "group": "reader", "queueId": "0", "offset": "1", "timestamp": "-1"}
    answer = ask(
        pair.master.broker_address,
        Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**reset, "isForce": "true"}),
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark

    def sent_back() -> bool:
        answer = pair.ask_pull("T", 0, 0)
        return answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY

    eventually(sent_back)
    assert sent_back(), "it is not the slave that takes it for told"


def test_a_slave_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    with pair_of(tmp_path, slave_read=False) as pair:
        answer = pair.ask_pull("T", 0, 0)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "slaveReadEnable" in (answer.remark or "")


def test_delayed_messages_are_delivered_by_the_master_only(tmp_path: Path) -> None:
    with pair_of(tmp_path, store_settings={"delay_levels_ms": (300,) * 18}) as pair:
        pair.admin.topics.create("T", queue_count=1)
        pair.client.send(Message(topic="T", body=b"later", delay_level=1))
        eventually(lambda: pair.client.bounds(pair.client.read_queues("T")).popitem()[1] == (0, 1))
        pair.wait_equal()
        eventually(lambda: pair.pull("T", 0, 0) == [b"later"])
        time.sleep(1.0)
        assert pair.pull("T", 0, 0) == [b"later"]
        pair.wait_equal()


def send_timer(pair: Pair, body: bytes, delay_ms: int) -> None:
    timer = plain_send("T", f"TIMER_DELAY_MS\x01{delay_ms}\x02", body)
    answer = ask(pair.master.broker_address, timer)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def bodies_at(cluster: Cluster) -> list[bytes]:
    with BlockingClient(cluster.name_server, timeout_s=TIMEOUT_S) as client:
        return [
            record.body
            for queue, (first, end) in client.bounds(client.read_queues("T")).items()
            for chunk in client.pull_range(queue, first, end)
            for record in decode_records(chunk.buffer, verify=True)
        ]


def test_a_slave_that_becomes_the_master_delivers_what_still_waits_and_nothing_twice(
    tmp_path: Path,
) -> None:
    timers = {"timer_precision_ms": 100, "delay_levels_ms": (300, 600_000) + (60_000,) * 16}
    with pair_of(tmp_path, store_settings=timers) as pair:
        pair.admin.topics.create("T", queue_count=1)
        for n in range(5):
            send_timer(pair, b"soon %d" % n, 200)
            pair.client.send(Message(topic="T", body=b"soon, by level %d" % n, delay_level=1))
        send_timer(pair, b"later", 600_000)
        pair.client.send(Message(topic="T", body=b"later, by level", delay_level=2))
        eventually(lambda: len(bodies_at(pair.master)) == 10)
        pair.wait_told()
        pair.wait_equal()
        delivered = bodies_at(pair.master)
        assert b"later" not in delivered
    settings = {"segment_bytes": SEGMENT_BYTES, **timers}
    with Cluster(pair.roots["slave"], store_settings=settings) as promoted:
        assert bodies_at(promoted) == delivered
        promoted.clock.advance(601)
        eventually(lambda: len(bodies_at(promoted)) >= 12)
        time.sleep(1.0)
        assert sorted(bodies_at(promoted)) == sorted([*delivered, b"later", b"later, by level"])
    report = check_store(StoreConfig(root_path=pair.roots["slave"], **settings))
    assert [group for group in report.findings.groups() if group[0].name != "NOTE"] == []


def ha_socket(pair: Pair) -> socket.socket:
    assert pair.master._broker is not None
    found = pair.master._broker._ha_socket
    assert found is not None
    return socket.create_connection(found.getsockname(), timeout=DEADLINE_S)


@pytest.mark.parametrize("report", [1 << 40, -7])
def test_an_impossible_report_ends_the_connection(
    pair: Pair, report: int, caplog: pytest.LogCaptureFixture
) -> None:
    send(pair, [b"1"])
    pair.wait_equal()
    with ha_socket(pair) as peer:
        peer.sendall(struct.pack(">q", 0) + struct.pack(">q", report))
        received = b""
        while data := peer.recv(1 << 16):
            received += data
    eventually(lambda: "confirms the log up to" in caplog.text)
    pair.wait_equal()
    send(pair, [b"2"])
    pair.wait_equal()


def test_a_slave_with_another_store_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = {"segment_bytes": SEGMENT_BYTES}
    with (
        Cluster(tmp_path / "slave", store_settings=small) as other,
        BlockingClient([other.name_server]) as client,
    ):
        for n in range(10):
            client.send(Message(topic="mine", body=b"%d" % n))
    with pair_of(tmp_path) as pair:
        send(pair, [b"1"])

        def said(by: str) -> str:
            return "".join(one.getMessage() for one in caplog.records if one.name.endswith(by))

        eventually(lambda: "start the other one with an empty store" in said("ha.master"))
        eventually(lambda: "its log ends before this slave's" in said("ha.slave"))
        assert pair.slave_end() != pair.end


def test_a_slave_takes_no_tables_of_a_master_that_has_lost_its_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log ends before the slave's: the slave has what there is of topics and offsets, too."""
    monkeypatch.setattr("pymq.broker.ha.slave.REFUSED_RETRY_S", 0.5)
    caplog.set_level("DEBUG", "pymq.broker.ha.slave")
    with pair_of(tmp_path) as pair:
        make_tables(pair)
        pair.master.stop_broker()
        shutil.rmtree(pair.roots["master"])
        pair.master.start_broker()
        wait_refused(caplog, "its log ends before this slave's")
        assert tables_at_slave(pair) == TABLES
        make_topic(pair.master, "T")
        caplog.clear()
        wait_refused(caplog, "its log ends before this slave's")
        assert tables_at_slave(pair) == TABLES


#: What ``make_tables`` makes: the queues of a topic, the retries of a group, and its offset.
TABLES = 3, 5, "4"


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


def test_what_a_slave_reports_that_is_ahead_is_refused_with_a_reason(pair: Pair) -> None:
    send(pair, [b"1"])
    with ha_socket(pair) as peer:
        peer.sendall(struct.pack(">q", 1 << 40))
        received = b""
        while data := peer.recv(1 << 16):
            received += data
    assert received == encode_refusal(Refusal.LOG_AHEAD)


def test_a_topic_that_is_created_again_at_once_begins_again(pair: Pair, seed: int) -> None:
    """Whatever the slave has noticed of it: with fewer queues, with messages or without."""
    dice = random.Random(seed)
    pair.admin.groups.create(GroupConfig(group="reader"))
    for turn in range(8):
        count = dice.randint(1, 4)
        wanted: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(4)}
        pair.admin.topics.create("T", queue_count=count)
        for number in range(dice.choice([0, 3, 20])):
            queue_id, body = dice.randrange(count), b"%d of %d" % (number, turn)
            put_to(pair, queue_id, body)
            wanted[queue_id].append(body)
        if dice.random() < 0.3:
            pair.slave.restart_broker()
        elif dice.random() < 0.3:
            pair.slave.kill_broker()
            pair.slave.start_broker()

        def follows(count: int = count, wanted: dict[int, list[bytes]] = wanted) -> bool:
            answer = pair.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
            if answer.code or json.loads(bytes(answer.body))["readQueueNums"] != count:
                return False
            return all(end_at_slave(pair, one) == len(bodies) for one, bodies in wanted.items())

        eventually(follows, f"turn {turn}: {[end_at_slave(pair, one) for one in range(4)]}")
        pair.wait_equal()
        for queue_id in range(count):
            assert pair.pull("T", queue_id, 0) == wanted[queue_id], (turn, queue_id)
        pair.admin.topics.delete("T")


def put_to(pair: Pair, queue_id: int, body: bytes) -> None:
    header = SendRequest(
        *("pg", "T", "TBW102", 4, queue_id, 0, 1_700_000_000_000, 0, "", 0, False, None),
        batch=False,
    )
    command = Command(RequestCode.SEND_MESSAGE_V2, header.to_v2(), body)
    assert ask(pair.master.broker_address, command).code == ResponseCode.SUCCESS


def end_at_slave(pair: Pair, queue_id: int) -> int:
    fields = {"topic": "T", "queueId": str(queue_id), "committed": "false"}
    answer = pair.ask(RequestCode.GET_MAX_OFFSET, fields)
    return int((answer.fields or {}).get("offset", 0))
