"""Applies a SQL92 filter to the encoded properties of many messages at a time.

Of most properties in a filter messages have the same few values again and again, or do not have
them at all. So whether any of the messages has a property is looked up once, and the outcome for
values is remembered.

The clock is read only where many messages at a time might take too long: such a filter takes few.
"""

from collections.abc import Callable, Sequence
from time import thread_time

from pymq.filter.evaluate import SqlFilter
from pymq.protocol.message import find_property
from pymq.store import Verdicts

#: Outcomes that are remembered, and the bytes of values for which one may be.
_REMEMBERED_COUNT, _REMEMBERED_BYTES = 4096, 256
#: What one comparison may take, at the most usual, and for each byte that it looks at.
_COMPARISON_S, _BYTE_S = 5e-7, 5e-10
#: How long one call may take, and what is done of it without looking at the clock.
_CALL_S, _PIECE_S = 0.002, 0.0005
#: A filter that takes longer for a message, on average over so many, is slow.
_SLOW_S, _SLOW_COUNT = 0.001, 32


class MessageFilter:
    """Says of messages whether a filter selects them.

    Args:
        compiled: the filter.
        on_error: is told why a message that cannot be compared is not selected.

    Attributes:
        slow_ms: how long it takes for a message, if that is too long; 0.0: it does not.
    """

    __slots__ = (
        *("_known", "_names", "_on_error", "_spent_count", "_spent_s"),
        *("compiled", "slow_ms", "verdicts", "weight"),
    )

    def __init__(
        self, compiled: SqlFilter, on_error: Callable[[ValueError], object] | None = None
    ) -> None:
        self.compiled = compiled
        #: What it decided, for whoever reads queues with it.
        self.verdicts = Verdicts()
        self._on_error = on_error
        self._names = {name: b"\x02" + name + b"\x01" for name in compiled.names}
        self._known: dict[tuple[bytes | None, ...], bool] = {}
        #: How many comparisons and look-ups a message may need.
        self.weight = compiled.weight + len(self._names)
        self.slow_ms = 0.0
        self._spent_s, self._spent_count = 0.0, 0

    def __call__(self, messages: Sequence[bytes]) -> list[bool]:
        """Return of each message whether it is selected, or of the first of them, at least one.

        Args:
            messages: the encoded properties of each.
        """
        joined = b"\x02" + b"\x02".join(messages)
        count = len(messages)
        estimated_s = self.weight * (count * _COMPARISON_S + len(joined) * _BYTE_S)
        if estimated_s <= _CALL_S:
            return self._verdicts(messages, joined)
        piece_count = max(1, int(count * _PIECE_S / estimated_s))
        verdicts: list[bool] = []
        begun_s = thread_time()
        spent_s = 0.0
        while not verdicts or (len(verdicts) < count and spent_s < _CALL_S):
            piece = messages[len(verdicts) : len(verdicts) + piece_count]
            verdicts += self._verdicts(piece, b"\x02" + b"\x02".join(piece))
            spent_s = thread_time() - begun_s
        self._account(spent_s, len(verdicts))
        return verdicts

    def _account(self, spent_s: float, count: int) -> None:
        self._spent_s += spent_s
        self._spent_count += count
        if self._spent_count >= _SLOW_COUNT:
            mean_s = self._spent_s / self._spent_count
            self.slow_ms = mean_s * 1000 if mean_s > _SLOW_S else 0.0
            self._spent_s, self._spent_count = 0.0, 0

    def _verdicts(self, messages: Sequence[bytes], joined: bytes) -> list[bool]:
        there = [mark in joined for mark in self._names.values()]
        if not any(there):
            return [self._outcome((None,) * len(there))] * len(messages)
        if len(there) == 1:
            (name,) = self._names
            return [self._outcome((find_property(text, name),)) for text in messages]
        names = [
            name if is_there else None for name, is_there in zip(self._names, there, strict=True)
        ]
        return [
            self._outcome(
                tuple([None if name is None else find_property(text, name) for name in names])
            )
            for text in messages
        ]

    def _outcome(self, values: tuple[bytes | None, ...]) -> bool:
        known = self._known.get(values)
        return self._evaluate(values) if known is None else known

    def _evaluate(self, values: tuple[bytes | None, ...]) -> bool:
        texts = self.compiled.names.values()
        properties = {
            text: str(value, "utf-8", "replace")
            for text, value in zip(texts, values, strict=True)
            if value is not None
        }
        try:
            outcome = self.compiled.select(properties)
        except ValueError as error:
            outcome = False
            if self._on_error is not None:
                self._on_error(error)
        if sum(len(value) for value in values if value is not None) <= _REMEMBERED_BYTES:
            if len(self._known) >= _REMEMBERED_COUNT:
                self._known.clear()
            self._known[values] = outcome
        return outcome
