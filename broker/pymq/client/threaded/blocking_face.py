"""Blocking methods made of those of an asyncio client: the same name, arguments and documentation.

What a client offers is written once, in its asyncio form. A blocking face takes it over::

    class Producer(Threaded[_producer.Producer]):
        flush = blocking(_producer.Producer.flush)
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pymq.errors import ClientClosed

C = TypeVar("C", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")


class Face(Protocol[C]):
    """What blocking methods need: the asyncio client, and a way to run its coroutines."""

    @property
    def _client(self) -> C: ...

    def _call(self, work: Coroutine[Any, Any, R]) -> R: ...


class LoopFace(Face[C], Protocol[C]):
    """What methods that are no coroutines need: a way to call them in the client's loop."""

    def _in_loop(self, function: Callable[[], R]) -> R: ...


def blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Face[C], P], R]:
    """Return a method that runs a coroutine of the asyncio client and waits for its result."""

    @functools.wraps(method)
    def call(face: Face[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return face._call(method(face._client, *args, **kwargs))

    return call


def in_loop(
    method: Callable[Concatenate[C, P], R],
) -> Callable[Concatenate[LoopFace[C], P], R]:
    """Return a method that calls a plain one of the asyncio client, in its loop once it runs."""

    @functools.wraps(method)
    def call(face: LoopFace[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return face._in_loop(functools.partial(method, face._client, *args, **kwargs))

    return call


def iterated(
    method: Callable[Concatenate[C, P], AsyncIterator[R]],
) -> Callable[Concatenate[LoopFace[C], P], Iterator[R]]:
    """Return a method that waits for what an asynchronous iterator of the client yields."""

    @functools.wraps(method)
    def call(face: LoopFace[C], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        found = face._in_loop(functools.partial(method, face._client, *args, **kwargs))
        return _iterate(face, found)

    return call


def _iterate(face: LoopFace[Any], found: AsyncIterator[R]) -> Iterator[R]:
    turn = asyncio.Lock()

    async def following() -> tuple[R] | None:
        async with turn:
            try:
                return (await anext(found),)
            except StopAsyncIteration:
                return None

    async def end(generator: AsyncGenerator[R, None]) -> None:
        async with turn:  # What was interrupted needs some turns of the loop to end.
            await generator.aclose()

    try:
        while item := face._call(following()):
            yield item[0]
    finally:
        if isinstance(found, AsyncGenerator):
            with contextlib.suppress(ClientClosed):  # Then it is closed as well.
                face._call(end(found))


def constructor(
    client: Callable[P, C],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Return a decorator that gives an ``__init__`` the arguments of the asyncio client."""

    def decorate(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        return functools.wraps(client.__init__)(init)

    return decorate
