"""Setting a group to other places in the queues of a topic, one broker at a time.

A group without members is set by commits: its next member begins there. Members keep their own
count and would commit over it, so they have to be told. Brokers of 5.x do that by themselves
(``useServerSideResetOffset``), queue by queue; those of 4.9, and where it is off, only pass a time
on to the members, for the whole topic, and the members commit when they have stopped their work.
Those cannot reach members that were assigned their queues and subscribe to nothing.

Source: RocketMQ AdminBrokerProcessor.resetOffset, DefaultMQAdminExtImpl.resetOffsetByTimestamp.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pymq.client import operations
from pymq.client.administration.asking import Asking
from pymq.client.checks import Moment, is_moment, moment_ms
from pymq.errors import CommitFailed, ConfigurationError, PymqError, RequestTimeout
from pymq.protocol.bodies import ConsumerConnections, MessageQueue

#: Where to set a group to.
ResetTarget = Literal["earliest", "latest"] | Moment | int

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


@dataclass(frozen=True, slots=True)
class Reset:
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
        try:
            if not self.has_members(name):
                await self._commit_each(address, changes)
            elif await self._is_server_side(address):
                await self._each(address, changes, self._reset_queue)
            elif self._is_subscribed:
                return await self._tell_members(address, changes)
            else:
                raise ConfigurationError(
                    f"group {self.group!r} has members that were assigned their queues, and "
                    f"{address} cannot tell them where to go on: stop them and try again"
                )
        except PymqError as error:
            return error
        return changes

    @property
    def _is_subscribed(self) -> bool:
        online = [one for one in self.members.values() if one.connections]
        return any(self.topic in one.subscriptions for one in online)

    def has_members(self, name: str) -> bool:
        """Do members read the topic's queues of a broker, or perhaps do?"""
        here = self.members.get(name, _NOBODY)
        # Members that were assigned their queues do not say which.
        is_assigned = bool(here.connections) and not here.subscriptions
        return self._is_subscribed or is_assigned

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
