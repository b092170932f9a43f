"""Namespaces: names of topics and groups that several tenants of a cluster use at the same time.

A namespace is a prefix of names, which only clients know: ``orders`` of namespace ``shop`` is
``shop%orders`` to brokers, and its group's retry topic is ``%RETRY%shop%billing``. Names of the
system are the same in every namespace. A name that has the prefix keeps it, so wrapping twice
does what wrapping once does.

Source: RocketMQ NamespaceUtil. It also wraps the groups that every broker has from the start and
the topic of replies, of which each cluster has one; these are not wrapped here.
"""

import re
from typing import Any

from pymq.errors import ConfigurationError
from pymq.protocol.names import (
    BUILT_IN_GROUPS,
    DEAD_LETTER_PREFIX,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    is_system_topic,
)

SEPARATOR = "%"
#: Begins the names of consumer groups that belong to the system (MixAll.CID_RMQ_SYS_PREFIX).
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
_DERIVED = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
_LEGAL = re.compile(r"[a-zA-Z0-9_|-]{1,60}")


def check_namespace(value: object) -> None:
    """Accept a namespace.

    Raises:
        ConfigurationError: it is something else, is too long, or has an illegal character.
    """
    if not isinstance(value, str) or _LEGAL.fullmatch(value) is None:
        raise ConfigurationError(
            f"namespace={value!r:.80}: expected 1..60 letters, digits, '_', '-' and '|'"
        )


def wrap(namespace: str | None, name: str) -> str:
    """Return what brokers call a topic or group of a namespace."""
    if not namespace or not name or _is_of_system(name):
        return name
    prefix, own = _split(name)
    if own.startswith(namespace + SEPARATOR):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{own}"


def unwrap(namespace: str | None, name: str) -> str:
    """Return what a topic or group is called in a namespace; others keep their names."""
    if not namespace:
        return name
    prefix, own = _split(name)
    start = namespace + SEPARATOR
    return prefix + own[len(start) :] if own.startswith(start) else name


def wrap_values(namespace: str, value: Any, keys: frozenset[str]) -> Any:
    """Return a JSON value with the names in it wrapped.

    Args:
        namespace: in which they are.
        value: as ``json`` reads it.
        keys: the keys of objects whose values are names.
    """
    if isinstance(value, list):
        return [wrap_values(namespace, one, keys) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: wrap(namespace, one)
        if key in keys and isinstance(one, str)
        else wrap_values(namespace, one, keys)
        for key, one in value.items()
    }


def _split(name: str) -> tuple[str, str]:
    for prefix in _DERIVED:
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _is_of_system(name: str) -> bool:
    return (
        is_system_topic(name)
        or name in BUILT_IN_GROUPS
        or name.startswith(_SYSTEM_GROUP_PREFIX)
        or name.endswith(REPLY_SUFFIX)
    )
