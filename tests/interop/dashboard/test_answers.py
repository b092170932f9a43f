"""What the dashboard and the exporter read is the same at a real cluster and at ours."""

from __future__ import annotations

import re
from typing import Final

import pytest
from tests.interop.dashboard.sites import GROUP, TOPIC, Site

pytestmark = pytest.mark.interop

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
    real, ours = (site.ask(method, *arguments) for site in sites)
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
            assert re.fullmatch(r"\[?[^:]+:\d+\]?", part) or (is_new and part in ("null", "")), part
        for name, value in state.items():
            if name.startswith("scheduleMessageOffset"):
                assert len(list(map(int, value.split(",")))) == 2
