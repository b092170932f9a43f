"""Delayed and retried messages: our broker and the official one, message by message.

The same requests go to both, and what both store is compared; official consumers fail up to the
dead letters at ours; and messages that wait pass from one broker to the other with the store.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from tests.administration import admin_of
from tests.interop.conftest import RealCluster, require_peers
from tests.interop.java_client import JavaPushConsumer
from tests.interop.java_scenarios import AdminFactory, ClientFactory, JavaSite, make_site
from tests.interop.java_values import ReceivedMessage
from tests.interop.peers import RealBroker

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.net.blocking import BlockingChannel
from pymq.protocol import fastjson
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.message import Message, decode_properties
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.protocol.record import Record, decode_records, offset_message_id
from pymq.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.by_turns("site")]

VERSION: Final = "5.3.3"
TIMEOUT_S: Final = 30.0
DEADLINE_S: Final = 120.0
#: Short, so that sixteen retries are not a day's work; level 3 is the first retry's.
LEVELS_MS: Final = (1000, 300, 200, 250, 300)
#: What brokers give messages that have none: different ones.
OTHER_PROPERTIES: Final = ("UNIQ_KEY",)


class Asker:
    """Single requests to one broker, ours or the official one."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._channel = BlockingChannel.connect(host, int(port), timeout_s=TIMEOUT_S)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()

    def ask(self, code: int, body: bytes = b"", **fields: object) -> Command:
        texts = {name: str(value) for name, value in fields.items() if value is not None}
        return self._channel.request(Command(code, texts, body), TIMEOUT_S)

    def send(self, topic: str, properties: str, **changes: Any) -> Command:
        request = SendRequest(
            "pg", topic, "TBW102", 1, 0, 0, 1700000000000, 5, properties, 0, False, None, False
        )
        for name, value in changes.items():
            setattr(request, name, value)
        code = RequestCode.SEND_MESSAGE_V2
        return self._channel.request(Command(code, request.to_v2(), b"body"), TIMEOUT_S)

    def send_back(self, record: Record, group_name: str, /, **changes: object) -> Command:
        fields: dict[str, object] = {
            "offset": record.physical_offset,
            "group": group_name,
            "delayLevel": 1,
            "originMsgId": "ID",
            "originTopic": record.topic,
            "unitMode": "false",
            "maxReconsumeTimes": 2,
            "bname": "broker-a",
        }
        return self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **(fields | changes))

    def records(self, topic: str, count: int, queue_id: int = 0) -> list[Record]:
        """Wait for the first messages of a queue; return all that there are."""
        return self.records_where(topic, lambda _: True, count, queue_id)

    def records_where(
        self, topic: str, is_wanted: Callable[[Record], bool], count: int, queue_id: int = 0
    ) -> list[Record]:
        """Wait for so many messages of a kind in a queue; return all of it that there are."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = [record for record in self._every_record(topic, queue_id) if is_wanted(record)]
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline, f"{topic}: {len(found)} of {count}"
            time.sleep(0.05)

    def _every_record(self, topic: str, queue_id: int) -> list[Record]:
        found: list[Record] = []
        offset = "0"
        while True:
            answer = self.ask(
                RequestCode.PULL_MESSAGE,
                consumerGroup="g",
                topic=topic,
                queueId=queue_id,
                queueOffset=offset,
                maxMsgNums=32,
                sysFlag=int(PullFlag.SUBSCRIPTION),
                commitOffset=0,
                suspendTimeoutMillis=0,
                subscription="*",
                subVersion=0,
                expressionType="TAG",
            )
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += decode_records(answer.body)
            offset = (answer.fields or {})["nextBeginOffset"]


# ------------------------------------------------------------------- what both brokers store


@dataclass(frozen=True, slots=True)
class Stored:
    """What a consumer can see of a record, apart from its place in the log and the time."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    flag: int
    sys_flag: int
    born_timestamp: int
    reconsume_times: int
    prepared_transaction_offset: int
    properties: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, record: Record, ids: dict[str, str]) -> Stored:
        """Return it; ``ids`` has names for the message ids that differ between brokers."""
        properties = decode_properties(record.properties)
        for name in OTHER_PROPERTIES:
            properties.pop(name, None)
        return cls(
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.body,
            record.flag,
            record.sys_flag,
            record.born_timestamp,
            record.reconsume_times,
            record.prepared_transaction_offset,
            tuple(sorted((name, ids.get(value, value)) for name, value in properties.items())),
        )


#: Those with a delay come last: how long the others take does not change the order of the topic.
SENT: Final = [
    ("DELAY\x01soon", {}),
    ("DELAY\x019999999999", {}),
    ("DELAY\x01 1", {}),
    ("DELAY\x01", {}),
    ("DELAY\x010\x02", {}),
    ("DELAY\x01-1", {}),
    ("TAGS\x01t\x02DELAY\x011\x02WAIT\x01true\x02", {}),
    ("DELAY\x011", {"sys_flag": 0x1, "flag": 9}),
    ("DELAY\x0199", {}),  # the last level; not delivered here
    (
        "TIMER_DELAY_SEC\x0150\x02DELAY\x011\x02TIMER_DELIVER_MS\x0150\x02TIMER_DELAY_MS\x0140",
        {},
    ),
    ("REAL_TOPIC\x01Other\x02DELAY\x011\x02REAL_QID\x019\x02", {}),
]
#: How many of them wait in which queue.
PARKED: Final = {0: 4, 17: 1}
WRONG_SEND_BACKS: Final[list[dict[str, object]]] = [
    {"offset": 1},
    {"offset": 1 << 40},
    {"offset": -1},
    {"offset": None},
    {"delayLevel": None},
    {"delayLevel": "x"},
    {"group": "a b"},
    {"group": None},
]


def story(broker: Asker, name: str) -> list[object]:
    """Do everything with delays and retries; return what a client can see of it."""
    topic, group, retry, dead = name, f"g-{name}", f"%RETRY%g-{name}", f"%DLQ%g-{name}"
    ids: dict[str, str] = {}
    seen: list[object] = []

    def see(answer: Command) -> None:
        seen.append((answer.code, (answer.fields or {}).get("queueId")))

    def look(topic: str, count: int, queue_id: int = 0) -> list[Record]:
        found = broker.records(topic, count, queue_id)
        for record in found:
            message_id = offset_message_id(record.store_host, record.physical_offset)
            ids[message_id] = f"id of {topic} {queue_id} {record.queue_offset}"
        seen.extend(Stored.of(record, ids) for record in found)
        return found

    places: set[tuple[str, str]] = set()
    for text, changes in SENT:
        answer = broker.send(topic, text, **changes)
        see(answer)
        if answer.code == 0 and answer.fields is not None:
            places.add((answer.fields["msgId"], answer.fields["queueOffset"]))
    delivered = look(topic, 7)
    parked = [
        record
        for queue_id, count in PARKED.items()
        for record in broker.records_where(
            SCHEDULE_TOPIC,
            lambda one: decode_properties(one.properties)["REAL_TOPIC"] == topic,
            count,
            queue_id,
        )
    ]
    # A delayed message is answered with its place among those that wait.
    assert places >= {
        (offset_message_id(record.store_host, record.physical_offset), str(record.queue_offset))
        for record in parked
    }
    seen.extend(
        (record.queue_id, Stored.of(record, ids).properties, record.flag, record.sys_flag)
        for record in parked
    )

    (first,) = (one for one in delivered if b"TAGS" in one.properties)
    for changes in WRONG_SEND_BACKS:
        answer = broker.send_back(first, group, **changes)
        seen.append((changes, answer.code))
    see(broker.send_back(first, group))
    (again,) = look(retry, 1)
    see(broker.send_back(again, group, unitMode="true"))
    (_, last) = look(retry, 2)
    see(broker.send_back(last, group))  # tried often enough
    see(broker.send_back(first, group, delayLevel=-1))
    see(broker.send_back(first, group, maxReconsumeTimes=0))
    look(dead, 3)

    body = {"topic": topic, "brokerName": "broker-a", "queueId": 0}
    lock = {"consumerGroup": group, "clientId": "c", "mqSet": [body]}
    for times in (3, 2):
        see(broker.send(retry, "DELAY\x011\x02", reconsume_times=times, max_reconsume_times=2))
    broker.ask(RequestCode.LOCK_BATCH_MQ, json.dumps(lock).encode())
    see(broker.send(retry, "DELAY\x011\x02RETRY_TOPIC\x01x\x02", max_reconsume_times=2))
    look(dead, 5)
    look(retry, 3)
    return seen


def test_what_both_brokers_make_of_delays_and_retries(
    real_cluster: Callable[[str], RealCluster],
) -> None:
    name = f"delays-{uuid.uuid4().hex[:8]}"
    with Asker(real_cluster(VERSION).broker.address) as broker:
        expected = story(broker, name)
    with Cluster() as cluster, Asker(cluster.broker_address) as broker:
        found = story(broker, name)
    wrong = [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]]
    assert not wrong, "\n".join(f"ours {ours}\nreal {real}" for ours, real in wrong)


# ------------------------------------------------------------------------- official consumers


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(store_settings={"delay_levels_ms": LEVELS_MS}) as running:
        yield running


@pytest.fixture(params=["4.5.1", "4.9.7", "5.3.3"])
def site(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    java_client: ClientFactory,
    java_admin: AdminFactory,
) -> JavaSite:
    made = make_site(
        request.param,
        java_client,
        java_admin,
        name_server=cluster.name_server,
        broker_name=cluster.broker_name,
        broker_address=cluster.broker_address,
    )
    # The first heartbeat would make it, but consumers of 5.x look for new routes only now and then.
    made.admin.create_topic(f"%RETRY%{made.group}", 1)
    return made


def dead_letters(site: JavaSite, count: int) -> list[ReceivedMessage]:
    """Consume the dead letters of the site's group."""
    wait_for_topic(site, f"%DLQ%{site.group}")
    with JavaPushConsumer(
        site.client, f"u-{site.group}", site.name_server, f"%DLQ%{site.group}"
    ) as push:
        return push.wait_count(count)


def wait_for_topic(site: JavaSite, topic: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    with Asker(site.name_server) as asker:
        while asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic).code != 0:
            assert time.monotonic() < deadline, topic
            time.sleep(0.05)


def test_a_concurrent_consumer_fails_up_to_the_dead_letters(site: JavaSite) -> None:
    with site.producer() as producer:
        for number in range(3):
            producer.send(site.topic, b"%d" % number, tags="t", keys=f"k{number}")
        producer.send(site.topic, b"good")  # refused as often as the others: it is not asked last
    with site.push("t || none", fail_first=9, MaxReconsumeTimes=2) as push:
        dead = dead_letters(site, 3)
        failed = push.failed
        assert not push.messages
    for body in (b"0", b"1", b"2"):
        tries = [message for message in failed if message.body == body]
        assert [message.reconsume_times for message in tries] == [0, 1, 2]
        assert {message.topic for message in tries} == {site.topic}
        gaps = [later.store_timestamp - tries[0].store_timestamp for later in tries[1:]]
        assert gaps[0] >= LEVELS_MS[2] and gaps[1] >= gaps[0] + LEVELS_MS[3]
    assert sorted(message.body for message in dead) == [b"0", b"1", b"2"]
    for message in dead:
        (first,) = (one for one in failed if (one.body, one.reconsume_times) == (message.body, 0))
        assert message.reconsume_times == 3
        assert message.properties["RETRY_TOPIC"] == site.topic
        assert (message.tags, message.keys) == ("t", f"k{message.body.decode()}")
        assert message.msg_id == first.msg_id
        assert message.born_timestamp == first.born_timestamp


def test_a_consumer_chooses_the_delay_of_its_retries(site: JavaSite) -> None:
    with site.producer() as producer:
        producer.send(site.topic, b"x")
    with site.push(fail_first=1, retry_delay_level=1) as push:
        (again,) = push.wait_count(1)
        (first,) = push.failed
    assert again.reconsume_times == 1
    assert again.store_timestamp - first.store_timestamp >= LEVELS_MS[0]
    assert again.properties["DELAY"] == "1"


def test_an_orderly_consumer_gives_up_and_goes_on_in_order(site: JavaSite) -> None:
    with site.producer() as producer:
        for number in range(5):
            producer.send(site.topic, b"%d" % number, queue_id=0)
    with site.push(
        listener="orderly", fail_first=3, MaxReconsumeTimes=2, SuspendCurrentQueueTimeMillis=50
    ) as push:
        received = push.wait_count(4)
        assert [message.body for message in push.failed] == [b"0"] * 3
        assert [message.body for message in received] == [b"1", b"2", b"3", b"4"]
        (dead,) = dead_letters(site, 1)
    assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"0", site.topic)


def test_delayed_messages_of_an_official_producer_come_in_time(site: JavaSite) -> None:
    with site.push() as push, site.producer() as producer:
        sent = {}
        for number in range(10):
            level = 1 + number % 2
            sent[b"%d" % number] = (level, time.time())
            result = producer.send(site.topic, b"%d" % number, delay_level=level, queue_id=2)
            assert (result.status, result.queue_id) == ("SEND_OK", 2)
        received = push.wait_count(10)
    late_ms = []
    for message in sorted(received, key=lambda one: one.body):
        level, begun_s = sent[message.body]
        assert message.queue_id == 2 and message.topic == site.topic
        late_ms.append(message.store_timestamp - 1000 * begun_s - LEVELS_MS[level - 1])
    print(f"late by {min(late_ms):.0f} to {max(late_ms):.0f} ms, sending included")
    assert min(late_ms) > -2  # times are cut to milliseconds
    for late in (late_ms[::2], late_ms[1::2]):
        assert min(late) < 4000, "as late as by the levels that brokers have by default"


# --------------------------------------------------------------------------------- two brokers


class _Holding(JavaPushConsumer):
    """Fails at everything, but answers only once the test says so."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.held: list[bytes] = []
        self.may_answer = threading.Event()
        super().__init__(*arguments, fail_first=10_000, **options)

    def _take(self, java_messages: Sequence[Any]) -> bool:
        if not self.may_answer.is_set():
            self.held += [one.body for one in self._reader.read(java_messages)]
            assert self.may_answer.wait(DEADLINE_S)
        return super()._take(java_messages)


@pytest.mark.by_turns("version")
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_what_a_broker_cannot_take_back_is_retried_at_the_other(
    version: str, java_client: ClientFactory
) -> None:
    """A broker is away when messages are sent back: their client sends them as new ones."""
    require_peers(version)
    settings = {"delay_levels_ms": LEVELS_MS}
    numbers = {b"%d" % number for number in range(8)}
    with Cluster(broker={"name": "broker-a"}, store_settings=settings) as a:
        other = {"name": "broker-b", "name_servers": (a.name_server,)}
        with Cluster(broker=other, store_settings=settings) as b:
            with BlockingClient(a.name_server) as client:
                for topic in ("T", "%RETRY%g"):
                    admin_of(client).topics.create(topic, queue_count=1)
                queues = client.write_queues("T")
                assert len(queues) == 2
                for number, body in enumerate(sorted(numbers)):
                    client.send(Message("T", body), queues[number % 2])
            with _Holding(
                java_client(version), "g", a.name_server, "T", MaxReconsumeTimes=2
            ) as push:
                wait_for(lambda: len(push.held) == len(numbers), "all are held")
                b.stop_broker()
                push.may_answer.set()
                with Asker(a.broker_address) as broker:
                    # Those of the other broker, too.
                    broker.records(SCHEDULE_TOPIC, len(numbers), LEVELS_MS.index(200))
                b.start_broker()
                with Asker(a.broker_address) as broker:
                    dead = broker.records("%DLQ%g", len(numbers))
                tries = [(one.body, one.reconsume_times) for one in push.failed]
        assert {one.body for one in dead} == numbers
        assert {one.reconsume_times for one in dead} == {3}
        # What was in flight to the broker that stopped may come once more.
        assert set(tries) == {(body, times) for body in numbers for times in range(3)}


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


# ------------------------------------------------------------------------ stores that pass over


def test_waiting_messages_pass_from_broker_to_broker(tmp_path: Path) -> None:
    """Ours, the official one, ours: each message is delivered once, whoever took it."""
    require_peers(VERSION)
    store = tmp_path / "store"
    small = {"mappedFileSizeCommitLog": 1 << 20}
    bodies: list[int] = []

    def send(broker: Asker, count: int, level: int) -> None:
        for _ in range(count):
            bodies.append(len(bodies))
            text = f"DELAY\x01{level}\x02KEYS\x01{bodies[-1]}\x02"
            assert broker.send("T", text).code == ResponseCode.SUCCESS

    def keys(broker: Asker) -> list[int]:
        found = broker.records("T", len(bodies))
        return sorted(int(decode_properties(record.properties)["KEYS"]) for record in found)

    ours = {"segment_bytes": 1 << 20}
    with Cluster(store, store_settings=ours) as cluster, Asker(cluster.broker_address) as broker:
        send(broker, 5, 1)
        assert keys(broker) == bodies
        send(broker, 5, 2)  # five seconds: they wait when the broker stops
    official = RealBroker(VERSION, [], store_dir=store, **small)
    with official, Asker(official.address) as broker:
        assert keys(broker) == bodies
        send(broker, 5, 1)
        assert keys(broker) == bodies
        send(broker, 5, 3)  # ten seconds; the broker may take that long to stop
    table = fastjson.parse((store / "config" / "delayOffset.json").read_text())["offsetTable"]
    assert table.pop("3") in range(6) and table == {"1": 10, "2": 5}
    with Cluster(store, store_settings=ours) as cluster, Asker(cluster.broker_address) as broker:
        assert keys(broker) == bodies
        time.sleep(1.5)  # nothing comes twice
        assert keys(broker) == bodies
