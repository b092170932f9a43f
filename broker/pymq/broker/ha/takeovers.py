"""What a master takes over from a slave that may have acted for it, before it delivers anything."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pymq.protocol.bodies import ConsumerOffsetTable


@dataclass(slots=True)
class Takeovers:
    """Who is told what such a slave says.

    Attributes:
        offsets: get its consumer offsets; among them, how far the master's own topics are.
        timers: gets its checkpoint of timers, 56 bytes or more.
    """

    offsets: list[Callable[[ConsumerOffsetTable], Awaitable[None]]] = field(default_factory=list)
    timers: Callable[[bytes], object] = lambda body: None
