"""A slave that acts has another group store what is due; the master that comes back knows that."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.replicated import Pair, ask, eventually, own_port, pair_of

from pymq import ReceivedMessage, SimpleConsumer, TransactionStatus, blocking
from pymq.broker.replication_config import ReplicationConfig
from pymq.errors import ConfigurationError
from pymq.protocol.bodies import KVTable
from pymq.protocol.codes import MessageFlag, PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.names import HALF_TOPIC
from pymq.protocol.record import Record, decode_records
from pymq.testing import Cluster, ClusterClock

QUEUES = 2
ESCAPING: dict[str, Any] = {
    "acting_master": True,
    "remote_escape": True,
    "group_interval_ms": 50,
    # A master that is killed is missed at once, and one that stands still for a while is not.
    "not_active_ms": 60_000,
}
BROKER: dict[str, Any] = {
    "transaction_timeout_ms": 500,
    # Transactions are looked at when a test has time pass.
    "transaction_check_interval_ms": 3_600_000,
    "timer_flush_interval_ms": 100,
    "page_cache_busy_ms": 60_000,
}
#: What is far away comes when a test has time pass, on a machine of any speed.
FAR_S = 1_000
STORE: dict[str, Any] = {"delay_levels_ms": (1_000, FAR_S * 1_000), "timer_precision_ms": 100}


@dataclass(frozen=True, slots=True)
class Bed:
    """A group with a slave, and another group."""

    pair: Pair
    other: Cluster

    @property
    def addresses(self) -> list[str]:
        return [self.pair.master.broker_address, self.other.broker_address]

    @property
    def clock(self) -> ClusterClock:
        """The time of all brokers."""
        return self.other.clock

    def lose_master(self) -> None:
        """Kill it when its slave has the log, and knows what was delivered."""
        self.pair.wait_equal()
        self.pair.wait_told()
        self.pair.master.kill_broker()

    def bodies(self, topic: str = "T") -> Counter[bytes]:
        """Return what is in a topic, at both groups."""
        pair = self.pair
        own = pair.master if pair.master.broker().is_running else pair.slave
        served = (own.broker_address, self.other.broker_address)
        return Counter(record.body for one in served for record in records_at(one, topic))

    def wait_bodies(self, wanted: set[bytes], topic: str = "T") -> None:
        """Wait until all of some bodies are there."""
        eventually(lambda: wanted <= self.bodies(topic).keys(), f"{wanted} in {topic}")


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    clusters: list[Cluster] = []

    def look_at_time() -> None:
        for one in clusters:
            one._time_moved()

    clock = ClusterClock(look_at_time)
    with pair_of(
        tmp_path,
        clock=clock,
        replication=ESCAPING,
        slave_replication={**ESCAPING, "metadata_interval_ms": 200},
        broker=BROKER,
        store_settings=STORE,
    ) as pair:
        servers = (pair.master.name_server,)
        other = Cluster(
            tmp_path / "other",
            broker={**BROKER, **own_port(), "name": "broker-b", "name_servers": servers},
            store_settings=STORE,
            clock=clock,
        )
        with other:
            clusters += [pair.master, pair.slave, other]
            bed = Bed(pair, other)
            for address in bed.addresses:
                for topic in ("T", "only-a")[: 2 if address != other.broker_address else 1]:
                    create(address, topic)
            pair.admin.groups.create("reader")
            eventually(lambda: len(pair.client.write_queues("T")) == 2 * QUEUES)
            eventually(
                lambda: pair.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "only-a"}).code == 0
            )
            yield bed


def acts(bed: Bed) -> bool:
    answer = bed.pair.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {})
    return KVTable.decode(answer.body).table["brokerActive"] == "true"


def create(address: str, topic: str) -> None:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(QUEUES),
        "writeQueueNums": str(QUEUES),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    answer = ask(address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def put(
    bed: Bed, body: bytes, properties: str = "", *, topic: str = "T", queue_id: int = 0
) -> None:
    """Send to the master of the group that has a slave."""
    prepared = int(MessageFlag.TRANSACTION_PREPARED) if "TRAN_MSG" in properties else 0
    now_ms = time.time_ns() // 1_000_000
    header = SendRequest(
        *("pg", topic, "TBW102", 4, queue_id, prepared, now_ms, 0, properties, 0, False, None),
        batch=False,
    )
    command = Command(RequestCode.SEND_MESSAGE_V2, header.to_v2(), body)
    answer = ask(bed.pair.master.broker_address, command)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def records_at(address: str, topic: str) -> list[Record]:
    """Return all messages of a topic that a broker serves."""
    found: list[Record] = []
    for queue_id in range(QUEUES):
        offset = 0
        while True:
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
            answer = ask(address, Command(RequestCode.PULL_MESSAGE, fields))
            if answer.code != ResponseCode.SUCCESS:
                break
            records = list(decode_records(answer.body))
            found += records
            offset = records[-1].queue_offset + 1
    return found


def named(name: str, count: int = 10) -> set[bytes]:
    return {b"%s %d" % (name.encode(), number) for number in range(count)}


def once(bodies: set[bytes]) -> Counter[bytes]:
    return Counter(dict.fromkeys(bodies, 1))


def test_delayed_and_timer_messages_come_once_whoever_is_away(bed: Bed) -> None:
    """Some are due before the master is lost, some meanwhile, some when it is back."""
    sent: set[bytes] = set()
    for name, properties in (
        ("delayed", "DELAY\x011"),
        ("delayed long", "DELAY\x012"),
        ("timed", "TIMER_DELAY_MS\x011000"),
        ("timed long", f"TIMER_DELAY_MS\x01{FAR_S}000"),
        ("timed very long", f"TIMER_DELAY_MS\x01{3 * FAR_S}000"),
    ):
        for number, body in enumerate(sorted(named(name))):
            put(bed, body, properties, queue_id=number % QUEUES)
            sent.add(body)
    early = named("delayed") | named("timed")
    late = named("delayed long") | named("timed long")
    bed.wait_bodies(early)
    bed.lose_master()
    assert not late & bed.bodies().keys()
    bed.clock.advance(FAR_S + 1)
    bed.wait_bodies(late)
    there = records_at(bed.other.broker_address, "T")
    assert {record.body for record in there} == late
    assert {record.queue_id for record in there} == set(range(QUEUES))
    bed.pair.master.start_broker()
    assert bed.bodies() == once(early | late)
    bed.clock.advance(2 * FAR_S)
    bed.wait_bodies(sent)
    time.sleep(1.0)  # for what would come twice
    assert bed.bodies() == once(sent)
    here = records_at(bed.pair.master.broker_address, "T")
    assert {record.body for record in here} == sent - late


def test_both_die_again_and_again_and_nothing_is_lost(bed: Bed) -> None:
    """The slave is killed while it acts, and the master soon after it is back."""
    pair = bed.pair
    sent: set[bytes] = set()
    for turn in range(2):
        for kind, properties in (("delayed", "DELAY\x011"), ("timed", "TIMER_DELAY_MS\x011200")):
            for body in named(f"{kind} {turn}", 20):
                put(bed, body, properties)
                sent.add(body)
        bed.lose_master()
        eventually(lambda: acts(bed), "the slave acts")
        pair.slave.kill_broker()
        pair.slave.start_broker()
        bed.wait_bodies(sent)
        pair.master.start_broker()
        pair.master.kill_broker()
        pair.master.start_broker()
        put(bed, b"there again %d" % turn, "DELAY\x011")
        sent.add(b"there again %d" % turn)
        bed.wait_bodies(sent)
    time.sleep(1.0)
    found = bed.bodies()
    # A kill of the slave may have come between a delivery and its record.
    assert found.keys() == sent
    assert max(found.values()) <= 3, found


def test_what_nobody_else_takes_waits_for_the_master(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    put(bed, b"x", "DELAY\x011", topic="only-a")
    put(bed, b"y", "DELAY\x011")
    bed.lose_master()
    bed.wait_bodies({b"y"})
    refusal = "no other group of the cluster takes messages of topic only-a"
    eventually(lambda: refusal in caplog.text)
    bed.pair.master.start_broker()
    bed.wait_bodies({b"x"}, "only-a")
    time.sleep(0.5)
    assert bed.bodies("only-a") == once({b"x"})
    assert bed.bodies() == once({b"y"})  # although it was delivered ahead of x


def test_open_transactions_are_ended_by_their_producer_elsewhere(bed: Bed) -> None:
    asked: Counter[bytes] = Counter()

    def check(message: ReceivedMessage) -> TransactionStatus:
        asked[message.body] += 1
        is_even = int(message.body.split()[1]) % 2 == 0
        return TransactionStatus.COMMIT if is_even else TransactionStatus.ROLLBACK

    for body in named("open"):
        key = body.decode().replace(" ", "")
        put(bed, body, f"TRAN_MSG\x01true\x02UNIQ_KEY\x01{key}\x02PGROUP\x01tx\x02")
    bed.lose_master()
    even = {body for body in named("open") if int(body.split()[1]) % 2 == 0}
    producer = blocking.Producer(
        bed.pair.master.name_server, group="tx", check_transaction=check, check_topics=["T"]
    )
    with producer:
        count = len(named("open"))
        eventually(lambda: len(records_at(bed.other.broker_address, HALF_TOPIC)) == count)
        bed.clock.advance(1)  # one round of checks
        bed.wait_bodies(even)
        eventually(lambda: len(asked) == count and not producer._client._transactions._checks)
        bed.pair.master.start_broker()
        for _ in range(5):
            bed.clock.advance(1)
            time.sleep(0.2)
    assert bed.bodies() == once(even)
    assert asked.keys() == named("open") and max(asked.values()) == 1, asked


def test_popped_messages_come_again_elsewhere(bed: Bed) -> None:
    for body in named("popped"):
        put(bed, body)
    bed.pair.admin.groups.create("g")
    got: Counter[bytes] = Counter()

    async def pop(count: int, invisible_s: float) -> None:
        """Receive at least so many, and acknowledge none."""
        consumer = SimpleConsumer(bed.pair.master.name_server, "g", from_where="earliest")
        async with consumer.subscribe("T"), asyncio.timeout(60):
            while count > 0:
                messages = await consumer.receive(32, invisible_s, timeout_s=1)
                count -= len(messages)
                got.update(message.body for message in messages)

    asyncio.run(pop(10, FAR_S))
    assert got == once(named("popped"))
    bed.lose_master()
    bed.clock.advance(FAR_S + 1)
    asyncio.run(pop(10, FAR_S))
    assert got == Counter(dict.fromkeys(named("popped"), 2))
    bed.pair.master.start_broker()
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(pop(1, FAR_S), 5.0))
    assert got == Counter(dict.fromkeys(named("popped"), 2))


def test_only_a_slave_that_acts_escapes() -> None:
    with pytest.raises(ConfigurationError, match="enableSlaveActingMaster"):
        ReplicationConfig(remote_escape=True)
