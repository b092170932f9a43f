"""The keys of a message, by which it can be looked up: one text, divided by blanks.

Other spaces, such as a tab or U+3000, belong to a key, as they do where brokers look for it.
"""

from collections.abc import Iterable, Sequence

from pymq.errors import LocalProtocolError


def split_keys(keys: str | Sequence[str] | None) -> list[str]:
    """Return the keys of a message to send, or those in the property of a received one."""
    if keys is None or isinstance(keys, str):
        return [key for key in (keys or "").split(" ") if key]
    return list(keys)


def join_keys(keys: Iterable[str]) -> str:
    """Return the property of several keys.

    Raises:
        LocalProtocolError: one is empty, has a blank or is not a string; or it is not several.
    """
    if not isinstance(keys, Iterable):
        raise LocalProtocolError(f"keys is {keys!r:.80}, expected a str or several")
    several = list(keys)
    for key in several:
        if not isinstance(key, str) or not key or " " in key:
            raise LocalProtocolError(f"key {key!r:.80}, expected a string without blanks")
    return " ".join(several)
