"""How far groups are, and setting them to other places in their queues.

A group without members is set by commits: its next member begins there. Members keep their own
count and would commit over it, so they have to be told. Brokers of 5.x do that by themselves
(``useServerSideResetOffset``), queue by queue; those of 4.9, and where it is off, only pass a time
on to the members, for the whole topic, and the members commit when they have stopped their work.
Those cannot reach members that were assigned their queues and subscribe to nothing.

Source: RocketMQ AdminBrokerProcessor.resetOffset, DefaultMQAdminExtImpl.resetOffsetByTimestamp.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pymq.client import operations
from pymq.client.administration.asking import Asking
from pymq.client.administration.groups import connections
from pymq.client.checks import (
    Moment,
    check_count,
    check_queue,
    check_seconds,
    is_moment,
    moment_ms,
)
from pymq.client.cluster.routes import no_read_queue
from pymq.client.group.group_progress import QueueLag, queue_lags
from pymq.errors import CommitFailed, ConfigurationError, PymqError, RequestTimeout
from pymq.protocol.bodies import ConsumerConnections, MessageQueue, TopicOffset
from pymq.protocol.names import check_group, check_topic

#: Where to set a group to.
ResetTarget = Literal["earliest", "latest"] | Moment | int

#: Members of official clients take 10 s to stop their work before they commit.
MEMBERS_WAIT_S = 30.0
_POLL_S = 0.1
_SERVER_SIDE = "useServerSideResetOffset=true"
_NOBODY = ConsumerConnections()


@dataclass(frozen=True, slots=True, order=True)
class OffsetChange:
    """What a reset changes in one queue.

    Attributes:
        queue: which.
        before: what the group had committed; ``None``: nothing.
        after: where it goes on.
        first: the first offset that is kept.
        end: the offset that the next message gets.
    """

    queue: MessageQueue
    before: int | None
    after: int
    first: int
    end: int

    @property
    def moved(self) -> int:
        """Messages that are skipped; negative: that are consumed again."""
        return self.after - (self.first if self.before is None else self.before)


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
            Nothing for a group that committed no offset.

        Raises:
            BrokersFailed: some masters did not answer.
            PymqError: the only master did not.
        """
        check_group(group)
        masters = await self._asking.masters()
        answers = await self._asking.every(masters, lambda: operations.consume_stats(group, topic))
        return queue_lags(answers.values())

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

        A broker that is down is not asked, as name servers do not know it, and keeps its offsets.

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
                only tell about whole topics and times, or, as they were assigned their queues, not
                at all: stop them.
            RouteNotFound: no name server knows the topic.
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
        changes = await self._plan(group, wanted, brokers, to)
        if dry_run:
            return changes
        members = await connections(self._asking, group)
        work = _Reset(self._asking, group, topic, to, queue is None, members, wait_s)
        answers = await asyncio.gather(*(work.carry_out(*at, changes) for at in brokers.items()))
        done = self._asking.complete(
            f"to reset group {group!r} in topic {topic!r}", dict(zip(brokers, answers, strict=True))
        )
        return sorted(change for some in done.values() for change in some)

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


@dataclass(frozen=True, slots=True)
class _Reset:
    """One reset of a group in a topic, on the brokers that have it."""

    asking: Asking
    group: str
    topic: str
    to: ResetTarget
    is_whole: bool
    members: Mapping[str, ConsumerConnections]
    wait_s: float

    async def carry_out(
        self, name: str, address: str, planned: list[OffsetChange]
    ) -> list[OffsetChange] | PymqError:
        """Do what is planned for one broker; return what was changed, or why it was not."""
        changes = [one for one in planned if one.queue.broker_name == name]
        online = [one for one in self.members.values() if one.connections]
        is_subscribed = any(self.topic in one.subscriptions for one in online)
        here = self.members.get(name, _NOBODY)
        # Members that were assigned their queues do not say which.
        is_assigned = bool(here.connections) and not here.subscriptions
        try:
            if not (is_subscribed or is_assigned):
                await self._commit_each(address, changes)
            elif await self._is_server_side(address):
                await self._each(address, changes, self._reset_queue)
            elif is_subscribed:
                return await self._tell_members(address, changes)
            else:
                raise ConfigurationError(
                    f"group {self.group!r} has members that were assigned their queues, and "
                    f"{address} cannot tell them where to go on: stop them and try again"
                )
        except PymqError as error:
            return error
        return changes

    async def _commit_each(self, address: str, changes: list[OffsetChange]) -> None:
        """Commit, and see that it counts.

        As long as no member has heard of an earlier reset, brokers accept commits and ignore them.

        Raises:
            CommitFailed: a queue is elsewhere, and the broker makes no resets.
        """
        await self._each(address, changes, self._commit)
        found = await asyncio.gather(*(self._committed(address, one) for one in changes))
        ignored = [(one, at) for one, at in zip(changes, found, strict=True) if at != one.after]
        if ignored and await self._is_server_side(address):
            await self._each(address, [one for one, _ in ignored], self._reset_queue)
        elif elsewhere := [(one, at) for one, at in ignored if not _has_moved(one, at)]:
            queues = ", ".join(
                f"queue {one.queue.queue_id} is at {at}, not at {one.after}"
                for one, at in elsewhere
            )
            raise CommitFailed(
                f"{address} accepted the commits of group {self.group!r} in topic {self.topic!r}, "
                f"and {queues}: does a member commit, or has none heard of an earlier reset? Have "
                "one read these queues, stop it, and reset the group again"
            )

    async def _is_server_side(self, address: str) -> bool:
        text = await self.asking.one(address, operations.broker_config())
        return _SERVER_SIDE in (line.strip() for line in text.splitlines())

    async def _each(
        self,
        address: str,
        changes: list[OffsetChange],
        make: Callable[[OffsetChange], operations.Operation[Any]],
    ) -> None:
        """Change each queue; an error says of which queues it is known that they were changed."""
        answers = await asyncio.gather(
            *(self._answer(address, make(change)) for change in changes)
        )
        failed = [error for error in answers if error is not None]
        if not failed:
            return
        done = [
            str(change.queue.queue_id)
            for change, error in zip(changes, answers, strict=True)
            if error is None
        ]
        error = failed[0].retold(f"{failed[0]}; queues done: {', '.join(done) or 'none'}")
        error.outcome_known = not done and all(one.outcome_known for one in failed)
        raise error

    async def _answer(
        self, address: str, operation: operations.Operation[Any]
    ) -> PymqError | None:
        try:
            await self.asking.one(address, operation)
        except PymqError as error:
            return error
        return None

    def _commit(self, change: OffsetChange) -> operations.Operation[None]:
        return operations.update_offset(self.group, change.queue, change.after)

    def _reset_queue(self, change: OffsetChange) -> operations.Operation[dict[MessageQueue, int]]:
        return operations.reset_queue(self.group, change.queue, change.after)

    async def _tell_members(
        self, address: str, changes: list[OffsetChange]
    ) -> list[OffsetChange]:
        if not self.is_whole or isinstance(self.to, int):
            raise ConfigurationError(
                f"group {self.group!r} has members in topic {self.topic!r}, and {address} can only "
                "set them to a time in the whole topic: stop them and try again, or reset to "
                "earliest, latest or a time, without a queue"
            )
        if is_moment(self.to):
            to_ms = moment_ms("to", self.to)
        else:
            to_ms = 0 if self.to == "earliest" else -1
        told = await self.asking.one(
            address, operations.reset_members(self.group, self.topic, to_ms)
        )
        changes = [
            OffsetChange(
                one.queue, one.before, told.get(one.queue, one.after), one.first, one.end
            )
            for one in changes
        ]
        await self._wait_committed(address, changes)
        return changes

    async def _wait_committed(self, address: str, changes: list[OffsetChange]) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.wait_s
        waiting = [one for one in changes if one.before != one.after]
        while waiting:
            now = await asyncio.gather(*(self._committed(address, one) for one in waiting))
            waiting = [
                one for one, at in zip(waiting, now, strict=True) if not _has_moved(one, at)
            ]
            if waiting and loop.time() > deadline_s:
                queues = ", ".join(str(one.queue.queue_id) for one in waiting)
                raise RequestTimeout(
                    f"{address} told the members of group {self.group!r} to go on elsewhere in "
                    f"topic {self.topic!r}, and in queues {queues} they have not committed that "
                    f"after {self.wait_s:g} s: stop them, and reset the group again"
                )
            if waiting:
                await asyncio.sleep(_POLL_S)

    async def _committed(self, address: str, change: OffsetChange) -> int | None:
        operation = operations.query_offset(self.group, change.queue, zero_if_new=False)
        return await self.asking.one(address, operation)


def _has_moved(change: OffsetChange, committed: int | None) -> bool:
    """Has the group been at the new place? It may be further already."""
    if committed is None:
        return False
    before = change.first if change.before is None else change.before
    if change.after >= before:
        return committed >= change.after
    return committed < before
