"""What is wrong with the members of a consumer group, seen from one of them and said once.

A broker keeps one table of subscriptions for a group, whoever of its members sent them: of a
topic the latest, of topics those of the last heartbeat. So a member whose subscriptions differ
from another's sees that at the latest when the other one has sent a heartbeat.
"""

import logging
from collections.abc import Iterator, Mapping

from pymq.protocol.bodies import Subscription
from pymq.protocol.names import is_retry_topic

_log = logging.getLogger(__name__)


class GroupWatch:
    """Looks at a group after each rebalance.

    Args:
        group: its name, for log messages.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        #: Topics of which we have no queue because they have none; because they have too few.
        self._unreadable: set[str] = set()
        self._idle: set[str] = set()
        self._members: frozenset[str] = frozenset()
        self._said: set[str] = set()

    def shared(
        self,
        topic: str,
        *,
        queue_count: int,
        member_count: int,
        own_count: int,
        allocation: str | None = None,
    ) -> None:
        """Say when we have no queue of a topic, and why, or have one again.

        Args:
            topic: whose queues were divided.
            queue_count: of the topic.
            member_count: of the group.
            own_count: queues that are ours.
            allocation: name of a division that may leave a member none even of enough queues.
        """
        if is_retry_topic(topic):
            return
        if queue_count == 0 and topic not in self._unreadable:
            self._unreadable.add(topic)
            _log.warning(
                "group %r, topic %r: this member gets no messages, because no queue of the topic "
                "can be read; the topic must have read queues, and it and its broker the R "
                "permission",
                self._group,
                topic,
            )
        elif own_count == 0 and 0 < queue_count < member_count and topic not in self._idle:
            self._idle.add(topic)
            _log.warning(
                "group %r, topic %r: this member gets no messages, because the group has %d members"
                " and the topic %d queues, each of which is read by one member; create more queues "
                "(`pymq topic create %s --queues N`), or start fewer members",
                self._group,
                topic,
                member_count,
                queue_count,
                topic,
            )
        elif own_count == 0 and allocation and topic not in self._idle:
            self._idle.add(topic)
            _log.warning(
                "group %r, topic %r: this member gets no messages, because allocation=%s leaves it "
                "none of %d queues",
                self._group,
                topic,
                allocation,
                queue_count,
            )
        elif own_count and topic in self._unreadable | self._idle:
            self._unreadable.discard(topic)
            self._idle.discard(topic)
            _log.info(
                "group %r, topic %r: this member has queues again, %d of %d",
                self._group,
                topic,
                own_count,
                queue_count,
            )

    def compared(
        self,
        members: frozenset[str],
        ours: Mapping[str, Subscription],
        known: Mapping[str, Subscription],
    ) -> None:
        """Say how what we subscribe to differs from what a broker knows of the group.

        Args:
            members: client ids; when others come, differences are said again.
            ours: by topic.
            known: the broker's table, by topic.
        """
        if members != self._members:
            self._members = members
            self._said.clear()
        for difference in differences(ours, known):
            if difference in self._said:
                continue
            self._said.add(difference)
            _log.warning(
                "the %d members of group %r subscribe differently: %s. Each queue is read by one "
                "member alone, so what the others want of it is lost to the group; let all members "
                "subscribe to the same topics and tags, or give them groups of their own",
                len(members),
                self._group,
                difference,
            )


def differences(
    ours: Mapping[str, Subscription], known: Mapping[str, Subscription]
) -> Iterator[str]:
    """Yield how two tables of subscriptions differ, topic by topic; retry topics do not count."""
    for topic in sorted(ours.keys() | known.keys()):
        if is_retry_topic(topic):
            continue
        own, other = ours.get(topic), known.get(topic)
        if own is None:
            yield f"another one reads topic {topic!r}, this one does not"
        elif other is None:
            yield f"this one reads topic {topic!r}, another one does not"
        elif wanted(own) != wanted(other):
            yield (
                f"of topic {topic!r} this one wants {own.expression!r}, another one "
                f"{other.expression!r}"
            )


def wanted(subscription: Subscription) -> tuple[str, frozenset[str] | str]:
    """Return what tells a subscription from others to the same topic: its kind, and tags or SQL."""
    return subscription.expression_type or "TAG", subscription.tags or subscription.expression
