"""Which offsets have changed since somebody was told last, without a look at the others."""

import secrets
from collections.abc import Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)


class Moves(Generic[_Key]):
    """Counts the changes of a table, and knows for each key which was its last one.

    A table of thousands of groups changes in a few places between two looks; whoever follows it
    names the last change that he knows of, and is told the keys that have changed since.

    Attributes:
        number: of the last change; 0: there was none since our start.
    """

    __slots__ = ("_instance", "_last", "number")

    def __init__(self) -> None:
        #: Of this table in this process: numbers of another one mean nothing here.
        self._instance = secrets.token_hex(8)
        #: Key -> its last change; the latest changes are at the end.
        self._last: dict[_Key, int] = {}
        self.number = 0

    def note(self, key: _Key | None) -> None:
        """Record a change of a key; None: of something that is always told."""
        self.number += 1
        if key is not None:
            self._last.pop(key, None)
            self._last[key] = self.number

    @property
    def position(self) -> str:
        """What names the last change."""
        return f"{self._instance}.{self.number}"

    def number_of(self, position: str) -> int | None:
        """Return the number of the change that was the last one; None: of another table."""
        instance, _, number = position.partition(".")
        if instance != self._instance or not number.isascii() or not number.isdigit():
            return None
        found = int(number)
        return found if found <= self.number else None

    def since(self, number: int) -> list[_Key]:
        """Return the keys that have changed after a change."""
        keys: list[_Key] = []
        for key, last in reversed(self._last.items()):
            if last <= number:
                break
            keys.append(key)
        return keys
