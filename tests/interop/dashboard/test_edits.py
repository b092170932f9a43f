"""What the dashboard changes: each call is answered as by RocketMQ, and leaves the same state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from tests.interop.dashboard.sites import GROUP, TOPIC, Scene, Site, differences

pytestmark = pytest.mark.interop

_LONG: Final = "n" * 128


def _topic(site: Site, name: str, **options: Any) -> Any:
    config = site.client.jvm.org.apache.rocketmq.common.TopicConfig(name, 2, 2, 6)
    for key, value in options.items():
        getattr(config, "set" + key)(value)
    return config


def _attributes(site: Site, **attributes: str) -> Any:
    made = site.client.jvm.java.util.HashMap()
    for key, value in attributes.items():
        made.put(key.replace("_", ".").replace("plus", "+").replace("minus", "-"), value)
    return made


def _set(site: Site, *items: str) -> Any:
    made = site.client.jvm.java.util.HashSet()
    for item in items:
        made.add(item)
    return made


def topics(site: Site) -> Iterator[tuple[str, Any]]:
    put, show = "createAndUpdateTopicConfig", ("examineTopicConfig", "{broker}")
    steps: list[tuple[str, str, dict[str, Any]]] = [
        ("made", "t1", {}),
        ("more queues", "t1", {"ReadQueueNums": 5, "WriteQueueNums": 4}),
        ("fewer queues", "t1", {"ReadQueueNums": 1, "WriteQueueNums": 1}),
        ("no queues", "t1", {"ReadQueueNums": 0, "WriteQueueNums": 0}),
        ("refused: negative queues", "t1", {"ReadQueueNums": -1, "WriteQueueNums": -1}),
        ("read only", "t1", {"Perm": 4}),
        ("no permission", "t1", {"Perm": 0}),
        ("odd permission", "t1", {"Perm": 9}),
        ("ordered", "t1", {"Order": True}),
        ("flags", "t1", {"TopicSysFlag": 3}),
        ("fifo", "t2", {"Attributes": {"plusmessage_type": "FIFO"}}),
        ("fifo again, without attributes", "t2", {}),
        ("delay", "t2", {"Attributes": {"plusmessage_type": "DELAY"}}),
        ("no type", "t2", {"Attributes": {"minusmessage_type": ""}}),
        ("no such attribute", "t2", {"Attributes": {"plusno_such": "1"}}),
        ("no sign", "t2", {"Attributes": {"message_type": "FIFO"}}),
        ("no such type", "t3", {"Attributes": {"plusmessage_type": "nonsense"}}),
        ("bad name", "t^4", {}),
        ("blank name", " ", {}),
        ("empty name", "", {}),
        ("no name", None, {}),
        ("long name", _LONG, {}),
        ("name of RocketMQ", "TBW102", {}),
        ("name of the schedule", "SCHEDULE_TOPIC_XXXX", {}),
        ("name of the cluster", "DefaultCluster", {}),
        ("retry topic", "%RETRY%t5", {}),
        ("dead letters", "%DLQ%t5", {"Perm": 2}),
        ("chinese", "主题", {}),
    ]
    for label, name, options in steps:
        if "Attributes" in options:
            options = options | {"Attributes": _attributes(site, **options["Attributes"])}
        yield label, site.ask(put, "{broker}", _topic(site, name, **options))
        if not label.startswith("refused"):
            yield f"{label}: kept", site.ask(*show, name)
    yield "at nobody", site.ask(put, "127.0.0.1:1", _topic(site, "t6"))
    brokers, servers = _set(site, site.broker), _set(site, site.name_server)
    for name in ("t1", "t2", "t1", "nosuch", "t^4", "", "TBW102", "SCHEDULE_TOPIC_XXXX"):
        for where, at in (("Broker", brokers), ("NameServer", servers)):
            label = "refused: " * (name == "t^4" and where == "Broker")
            yield f"{label}delete {name} in {where}", site.ask(f"deleteTopicIn{where}", at, name)
        yield f"deleted {name}", site.ask(*show, name)
        yield f"route of {name}", site.ask("examineTopicRouteInfo", name)
    yield "delete at nobody", site.ask("deleteTopicInBroker", _set(site, "127.0.0.1:1"), "t2")


def _group(site: Site, name: str | None, **options: Any) -> Any:
    package = site.client.jvm.org.apache.rocketmq.remoting.protocol.subscription
    config = package.SubscriptionGroupConfig()
    config.setGroupName(name)
    for key, value in options.items():
        getattr(config, "set" + key)(value)
    return config


def groups(site: Site) -> Iterator[tuple[str, Any]]:
    put, show = "createAndUpdateSubscriptionGroupConfig", "examineSubscriptionGroupConfig"
    steps: list[tuple[str, str | None, dict[str, Any]]] = [
        ("made", "g1", {}),
        ("changed", "g1", {"RetryMaxTimes": 3, "RetryQueueNums": 4, "ConsumeEnable": False}),
        ("negative retries", "g1", {"RetryMaxTimes": -1}),
        ("negative queues", "g1", {"RetryQueueNums": -1}),
        ("orderly", "g1", {"ConsumeMessageOrderly": True, "ConsumeTimeoutMinute": 1}),
        ("attributes", "g2", {"Attributes": {"pluspriority_factor": "50"}}),
        ("no such attribute", "g2", {"Attributes": {"plusno_such": "50"}}),
        ("refused: bad name", "g^1", {}),
        ("refused: blank", " ", {}),
        ("refused: empty", "", {}),
        ("no name", None, {}),
        ("refused: long", "g" * 121, {}),
        ("as long as can be", "g" * 120, {}),
        ("of RocketMQ", "TOOLS_CONSUMER", {}),
        ("of RocketMQ 2", "CID_RMQ_SYS_x", {}),
    ]
    for label, name, options in steps:
        if "Attributes" in options:
            options = options | {"Attributes": _attributes(site, **options["Attributes"])}
        yield label, site.ask(put, "{broker}", _group(site, name, **options))
        if not label.startswith("refused"):
            yield f"{label}: kept", site.ask(show, "{broker}", name)
    for clean in (True, False):
        name = f"committed-{clean}"
        yield f"{name} made", site.ask(put, "{broker}", _group(site, name))
        queue = site.client.jvm.org.apache.rocketmq.common.message.MessageQueue(
            TOPIC, "broker-a", 1
        )
        yield f"{name} committed", site.ask("updateConsumeOffset", "{broker}", name, queue, 3)
        yield f"{name} at", site.ask("examineConsumeStats", name)
        yield f"{name} deleted", site.ask("deleteSubscriptionGroup", "{broker}", name, clean)
        yield f"{name} gone", site.ask(show, "{broker}", name)
        yield f"{name} at 2", site.ask("examineConsumeStats", name)
        yield f"{name} consumed by", site.ask("queryTopicConsumeByWho", TOPIC)
        yield f"{name} topics", site.ask("queryTopicsByConsumer", name)
        yield f"{name} made again", site.ask(put, "{broker}", _group(site, name))
        yield f"{name} at 3", site.ask("examineConsumeStats", name)
    yield "delete without", site.ask("deleteSubscriptionGroup", "{broker}", "committed-False")
    for name in ("nosuch", "", "g^1", "TOOLS_CONSUMER"):
        yield f"delete {name}", site.ask("deleteSubscriptionGroup", "{broker}", name, True)
    yield "at nobody", site.ask("deleteSubscriptionGroup", "127.0.0.1:1", "g1", True)


def offsets(site: Site) -> Iterator[tuple[str, Any]]:
    make = "createAndUpdateSubscriptionGroupConfig"
    queue_class = site.client.jvm.org.apache.rocketmq.common.message.MessageQueue
    queue = queue_class(TOPIC, "broker-a", 1)
    stats = ("examineConsumeStats",)
    for name in ("off1", "off2", "off3"):
        yield f"{name} made", site.ask(make, "{broker}", _group(site, name))
    for offset in (2, 0, 4, 100):
        yield f"to {offset}", site.ask("updateConsumeOffset", "{broker}", "off1", queue, offset)
        yield f"at {offset}", site.ask(*stats, "off1", TOPIC)
    for offset in (-1, -5):
        label = f"refused: to {offset}"
        yield label, site.ask("updateConsumeOffset", "{broker}", "off1", queue, offset)
    yield "back to 1", site.ask("updateConsumeOffset", "{broker}", "off1", queue, 1)
    for topic, number in (("nosuch", 0), (TOPIC, 7), (TOPIC, -1)):
        refused = "refused: " * (number < 0)
        other = queue_class(topic, "broker-a", number)
        yield (
            f"{refused}of {topic} {number}",
            site.ask("updateConsumeOffset", "{broker}", "off1", other, 1),
        )
    yield "of nosuch", site.ask("updateConsumeOffset", "{broker}", "nosuch", queue, 1)
    yield "at last", site.ask(*stats, "off1")
    yield "back to 2", site.ask("updateConsumeOffset", "{broker}", "off1", queue, 2)
    for source, target, topic, offline in (
        ("off1", "off2", TOPIC, True),
        ("off1", "off3", TOPIC, False),
        (GROUP, "off3", TOPIC, False),
        ("nosuch", "off3", TOPIC, True),
        ("off1", "nosuch", TOPIC, True),
        ("off1", "off3", "nosuch", True),
        ("off1", "off3", "", True),
        ("off1", "off3", None, True),
    ):
        label = f"clone {source} {target} {topic} {offline}"
        yield label, site.ask("cloneGroupOffset", source, target, topic, offline)
        yield f"{label}: at", site.ask(*stats, target)
        yield f"{label}: topics", site.ask("queryTopicsByConsumer", target)
    time_ms = site.client.jvm.java.lang.System.currentTimeMillis
    for group in ("off1", "off2", "nosuch", GROUP):
        for topic in (TOPIC, "nosuch"):
            for label, at, force in (
                ("0", 0, True),
                ("0 gently", 0, False),
                ("now", time_ms(), True),
                ("later", time_ms() + 3_600_000, False),
                ("-1", -1, True),
                ("-2", -2, True),
            ):
                name = f"{group} {topic} to {label}"
                yield name, site.ask("resetOffsetByTimestamp", topic, group, at, force)
                yield (
                    f"{name} c++",
                    site.ask("resetOffsetByTimestamp", topic, group, at, force, True),
                )
                yield f"{name} old", site.ask("resetOffsetByTimestampOld", group, topic, at, force)
                yield f"{name} new", site.ask("resetOffsetNew", group, topic, at)
                if group != GROUP:
                    yield f"{name}: at", site.ask(*stats, group)


def by_queue(site: Site) -> Iterator[tuple[str, Any]]:
    for group in ("off1", GROUP, "nosuch"):
        for topic, number, offset in (
            (TOPIC, 1, 1),
            (TOPIC, 1, 5),
            (TOPIC, 1, 6),
            (TOPIC, 1, -1),
            (TOPIC, 1, -2),
            (TOPIC, 9, 0),
            ("nosuch", 0, 0),
        ):
            # It commits the offset first, and then has the broker reset the group.
            refused = "refused: " * (offset == -1 and group != "nosuch")
            label = f"{refused}{group} {topic} {number} {offset}"
            yield label, site.ask("resetOffsetByQueueId", "{broker}", group, topic, number, offset)
            if group != GROUP and not refused:
                yield f"{label}: at", site.ask("examineConsumeStats", group)


def settings(site: Site) -> Iterator[tuple[str, Any]]:
    show = "getKVConfig"
    for name, put in (("a", "createAndUpdateKvConfig"), ("b", "putKVConfig")):
        yield f"{put}", site.ask(put, "space", name, "1")
        yield f"{put} again", site.ask(put, "space", name, "2")
        yield f"{put}: kept", site.ask(show, "space", name)
        yield f"{put} nothing", site.ask(put, "space", name, "")
        yield f"{put} nothing: kept", site.ask(show, "space", name)
        yield f"refused: {put} null", site.ask(put, "other", name, None)
    yield "all", site.ask("getKVListByNamespace", "space")
    for key in ("a", "a", "nosuch"):
        yield f"delete {key}", site.ask("deleteKvConfig", "space", key)
        yield f"deleted {key}", site.ask(show, "space", key)
    yield "delete of nosuch", site.ask("deleteKvConfig", "nosuch", "a")
    yield "left", site.ask("getKVListByNamespace", "space")
    yield "delete b", site.ask("deleteKvConfig", "space", "b")
    yield "none left", site.ask("getKVListByNamespace", "space")
    yield "order", site.ask("createOrUpdateOrderConf", "ordered", "broker-a:2", False)
    yield "order in cluster", site.ask("createOrUpdateOrderConf", "ordered2", "broker-a:2", True)
    yield "order bad", site.ask("createOrUpdateOrderConf", "ordered", "nonsense", False)
    yield "orders", site.ask("getKVListByNamespace", "ORDER_TOPIC_CONFIG")
    for key in ("ordered", "ordered2"):
        yield f"no order {key}", site.ask("deleteKvConfig", "ORDER_TOPIC_CONFIG", key)
    for method in ("wipeWritePermOfBroker", "wipeWritePermOfBroker", "addWritePermOfBroker"):
        for name in ("broker-a", "nosuch", ""):
            found = site.ask(method, site.name_server, name)
            yield f"{method} {name}", found if isinstance(found, tuple) else found > 0
        yield f"{method}: route", site.ask("examineTopicRouteInfo", TOPIC)
    properties = site.client.jvm.java.util.Properties()
    properties.put("nosuchKey", "1")
    yield "refused: broker", site.ask("updateBrokerConfig", "{broker}", properties)
    yield "refused: name server", site.ask("updateNameServerConfig", properties, None)
    for method, arguments in (
        ("cleanExpiredConsumerQueue", ("DefaultCluster",)),
        ("cleanExpiredConsumerQueue", ("nosuch",)),
        ("cleanExpiredConsumerQueueByAddr", ("{broker}",)),
        ("cleanUnusedTopic", ("DefaultCluster",)),
        ("cleanUnusedTopic", ("nosuch",)),
        ("cleanUnusedTopicByAddr", ("{broker}",)),
        ("deleteExpiredCommitLog", ("DefaultCluster",)),
        ("deleteExpiredCommitLogByAddr", ("127.0.0.1:1",)),
    ):
        yield f"{method} {arguments}", site.ask(method, *arguments)
    yield "after all", site.ask("examineTopicStats", TOPIC)


SCENES: Final[list[Scene]] = [topics, groups, offsets, by_queue, settings]


#: What RocketMQ takes, and we do not: names that no client may use, negative numbers, no value.
#: Settings that have no effect.
REFUSED: Final = {
    ("MQClientException", 1),
    ("MQClientException", 16),
    ("MQClientException", 29),
    ("MQBrokerException", 1),
    ("MQBrokerException", 16),
}


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_changes_are_answered_and_done_as_by_rocketmq(
    scene: Scene, sites: tuple[Site, Site]
) -> None:
    found = differences(scene, sites)
    refused = {step: found.pop(step)[1] for step in list(found) if step.startswith("refused: ")}
    assert found == {}
    assert set(refused.values()) <= REFUSED
