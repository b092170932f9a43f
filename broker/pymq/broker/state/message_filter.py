"""Applies a SQL92 filter to the encoded properties of many messages at a time.

Of most properties in a filter messages have the same few values again and again, or do not have
them at all. So whether any of the messages has a property is looked up once, and the outcome for
values is remembered.
"""

from collections.abc import Callable, Sequence

from pymq.filter.evaluate import SqlFilter
from pymq.protocol.message import find_property
from pymq.store import Verdicts

#: Outcomes that are remembered, and the bytes of values for which one may be.
_REMEMBERED_COUNT, _REMEMBERED_BYTES = 4096, 256


class MessageFilter:
    """Says of messages whether a filter selects them.

    Args:
        compiled: the filter.
        on_error: is told why a message that cannot be compared is not selected.
    """

    __slots__ = ("_known", "_names", "_on_error", "compiled", "verdicts")

    def __init__(
        self, compiled: SqlFilter, on_error: Callable[[ValueError], object] | None = None
    ) -> None:
        self.compiled = compiled
        #: What it decided, for whoever reads queues with it.
        self.verdicts = Verdicts()
        self._on_error = on_error
        self._names = {name: b"\x02" + name + b"\x01" for name in compiled.names}
        self._known: dict[tuple[bytes | None, ...], bool] = {}

    def __call__(self, messages: Sequence[bytes]) -> list[bool]:
        """Return of each message whether it is selected.

        Args:
            messages: the encoded properties of each.
        """
        joined = b"\x02" + b"\x02".join(messages)
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
