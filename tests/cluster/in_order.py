"""Messages with a key and a number, and what a group's handlers saw of them."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from pymq.client.sending.producer import Producer
from pymq.protocol.message import Message

KEYS = tuple(f"key-{n}" for n in range(9))


async def send_keys(producer: Producer, topic: str, numbers: Iterable[int]) -> None:
    """Send each number once for each key, in order."""
    for number in numbers:
        for key in KEYS:
            message = Message(topic, b"%s %d" % (key.encode(), number))
            await producer.send(message, sharding_key=key)


class HasBody(Protocol):
    """A received message, whoever received it."""

    @property
    def body(self) -> bytes: ...


class OrderLog:
    """Handlers of several members, of which all calls are noted; from any thread.

    Args:
        dice: how long a call takes.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._lock = threading.Lock()
        self._never = threading.Event()
        self._at_work: dict[str, str] = {}
        #: Key -> numbers in the order in which they were handled, again and again if need be.
        self.handled: dict[str, list[int]] = {key: [] for key in KEYS}
        self.members: set[str] = set()
        #: Who handled a message before it was handled again, and how often.
        self.again_after: Counter[str] = Counter()
        self._last: dict[tuple[str, int], str] = {}
        self.wrong: list[str] = []

    async def handle(self, member: str, message: HasBody) -> None:
        """Take a message; others of its key must wait."""
        self.begin(member, message)
        await asyncio.sleep(self._dice.random() * 0.01)
        self.end(message)

    def handle_in_thread(self, member: str, message: HasBody) -> None:
        """Take a message in a thread."""
        self.begin(member, message)
        self._never.wait(self._dice.random() * 0.01)
        self.end(message)

    def begin(self, member: str, message: HasBody) -> None:
        """A handler got a message."""
        key, number = self.parts(message)
        with self._lock:
            if key in self._at_work:
                self.wrong.append(f"{key} {number} at {member} while {self._at_work[key]}")
            self._at_work[key] = f"{number} at {member}"
            seen = self.handled[key]
            expected = max(seen, default=-1) + 1
            if number > expected:
                self.wrong.append(f"{key} {number} at {member}, expected {expected}")
            if number in seen:
                self.again_after[self._last[key, number]] += 1
            self._last[key, number] = member
            seen.append(number)
            self.members.add(member)

    def end(self, message: HasBody) -> None:
        """The handler is done."""
        self._at_work.pop(self.parts(message)[0], None)

    def has_all(self, count: int) -> bool:
        """Have all numbers below this been handled, of every key?"""
        return all(set(numbers) >= set(range(count)) for numbers in self.handled.values())

    @property
    def again_count(self) -> int:
        """How many were handled again."""
        return self.again_after.total()

    @staticmethod
    def parts(message: HasBody) -> tuple[str, int]:
        """Return the key and the number of a message."""
        key, number = message.body.decode().split()
        return key, int(number)
