"""Blocking methods made of those of an asyncio client: the same name, arguments and documentation.

What a client offers is written once, in its asyncio form. A blocking face takes it over::

    class Producer(Threaded[_producer.Producer]):
        flush = blocking(_producer.Producer.flush)
"""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

C = TypeVar("C", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")


class Face(Protocol[C]):
    """What blocking methods need: the asyncio client, and a way to run its coroutines."""

    @property
    def _client(self) -> C: ...

    def _call(self, work: Coroutine[Any, Any, R]) -> R: ...


def blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Face[C], P], R]:
    """Return a method that runs a coroutine of the asyncio client and waits for its result."""

    @functools.wraps(method)
    def call(face: Face[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return face._call(method(face._client, *args, **kwargs))

    return call


def constructor(
    client: Callable[P, C],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Return a decorator that gives an ``__init__`` the arguments of the asyncio client."""

    def decorate(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        return functools.wraps(client.__init__)(init)

    return decorate
