"""Tells the members of consumer groups that they have to rebalance, without a storm.

A notice says which group has changed, nothing else: each member then asks who is in it. So changes
that come together are one notice, and the larger a group is, the longer its members wait for the
next one: when a thousand members start at once, each would hear of the others a thousand times.
The first change is told at once.

Source: RocketMQ DefaultConsumerIdsChangeListener, NOTIFY_CONSUMER_IDS_CHANGED (40).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from pymq.net.server import ServerConnection
from pymq.protocol.codes import CommandFlag, LanguageCode, RequestCode
from pymq.protocol.command import Command
from pymq.protocol.framing import encode_frame
from pymq.protocol.headers.groups import ConsumerGroupRequest

#: Between two rounds of notices to a group, for each of its members.
MEMBER_S = 200e-6
#: Notices sent in one turn of the event loop: a millisecond or less.
TURN_COUNT = 50


class ChangeNotices:
    """Sends NOTIFY_CONSUMER_IDS_CHANGED.

    Args:
        members: returns the connections of a group's members; none when the group is gone.
    """

    def __init__(self, members: Callable[[str], Iterable[ServerConnection]]) -> None:
        self._members = members
        #: The timers of groups that were told lately; True: they have changed since.
        self._resting: dict[str, tuple[asyncio.TimerHandle, bool]] = {}
        self._outgoing: deque[tuple[ServerConnection, bytes]] = deque()
        self._is_closed = False

    def start(self) -> None:
        """Nothing to begin: changes begin it."""

    async def close(self) -> None:
        """Send nothing more; idempotent."""
        self._is_closed = True
        self._outgoing.clear()
        for timer, _ in self._resting.values():
            timer.cancel()
        self._resting.clear()

    def changed(self, group: str) -> None:
        """Tell the members of a group, now or as soon as its rest is over."""
        if self._is_closed:
            return
        resting = self._resting.get(group)
        if resting is not None:
            self._resting[group] = resting[0], True
            return
        frame = _notice(group)
        count = len(self._outgoing)
        self._outgoing.extend((connection, frame) for connection in self._members(group))
        loop = asyncio.get_running_loop()
        if not count and self._outgoing:
            loop.call_soon(self._send_some)
        rest_s = (len(self._outgoing) - count) * MEMBER_S
        self._resting[group] = loop.call_later(rest_s, self._rested, group), False

    def _rested(self, group: str) -> None:
        _, has_changed = self._resting.pop(group)
        if has_changed:
            self.changed(group)

    def _send_some(self) -> None:
        outgoing = self._outgoing
        for _ in range(min(TURN_COUNT, len(outgoing))):
            connection, frame = outgoing.popleft()
            connection.send(frame)
        if outgoing:
            asyncio.get_running_loop().call_soon(self._send_some)


def _notice(group: str) -> bytes:
    return encode_frame(
        Command(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            ConsumerGroupRequest(consumer_group=group).to_fields(),
            flag=CommandFlag.ONE_WAY,
            language=LanguageCode.JAVA,
        )
    )
