"""Waiting until one of several brokers has a message to pop, which takes none."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from pymq.client import operations
from pymq.errors import PymqError
from pymq.net.channel import AsyncChannel
from pymq.protocol.command import Command

_log = logging.getLogger(__name__)


async def wait_news(
    places: Iterable[tuple[str, str]],
    open_channel: Callable[[str, str], Awaitable[AsyncChannel]],
    *,
    group: str,
    wait_s: float,
    answer_s: float,
) -> None:
    """Wait until a broker says that it has a message, or for a time.

    Args:
        places: topics and names of brokers.
        open_channel: returns the connection to a broker that has a topic.
        group: that pops.
        wait_s: how long.
        answer_s: how much longer an answer may take.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + wait_s
    asked: dict[asyncio.Future[Command], operations.Operation[bool]] = {}
    for topic, broker_name in places:
        news = operations.wait_popped(group, topic, poll_ms=max(round(wait_s * 1000), 1))
        try:
            channel = await open_channel(topic, broker_name)
            asked[channel.request_nowait(news.request, wait_s + answer_s)] = news
        except PymqError as error:
            _log.debug("no news of %s: %s", broker_name, error)  # The next pop says so.
    pending = set(asked)
    try:
        while pending and (left_s := end_s - loop.time()) > 0:
            done, pending = await asyncio.wait(
                pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            heard = [_has_message(one, asked[one]) for one in done]  # all, also those that failed
            if any(heard):
                break
    finally:
        for one in pending:
            one.cancel()


def _has_message(
    future: asyncio.Future[Command], news: operations.Operation[bool]
) -> bool:
    try:
        return news.result(future.result(), peer="the broker")
    except PymqError as error:
        _log.debug("no news: %s", error)
        return False
