"""Which offsets have changed since somebody was told last, without a look at the others."""

import secrets
from collections.abc import Hashable
from typing import Generic, TypeVar

#: Most keys whose last changes are known.
KEYS_MAX = 100_000

_Key = TypeVar("_Key", bound=Hashable)


class Moves(Generic[_Key]):
    """Counts the changes of a table, and knows for each key which was its last one.

    A table of thousands of groups changes in a few places between two looks; whoever follows it
    names the last change that he knows of, and is told the keys that have changed since. Who was
    there so long ago that this is not known any more is told all.

    Attributes:
        number: of the last change; 0: there was none since our start.
    """

    __slots__ = ("_instance", "_known_from", "_last", "number")

    def __init__(self) -> None:
        #: Of this table in this process: numbers of another one mean nothing here.
        self._instance = secrets.token_hex(8)
        #: Key -> its last change; the latest changes are at the end.
        self._last: dict[_Key, int] = {}
        #: What has changed after this change is known.
        self._known_from = 0
        self.number = 0

    def note(self, key: _Key | None) -> None:
        """Record a change of a key; None: of something that is always told."""
        self.number += 1
        if key is not None:
            self._last.pop(key, None)
            self._last[key] = self.number
            if len(self._last) > KEYS_MAX:
                self._known_from = self._last.pop(next(iter(self._last)))

    @property
    def position(self) -> str:
        """What names the last change."""
        return f"{self._instance}.{self.number}"

    def number_of(self, position: str) -> int | None:
        """Return the number of the change that was the last one.

        Returns:
            None if it is of another table, or what has changed since is not known.
        """
        instance, found = _parts(position)
        if instance != self._instance or found is None:
            return None
        return found if self._known_from <= found <= self.number else None

    def since(self, number: int) -> list[_Key]:
        """Return the keys that have changed after a change."""
        keys: list[_Key] = []
        for key, last in reversed(self._last.items()):
            if last <= number:
                break
            keys.append(key)
        return keys


def is_same_run(position: str, other: str) -> bool:
    """Return whether two changes are of one run of a broker: each start begins to count again."""
    return _parts(position)[0] == _parts(other)[0]


def is_later(position: str, other: str) -> bool:
    """Return whether a change came after another one of the same table."""
    (instance, number), (other_instance, other_number) = _parts(position), _parts(other)
    if instance != other_instance or number is None or other_number is None:
        return False
    return number > other_number


def _parts(position: str) -> tuple[str, int | None]:
    """Return the instance and the number of a position; None where it has none."""
    instance, _, number = position.partition(".")
    return instance, int(number) if number.isascii() and number.isdigit() else None
