"""Transactions of official producers, on our broker and on official ones: nobody can tell."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pytest
from tests.interop.conftest import require_peers, some
from tests.interop.java_client import JavaPushConsumer
from tests.interop.java_scenarios import AdminFactory, ClientFactory
from tests.interop.java_transactions import (
    JavaTransactionProducer,
    stored_records,
    wait_until,
)
from tests.interop.java_values import ReceivedMessage
from tests.interop.peers import RealBroker, RealNameServer

from pymq.protocol.message import decode_properties
from pymq.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_OP_TOPIC, HALF_TOPIC
from pymq.protocol.record import Record
from pymq.protocol.transaction_records import closed_offsets
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

#: Short times, the same for both brokers, ms.
TIMEOUT_MS: Final = 1_000
INTERVAL_MS: Final = 1_000
CHECK_MAX: Final = 3
#: Every outcome: the answers of a producer, how often it is asked, is it delivered?
OUTCOMES: Final = {
    "commit": (0, True),
    "rollback": (0, False),
    "unknown,commit": (1, True),
    "unknown,rollback": (1, False),
    "throw,commit": (1, True),
    "unknown,unknown,commit": (2, True),
    "unknown": (CHECK_MAX, False),
}
T = TypeVar("T", Record, ReceivedMessage)


@dataclass(frozen=True, slots=True)
class Site:
    """A broker and how to reach it."""

    name_server: str
    address: str
    is_ours: bool


@pytest.fixture(scope="module")
def ours() -> Iterator[Site]:
    settings = {
        "transaction_timeout_ms": TIMEOUT_MS,
        "transaction_check_interval_ms": INTERVAL_MS,
        "transaction_check_max": CHECK_MAX,
    }
    with Cluster(broker=settings) as cluster:
        yield Site(cluster.name_server, cluster.broker_address, is_ours=True)


@pytest.fixture(scope="module")
def real() -> Iterator[Callable[[str], Site]]:
    """Return ``real(version)``: an official broker that checks as often as ours."""
    sites: dict[str, Site] = {}
    with ExitStack() as stack:

        def make(version: str) -> Site:
            if version not in sites:
                require_peers(version)
                name_server = stack.enter_context(RealNameServer(version))
                broker = RealBroker(
                    version,
                    [name_server.address],
                    transactionTimeOut=TIMEOUT_MS,
                    transactionCheckInterval=INTERVAL_MS,
                    transactionCheckMax=CHECK_MAX,
                    # After 3 s as by default, it would also check what has ended.
                    transactionOpBatchInterval=100,
                )
                stack.enter_context(broker)
                sites[version] = Site(name_server.address, broker.address, is_ours=False)
            return sites[version]

        yield make


def play(site: Site, client: Any, admin: Any) -> dict[str, Any]:
    """Send one message of every outcome; return everything that can be seen of them."""
    topic = f"trans-{uuid.uuid4().hex[:8]}"
    group = f"producer-{topic}"
    admin.create_topic(topic, 1)
    keys: dict[str, str] = {}
    with (
        JavaTransactionProducer(client, group, site.name_server) as producer,
        JavaPushConsumer(client, f"group-{topic}", site.name_server, topic) as consumer,
    ):
        for number, answers in enumerate(OUTCOMES):
            result = producer.send(topic, answers.encode(), answers, tags="a", flag=number)
            assert result.status == "SEND_OK"
            keys[result.msg_id] = answers
        delivered = {name.encode() for name, (_, visible) in OUTCOMES.items() if visible}
        wait_until(lambda: delivered <= {one.body for one in consumer.messages}, "delivered")
        expected = Counter({name: count for name, (count, _) in OUTCOMES.items() if count})

        def asked() -> Counter[str]:
            return Counter(keys[one.properties["UNIQ_KEY"]] for one in producer.checked)

        wait_until(lambda: expected <= asked(), "asked about")

        def discarded() -> list[Record]:
            found = stored_records(site.address, CHECK_MAX_TIME_TOPIC)
            return [one for one in found if key_of(one) in keys]

        wait_until(lambda: bool(discarded()), "discarded")
        assert asked()["unknown"] == CHECK_MAX
        assert {one.body for one in consumer.messages} == delivered
        halves = [one for one in stored_records(site.address, HALF_TOPIC) if key_of(one) in keys]
        committed = stored_records(site.address, topic)
        closed = {
            offset
            for op in stored_records(site.address, HALF_OP_TOPIC)
            for offset in closed_offsets(op)
        }
        if site.is_ours:
            check_ended(committed, producer.checked)
        first_of_each = firsts(committed, lambda _: 1)
        return {
            "consumed": [seen(one, keys) for one in firsts(consumer.messages, lambda _: 1)],
            "checked": [seen(one, keys) for one in firsts(producer.checked, times_asked)],
            "half": [
                shown(one, keys) for one in firsts(halves, lambda body: 1 + times_asked(body))
            ],
            "committed": [shown(one, keys) for one in first_of_each],
            "prepared at": [
                {half.physical_offset: half.body for half in halves}.get(
                    one.prepared_transaction_offset
                )
                for one in first_of_each
            ],
            "discarded": [shown(one, keys) for one in discarded()],
            "ended": sorted({one.body.decode() for one in halves if one.queue_offset in closed}),
        }


def key_of(record: Record) -> str:
    return decode_properties(record.properties).get("UNIQ_KEY", "")


def times_asked(body: bytes) -> int:
    """Return how often a producer is asked about an outcome, if it answers in time."""
    return OUTCOMES[body.decode()][0]


def firsts(found: Iterable[T], count: Callable[[bytes], int]) -> list[T]:
    """Return the first of each outcome, in order: brokers ask again for answers that are late."""
    kept: list[T] = []
    seen: Counter[bytes] = Counter()
    for one in sorted(found, key=lambda one: (one.body, one.queue_offset)):
        seen[one.body] += 1
        if one.body == b"unknown" or seen[one.body] <= count(one.body):
            kept.append(one)
    return kept


def check_ended(committed: list[Record], checked: list[ReceivedMessage]) -> None:
    """Nothing is committed twice, or asked about once it is committed."""
    ends = {one.body: one.store_timestamp for one in committed}
    assert len(ends) == len(committed)
    late = [one for one in checked if one.store_timestamp > ends.get(one.body, 1 << 62)]
    assert not late


def masked(properties: dict[str, str], keys: dict[str, str]) -> dict[str, str]:
    """Return properties without what differs from run to run."""
    known = dict(properties)
    for name in ("UNIQ_KEY", "__transactionId__"):
        if name in known:
            known[name] = keys[known[name]]
    for name in ("REAL_TOPIC", "PGROUP"):
        if name in known:
            known[name] = known[name].partition("-")[0]
    return known


def shown(record: Record, keys: dict[str, str]) -> dict[str, Any]:
    return {
        "topic": record.topic.partition("-")[0],
        "queue_id": record.queue_id,
        "body": record.body,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "properties": masked(decode_properties(record.properties), keys),
    }


def seen(message: ReceivedMessage, keys: dict[str, str]) -> dict[str, Any]:
    dropped = ("MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME")
    known = {name: text for name, text in message.properties.items() if name not in dropped}
    return {
        "topic": message.topic.partition("-")[0],
        "queue_id": message.queue_id,
        "body": message.body,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "properties": masked(known, keys),
    }


def as_ours(play: dict[str, Any]) -> dict[str, Any]:
    """Return what an official broker shows without what is known to differ."""
    numbers = {name.encode(): number for number, name in enumerate(OUTCOMES)}
    shown: list[dict[str, Any]] = []
    for kind in ("consumed", "checked", "half", "committed", "discarded"):
        shown += play[kind]
    for one in shown:
        # Copies of half messages lose the flag in RocketMQ.
        one["flag"] = numbers[one["body"]]
        # Since 5.0 brokers add them when a message is sent, and when they park it.
        added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        added["__transactionId__"] = one["properties"]["UNIQ_KEY"]
        one["properties"] = added | one["properties"]
    # RocketMQ does not record that it has discarded a message.
    if "ended" in play:
        play["ended"] = sorted({*play["ended"], "unknown"})
    return play


@pytest.mark.parametrize("version", [*some([("4.9.7",)]), "5.3.3"])
def test_nobody_can_tell_our_transactions_from_official_ones(
    version: str,
    ours: Site,
    real: Callable[[str], Site],
    java_client: ClientFactory,
    java_admin: AdminFactory,
) -> None:
    official, client = real(version), java_client(version)
    with ThreadPoolExecutor(2) as threads:
        plays = [
            threads.submit(play, site, client, java_admin(version, site.name_server))
            for site in (official, ours)
        ]
        expected, found = (one.result() for one in plays)
    if version.startswith("4."):
        del expected["ended"]  # it does not show the topic
    for name in expected:
        assert found[name] == as_ours(expected)[name], name


@pytest.mark.parametrize("version", [*some([("4.5.1",), ("5.4.0",)]), "4.9.7"])
def test_every_outcome_with_other_clients(
    version: str, ours: Site, java_client: ClientFactory, java_admin: AdminFactory
) -> None:
    play(ours, java_client(version), java_admin(version, ours.name_server))
