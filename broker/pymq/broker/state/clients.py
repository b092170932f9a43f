"""Who is connected: producers and consumers by group, according to their heartbeats.

A client is identified by the pair (connection, client id). It is gone when its connection closes,
when it unregisters, or when its heartbeats stop for the expiry time.

Source: RocketMQ ConsumerManager, ConsumerGroupInfo, ProducerManager.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pymq.clock import Clock
from pymq.net.server import ServerConnection
from pymq.protocol.bodies import (
    ConsumerData,
    ConsumerIds,
    ConsumeType,
    MessageModel,
    Subscription,
)
from pymq.protocol.names import is_retry_topic

_log = logging.getLogger(__name__)

#: What a member subscribes to: topics, each with tags or another expression. Equal for members
#: that agree.
Wanted = frozenset[tuple[str, frozenset[str] | str]]

#: What becomes of messages where members subscribe differently.
_QUEUE_LOSS = (
    "Each queue is read by one member alone, so what the others want of it is lost to the group"
)
_POP_LOSS = (
    "What one member does not want of a queue is passed over for the whole group, so what only the "
    "others want of it is lost"
)


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
    #: Of the subscriptions in the last heartbeat (heartbeat V2).
    fingerprint: int | None = None
    #: Do members subscribe differently, and has this been logged?
    is_divided: bool = False
    #: Client ids that came with a second connection, and how often the older one was heard of
    #: since: a client that came back sends nothing there any more, but that may come late.
    doubled: dict[str, int] = field(default_factory=dict)
    #: The answer to GET_CONSUMER_LIST_BY_GROUP, for which every member asks after every change.
    _ids_body: bytes | None = None

    @property
    def is_broadcasting(self) -> bool:
        """Does every member get every message?"""
        return self.message_model == MessageModel.BROADCASTING

    def client_ids(self) -> list[str]:
        """Return the members' ids, each once, sorted."""
        return sorted({client.client_id for client in self.members.values()})

    def ids_body(self) -> bytes:
        """Return the body of a list of the members' ids."""
        if self._ids_body is None:
            self._ids_body = ConsumerIds(client_ids=self.client_ids()).encode()
        return self._ids_body

    def add(self, connection: ServerConnection, client: Client) -> bool:
        """Add a member, or note that it is still there; return whether the ids may have changed."""
        known = self.members.get(connection)
        if known is not None and known.client_id == client.client_id:
            self.members[connection] = client
            return False
        if self.find(client.client_id) is not None:
            self.doubled[client.client_id] = 0
        self.members[connection] = client
        if known is not None:
            self._forget_doubled(known.client_id)
        self._ids_body = None
        return True

    def remove(self, connection: ServerConnection) -> bool:
        """Remove a member; return whether it was one."""
        client = self.members.pop(connection, None)
        if client is None:
            return False
        self._forget_doubled(client.client_id)
        self._ids_body = None
        self.wanted.pop(connection, None)
        self.is_divided = self.is_divided and self._differs()
        return True

    def _forget_doubled(self, client_id: str) -> None:
        """Watch a client no longer that has no second connection any more."""
        if client_id in self.doubled:
            count = sum(client.client_id == client_id for client in self.members.values())
            if count < 2:
                del self.doubled[client_id]

    def find(self, client_id: str | None) -> tuple[ServerConnection, Client] | None:
        """Return a member and its connection; the latest one if the client has several."""
        found = None
        for connection, client in self.members.items():
            if client.client_id == client_id:
                found = connection, client
        return found

    def warn_of_shared_id(self, name: str, connection: ServerConnection, client_id: str) -> None:
        """Warn once when an older connection of a client is heard of twice: these are two.

        RocketMQ lists the id twice: each of the two takes the first half of the queues, and nobody
        the other half. Here they are one member, as is a client that came back before its old
        connection ended: nothing is left out.
        """
        latest = self.find(client_id)
        if latest is None or latest[0] is connection or self.is_broadcasting:
            return
        self.doubled[client_id] += 1
        if self.doubled[client_id] < 2:
            return
        del self.doubled[client_id]
        _log.warning(
            "group %s: two consumers, at %s and %s, have the same client id %s. Each of them takes "
            "the same queues, so that what is in those is consumed twice; give each an instance "
            "name of its own",
            name,
            connection.peer,
            latest[0].peer,
            client_id,
        )

    def compare(self, name: str, connection: ServerConnection, wanted: Wanted) -> None:
        """Warn once when members that share the queues subscribe differently."""
        if self.wanted.get(connection) == wanted:
            return
        self.wanted[connection] = wanted
        others = [c for c, theirs in self.wanted.items() if self._is_harmed(theirs, wanted)]
        if others and not self.is_divided and not self.is_broadcasting:
            _log.warning(
                "group %s: its members subscribe differently: %s to %s, %s to %s. %s; let all "
                "members subscribe to the same topics and tags, or give them groups of their own",
                name,
                self.members[others[0]].client_id,
                _listed(self.wanted[others[0]]),
                self.members[connection].client_id,
                _listed(wanted),
                _POP_LOSS if self.consume_type == ConsumeType.POP else _QUEUE_LOSS,
            )
        self.is_divided = self._differs()

    def _is_harmed(self, one: Wanted, other: Wanted) -> bool:
        """Do two members take from each other what they want?

        Those that pop take messages of any queue: each may read topics of its own.
        """
        if self.consume_type != ConsumeType.POP:
            return one != other
        filters = dict(one)
        return any(filters.get(topic, what) != what for topic, what in other)

    def _differs(self) -> bool:
        """Are there two members that take from each other what they want?"""
        if self.consume_type != ConsumeType.POP:
            return len(set(self.wanted.values())) > 1
        every = set[tuple[str, frozenset[str] | str]]().union(*self.wanted.values())
        return len(every) > len({topic for topic, _ in every})

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

    Attributes:
        on_members_changed: called with the name of a consumer group whose members or subscribed
            topics have changed, so that its members rebalance; to be set by whoever tells them.
        on_subscribed: called with a consumer group and what one of its members subscribes to,
            after each heartbeat that says so.
        on_group_gone: called with a consumer group that has lost its last member.
    """

    def __init__(self, clock: Clock, *, expiry_s: float) -> None:
        self._clock = clock
        self._expiry_s = expiry_s
        self.on_members_changed: Callable[[str], None] = lambda group: None
        self.on_subscribed: Callable[[str, Sequence[Subscription]], None] = lambda group, what: None
        self.on_group_gone: Callable[[str], None] = lambda group: None
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[ServerConnection, Client]] = {}
        #: Producers by client id; the latest connection of a client is the last one.
        self._producer_ids: dict[str, dict[ServerConnection, None]] = {}
        #: The groups of each connection: what has to be looked at when it ends.
        self._consumer_groups: dict[ServerConnection, set[str]] = {}
        self._producer_groups: dict[ServerConnection, set[str]] = {}

    # --- consumers

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """Return the live state of a consumer group, or None when it has no members."""
        return self._consumers.get(group)

    def members_of(self, group: str) -> list[ServerConnection]:
        """Return the connections of a consumer group's members."""
        found = self._consumers.get(group)
        return [] if found is None else list(found.members)

    def register_consumer(
        self,
        connection: ServerConnection,
        client: Client,
        data: ConsumerData,
        *,
        fingerprint: int,
        keep_subscriptions: bool,
        notifies: bool,
    ) -> bool:
        """Take over one consumer group of a heartbeat.

        Args:
            fingerprint: of the heartbeat's subscriptions (heartbeat V2); 0: none.
            keep_subscriptions: the heartbeat came without subscriptions (heartbeat V2); those
                that are known stay.
            notifies: do the members of this group want to hear of changes?

        Returns:
            Whether the member shall send its subscriptions next time: another member subscribes
            differently, or we do not know them.
        """
        group = self._consumers.get(data.group)
        if group is None:
            group = self._consumers[data.group] = ConsumerGroup(
                data.consume_type, data.message_model, data.consume_from_where
            )
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        differs = group.fingerprint not in (None, fingerprint)
        group.fingerprint = fingerprint
        changed = group.add(connection, client)
        if client.client_id in group.doubled:
            group.warn_of_shared_id(data.group, connection, client.client_id)
        self._consumer_groups.setdefault(connection, set()).add(data.group)
        if not keep_subscriptions:
            group.compare(data.group, connection, _wanted(data.subscriptions))
            changed = group.subscribe(data.subscriptions) or changed
        if changed and notifies:
            self._members_changed(data.group, group)
        if not keep_subscriptions:
            self.on_subscribed(data.group, data.subscriptions)
        return differs or connection not in group.wanted

    def unregister_consumer(
        self, connection: ServerConnection, group_name: str, *, notifies: bool
    ) -> None:
        """Remove a connection from a consumer group; ``notifies`` as for ``register_consumer``."""
        group = self._consumers.get(group_name)
        if group is None or not group.remove(connection):
            return
        _discard(self._consumer_groups, connection, group_name)
        if not group.members:
            del self._consumers[group_name]
            self.on_group_gone(group_name)
        if notifies:
            self._members_changed(group_name, group)

    def groups_subscribed_to(self, topic: str) -> list[str]:
        """Return the consumer groups whose live members subscribe to a topic, sorted."""
        return sorted(
            name for name, group in self._consumers.items() if topic in group.subscriptions
        )

    def _members_changed(self, name: str, group: ConsumerGroup) -> None:
        if group.members and not group.is_broadcasting:
            self.on_members_changed(name)

    # --- producers

    def register_producer(self, connection: ServerConnection, client: Client, group: str) -> None:
        """Take over one producer group of a heartbeat."""
        members = self._producers.setdefault(group, {})
        if connection not in members:
            self._producer_ids.setdefault(client.client_id, {})[connection] = None
        members[connection] = client
        self._producer_groups.setdefault(connection, set()).add(group)

    def unregister_producer(self, connection: ServerConnection, group: str) -> None:
        """Remove a connection from a producer group."""
        members = self._producers.get(group, {})
        client = members.pop(connection, None)
        if client is None:
            return
        if not members:
            del self._producers[group]
        _discard(self._producer_groups, connection, group)
        if connection not in self._producer_groups:
            connections = self._producer_ids.get(client.client_id, {})
            connections.pop(connection, None)
            if not connections:
                self._producer_ids.pop(client.client_id, None)

    def producer(self, client_id: str) -> ServerConnection | None:
        """Return the latest connection of a live producer."""
        return next(reversed(self._producer_ids.get(client_id, {})), None)

    def producers(self, group: str) -> dict[ServerConnection, Client]:
        """Return the live producers of a group."""
        return self._producers.get(group, {})

    def producer_groups(self) -> Mapping[str, Mapping[ServerConnection, Client]]:
        """Return the live producers of all groups."""
        return self._producers

    # --- ends

    def drop(self, connection: ServerConnection) -> None:
        """Remove a closed connection from all groups.

        The members that are left hear of it whatever their group is set to, as in RocketMQ: the
        queues of who has vanished must not lie idle.
        """
        for group in sorted(self._consumer_groups.get(connection, ())):
            self.unregister_consumer(connection, group, notifies=True)
        for group in sorted(self._producer_groups.get(connection, ())):
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


def _discard(table: dict[ServerConnection, set[str]], key: ServerConnection, group: str) -> None:
    groups = table[key]
    groups.discard(group)
    if not groups:
        del table[key]
