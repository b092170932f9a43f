"""Who is connected: producers and consumers by group, according to their heartbeats.

A client is identified by the pair (connection, client id). It is gone when its connection closes,
when it unregisters, or when its heartbeats stop for the expiry time.

Source: RocketMQ ConsumerManager, ConsumerGroupInfo, ProducerManager.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pymq.clock import Clock
from pymq.net.server import ServerConnection
from pymq.protocol.bodies import ConsumerData, MessageModel, Subscription
from pymq.protocol.names import is_retry_topic

_log = logging.getLogger(__name__)

#: What a member subscribes to: topics, each with tags or another expression. Equal for members
#: that agree.
Wanted = frozenset[tuple[str, frozenset[str] | str]]


@dataclass(slots=True)
class Client:
    """One member of a group."""

    client_id: str
    language: int
    version: int
    seen_s: float


@dataclass(slots=True)
class ConsumerGroup:
    """The live members of one consumer group and what they subscribe to."""

    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[ServerConnection, Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    #: Of each member, as of its last heartbeat.
    wanted: dict[ServerConnection, Wanted] = field(default_factory=dict)
    #: Do members subscribe differently, and has this been logged?
    is_divided: bool = False

    @property
    def is_broadcasting(self) -> bool:
        """Does every member get every message?"""
        return self.message_model == MessageModel.BROADCASTING

    def client_ids(self) -> list[str]:
        """Return the members' ids, each once, sorted."""
        return sorted({client.client_id for client in self.members.values()})

    def compare(self, name: str, connection: ServerConnection, wanted: Wanted) -> None:
        """Warn once when members that share the queues subscribe differently."""
        if self.wanted.get(connection) == wanted:
            return
        self.wanted[connection] = wanted
        other = next((c for c, theirs in self.wanted.items() if theirs != wanted), None)
        if other is not None and not self.is_divided and not self.is_broadcasting:
            _log.warning(
                "group %s: its members subscribe differently: %s to %s, %s to %s. Each queue is "
                "read by one member alone, so what the others want of it is lost to the group; "
                "let all members subscribe to the same topics and tags, or give them groups of "
                "their own",
                name,
                self.members[other].client_id,
                _listed(self.wanted[other]),
                self.members[connection].client_id,
                _listed(wanted),
            )
        self.is_divided = other is not None

    def subscribe(self, subscriptions: list[Subscription]) -> bool:
        """Take over a member's subscriptions; return whether topics were added or removed."""
        table = self.subscriptions
        changed = False
        for subscription in subscriptions:
            known = table.get(subscription.topic)
            if known is None:
                changed = True
                table[subscription.topic] = subscription
            elif subscription.version > known.version:
                table[subscription.topic] = subscription
        gone = table.keys() - {subscription.topic for subscription in subscriptions}
        for topic in gone:
            del table[topic]
        return changed or bool(gone)


def _wanted(subscriptions: Sequence[Subscription]) -> Wanted:
    return frozenset(
        (subscription.topic, subscription.tags or subscription.expression)
        for subscription in subscriptions
        if not is_retry_topic(subscription.topic)
    )


def _listed(wanted: Wanted) -> str:
    listed = sorted(
        f"{topic} ({what if isinstance(what, str) else ' || '.join(sorted(what))})"
        for topic, what in wanted
    )
    return ", ".join(listed) or "nothing"


class ClientTable:
    """All live clients of a broker.

    Args:
        clock: for heartbeat times.
        expiry_s: a client without a heartbeat for this long is gone.
        on_members_changed: called with (group, connections of its members) when members or
            subscribed topics of a consumer group have changed, so that they rebalance.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        expiry_s: float,
        on_members_changed: Callable[[str, list[ServerConnection]], None],
    ) -> None:
        self._clock = clock
        self._expiry_s = expiry_s
        self._on_members_changed = on_members_changed
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[ServerConnection, Client]] = {}

    # --- consumers

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """Return the live state of a consumer group, or None when it has no members."""
        return self._consumers.get(group)

    def register_consumer(
        self,
        connection: ServerConnection,
        client: Client,
        data: ConsumerData,
        *,
        keep_subscriptions: bool,
    ) -> None:
        """Take over one consumer group of a heartbeat.

        Args:
            keep_subscriptions: the heartbeat came without subscriptions (heartbeat V2); those
                that are known stay.
        """
        group = self._consumers.get(data.group)
        if group is None:
            group = self._consumers[data.group] = ConsumerGroup(
                data.consume_type, data.message_model, data.consume_from_where
            )
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.members.get(connection)
        changed = known is None or known.client_id != client.client_id
        group.members[connection] = client
        if not keep_subscriptions:
            group.compare(data.group, connection, _wanted(data.subscriptions))
            changed = group.subscribe(data.subscriptions) or changed
        if changed:
            self._members_changed(data.group, group)

    def unregister_consumer(self, connection: ServerConnection, group_name: str) -> None:
        """Remove a connection from a consumer group."""
        group = self._consumers.get(group_name)
        if group is None or group.members.pop(connection, None) is None:
            return
        group.wanted.pop(connection, None)
        group.is_divided &= len(set(group.wanted.values())) > 1
        if not group.members:
            del self._consumers[group_name]
        self._members_changed(group_name, group)

    def groups_subscribed_to(self, topic: str) -> list[str]:
        """Return the consumer groups whose live members subscribe to a topic, sorted."""
        return sorted(
            name for name, group in self._consumers.items() if topic in group.subscriptions
        )

    def _members_changed(self, name: str, group: ConsumerGroup) -> None:
        if group.members and not group.is_broadcasting:
            self._on_members_changed(name, list(group.members))

    # --- producers

    def register_producer(
        self, connection: ServerConnection, client: Client, group: str
    ) -> None:
        """Take over one producer group of a heartbeat."""
        self._producers.setdefault(group, {})[connection] = client

    def unregister_producer(self, connection: ServerConnection, group: str) -> None:
        """Remove a connection from a producer group."""
        members = self._producers.get(group, {})
        members.pop(connection, None)
        if not members:
            self._producers.pop(group, None)

    def producers(self, group: str) -> dict[ServerConnection, Client]:
        """Return the live producers of a group."""
        return self._producers.get(group, {})

    # --- ends

    def drop(self, connection: ServerConnection) -> None:
        """Remove a closed connection from all groups."""
        for group in [name for name, g in self._consumers.items() if connection in g.members]:
            self.unregister_consumer(connection, group)
        for group in [name for name, m in self._producers.items() if connection in m]:
            self.unregister_producer(connection, group)

    def expire(self) -> int:
        """Drop clients whose heartbeats stopped and close their connections; return how many."""
        oldest = self._clock.monotonic_s() - self._expiry_s
        members = [group.members for group in self._consumers.values()]
        members += self._producers.values()
        silent = {
            connection
            for table in members
            for connection, client in table.items()
            if client.seen_s < oldest
        }
        for connection in silent:
            self.drop(connection)
            connection.abort()
        return len(silent)
