"""The ledger of a crash test: which sends were attempted, and how each ended.

The process that sends writes it, line by line, in the order of events; it is never killed, so
what stands there is what clients know::

    A <request> <key> [<key> ...]                  about to be sent: one message, or one batch
    K <request> <queue id> <first queue offset> <physical offset> [<physical offset> ...]
      [@<broker>]                                  acknowledged with SEND_OK, by a broker that is
                                                   named as in message ids: address and port, hex
    F <request> known|unknown <reason>             failed; known: the client says that nothing
                                                   was stored
    N <request> <word> [<word> ...]                something that a request brought; the checker of
                                                   this kind of request knows what the words mean

A request without K or F was under way when the sender ended: its outcome is unknown.

Several processes may write one ledger: each line is added to its end by one system call, so lines
stand in the order of events here, too.

A message's body follows from its key, so that a checker needs no copy of it. The key is
``<producer>-<number>-<size>``, the body ``<key>|`` and ``size`` bytes more: the SHA-256 of what
stands before them, repeated. ``java/LedgerProducer.java`` does the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self


def make_key(producer: int, number: int, size: int) -> str:
    """Return the key of a message with ``size`` bytes of filling."""
    return f"{producer}-{number}-{size}"


def body_of(key: str) -> bytes:
    """Return the body that belongs to a key."""
    size = int(key.rpartition("-")[2])
    head = f"{key}|".encode()
    return head + (hashlib.sha256(head).digest() * (size // 32 + 1))[:size]


def key_of(body: bytes) -> str | None:
    """Return the key a body claims to belong to; ``None`` when it is no body of ours."""
    head, bar, _ = body.partition(b"|")
    parts = head.split(b"-")
    if not bar or len(parts) != 3 or not all(part.isdigit() for part in parts):
        return None
    return head.decode()


@dataclass(frozen=True, slots=True)
class Attempted:
    """A send is about to begin; ``keys`` are several for a batch."""

    request: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The broker said SEND_OK: the messages stand there, one physical offset each.

    Attributes:
        broker: which one said so, as in message ids; empty: not noted.
    """

    request: str
    queue_id: int
    first_offset: int
    physical_offsets: tuple[int, ...]
    broker: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The client gave up; ``is_known``: it is certain that nothing was stored."""

    request: str
    is_known: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Noted:
    """A request brought something."""

    request: str
    words: tuple[str, ...]


Event = Attempted | Acknowledged | Failed | Noted


def format_event(event: Event) -> str:
    """Return the line of an event."""
    match event:
        case Attempted(request, keys):
            return " ".join(("A", request, *keys)) + "\n"
        case Acknowledged(request, queue_id, first, physical, broker):
            by = (f"@{broker}",) if broker else ()
            return " ".join(("K", request, *map(str, (queue_id, first, *physical)), *by)) + "\n"
        case Failed(request, is_known, reason):
            flat = " ".join(reason.split())
            return f"F {request} {'known' if is_known else 'unknown'} {flat}\n"
        case Noted(request, words):
            return " ".join(("N", request, *words)) + "\n"


def parse_event(line: str) -> Event:
    """Return the event of a line.

    Raises:
        ValueError: it is no line of a ledger.
    """
    kind, request, *rest = line.split()
    if kind == "A" and rest:
        return Attempted(request, tuple(rest))
    if kind == "K" and len(rest) >= 3:
        broker = rest.pop()[1:] if rest[-1].startswith("@") else ""
        queue_id, first, *physical = map(int, rest)
        return Acknowledged(request, queue_id, first, tuple(physical), broker)
    if kind == "F" and rest and rest[0] in ("known", "unknown"):
        return Failed(request, rest[0] == "known", " ".join(rest[1:]))
    if kind == "N" and rest:
        return Noted(request, tuple(rest))
    raise ValueError(f"{line!r} is no line of a ledger")


def parse_ledger(lines: Iterable[str]) -> list[Event]:
    """Return the events of a whole ledger, in their order.

    Raises:
        ValueError: a line is none.
    """
    return [parse_event(line) for line in lines]


class LedgerWriter:
    """Writes events; each is in the file when the call returns."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", buffering=1)

    def write(self, event: Event) -> None:
        """Add an event."""
        self._file.write(format_event(event))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LedgerWatch:
    """Follows a ledger that other processes write, and counts.

    Args:
        numbers: of the producers that count; None: all.
    """

    def __init__(self, path: Path, numbers: range | None = None) -> None:
        self._numbers = numbers
        self._file: IO[bytes] = path.open("rb")
        self._rest = b""
        self._acknowledged_count = 0

    def acknowledged_count(self) -> int:
        """Return how many requests were acknowledged up to now."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        self._acknowledged_count += sum(self._counts(line) for line in lines)
        return self._acknowledged_count

    def _counts(self, line: bytes) -> bool:
        if not line.startswith(b"K"):
            return False
        return self._numbers is None or int(line[2 : line.index(b".")]) in self._numbers

    def close(self) -> None:
        """Close the file."""
        self._file.close()
