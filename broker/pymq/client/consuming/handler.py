"""What a consumer calls with its messages: what it may be, and what it may return."""

import inspect
from types import AsyncGeneratorType, GeneratorType

from pymq.client.checks import check_count
from pymq.errors import ConfigurationError
from pymq.net.said_once import SaidOnce


def check_handler(handler: object, batch_size: int | None) -> None:
    """Check what a consumer is to call.

    Raises:
        ConfigurationError: it cannot be called, or not with lists of that size.
    """
    if not callable(handler):
        raise ConfigurationError(f"handler {handler!r}: expected a function")
    if batch_size is not None:
        check_count("batch_size", batch_size, 1)


def is_async(handler: object) -> bool:
    """Is it a coroutine function, or an object that is called like one?"""
    call = inspect.getattr_static(type(handler), "__call__", None)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def name_of(handler: object) -> str:
    """Return what log messages call a handler."""
    name = getattr(handler, "__qualname__", None)
    return f"handler {name}" if isinstance(name, str) else f"handler {handler!r:.80}"


def check_result(handler: object, result: object, said: SaidOnce) -> None:
    """Check what a handler returned, before its messages count as handled.

    Args:
        handler: that returned it.
        result: awaited, where that was possible.
        said: what was logged in this run; ``False`` is, because other clients take it for a
            failure.

    Raises:
        ConfigurationError: a generator, so none of the handler's code has run.
    """
    if isinstance(result, GeneratorType | AsyncGeneratorType):
        raise ConfigurationError(
            f"handler {handler!r} contains `yield`, so calling it returned a generator and ran "
            "nothing: expected a function without `yield`"
        )
    if result is False:
        said.warn(
            "False",
            "handler %r returned False, which counts as success: its messages are finished; raise "
            "an exception for those that are to be delivered again",
            handler,
        )
