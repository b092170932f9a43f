"""Finds runs in what a connection sends: requests alike but for a few values, handled as one.

Producers send the same headers again and again (``plain_sends``). Those of transactional messages
send the ends of earlier ones in between (``plain_ends``); both are gathered at the same time,
because a client does not wait for the one before it sends the other: every end is that of a message
that was acknowledged before. All else ends both runs.
"""

import struct
from typing import TypeAlias

from pymq.protocol.header_templates import TemplateLearner
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.headers.transactions import EndTransactionRequest
from pymq.protocol.plain_ends import PlainEnds, shape_of_end, template_of_ends
from pymq.protocol.plain_sends import PlainSends, shape_of_send, template_of_sends

#: Requests that are handled as one.
PlainRun: TypeAlias = PlainSends | PlainEnds

_PREFIX = struct.Struct(">II")
#: Fewer requests cost less one by one.
RUN_COUNT_MIN = 3
#: Where they are mixed with others, it is tried again after this many frames at the latest.
_PAUSE_MAX = 63


class PlainRunReader:
    """Recognizes the runs of one connection."""

    __slots__ = ("_ends", "_pause", "_sends", "_skipped")

    def __init__(self) -> None:
        self._sends: TemplateLearner[SendRequest]
        self._sends = TemplateLearner(shape_of_send, template_of_sends)
        self._ends: TemplateLearner[EndTransactionRequest]
        self._ends = TemplateLearner(shape_of_end, template_of_ends)
        self._pause = 0  # frames that are not looked at after the last one in vain
        self._skipped = 0  # of those

    def read(
        self, data: bytes, position: int, *, frame_bytes_max: int
    ) -> tuple[list[PlainRun], int]:
        """Return the runs that begin at a frame, and the position behind them.

        Args:
            data: input; may end in the middle of a frame.
            position: of the frame, of which at least eight bytes are there.
            frame_bytes_max: where it is larger, whatever it is, nothing is found.
        """
        start, end = position, len(data)
        length, _ = _PREFIX.unpack_from(data, start)
        if end - start < RUN_COUNT_MIN * length:
            return [], start
        if self._skipped < self._pause:
            self._skipped += 1
            return [], start
        sends, ends = self._sends.template, self._ends.template
        rows: list[tuple[bytes, ...]] = []
        end_rows: list[tuple[bytes, ...]] = []
        bodies: list[bytes] = []
        borders = [position]  # where requests of one kind begin, the sends first
        while end - position >= 8:
            length, word = _PREFIX.unpack_from(data, position)
            header_start = position + 8
            frame_end, body_start = position + 4 + length, header_start + word  # form 0: JSON
            if frame_end > end or body_start > frame_end or length + 4 > frame_bytes_max:
                break
            found = sends and sends.pattern.match(data, header_start, body_start)
            if found and found.end() == body_start:
                rows.append(found.groups())
                bodies.append(data[body_start:frame_end])
                if not len(borders) & 1:
                    borders.append(position)
                position = frame_end
                continue
            ended = ends and ends.pattern.match(data, header_start, body_start)
            if ended and ended.end() == body_start == frame_end:
                end_rows.append(ended.groups())
                if len(borders) & 1:
                    borders.append(position)
                position = frame_end
                continue
            if rows or end_rows or not self._learn(data[header_start:body_start]):
                break
            sends, ends = self._sends.template, self._ends.template
        if len(rows) + len(end_rows) < RUN_COUNT_MIN:
            self._pause = min(2 * self._pause + 1, _PAUSE_MAX)
            self._skipped = 0
            return [], start
        self._pause = 0
        borders.append(position)
        found_runs: list[PlainRun] = []
        if rows:
            assert sends is not None
            found_runs.append(PlainSends(sends.header, _parts(data, borders), rows, bodies))
        if end_rows:
            assert ends is not None
            found_runs.append(PlainEnds(ends, _parts(data, borders[1:]), end_rows))
        return found_runs, position

    def _learn(self, header: bytes) -> bool:
        return self._sends.learn(header) or self._ends.learn(header)


def _parts(data: bytes, borders: list[int]) -> bytes:
    """Return every second one of adjacent parts, the first one first, joined."""
    return b"".join(
        data[start:end] for start, end in zip(borders[::2], borders[1::2], strict=False)
    )
