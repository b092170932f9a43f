"""How far groups are, and setting them to other places in their queues."""

import asyncio
from collections.abc import Mapping, Sequence

from pymq.client import operations
from pymq.client.administration.asking import Asking
from pymq.client.administration.groups import connections, no_group
from pymq.client.administration.resets import OffsetChange, Reset, ResetTarget
from pymq.client.checks import check_count, check_queue, check_seconds, is_moment, moment_ms
from pymq.client.cluster.routes import no_read_queue
from pymq.client.group.group_progress import QueueLag, queue_lags
from pymq.errors import ConfigurationError, PymqError
from pymq.protocol.bodies import ConsumeStats, MessageQueue, TopicOffset
from pymq.protocol.multi_dispatch import is_light
from pymq.protocol.names import check_group, check_topic, dead_letter_topic, retry_topic

#: Members of official clients take 10 s to stop their work before they commit.
MEMBERS_WAIT_S = 30.0
#: A broker has such a topic of a group only if it had something for it.
_OF_A_GROUP = (retry_topic(""), dead_letter_topic(""))


class Offsets:
    """Progress of consumer groups: ``admin.offsets``."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """Return how far a group is, per queue, sorted.

        Args:
            group: its name.
            topic: only there; otherwise in all topics it committed offsets for.

        Returns:
            Nothing for a group that committed no offset there. With one, all queues are listed, on
            every broker; where it committed none, it is at 0.

        Raises:
            BrokersFailed: some masters did not answer.
            PymqError: the only master did not.
        """
        check_group(group)
        brokers = await self._asking.readers()
        answers = await self._asking.every(brokers, lambda: operations.consume_stats(group, topic))
        found = list(answers.values())
        if topic is None:
            found += await self._unnamed(group, brokers, answers)
            return queue_lags(found)
        lags = queue_lags(found)
        if not any(one.consumer_offset for one in lags):
            # Of a topic that is named brokers say 0 where nothing was committed.
            every = await self._asking.every(brokers, lambda: operations.consume_stats(group))
            if not any(topic in _topics(one) for one in every.values()):
                return []
        return lags

    async def _unnamed(
        self, group: str, brokers: Mapping[str, str], answers: Mapping[str, ConsumeStats]
    ) -> list[ConsumeStats]:
        """Return how far a group is in its topics where it committed nothing for them.

        Each broker names those that the group committed offsets for there.
        """
        found: list[ConsumeStats] = []
        for topic in sorted(set().union(*map(_topics, answers.values()))):
            if topic.startswith(_OF_A_GROUP):
                continue
            others = {
                name: brokers[name] for name, one in answers.items() if topic not in _topics(one)
            }

            def ask(topic: str = topic) -> operations.Operation[ConsumeStats]:
                return operations.consume_stats(group, topic)

            found += (await self._asking.every(others, ask)).values()
        return found

    async def reset(
        self,
        group: str,
        topic: str,
        to: ResetTarget,
        *,
        queue: MessageQueue | None = None,
        dry_run: bool = False,
        wait_s: float = MEMBERS_WAIT_S,
    ) -> list[OffsetChange]:
        """Set a group to another place in a topic, whether it has members or not.

        A broker that is down with its slaves is not asked, as name servers do not know it, and
        keeps its offsets.

        ::

            changes = await admin.offsets.reset("billing", "orders", "earliest", dry_run=True)
            moved = {change.queue: (change.before, change.after) for change in changes}

        Args:
            group: its name.
            topic: where.
            to: ``"earliest"``; ``"latest"``; a datetime: the first message stored then or later
                (local time, if it has no zone; a ``numpy.datetime64`` is UTC); or an offset, for
                each queue, which must be in it.
            queue: only in this queue of the topic.
            dry_run: change nothing, and return what would change.
            wait_s: members that are told by a broker of 4.9 commit within this time, or it is an
                error. Those of official clients take 10 s.

        Returns:
            Each queue, sorted. Members go on at once, so the group may soon be somewhere else.

        Raises:
            ConfigurationError: an argument is wrong; or members are connected that the broker can
                only tell about whole topics and times, or, as they were assigned their queues or as
                it is a slave that acts for its master, not at all: stop them.
            GroupNotExist: some masters do not have the group, and nothing was changed.
            RouteNotFound: no name server knows the topic, or the master of some queues is away.
            BrokersFailed: some masters did not do it; the others have.
            RequestTimeout: the members were told and have not committed that.
            CommitFailed: the only master accepted that and keeps other offsets.
            PymqError: the only master did not do it.
        """
        check_group(group)
        check_topic(topic)
        _check_target(to)
        check_seconds("wait_s", wait_s)
        if queue is not None:
            check_queue(queue)
        route = await self._asking.route(topic)
        if not route.read_queues:
            raise no_read_queue(route)
        wanted = _wanted(route.read_queues, queue)
        brokers = {
            name: route.address(name) for name in dict.fromkeys(q.broker_name for q in wanted)
        }
        await self._check_known(group, brokers)
        members = await connections(self._asking, group)
        work = Reset(self._asking, group, topic, to, queue is None, members, wait_s)
        await self._check_told(work, brokers)
        changes = await self._plan(group, wanted, brokers, to)
        if dry_run:
            return changes
        answers = await asyncio.gather(*(work.carry_out(*at, changes) for at in brokers.items()))
        done = self._asking.complete(
            f"to reset group {group!r} in topic {topic!r}", dict(zip(brokers, answers, strict=True))
        )
        return sorted(change for some in done.values() for change in some)

    async def _check_known(self, group: str, brokers: Mapping[str, str]) -> None:
        if is_light(group):
            return  # it needs no settings
        answers = await self._asking.every(brokers, operations.groups_with_offsets)
        lacking = [
            name for name, known in answers.items() if known is not None and group not in known
        ]
        if lacking:
            raise no_group(group, lacking)

    async def _check_told(self, work: Reset, brokers: Mapping[str, str]) -> None:
        """Check that masters can tell members; a slave that acts for its master cannot."""
        masters = await self._asking.changers()
        for name, address in brokers.items():
            if isinstance(masters.get(name), PymqError) and work.has_members(name):
                raise ConfigurationError(
                    f"group {work.group!r} has members in topic {work.topic!r}, and the master of "
                    f"broker {name!r} is away: the slave at {address} that acts for it cannot tell "
                    "them where to go on. Wait for the master, or stop them and try again"
                )

    async def _plan(
        self,
        group: str,
        queues: Sequence[MessageQueue],
        brokers: Mapping[str, str],
        to: ResetTarget,
    ) -> list[OffsetChange]:
        topic = queues[0].topic
        stats = await self._asking.every(brokers, lambda: operations.topic_stats(topic))
        bounds = {q: one for answer in stats.values() for q, one in answer.offsets.items()}

        async def plan(queue: MessageQueue) -> OffsetChange:
            address = brokers[queue.broker_name]
            there = bounds.get(queue, TopicOffset())
            before, after = await asyncio.gather(
                self._asking.one(
                    address, operations.query_offset(group, queue, zero_if_new=False)
                ),
                self._target(address, queue, there, to),
            )
            return OffsetChange(queue, before, after, there.min_offset, there.max_offset)

        return sorted(await asyncio.gather(*map(plan, queues)))

    async def _target(
        self, address: str, queue: MessageQueue, bounds: TopicOffset, to: ResetTarget
    ) -> int:
        first, end = bounds.min_offset, bounds.max_offset
        if to == "earliest":
            return first
        if to == "latest":
            return end
        if is_moment(to):
            to_ms = moment_ms("to", to)
            if to_ms > bounds.last_update_timestamp_ms:
                return end  # where brokers of 4.9 give the last message
            found = await self._asking.one(address, operations.offset_by_time(queue, to_ms))
            return min(max(found, first), end)
        assert isinstance(to, int)
        if not first <= to <= end:
            raise ConfigurationError(
                f"to={to}: {queue.broker_name}:{queue.queue_id} of topic {queue.topic!r} has "
                f"offsets {first} to {end}"
            )
        return to


def _topics(stats: ConsumeStats) -> set[str]:
    return {queue.topic for queue in stats.offsets}


def _wanted(
    queues: Sequence[MessageQueue], queue: MessageQueue | None
) -> Sequence[MessageQueue]:
    if queue is not None and queue not in queues:
        raise ConfigurationError(
            f"queue={queue}: topic {queues[0].topic!r} has no such queue, found "
            + ", ".join(f"{one.broker_name}:{one.queue_id}" for one in queues)
        )
    return queues if queue is None else [queue]


def _check_target(to: object) -> None:
    if isinstance(to, int):
        check_count("to", to, 0)
    elif is_moment(to):
        moment_ms("to", to)
    elif to not in ("earliest", "latest"):
        raise ConfigurationError(
            f"to={to!r:.80}: expected 'earliest', 'latest', a datetime, or an offset"
        )
