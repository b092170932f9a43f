"""Which message a log record is about: fields for logs that machines read.

::

    logging.getLogger().handlers[0].addFilter(MessageFilter())
    consumer.run(logged(handle, group="billing"))

While a handler that is ``logged`` runs, in whatever thread or task, records have the attributes
``mq_topic``, ``mq_message_id``, ``mq_queue``, ``mq_offset``, ``mq_reconsume_times``, ``mq_tags``,
``mq_keys`` and ``mq_group``. ``JsonLines`` writes them, as do other formatters that write extra
attributes; ``add_message_fields`` is a processor of structlog.
"""

import contextvars
import functools
import json
import logging
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar, cast

from pymq.client.consuming.handler import is_async
from pymq.protocol.message import ReceivedMessage

__all__ = ["JsonLines", "MessageFilter", "add_message_fields", "logged", "message_fields"]

_log = logging.getLogger("pymq.messages")

_P = ParamSpec("_P")
_R = TypeVar("_R")

_current: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar(
    "pymq_message_fields", default={}  # noqa: B039  # replaced as a whole, never changed
)
#: Attributes that every record has.
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def message_fields() -> dict[str, Any]:
    """Return the fields of the message that is handled here; empty: none is."""
    return dict(_current.get())


def logged(
    handler: Callable[_P, _R], *, group: str | None = None, level: int = logging.INFO
) -> Callable[_P, _R]:
    """Return a handler whose log records say which message they are about.

    At its end one record of logger ``pymq.messages`` says how it ended, and after how many
    milliseconds (``mq_handled_ms``): with the exception, if there is one.

    Args:
        handler: of a message or of a list of messages, plain or ``async def``.
        group: the consumer group, for the records.
        level: of the record at the end, if the handler did not fail; then it is ``ERROR``.

    Returns:
        A handler of the same kind, for ``Consumer.run``.
    """
    if is_async(handler):

        @functools.wraps(handler)
        async def wait(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            with _handling(args[0], group, level):
                return await cast(Any, handler)(*args, **kwargs)

        return cast(Callable[_P, _R], wait)

    @functools.wraps(handler)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _handling(args[0], group, level):
            return handler(*args, **kwargs)

    return call


@contextmanager
def _handling(given: object, group: str | None, level: int) -> Iterator[None]:
    several = cast(list[ReceivedMessage], given if isinstance(given, list) else [given])
    fields = _fields(several[0])
    if isinstance(given, list):
        fields["mq_batch_count"] = len(several)
    if group is not None:
        fields["mq_group"] = group
    token = _current.set(fields)
    started_s = time.perf_counter()
    try:
        yield
    except BaseException as error:
        # Who called the handler logs the traceback, too, with what becomes of the message.
        _say(logging.ERROR, "failed", started_s, {**fields, "mq_error": repr(error)})
        raise
    else:
        _say(level, "handled", started_s, fields)
    finally:
        _current.reset(token)


def _say(level: int, how: str, started_s: float, fields: dict[str, Any]) -> None:
    took_ms = round((time.perf_counter() - started_s) * 1000, 3)
    extra = {**fields, "mq_handled_ms": took_ms}
    _log.log(level, "%s message %s", how, fields.get("mq_message_id"), extra=extra)


def _fields(message: ReceivedMessage) -> dict[str, Any]:
    fields = {
        "mq_topic": message.topic,
        "mq_message_id": message.message_id,
        "mq_queue": f"{message.broker_name}:{message.queue_id}",
        "mq_offset": message.queue_offset,
        "mq_reconsume_times": message.reconsume_times,
    }
    if message.tags:
        fields["mq_tags"] = message.tags
    if message.keys:
        fields["mq_keys"] = list(message.keys)
    return fields


class MessageFilter(logging.Filter):
    """Gives records the fields of the message that is handled where they are made. Keeps all."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Called by logging."""
        for name, value in _current.get().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


class JsonLines(logging.Formatter):
    """One JSON object for each record: time, level, logger, message, and all extra attributes.

    What JSON does not know is written as its ``repr``. An attribute that is called like one of the
    fields above gets an underscore: ``extra={"level": 3}`` is ``"level_": 3``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Called by logging."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        given = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        line |= {f"{name}_" if name in line else name: value for name, value in given.items()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        try:
            text = _json(line)
        except (RecursionError, TypeError, ValueError):
            text = _json({name: _plain(value) for name, value in line.items()})
        # Half of a surrogate pair cannot be written as UTF-8: the record would be lost.
        return text.encode(errors="backslashreplace").decode()


def _json(line: object) -> str:
    return json.dumps(line, default=repr, ensure_ascii=False, allow_nan=False)


def _plain(value: object) -> object:
    """Return a value, or its ``repr`` if JSON does not know it."""
    try:
        _json(value)
    except (RecursionError, TypeError, ValueError):
        return repr(value)
    return value


def add_message_fields(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Add the fields of the message at hand to an event: a processor of structlog."""
    for name, value in _current.get().items():
        event.setdefault(name, value)
    return event
