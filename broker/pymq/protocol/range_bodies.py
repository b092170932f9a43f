"""How far ranges of queues go within a number of bytes: the bodies of FITTING_RANGES.

An extension of pymq. The request names ranges of queues, each with the bytes it may have; the
response says, in the same order, where each ends then, and how many bytes its messages take as they
are stored. At least one message is in what fits, so that its bytes may be more::

    {"topics": ["T"], "packed": "AAAAAA..."}    ->    {"packed": "AAAAAA..."}

``packed`` is base64, big-endian. Of the request, 30 B for each range: the index of its topic (2 B),
queue id (4), first queue offset (8), end (8), bytes (8). Of the response, 16 B: end (8), bytes (8).

A range ends earlier than it could where the broker has looked at enough entries for one request:
the rest can be asked for from there. Where the queue has nothing to look at, be it unknown or
behind its end, a range ends where it begins.
"""

import base64
import binascii
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from pymq.errors import LocalProtocolError, RemoteProtocolError
from pymq.protocol.json_object import JsonObject

#: Ranges of one request.
RANGES_MAX = 1024

# Not a numpy dtype: clients need no numpy, and it is a thousand at most.
_RANGE = struct.Struct(">Hiqqq")
_FITTING = struct.Struct(">qq")
assert (_RANGE.size, _FITTING.size) == (30, 16)  # on-wire contract


class QueueRange(NamedTuple):
    """What is asked about one queue.

    Attributes:
        topic, queue_id: which.
        first, end: queue offsets.
        bytes_max: of the messages together, as they are stored; one may be more.
    """

    topic: str
    queue_id: int
    first: int
    end: int
    bytes_max: int


class Fitting(NamedTuple):
    """What fits of a range.

    Attributes:
        end: queue offset behind it.
        size_bytes: of its messages, as they are stored.
    """

    end: int
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class QueueRanges(JsonObject):
    """The body of a request; attributes as they are sent."""

    packed: str
    topics: list[str]

    @classmethod
    def of(cls, ranges: Sequence[QueueRange]) -> Self:
        """Return the body about some ranges.

        Raises:
            LocalProtocolError: there are more than ``RANGES_MAX``, or a number is too large.
        """
        if len(ranges) > RANGES_MAX:
            raise LocalProtocolError(
                f"{len(ranges)} ranges of queues, expected at most {RANGES_MAX} (RANGES_MAX)"
            )
        topics: dict[str, int] = {}
        rows = ((topics.setdefault(one.topic, len(topics)), *one[1:]) for one in ranges)
        return cls(packed=_packed(_RANGE, rows), topics=list(topics))

    def ranges(self) -> list[QueueRange]:
        """Return the ranges; raises RemoteProtocolError."""
        found = []
        for topic, queue_id, first, end, bytes_max in _rows(_RANGE, self.packed):
            if topic >= len(self.topics) or min(queue_id, first, bytes_max) < 0 or end < first:
                raise RemoteProtocolError(
                    f"range {(topic, queue_id, first, end, bytes_max)} of {len(self.topics)} topics"
                )
            found.append(QueueRange(self.topics[topic], queue_id, first, end, bytes_max))
        return found


@dataclass(slots=True, kw_only=True)
class FittingRanges(JsonObject):
    """The body of a response; attributes as they are sent."""

    packed: str

    @classmethod
    def of(cls, ranges: Sequence[Fitting]) -> Self:
        """Return the body that says what fits of some ranges."""
        return cls(packed=_packed(_FITTING, ranges))

    def ranges(self) -> list[Fitting]:
        """Return what fits; raises RemoteProtocolError."""
        found = [Fitting(*row) for row in _rows(_FITTING, self.packed)]
        if any(min(one) < 0 for one in found):
            raise RemoteProtocolError(f"ranges {found!r:.80}, expected no negative numbers")
        return found


def _packed(layout: struct.Struct, rows: Iterable[Sequence[int]]) -> str:
    try:
        return base64.b64encode(b"".join(layout.pack(*row) for row in rows)).decode()
    except struct.error as error:
        raise LocalProtocolError(f"a range has a number too large: {error}") from error


def _rows(layout: struct.Struct, packed: str) -> Iterable[tuple[int, ...]]:
    # base64 of a whole number of rows, padded.
    if len(packed) > (RANGES_MAX * layout.size + 2) // 3 * 4:
        raise RemoteProtocolError(
            f"{len(packed) * 3 // 4 // layout.size} ranges, expected at most {RANGES_MAX} "
            "(RANGES_MAX)"
        )
    try:
        return layout.iter_unpack(base64.b64decode(packed, validate=True))
    except (binascii.Error, struct.error, ValueError) as error:
        raise RemoteProtocolError(f"packed ranges of {len(packed)} B: {error}") from error
