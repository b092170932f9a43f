"""``async for`` over a consumer's messages, and what becomes of the message of a loop that ends."""

import asyncio
from typing import Self

from pymq.client.cluster.home import Home
from pymq.client.consuming.consume_hooks import ConsumeObserver, Consumption
from pymq.client.consuming.outcomes import Outcomes
from pymq.client.group.inbox import Delivery, Inbox
from pymq.protocol.message import ReceivedMessage


class MessageLoop:
    """One ``async for`` over a consumer's messages.

    What begins with an underscore is for ``MessageLoops``, which settles the current message of a
    loop that was left.
    """

    def __init__(
        self, inbox: Inbox, outcomes: Outcomes, observer: ConsumeObserver | None, home: Home
    ) -> None:
        self._inbox = inbox
        self._outcomes = outcomes
        self._observer = observer
        self._seen: Consumption | None = None
        self._home = home
        self._current: Delivery | None = None
        self._task = asyncio.current_task()
        self._is_running = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        if self._home.is_forked:
            self._home.check_process()
        self._finish_current()
        self._current = delivery = await self._inbox.take_in_turn()
        if delivery is None:
            self._is_running = False
            raise StopAsyncIteration
        if self._observer is not None:
            seen = self._observer.begin((delivery,))
            try:
                seen.before()
            except BaseException:
                self._put_back_current()
                raise
            self._seen = seen
        return delivery.message

    def _finish_current(self) -> None:
        """The body of the loop is done with its message."""
        delivery, self._current = self._current, None
        if delivery is not None:
            self._tell_hooks(is_left=False)
            self._outcomes.returned((delivery,))

    def _put_back_current(self) -> None:
        """The loop was left; whether its message was handled is not known."""
        delivery, self._current = self._current, None
        if delivery is not None:
            self._tell_hooks(is_left=True)
            self._inbox.put_back(delivery)

    def _tell_hooks(self, *, is_left: bool) -> None:
        seen, self._seen = self._seen, None
        if seen is not None:
            seen.after(None, is_left=is_left)


class MessageLoops:
    """The loops of one consumer. For one event loop."""

    def __init__(
        self, inbox: Inbox, outcomes: Outcomes, observer: ConsumeObserver | None
    ) -> None:
        self._inbox = inbox
        self._outcomes = outcomes
        self._observer = observer
        self._loops: list[MessageLoop] = []

    def begin(self, home: Home) -> MessageLoop:
        """Begin a loop; the message of one that its task has left is delivered again."""
        task = asyncio.current_task()
        still = []
        for loop in self._loops:
            if loop._task is task or loop._task is None or loop._task.done():
                loop._put_back_current()
            elif loop._is_running:
                still.append(loop)
        self._loops = [*still, MessageLoop(self._inbox, self._outcomes, self._observer, home)]
        return self._loops[-1]

    def finish_those_of_this_task(self) -> None:
        """The current task is done with the messages of its loops."""
        task = asyncio.current_task()
        for loop in self._loops:
            if loop._task is task:
                loop._finish_current()
