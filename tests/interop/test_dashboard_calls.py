"""What the official dashboard and exporter ask, through the admin client that they are made of.

Of a real cluster and of ours, with the same data; the answers are the same once times, addresses
and counters are masked. There are no jars of the two: their sources say what they call.

Source: rocketmq-dashboard service/impl/*, task/*; rocketmq-exporter MetricsCollectTask.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest
from tests.interop.conftest import require_peers
from tests.interop.java_admin import JavaAdmin
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.java_values import JavaError, call
from tests.interop.jvm import JavaClient
from tests.interop.peers import RealBroker, RealNameServer

from pymq.protocol import fastjson
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

VERSION: Final = "5.3.3"
TOPIC, GROUP, WRITERS = "shown", "showing", "writing"
COUNT: Final = 8
#: Values that differ between any two runs.
MASKED: Final = re.compile(
    r"(?i).*(time|timestamp|timestampstr|addr|version|counter|clientid|tps|size|offset_?id|msgid|bornhost)$"
)


@dataclass(frozen=True, slots=True)
class Site:
    admin: JavaAdmin
    broker: str

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what a call of the admin client says, comparable; an error as its code."""
        try:
            found = call(getattr(self.admin.java, method), *arguments)
        except JavaError as error:
            return error.class_name, error.response_code
        jvm = self.admin.client.jvm
        to_json = jvm.org.apache.rocketmq.remoting.protocol.RemotingSerializable.toJson
        return comparable(fastjson.parse(to_json(found, False)))


def comparable(value: Any) -> Any:
    """Return a parsed answer without order and without what differs between any two runs."""
    if isinstance(value, fastjson.ObjectMap):
        # When a group first commits an offset of its retry topic is a matter of time.
        pairs = [
            [comparable(key), comparable(member)]
            for key, member in value.pairs
            if key.get("topic") != f"%RETRY%{GROUP}"
        ]
        return sorted(pairs, key=json.dumps)
    if isinstance(value, dict):
        return {
            re.sub(r"127\.0\.0\.1:\d+", "<address>", key): (
                "..." if MASKED.fullmatch(key) else comparable(member)
            )
            for key, member in sorted(value.items())
        }
    if isinstance(value, list):
        # 5.3.3 takes a topic for one of its own consumer groups (ConsumerManager.registerConsumer).
        return sorted((comparable(one) for one in value if one != TOPIC), key=json.dumps)
    if isinstance(value, str):
        return re.sub(r"127\.0\.0\.1:\d+", "<address>", value)
    return value


@pytest.fixture(scope="module")
def sites(java_client: Callable[[str], JavaClient]) -> Iterator[tuple[Site, Site]]:
    """The real cluster and ours."""
    require_peers(VERSION)
    client = java_client(VERSION)
    with (
        RealNameServer(VERSION) as name_server,
        RealBroker(VERSION, [name_server.address]) as broker,
        Cluster() as cluster,
        _filled(client, name_server.address, broker.address) as real,
        _filled(client, cluster.name_server, cluster.broker_address) as ours,
    ):
        yield real, ours


@contextmanager
def _filled(client: JavaClient, name_server: str, broker: str) -> Iterator[Site]:
    with JavaAdmin(client, name_server) as admin:
        for topic in (TOPIC, f"%RETRY%{GROUP}"):
            admin.create_topic(topic, 2)
        with JavaProducer(client, WRITERS, name_server) as producer:
            for number in range(COUNT):
                producer.send(TOPIC, b"%d" % number, keys="k", queue_id=number % 2)
        with JavaPushConsumer(client, GROUP, name_server, TOPIC) as consumer:
            consumer.wait_count(COUNT)
            consumer.wait_offsets(COUNT, lambda: admin.committed_count(GROUP, TOPIC))
            yield Site(admin, broker)


#: Methods and arguments; ``{broker}`` is the site's.
CALLS: Final = [
    ("examineBrokerClusterInfo",),
    ("examineTopicStats", TOPIC),
    ("examineTopicStats", "nosuch"),
    ("examineTopicRouteInfo", TOPIC),
    ("examineTopicRouteInfo", "nosuch"),
    ("examineTopicConfig", "{broker}", TOPIC),
    ("queryTopicConsumeByWho", TOPIC),
    ("examineConsumeStats", GROUP),
    ("examineConsumeStats", GROUP, TOPIC),
    ("examineConsumeStats", "nosuch"),
    ("examineConsumerConnectionInfo", GROUP),
    ("examineConsumerConnectionInfo", GROUP, "{broker}"),
    ("examineConsumerConnectionInfo", "nosuch"),
    ("examineProducerConnectionInfo", "nosuch", TOPIC),
    ("examineSubscriptionGroupConfig", "{broker}", GROUP),
    ("queryConsumeTimeSpan", TOPIC, GROUP),
    ("getTopicClusterList", TOPIC),
    ("getClusterList", TOPIC),
    ("viewBrokerStatsData", "{broker}", "TOPIC_PUT_NUMS", "nosuch"),
    ("viewBrokerStatsData", "{broker}", "SNDBCK_PUT_NUMS", f"{TOPIC}@{GROUP}"),
    ("getKVListByNamespace", "nosuch"),
]


@pytest.mark.parametrize("called", CALLS, ids=lambda called: "-".join(called))
def test_a_call_is_answered_as_by_rocketmq(
    called: tuple[str, ...], sites: tuple[Site, Site]
) -> None:
    method, *arguments = called
    real, ours = (
        site.ask(method, *(one.format(broker=site.broker) for one in arguments)) for site in sites
    )
    assert ours == real


#: What the exporter reads of a broker's state, each as a number, or fails.
NUMBERS: Final = """
    msgPutTotalTodayNow msgGetTotalTodayNow msgPutTotalTodayMorning msgGetTotalTodayMorning
    msgPutTotalYesterdayMorning msgGetTotalYesterdayMorning sendThreadPoolQueueHeadWaitTimeMills
    queryThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills
    queryThreadPoolQueueSize pullThreadPoolQueueSize sendThreadPoolQueueCapacity
    pullThreadPoolQueueCapacity commitLogMinOffset commitLogMaxOffset bootTimestamp brokerVersion
    dispatchMaxBuffer consumeQueueDiskRatio commitLogDiskRatio pageCacheLockTimeMills
    getMessageEntireTimeMax putMessageTimesTotal sendThreadPoolQueueSize
    startAcceptSendRequestTimeStamp putMessageEntireTimeMax earliestMessageTimeStamp
    remainTransientStoreBufferNumbs queryThreadPoolQueueCapacity putMessageAverageSize
    putMessageSizeTotal dispatchBehindBytes putLatency99 putLatency999
"""
RATES: Final = ("putTps", "getMissTps", "getTransferredTps", "getTotalTps", "getFoundTps")


def test_the_exporter_can_read_the_state_of_a_broker(sites: tuple[Site, Site]) -> None:
    for site in sites:
        state = site.admin.broker_state(site.broker)
        is_new = site is sites[0]  # an official broker lacks some of it until it has run a while
        for name in NUMBERS.split():
            assert float(state[name]) >= -1, name
        for name in RATES:
            rates = [float(rate) for rate in state[name].split()]
            assert len(rates) == 3 or (is_new and len(rates) < 3)
        assert float(state["remainHowManyDataToFlush"].split(" ")[0]) >= 0
        assert re.fullmatch(r"Total : \S+ \S+, Free : \S+ \S+\.", state["commitLogDirCapacity"])
        for part in state["putMessageDistributeTime"].split(" "):
            assert re.fullmatch(r"\[?[^:]+:\d+\]?", part) or (is_new and part == "null"), part
        for name, value in state.items():
            if name.startswith("scheduleMessageOffset"):
                assert len(list(map(int, value.split(",")))) == 2
