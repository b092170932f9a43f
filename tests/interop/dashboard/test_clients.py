"""What the dashboard has consumers do, and what clients see when it takes their topic away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest
from tests.interop.dashboard.sites import GROUP, TOPIC, Scene, Site, differences
from tests.interop.java_client import JavaLitePullConsumer, JavaProducer, JavaPushConsumer
from tests.interop.java_values import JavaError, Outgoing, call, java_message, map_items, sent
from tests.interop.jvm import JavaClient
from tests.interop.processes import POLL_INTERVAL_S

pytestmark = pytest.mark.interop

#: The threads of the official client put their tracks into one list, and no lock keeps them from
#: losing some (DefaultMQAdminExtImpl.messageTrackDetailConcurrent).
TRACK_TRIES = 10
SETTLE_S: Final = 120.0


def asked_of_members(site: Site) -> Iterator[tuple[str, Any]]:
    client_id = str(site.consumer.java.buildMQClientId())
    for group in (GROUP, "nosuch", ""):
        for name, member in (("member", client_id), ("nobody", "nobody"), ("", ""), ("null", None)):
            for stacks in (False, True):
                found = site.ask("getConsumerRunningInfo", group, member, stacks)
                if isinstance(found, dict):
                    found["jstack"] = "Consume" in (found.get("jstack") or "")
                yield f"running {group} {name} {stacks}", found
            for topic in (TOPIC, "nosuch"):
                label = f"status {group} {name} {topic}"
                yield label, site.ask("getConsumeStatus", topic, group, member)
            for kind, message in (
                ("offset id", site.sent[3].offset_msg_id),
                ("unique", site.sent[3].msg_id),
                ("none", "7F0000010000887F0000000000FF2094"),
                ("bad", "nonsense"),
            ):
                label = f"consume {group} {name} {kind}"
                yield label, site.ask("consumeMessageDirectly", group, member, TOPIC, message)
    yield "consumed", len(site.consumer.messages)


def messages(site: Site) -> Iterator[tuple[str, Any]]:
    for topic in (TOPIC, "nosuch", ""):
        for kind, name in (
            ("offset id", site.sent[3].offset_msg_id),
            ("unique", site.sent[3].msg_id),
            ("none", "7F0000010000887F0000000000FF2094"),
            ("bad", "nonsense"),
            ("empty", ""),
        ):
            yield f"view {topic} {kind}", site.ask("viewMessage", topic, name)
        for key in ("k", "nosuch", ""):
            for count in (64, 2, 0, -1):
                label = f"query {topic} {key} {count}"
                found = site.ask("queryMessage", topic, key, count, 0, (1 << 63) - 1)
                yield label, found
        for group in (GROUP, "nosuch"):
            yield f"span {topic} {group}", site.ask("queryConsumeTimeSpan", topic, group)


def _known(tracks: list[dict[str, Any]], groups: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the tracks that can be compared.

    5.3.3 takes a topic for one of its own consumer groups, and misses groups online that have no
    offset, as in broadcasting (ConsumerManager.registerConsumer).
    """
    return [
        one for one in tracks if one["consumerGroup"] in groups and one["consumerGroup"] != "spread"
    ]


def tracks(site: Site) -> Iterator[tuple[str, Any]]:
    name_server, client = site.name_server, site.client
    topic = "tracked"
    site.admin.create_topic(topic, 1)
    groups = ("all", "some", "stopped", "stuck", "spread", "pulled")
    for group in groups:
        site.admin.create_topic(f"%RETRY%{group}", 1)
    with ExitStack() as stack:
        producer = stack.enter_context(JavaProducer(client, "tracking", name_server))
        stored = producer.send(topic, b"x", tags="a", keys="one")
        with JavaPushConsumer(client, "stopped", name_server, topic) as stopped:
            stopped.wait_count(1)
            stopped.wait_offsets(1, lambda: site.admin.committed_count("stopped", topic))
        started = [
            stack.enter_context(JavaPushConsumer(client, group, name_server, topic, tags, **kind))
            for group, tags, kind in (
                ("all", "*", {}),
                ("some", "b", {}),
                ("spread", "*", {"message_model": "BROADCASTING"}),
                ("stuck", "*", {"listener": "orderly", "fail_first": 1 << 30}),
            )
        ]
        pulled = stack.enter_context(JavaLitePullConsumer(client, "pulled", name_server, topic))
        pulled.poll_count(1)
        (queue,) = pulled.queues().values()
        for group, at in (("stuck", 0), ("pulled", 1)):
            yield f"{group} at {at}", site.ask("updateConsumeOffset", "{broker}", group, queue, at)
        for consumer, group in zip(started[:2], ("all", "some"), strict=True):
            consumer.wait_offsets(1, lambda group=group: site.admin.committed_count(group, topic))
        # Not for the group that broadcasts: its client may have to wait 30 s for a heartbeat of its
        # own, one that it skipped while another was under way (SUBSCRIPTION_NOT_LATEST).
        for name in (stored.msg_id, stored.offset_msg_id):
            message = call(site.admin.java.viewMessage, topic, name)
            found = _known(site.ask("messageTrackDetail", message), groups)
            yield f"tracks of {len(name)}", found
            for _ in range(TRACK_TRIES):
                together = _known(site.ask("messageTrackDetailConcurrent", message), groups)
                if len(together) == len(found):
                    break
            yield f"tracks together of {len(name)}", together
        for group in groups:
            yield f"spans of {group}", site.ask("queryConsumeTimeSpan", topic, group)
            yield f"connection of {group}", site.ask("examineConsumerConnectionInfo", group)
            for at in (0, -1):
                yield (
                    f"reset {group} {at}",
                    site.ask("resetOffsetByTimestamp", topic, group, at, True),
                )
        found = site.ask("queryTopicConsumeByWho", topic)["groupList"]
        yield "consumed by", [one for one in found if one != topic]


def _assigned(consumer: JavaPushConsumer, topic: str) -> list[int]:
    table = consumer.java.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable()
    return sorted(queue.getQueueId() for queue, _ in map_items(table) if queue.getTopic() == topic)


def _settled(probe: Callable[[], Any], wanted: Any) -> Any:
    """Ask until the answer is the one expected, or for ``SETTLE_S``; return the last one."""
    deadline = time.monotonic() + SETTLE_S
    while (found := probe()) != wanted and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
    return found


def twins(site: Site, second: JavaClient) -> Iterator[tuple[str, Any]]:
    topic, group = "shared", "twins"
    admin = site.admin
    admin.create_topic(topic, 2)
    admin.create_topic(f"%RETRY%{group}", 1)
    options = {"InstanceName": f"interop-{site.broker.split(':')[1]}-0"}
    with JavaPushConsumer(site.client, group, site.name_server, topic, **options) as one:
        yield "alone", _settled(lambda: _assigned(one, topic), [0, 1])
        with JavaPushConsumer(second, group, site.name_server, topic, **options) as two:
            ids = [str(it.java.buildMQClientId()) for it in (one, two)]
            yield "the same id", ids[0] == ids[1]
            wanted = [0] if site.is_real else [0, 1]
            yield "first", _settled(lambda: _assigned(one, topic), wanted)
            yield "second", _settled(lambda: _assigned(two, topic), wanted)
            yield "connections", site.ask("examineConsumerConnectionInfo", group)
            found = site.ask("getConsumerRunningInfo", group, ids[0], False)
            yield "running", sorted(found) if isinstance(found, dict) else found
            one.close()
            yield "left", _settled(lambda: _assigned(two, topic), [0, 1])
            yield "connections left", site.ask("examineConsumerConnectionInfo", group)


def taken_away(site: Site) -> Iterator[tuple[str, Any]]:
    topic, group = "doomed", "dooming"
    admin = site.admin
    admin.create_topic(topic, 2)
    admin.create_topic(f"%RETRY%{group}", 1)
    with (
        JavaProducer(site.client, "doomers", site.name_server) as producer,
        JavaPushConsumer(site.client, group, site.name_server, topic) as consumer,
    ):
        # Looked up once: the name server will forget the topic.
        queues = {
            queue.getQueueId(): queue
            for queue in call(producer.java.fetchPublishMessageQueues, topic)
        }

        def send(number: int) -> Any:
            message = java_message(site.client, Outgoing(topic, b"%d" % number))
            try:
                result = sent(call(producer.java.send, message, queues[number % 2]))
            except JavaError as error:
                return error.class_name, error.response_code
            return result.status, result.queue_offset

        def bodies() -> list[bytes]:
            return sorted(one.body for one in consumer.messages)

        for number in range(2):
            yield f"sent {number}", send(number)
        consumer.wait_count(2)
        consumer.wait_offsets(2, lambda: admin.committed_count(group, topic))
        yield "group deleted", site.ask("deleteSubscriptionGroup", "{broker}", group, True)
        for number in range(2, 4):
            yield f"sent {number}", send(number)
        yield "consumed without a group", _settled(bodies, [b"0", b"1", b"2", b"3"])
        consumer.wait_offsets(4, lambda: admin.committed_count(group, topic))
        yield "group again", site.ask("examineSubscriptionGroupConfig", "{broker}", group)
        yield "at", site.ask("examineConsumeStats", group, topic)
        yield "connection", site.ask("examineConsumerConnectionInfo", group)
        admin.delete_topic(topic)
        yield "topic gone", site.ask("examineTopicConfig", "{broker}", topic)
        call(consumer.java.getDefaultMQPushConsumerImpl().persistConsumerOffset)
        yield "at nothing", site.ask("examineConsumeStats", group, topic)
        for number in range(4, 12):
            yield f"sent {number}", send(number)
        yield "topic again", site.ask("examineTopicConfig", "{broker}", topic)
        # The queues begin at 0 again, and the consumer goes on where it was, at 2 in each, or where
        # they ended when it heard of them: what came before is lost to it.
        yield "consumed again", _settled(lambda: {b"10", b"11"} <= set(bodies()), True)
        consumer.wait_offsets(8, lambda: admin.committed_count(group, topic))
        yield "at last", site.ask("examineConsumeStats", group, topic)


SCENES: Final[list[Scene]] = [asked_of_members, messages, tracks, taken_away]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_clients_are_asked_as_by_rocketmq(
    scene: Scene, sites: tuple[Site, Site], caplog: pytest.LogCaptureFixture
) -> None:
    found = differences(scene, sites)
    assert found == {}
    assert [one.message for one in caplog.records if one.exc_info] == []


def test_two_consumers_of_one_client_id(sites: tuple[Site, Site]) -> None:
    with JavaClient(sites[0].client.version) as second:
        found = differences(lambda site: twins(site, second), sites)
    # RocketMQ lists the id twice, each takes the first half of the queues, and nobody the other.
    assert found == {"first": ([0], [0, 1]), "second": ([0], [0, 1])}
