"""Messages between the pulls and the handlers of one consumer: delivery and its limits.

Pulling pauses when a queue, or all together, have too much that is not finished, and goes on
when a quarter of it is done. The limits count until a message is finished, not until it is
taken, so that slow handlers hold the pulls back, too.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pymq.client.checks import check_count
from pymq.client.group.process_queue import ProcessQueue
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.outcomes import Outcome

#: For so long messages may follow one another without the event loop's other work in between.
TURN_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """How much may be pulled and not finished.

    Attributes:
        queue_messages_max, queue_bytes_max: of one queue.
        messages_max, bytes_max: of all queues together.
        span_max: entries between a queue's first unfinished message and its next pull: what
            a restart delivers twice at worst.
    """

    queue_messages_max: int = 1_000
    queue_bytes_max: int = 32 << 20
    messages_max: int = 20_000
    bytes_max: int = 256 << 20
    span_max: int = 10_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check_count(name, getattr(self, name), 1)


class Settler(Protocol):
    """What carries out the outcomes that messages are given by name, from any thread."""

    def settle(self, delivery: "Delivery", outcome: Outcome) -> None: ...


@dataclass(slots=True, eq=False)
class Delivery:
    """One message that waits for a handler, or is being handled."""

    message: ReceivedMessage
    process_queue: ProcessQueue
    settler: Settler | None = None
    #: Its body cannot be decompressed: no handler gets it, it only goes back to the broker.
    is_held: bool = False
    #: Since when somebody has it, monotonic; 0: nobody has.
    taken_s: float = 0.0
    #: Who has it, for log messages.
    holder: str = ""
    #: Those that were proposed for its outcome, each by one call: the first one counts.
    _proposed: list[tuple[Outcome]] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome | None:
        """What became of it; only ``Outcomes`` decides it, others may replace it."""
        return self._proposed[0][0] if self._proposed else None

    @outcome.setter
    def outcome(self, outcome: Outcome | None) -> None:
        self._proposed = [] if outcome is None else [(outcome,)]

    def decide(self, outcome: Outcome) -> bool:
        """Give it this outcome unless it has one; for any thread, which waits for no other."""
        proposed, own = self._proposed, (outcome,)
        if not proposed:
            proposed.append(own)
        return proposed[0] is own

    def settle(self, message: ReceivedMessage, outcome: Outcome) -> None:
        """Give the message its outcome. Raises what ``ReceivedMessage.ack`` does."""
        assert self.settler is not None
        self.settler.settle(self, outcome)


class Inbox:
    """What was pulled and waits, or is being handled. For one event loop."""

    def __init__(self, limits: FlowLimits) -> None:
        self._limits = limits
        self._ready: deque[Delivery] = deque()
        #: Of queues that are paused.
        self._stash: dict[ProcessQueue, list[Delivery]] = {}
        self._takers: deque[asyncio.Future[None]] = deque()
        self._paused: dict[ProcessQueue, asyncio.Future[None]] = {}
        self._is_closed = False
        self._turn_ends_s = 0.0
        self._next_turn = asyncio.Lock()
        #: Those that were taken and are not finished.
        self.in_hand: set[Delivery] = set()
        #: Carries out outcomes that messages are given by name; who has none gives them none.
        self.settler: Settler | None = None
        #: Unfinished, over all queues.
        self.message_count = 0
        self.message_bytes = 0

    # --- pulls

    def deliver(
        self,
        process_queue: ProcessQueue,
        messages: Sequence[ReceivedMessage],
        next_offset: int,
        *,
        hold: Collection[int] = (),
    ) -> list[Delivery]:
        """Take what a pull of a queue returned; see ``ProcessQueue.pulled``.

        Args:
            process_queue: of the queue.
            messages: those that concern us.
            next_offset: where the next pull begins.
            hold: queue offsets of messages that are returned instead of delivered.
        """
        before = process_queue.message_bytes
        process_queue.pulled(messages, next_offset)
        self.message_count += len(messages)
        self.message_bytes += process_queue.message_bytes - before
        settler = self.settler
        deliveries = [Delivery(message, process_queue, settler) for message in messages]
        if settler is not None:
            for delivery in deliveries:
                delivery.message._hold(delivery)
        held = [d for d in deliveries if d.message.queue_offset in hold] if hold else []
        for delivery in held:
            delivery.is_held = True
        self._enqueue([d for d in deliveries if not d.is_held] if held else deliveries)
        return held

    def _enqueue(self, deliveries: Sequence[Delivery]) -> None:
        self._ready.extend(deliveries)
        self._wake_takers(len(deliveries))

    async def wait_room(self, process_queue: ProcessQueue) -> int:
        """Wait until a queue may pull; return how many messages it may pull."""
        while (room := self.room(process_queue)) <= 0:
            future = asyncio.get_running_loop().create_future()
            self._paused[process_queue] = future
            try:
                await future
            finally:
                self._paused.pop(process_queue, None)
        return room

    def room(self, queue: ProcessQueue, part: float = 1.0) -> int:
        """Return how many messages a queue may pull below a part of the limits; 0 or less: none."""
        limits = self._limits
        if (
            queue.message_bytes >= limits.queue_bytes_max * part
            or self.message_bytes >= limits.bytes_max * part
            or queue.span >= limits.span_max * part
        ):
            return 0
        return min(
            math.ceil(limits.queue_messages_max * part) - queue.message_count,
            math.ceil(limits.messages_max * part) - self.message_count,
        )

    def byte_room(self, queue: ProcessQueue) -> int:
        """Return how many bytes of bodies a queue may deliver; 0 or less: no more."""
        limits = self._limits
        return min(
            limits.queue_bytes_max - queue.message_bytes, limits.bytes_max - self.message_bytes
        )

    def reached_limits(self, queue: ProcessQueue) -> dict[str, int]:
        """Return the limits for which a queue may not pull, as they are set."""
        limits = self._limits
        measured = {
            "span_max": queue.span,
            "queue_messages_max": queue.message_count,
            "queue_bytes_max": queue.message_bytes,
            "messages_max": self.message_count,
            "bytes_max": self.message_bytes,
        }
        settings = {name: int(getattr(limits, name)) for name in measured}
        return {name: settings[name] for name in measured if measured[name] >= settings[name]}

    def why_held_back(self, queue: ProcessQueue) -> str:
        """Return why a queue may not pull, whose first unfinished message keeps it from that."""
        limits = ", ".join(f"{k}={v}" for k, v in self.reached_limits(queue).items())
        return (
            f"reading stands still at offset {queue.next_offset}, because the message at offset "
            f"{queue.commit_offset} is not finished: {self.why_unfinished(queue)}. "
            f"(Limit reached: {limits})"
        )

    def why_unfinished(self, queue: ProcessQueue) -> str:
        """Return what the first unfinished message of a queue waits for, and what would help."""
        offset = queue.commit_offset
        if failure := queue.failures.get(offset):
            return f"{failure}; mend the handler, or let it return for what it cannot handle"
        for delivery in self.in_hand:
            if delivery.process_queue is queue and delivery.message.queue_offset == offset:
                return _why_in_hand(delivery)
        return "it waits for a handler; raise concurrency, or start more members"

    def resume(self, queue: ProcessQueue) -> None:
        """Deliver messages of a queue that was paused."""
        queue.is_paused = False
        stashed = sorted(self._stash.pop(queue, ()), key=lambda d: d.message.queue_offset)
        self._ready.extendleft(reversed(stashed))
        self._wake_takers(len(stashed))

    async def wait_idle(self, queue: ProcessQueue) -> None:
        """Wait until a queue may be given up: at once, unless it is read in order."""

    def drop(self, process_queue: ProcessQueue) -> None:
        """Give a queue up: nothing of it is delivered any more."""
        if process_queue.dropped:
            return
        process_queue.dropped = True
        self.message_count -= process_queue.message_count
        self.message_bytes -= process_queue.message_bytes
        self._ready = deque(d for d in self._ready if d.process_queue is not process_queue)
        self._stash.pop(process_queue, None)
        self.in_hand = {d for d in self.in_hand if d.process_queue is not process_queue}
        self._resume()

    # --- handlers

    async def take(self) -> Delivery | None:
        """Wait for the next message; ``None`` when there will be no more.

        It must be given to ``acknowledge`` or ``put_back`` in the end.
        """
        while not self._is_closed:
            delivery = self.take_nowait()
            if delivery is not None:
                return delivery
            await self._wait_woken()
        return None

    async def _wait_woken(self) -> None:
        """Wait until there may be something to take."""
        taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._takers.append(taker)
        try:
            await taker
        except asyncio.CancelledError:
            if not taker.cancelled():
                self._wake_takers(1)  # It was meant for whoever can take it.
            elif taker in self._takers:
                self._takers.remove(taker)
            raise

    async def take_in_turn(self) -> Delivery | None:
        """``take``, after the event loop's other work if messages have kept it from that.

        What is there is taken without waiting. Between handlers that do not wait either, the loop
        would stand still until the last of them: no heartbeat, no commit, no Ctrl-C.
        """
        if time.monotonic() > self._turn_ends_s:
            async with self._next_turn:  # Or each of many takers would have a turn of its own.
                if time.monotonic() > self._turn_ends_s:
                    await asyncio.sleep(0)
                    self._turn_ends_s = time.monotonic() + TURN_S
        return self.take_nowait() or await self.take()

    def take_nowait(self) -> Delivery | None:
        """Return the next message if one is there."""
        while self._ready and not self._is_closed:
            delivery = self._ready.popleft()
            queue = delivery.process_queue
            if queue.is_paused:
                self._stash.setdefault(queue, []).append(delivery)
            elif not queue.dropped:
                self._hand_out(delivery)
                return delivery
        return None

    def _hand_out(self, delivery: Delivery) -> None:
        delivery.taken_s = time.monotonic()
        self.in_hand.add(delivery)

    def take_with(self, delivery: Delivery) -> Delivery | None:
        """Return a message for the same call of a handler as one that was just taken, if any."""
        return self.take_nowait()

    def acknowledge(self, delivery: Delivery) -> None:
        """A message was consumed, or its broker has taken it back. Idempotent."""
        self.in_hand.discard(delivery)
        if delivery.outcome is not None:
            # In place of the delivery, which refers to the message: a circle would keep its body.
            delivery.message._hold(delivery.outcome)
        queue = delivery.process_queue
        if queue.dropped:
            return
        size = queue.acknowledge(delivery.message.queue_offset)
        if size is None:
            return
        self.message_count -= 1
        self.message_bytes -= size
        if self._paused:
            self._resume()

    def put_back(self, delivery: Delivery) -> None:
        """Deliver a message again, before all others, unless it has an outcome."""
        self.in_hand.discard(delivery)
        delivery.taken_s = 0.0
        if not delivery.process_queue.dropped and delivery.outcome is None:
            self._ready.appendleft(delivery)
            self._wake_takers(1)

    def close(self) -> None:
        """Deliver nothing more; whoever waits gets ``None``."""
        self._is_closed = True
        self._wake_takers(len(self._takers))

    def _wake_takers(self, count: int) -> None:
        takers = self._takers
        while count and takers:
            taker = takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1

    def _resume(self) -> None:
        for queue, future in self._paused.items():
            if not future.done() and (queue.dropped or self.room(queue, 0.75) > 0):
                future.set_result(None)


def _why_in_hand(delivery: Delivery) -> str:
    """Return what keeps a message that somebody has, and what would help."""
    message_id = delivery.message.message_id
    if delivery.outcome is not None:
        return f"message {message_id} {delivery.outcome.text}, and its broker has not taken it yet"
    holder = delivery.holder or "its loop"
    waited_s = time.monotonic() - delivery.taken_s
    return (
        f"{holder} has had message {message_id} for {waited_s:.0f} s and has not finished it; give "
        "what handles messages a time limit (after consume_timeout_s it goes back to its broker)"
    )
