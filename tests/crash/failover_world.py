"""What the simulator of failover stands on: a virtual clock, processes, and a network.

Everything that happens is an event at a time, of one process or of the network. Processes die and
freeze. Connections are as TCP's: what is sent arrives in order, or not at all; over a link that is
cut it waits, and arrives long after, also when its sender has died in between.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

Action = Callable[[], None]
#: Most of a message's way, and of the others; and how much later what was stuck is sent again.
LATENCY_S, SLOW_S, AGAIN_S = 0.002, 0.3, 1.5
_ENDED = object()


class World:
    """The clock, what is about to happen, and who can reach whom.

    Attributes:
        now_s: the time.
        told: what happened lately, for whoever has to understand it.
    """

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.now_s = 0.0
        self.told: deque[str] = deque(maxlen=400)
        self._events: list[tuple[float, int, Process | None, int, Action]] = []
        self._count = 0
        self._cut: set[frozenset[str]] = set()
        self._connections: list[Connection] = []

    def note(self, text: str) -> None:
        """Keep what happened."""
        self.told.append(f"{self.now_s:8.3f} {text}")

    def after(self, delay_s: float, process: Process | None, action: Action) -> None:
        """Have something happen later, unless the process has died by then."""
        self._count += 1
        life = 0 if process is None else process.life
        event = (self.now_s + delay_s, self._count, process, life, action)
        heapq.heappush(self._events, event)

    def run(self, until_s: float) -> None:
        """Have everything happen that is due up to a time."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, process, life, action = heapq.heappop(self._events)
            if process is None:
                action()
            elif process.life == life:
                process.do(action)
        self.now_s = until_s

    # --- the network

    def latency_s(self) -> float:
        """Return how long a message takes."""
        dice = self.dice.random
        return dice() * (LATENCY_S if dice() < 0.97 else SLOW_S)

    def is_cut(self, one: Process, other: Process) -> bool:
        """Can these two not reach each other?"""
        return bool(self._cut) and frozenset((one.name, other.name)) in self._cut

    def cut(self, one: Process, other: Process) -> None:
        """Have nothing arrive between two of them."""
        self._cut.add(frozenset((one.name, other.name)))

    def mend(self, one: Process, other: Process) -> None:
        """Have everything arrive again, what was stuck included."""
        self._cut.discard(frozenset((one.name, other.name)))
        self._connections = [each for each in self._connections if each.may_speak]
        for connection in self._connections:
            if set(connection.ends) == {one, other}:
                connection.mend()

    def connect(self, opener: Process, target: Process) -> Connection:
        """Return a new connection; whoever listens at the target is told of it."""
        connection = Connection(self, opener, target)
        self._connections.append(connection)
        for end in connection.ends:
            end.connections.append(connection)
        return connection


class Process:
    """Something that runs, with timers and connections that end with it.

    Attributes:
        life: how often it has died.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.life = 0
        self.is_up = self.is_frozen = False
        self.connections: list[Connection] = []
        self._waiting: deque[Action] = deque()
        self._silent: list[Connection] = []

    def after(self, delay_s: float, action: Action) -> None:
        """Do something later."""
        self.world.after(delay_s, self, action)

    def do(self, action: Action) -> None:
        """Do something now, or when it thaws."""
        if self.is_frozen:
            self._waiting.append(action)
        else:
            action()

    def begin(self) -> None:
        """Run again; peers learn now that connections were lost with the power."""
        self.is_up = True
        for connection in self._silent:
            connection.end(self)
        self._silent.clear()

    def die(self, *, loses_power: bool = False) -> None:
        """End at once; without power, nobody is told of it."""
        self.life += 1
        self.is_up = self.is_frozen = False
        self._waiting.clear()
        connections, self.connections = self.connections, []
        for connection in connections:
            if loses_power:
                connection.forget(self)
                self._silent.append(connection)
            else:
                connection.end(self)

    def freeze(self) -> None:
        """Stand still; what arrives waits."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Go on, with all that has waited."""
        self.is_frozen = False
        life, waiting = self.life, list(self._waiting)
        self._waiting.clear()
        for action in waiting:
            if self.life == life:
                action()

    def accepted(self, connection: Connection) -> None:
        """Take a connection that was made to this process."""
        raise NotImplementedError


class Connection:
    """Two streams of messages.

    Attributes:
        ends: who has opened it, and to whom.
        on_message, on_end: of the two, set by them.
    """

    def __init__(self, world: World, opener: Process, target: Process) -> None:
        self._world = world
        self.ends = (opener, target)
        self._lives = (opener.life, target.life)
        self._is_ended = [False, not target.is_up]
        self._free_s = [0.0, 0.0]
        self._stuck: tuple[list[Any], list[Any]] = ([], [])
        self.on_message: list[Callable[[Any], None]] = [_ignore, _ignore]
        self.on_end: list[Action] = [_nothing, _nothing]
        if target.is_up:
            self._send(0, None)
        else:
            world.after(world.latency_s(), opener, lambda: self._deliver(0, _ENDED))

    @property
    def may_speak(self) -> bool:
        """Is anything of it left?"""
        return not all(self._is_ended) or bool(self._stuck[0] or self._stuck[1])

    def side(self, process: Process) -> int:
        """Return 0 for whoever has opened it, 1 for the other."""
        return 0 if process is self.ends[0] else 1

    def is_open(self, process: Process) -> bool:
        """Can a process send anything?"""
        return not self._is_ended[self.side(process)]

    def send(self, process: Process, message: Any) -> None:
        """Send a message, if it is open."""
        side = self.side(process)
        if not self._is_ended[side]:
            self._send(side, message)

    def end(self, process: Process) -> None:
        """Close it; the other learns of it after everything else."""
        side = self.side(process)
        self.forget(process)
        self._send(side, _ENDED)

    def forget(self, process: Process) -> None:
        """Close one end of it without a word."""
        self._is_ended[self.side(process)] = True
        if self in process.connections:
            process.connections.remove(self)

    def _send(self, side: int, message: Any) -> None:
        world = self._world
        at_s = max(self._free_s[side], world.now_s + world.latency_s())
        self._free_s[side] = at_s
        world.after(at_s - world.now_s, None, lambda: self._arrive(side, message))

    def _arrive(self, side: int, message: Any) -> None:
        if self._stuck[side] or self._world.is_cut(*self.ends):
            self._stuck[side].append(message)
            return
        other = 1 - side
        process = self.ends[other]
        if process.life == self._lives[other] and process.is_up:
            process.do(lambda: self._deliver(other, message))

    def mend(self) -> None:
        """Have what is stuck arrive soon."""
        for side in (0, 1):
            if self._stuck[side]:
                delay_s = self._world.dice.random() * AGAIN_S
                self._world.after(delay_s, None, lambda side=side: self._unstick(side))

    def _unstick(self, side: int) -> None:
        if not self._world.is_cut(*self.ends):
            stuck = list(self._stuck[side])
            self._stuck[side].clear()
            for message in stuck:
                self._arrive(side, message)

    def _deliver(self, side: int, message: Any) -> None:
        if message is _ENDED:
            was_open = not self._is_ended[side]
            self.forget(self.ends[side])
            if was_open:
                self.on_end[side]()
        elif message is None:
            self.ends[side].accepted(self)
        elif not self._is_ended[side]:
            self.on_message[side](message)


def _ignore(message: Any) -> None:
    pass


def _nothing() -> None:
    pass
