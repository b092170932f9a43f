"""BlockingAdmin: clusters, messages, topics, groups and progress, over a BlockingClient.

Settings of topics and groups live in each broker, so what changes them is done on every
master of a cluster, and what reads them is merged over the masters.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from pymq.client import message_lookup, operations
from pymq.client.blocking import BlockingClient
from pymq.client.checks import check_count
from pymq.client.group_progress import QueueLag, merged_connections, queue_lags
from pymq.client.routes import MASTER_ID, QUEUE_COUNT_MAX
from pymq.errors import (
    ConfigurationError,
    ConnectionFailed,
    ConsumerNotOnline,
    PymqError,
    RequestTimeout,
    RouteNotFound,
    TopicNotExist,
)
from pymq.protocol.bodies import (
    ClusterInfo,
    ConsumerConnections,
    GroupConfig,
    MessageQueue,
    TopicConfig,
    TopicOffset,
)
from pymq.protocol.codes import Permission
from pymq.protocol.headers.codec import INT64_MAX
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.names import (
    BUILT_IN_GROUPS,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    check_group,
    check_topic,
    dead_letter_topic,
    reply_topic,
    retry_topic,
)

T = TypeVar("T")

#: A topic just created is known to all name servers after this, or something is wrong.
ROUTE_WAIT_S = 15.0
_POLL_S = 0.05


class BlockingAdmin:
    """Administration of the brokers that a client's name servers know.

    Args:
        client: stays the caller's; closing it ends this, too.
    """

    def __init__(self, client: BlockingClient) -> None:
        self._pool = client._pool

    # --- clusters

    def cluster_info(self) -> ClusterInfo:
        """Return all clusters and brokers.

        Raises:
            ConnectionFailed: no name server could be asked.
        """
        return self._pool.ask_name_servers(operations.cluster_info())

    def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Return broker name -> address of every master, in the order of the names.

        Args:
            cluster: only of this cluster.

        Raises:
            ConfigurationError: there is no such cluster.
            RouteNotFound: no master is registered.
        """
        info = self.cluster_info()
        names: Iterable[str] = info.brokers
        if cluster is not None:
            if cluster not in info.clusters:
                raise ConfigurationError(
                    f"cluster {cluster!r} is not known, found {sorted(info.clusters)}"
                )
            names = info.clusters[cluster]
        found = {
            name: info.brokers[name].addresses[MASTER_ID]
            for name in sorted(names)
            if name in info.brokers and MASTER_ID in info.brokers[name].addresses
        }
        if not found:
            servers = ", ".join(self._pool.config.name_servers)
            raise RouteNotFound(
                f"no master broker is registered at [{servers}]; is one running, with these name "
                "servers in its namesrvAddr?"
            )
        return found

    def broker_state(self, address: str) -> dict[str, str]:
        """Return what a broker says about itself: version, rates, disk, offsets.

        Raises:
            PymqError: it could not be asked, or refused.
        """
        return self._pool.ask(address, operations.broker_state())

    def delete_expired_log(self, address: str) -> None:
        """Let a broker delete commit-log files past their time now, whatever the hour.

        It answers at once and deletes in the background (RocketMQ deleteExpiredCommitLog).

        Raises:
            PymqError: it could not be asked, or refused.
        """
        self._pool.ask(address, operations.delete_expired_log())

    def clean_expired_queues(self, address: str) -> None:
        """Let a broker delete consume queues that hold nothing any more.

        A pymq broker deletes those of topics that are gone. An official one also those of
        topics that are merely idle: their offsets then begin at 0 again, and consumers pass over
        what comes next (RocketMQ cleanExpiredConsumerQueue).

        Raises:
            PymqError: it could not be asked, or refused.
        """
        self._pool.ask(address, operations.clean_expired_queues())

    # --- messages

    def view_message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """Return a message by its id.

        Args:
            message_id: the broker's, which says where the message lies; or, with ``topic``, the
                producer's. Both may look alike.
            topic: the topic of the message.

        Raises:
            LocalProtocolError: the id is not a broker's, and no topic was given.
            RouteNotFound: the id names no broker that is registered, and likewise.
            MessageNotFound: there is no such message.
            PymqError: a broker could not be asked, or refused.
        """
        return message_lookup.view_message(self._pool, message_id, topic)

    def query_messages(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = operations.QUERY_COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = INT64_MAX,
    ) -> list[ReceivedMessage]:
        """Return the newest messages with a key, by their store times, oldest first.

        Official brokers need a moment after a send until its keys can be found.

        Args:
            topic: where to look.
            key: one of the message's keys, or the id its producer gave it.
            count_max: messages wanted, 1..64.
            begin_ms, end_ms: first and last store time wanted, ms since 1970.

        Raises:
            RouteNotFound: no name server knows the topic.
            PymqError: a broker could not be asked, or refused.
        """
        return message_lookup.query_messages(
            self._pool, topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
        )

    # --- topics

    def topics(self, *, with_system: bool = False) -> list[str]:
        """Return the names of all topics, sorted.

        Args:
            with_system: also those that belong to the system: brokers' and clusters' own, and
                the retry and dead-letter topics of groups.

        Raises:
            ConnectionFailed: no name server could be asked.
        """
        names = self._pool.ask_name_servers(operations.topic_list())
        found = sorted(set(names))
        if with_system:
            return found
        info = self.cluster_info()
        own = {*SYSTEM_TOPICS, *info.brokers, *info.clusters, *map(reply_topic, info.clusters)}
        prefixes = (SYSTEM_PREFIX, retry_topic(""), dead_letter_topic(""))
        return [name for name in found if name not in own and not name.startswith(prefixes)]

    def create_topic(
        self,
        topic: str,
        *,
        queue_count: int = 8,
        perm: int = int(Permission.READ | Permission.WRITE),
        order: bool = False,
        attributes: dict[str, str] | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a topic on every master, or change it; returns when its route is known.

        Args:
            topic: its name.
            queue_count: readable and writable queues, on each broker.
            perm: bits of ``Permission``.
            order: messages are expected in order.
            attributes: 5.x settings such as ``message.type``; 4.9 ignores them.
            cluster: only on the masters of this cluster.

        Raises:
            LocalProtocolError: the name is illegal.
            PymqError: a broker could not be asked, or refused.
        """
        check_topic(topic)
        check_count(f"topic {topic!r}: queue_count", queue_count, 1, QUEUE_COUNT_MAX)
        config = TopicConfig(
            topic=topic,
            read_queue_count=queue_count,
            write_queue_count=queue_count,
            perm=perm,
            order=order,
            attributes=attributes or {},
        )
        changed = self._change_each_master(cluster, lambda: operations.update_topic(config))
        self._wait_route(topic, lambda brokers: brokers >= changed)

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic: on every master, then its route on every name server.

        Its messages go when their log files do. A topic that does not exist is not an error.

        Args:
            topic: its name.
            cluster: only there; the route is then left to the brokers' next registration.

        Raises:
            PymqError: a broker or a name server could not be asked, or refused.
        """
        check_topic(topic)
        self._change_each_master(cluster, lambda: operations.delete_topic(topic))
        if cluster is None:
            for address in self._pool.config.name_servers:
                try:
                    self._pool.ask(address, operations.delete_topic_routes(topic))
                except ConnectionFailed:
                    # Name servers keep nothing: one that is down forgets by itself.
                    if len(self._pool.config.name_servers) == 1:
                        raise
        self._pool.routes.forget(topic)

    def topic_status(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the bounds of every queue of a topic, sorted.

        Raises:
            RouteNotFound: no name server knows the topic.
            PymqError: a broker could not be asked, or refused.
        """
        found: dict[MessageQueue, TopicOffset] = {}
        for address in self._pool.route(topic).masters().values():
            found |= self._pool.ask(address, operations.topic_stats(topic)).offsets
        return dict(sorted(found.items()))

    def _wait_route(self, topic: str, is_complete: Callable[[set[str]], bool]) -> None:
        """Wait until every name server that answers gives a route with these brokers."""
        deadline_s = time.monotonic() + ROUTE_WAIT_S
        pause = threading.Event()
        for address in self._pool.config.name_servers:
            while True:
                try:
                    route = self._pool.ask(address, operations.route(topic))
                    if is_complete({data.broker_name for data in route.queues}):
                        break
                except (ConnectionFailed, RequestTimeout):
                    break
                except TopicNotExist:
                    pass
                if time.monotonic() > deadline_s:
                    raise RouteNotFound(
                        f"topic {topic!r} was created, but name server {address} has no complete "
                        f"route of it after {ROUTE_WAIT_S:g} s; does every broker name it in its "
                        "namesrvAddr?"
                    )
                pause.wait(_POLL_S)
        self._pool.routes.forget(topic)

    # --- groups

    def groups(self, *, with_system: bool = False) -> list[str]:
        """Return the names of all consumer groups, sorted.

        Args:
            with_system: also those that every broker has from the start.

        Raises:
            PymqError: a broker could not be asked, or refused.
        """
        found = {
            group for table in self._each_master(operations.group_table) for group in table.groups
        }
        return sorted(found if with_system else found - set(BUILT_IN_GROUPS))

    def create_group(self, config: GroupConfig | str, *, cluster: str | None = None) -> None:
        """Create a consumer group on every master, or change it.

        Args:
            config: its settings, or its name for RocketMQ's defaults.
            cluster: only on the masters of this cluster.

        Raises:
            LocalProtocolError: the name is illegal.
            PymqError: a broker could not be asked, or refused.
        """
        settings = GroupConfig(group=config) if isinstance(config, str) else config
        check_group(settings.group)
        self._change_each_master(cluster, lambda: operations.update_group(settings))

    def delete_group(
        self, group: str, *, forget_offsets: bool = False, cluster: str | None = None
    ) -> None:
        """Delete a consumer group from every master.

        Args:
            group: its name.
            forget_offsets: also what it committed.
            cluster: only on the masters of this cluster.

        Raises:
            PymqError: a broker could not be asked, or refused.
        """
        check_group(group)
        self._change_each_master(
            cluster, lambda: operations.delete_group(group, forget_offsets=forget_offsets)
        )

    def group_lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """Return how far a group is, per queue, sorted.

        Args:
            group: its name.
            topic: only there; otherwise in all topics it committed offsets for.

        Returns:
            Nothing for a group that committed no offset.

        Raises:
            PymqError: a broker could not be asked, or refused.
        """
        check_group(group)
        return queue_lags(self._each_master(lambda: operations.consume_stats(group, topic)))

    def consumer_connections(self, group: str) -> ConsumerConnections:
        """Return the live members of a group, merged over the masters; perhaps none.

        Raises:
            PymqError: a broker could not be asked, or refused.
        """
        found = []
        for address in self.masters().values():
            try:
                found.append(self._pool.ask(address, operations.consumer_connections(group)))
            except ConsumerNotOnline:
                continue
        return merged_connections(found)

    def _each_master(self, operation: Callable[[], operations.Operation[T]]) -> list[T]:
        return [self._pool.ask(address, operation()) for address in self.masters().values()]

    def _change_each_master(
        self, cluster: str | None, operation: Callable[[], operations.Operation[None]]
    ) -> set[str]:
        """Change something on every master; the note of an error says where it was done before."""
        masters = self.masters(cluster)
        changed: list[str] = []
        for name, address in masters.items():
            try:
                self._pool.ask(address, operation())
            except PymqError as error:
                if changed:
                    others = ", ".join(other for other in masters if other not in changed)
                    done = f"it was done on {', '.join(changed)} before, not on {others}"
                    error.add_note(f"{done}; it may be repeated when all of them answer")
                raise
            changed.append(name)
        return set(changed)
