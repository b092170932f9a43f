"""The official admin tool's client (what ``mqadmin`` is made of), for Python tests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.interop.java_client import DEFAULT_TIMEOUT_S, Started
from tests.interop.java_values import (
    JavaError,
    MessageReader,
    QueueKey,
    ReceivedMessage,
    call,
    map_items,
)
from tests.interop.jvm import JavaClient
from tests.interop.processes import POLL_INTERVAL_S

from pymq.protocol.codes import ResponseCode

ADMIN_TIMEOUT_MS: Final = 30_000
PERM_READ_WRITE: Final = 6
TOPIC_NOT_EXIST: Final = 17
#: What the tool answers itself when a broker has no offsets of a group.
NO_OFFSETS: Final = int(ResponseCode.CONSUMER_NOT_ONLINE)


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Java ``TopicOffset`` of one queue: queue offsets, half-open; time in ms, 0 when empty."""

    first: int
    end: int
    last_update_ms: int


@dataclass(frozen=True, slots=True)
class ConsumeOffsets:
    """Java ``OffsetWrapper``: the queue's end, and where the group is."""

    broker_offset: int
    consumer_offset: int


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Which brokers there are.

    Attributes:
        brokers: broker name -> broker id (0 is the master) -> ``host:port``.
        clusters: cluster name -> broker names.
    """

    brokers: Mapping[str, Mapping[int, str]]
    clusters: Mapping[str, frozenset[str]]

    def masters(self) -> list[str]:
        """Return the addresses of all masters."""
        return [addresses[0] for addresses in self.brokers.values() if 0 in addresses]


class JavaAdmin(Started):
    """``DefaultMQAdminExt``. Every method raises ``JavaError`` when the tool throws."""

    def __init__(self, client: JavaClient, name_server: str) -> None:
        java = client.jvm.org.apache.rocketmq.tools.admin.DefaultMQAdminExt(ADMIN_TIMEOUT_MS)
        super().__init__(client, java, name_server)
        java.setAdminExtGroup(client.instance_name())
        self._reader = MessageReader(client)
        self.start()

    def create_topic(
        self,
        topic: str,
        queue_count: int = 4,
        *,
        perm: int = PERM_READ_WRITE,
        broker_addresses: Iterable[str] | None = None,
    ) -> None:
        """Create or change a topic on the brokers given (default: all masters), and wait for it.

        Returns when the name server serves its route, so that clients started next know it.

        Raises:
            TimeoutError: the route did not come.
        """
        targets = list(broker_addresses or self.cluster_info().masters())
        config_class = self.client.jvm.org.apache.rocketmq.common.TopicConfig
        for address in targets:
            config = config_class(topic, queue_count, queue_count, perm)
            call(self.java.createAndUpdateTopicConfig, address, config)
        deadline = time.monotonic() + DEFAULT_TIMEOUT_S
        while not set(targets) <= set(self.route(topic)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: no route to {targets}, only {self.route(topic)}")
            time.sleep(POLL_INTERVAL_S)

    def create_group(self, group: str, **options: int | bool) -> None:
        """Create or change a consumer group on all masters.

        Args:
            group: its name.
            options: by Java setter, without ``set``: ``RetryMaxTimes=1``.
        """
        config = self.client.moved_class(
            before_5="common.subscription.SubscriptionGroupConfig",
            since_5="remoting.protocol.subscription.SubscriptionGroupConfig",
        )()
        config.setGroupName(group)
        for name, value in options.items():
            getattr(config, "set" + name)(value)
        for address in self.cluster_info().masters():
            call(self.java.createAndUpdateSubscriptionGroupConfig, address, config)

    def route(self, topic: str) -> list[str]:
        """Return the addresses of all brokers in a topic's route; empty when there is none."""
        try:
            route = call(self.java.examineTopicRouteInfo, topic)
        except JavaError as error:
            if error.response_code == TOPIC_NOT_EXIST:
                return []
            raise
        brokers = [map_items(broker.getBrokerAddrs()) for broker in route.getBrokerDatas()]
        return [address for addresses in brokers for _, address in addresses]

    def topics(self) -> set[str]:
        """Return all topics the name server knows."""
        return set(call(self.java.fetchAllTopicList).getTopicList())

    def topic_stats(self, topic: str) -> dict[QueueKey, TopicOffsets]:
        """Return what each queue of a topic holds."""
        table = call(self.java.examineTopicStats, topic).getOffsetTable()
        return {
            (queue.getBrokerName(), queue.getQueueId()): TopicOffsets(
                first=offsets.getMinOffset(),
                end=offsets.getMaxOffset(),
                last_update_ms=offsets.getLastUpdateTimestamp(),
            )
            for queue, offsets in map_items(table)
        }

    def message_count(self, topic: str) -> int:
        """Return how many messages all queues of a topic hold together."""
        return sum(queue.end - queue.first for queue in self.topic_stats(topic).values())

    def consume_stats(self, group: str) -> dict[tuple[str, QueueKey], ConsumeOffsets]:
        """Return, by (topic, queue), how far a group is."""
        table = call(self.java.examineConsumeStats, group).getOffsetTable()
        return {
            (queue.getTopic(), (queue.getBrokerName(), queue.getQueueId())): ConsumeOffsets(
                broker_offset=offsets.getBrokerOffset(),
                consumer_offset=offsets.getConsumerOffset(),
            )
            for queue, offsets in map_items(table)
        }

    def committed_count(self, group: str, topic: str) -> int:
        """Return what the group's offsets in the topic's queues add up to; 0 when there are none.

        Offsets that a client commits arrive some time after it has returned.
        """
        try:
            stats = self.consume_stats(group)
        except JavaError as error:
            if error.response_code == NO_OFFSETS:
                return 0
            raise
        return sum(at.consumer_offset for (name, _), at in stats.items() if name == topic)

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers that the name server knows."""
        info = call(self.java.examineBrokerClusterInfo)
        brokers = {
            name: dict(map_items(data.getBrokerAddrs()))
            for name, data in map_items(info.getBrokerAddrTable())
        }
        clusters = {name: frozenset(names) for name, names in map_items(info.getClusterAddrTable())}
        return ClusterInfo(brokers, clusters)

    def broker_state(self, address: str) -> dict[str, str]:
        """Return what a broker says about itself."""
        return dict(map_items(call(self.java.fetchBrokerRuntimeStats, address).getTable()))

    def command_output(self, name: str, *arguments: str) -> str:
        """Return what an ``mqadmin`` command prints, its stack traces included."""
        jvm = self.client.jvm
        system = jvm.java.lang.System
        given = self.client.gateway.new_array(jvm.java.lang.String, len(arguments) + 3)
        for at, argument in enumerate((name, *arguments, "-n", self.java.getNamesrvAddr())):
            given[at] = argument
        printed = jvm.java.io.ByteArrayOutputStream()
        stream = jvm.java.io.PrintStream(printed, True, "UTF-8")
        before = (system.out, system.err)
        system.setOut(stream)
        system.setErr(stream)
        try:
            call(jvm.org.apache.rocketmq.tools.command.MQAdminStartup.main0, given, None)
        finally:
            system.setOut(before[0])
            system.setErr(before[1])
        return str(printed.toString("UTF-8"))

    def view_message(self, topic: str, msg_id: str) -> ReceivedMessage:
        """Return a message by the id of the client or by the offset id."""
        return self._reader.read([call(self.java.viewMessage, topic, msg_id)])[0]

    def query(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 64,
        begin_ms: int = 0,
        end_ms: int = (1 << 63) - 1,
    ) -> list[ReceivedMessage]:
        """Return messages by key, as the tool orders them; it throws when there is none."""
        found = call(self.java.queryMessage, topic, key, count_max, begin_ms, end_ms)
        return self._reader.read(found.getMessageList())

    def delete_topic(self, topic: str, cluster: str = "DefaultCluster") -> None:
        """Delete a topic on all brokers of a cluster and on the name server."""
        brokers = self.client.jvm.java.util.HashSet()
        for address in self.cluster_info().masters():
            brokers.add(address)
        call(self.java.deleteTopicInBroker, brokers, topic)
        servers = self.client.jvm.java.util.HashSet()
        for address in self.java.getNameServerAddressList():
            servers.add(address)
        if self.client.version == "4.9.7":  # no other form here, and 5.x turned the two around
            call(self.java.deleteTopicInNameServer, servers, topic, cluster)
        else:
            call(self.java.deleteTopicInNameServer, servers, topic)
