"""Many small requests, each to an address of its own, in flight together; without retries."""

import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pymq.client.operations import Operation
from pymq.client.sockets.blocking_pool import BlockingPool, timed_out
from pymq.errors import (
    ClientClosed,
    ClientMisplaced,
    ConnectionFailed,
    PymqError,
    RequestTimeout,
)
from pymq.net.blocking import BlockingChannel

T = TypeVar("T")

#: Small requests that are in flight to all brokers together.
PIPELINE_COUNT = 256


def ask_many(
    pool: BlockingPool,
    asked: Sequence[tuple[str, Operation[T]]],
    *,
    timeout_s: float,
    hints: Mapping[str, str] | None = None,
) -> list[T | PymqError]:
    """Send requests, and return their results or why there is none, in their order.

    An address that is away costs no other its answer: connections are made to all at the same
    time, and the time for an answer begins when its request is sent. An address that does not
    answer one request is not asked for the rest, which have its error.

    Args:
        pool: connections.
        asked: ``host:port`` and what to ask there.
        timeout_s: for connections to be made, and then for the answers to ``PIPELINE_COUNT``
            requests.
        hints: address -> where it is from, for the error message when it cannot be reached.

    Raises:
        ClientMisplaced: another thread waits for an answer.
        ClientClosed: the pool is closed.
    """
    hints = hints or {}
    left = {address: hints.get(address, "") for address, _ in asked}
    found: list[T | PymqError] = []
    silent: dict[str, PymqError] = {}
    for start in range(0, len(asked), PIPELINE_COUNT):
        channels: dict[str, BlockingChannel] = {}
        for address, channel in pool.channels(left, timeout_s=timeout_s).items():
            if isinstance(channel, BlockingChannel):
                channels[address] = channel
            else:
                silent[address] = channel
        some = asked[start : start + PIPELINE_COUNT]
        answers = _ask_some(pool, some, channels, silent, timeout_s)
        found += answers
        left = {address: hint for address, hint in left.items() if address not in silent}
    return found


def _ask_some(
    pool: BlockingPool,
    asked: Sequence[tuple[str, Operation[T]]],
    channels: Mapping[str, BlockingChannel],
    silent: dict[str, PymqError],
    timeout_s: float,
) -> list[T | PymqError]:
    """Send requests at once, then take the answers; add to who is silent, and why."""
    sent: list[tuple[BlockingChannel, int, float] | None] = []
    found: list[T | PymqError] = []
    try:
        for address, operation in asked:
            sent.append(None)
            if address in silent:
                continue
            channel, deadline_s = channels[address], time.monotonic() + timeout_s
            try:
                with pool.alone():
                    opaque = channel.send(operation.request, deadline_s)
            except ConnectionFailed as error:
                silent[address] = error
            else:
                sent[-1] = channel, opaque, deadline_s
        for (address, operation), pending in zip(asked, sent, strict=True):
            if pending is None or address in silent:
                found.append(silent[address])
                continue
            channel, opaque, deadline_s = pending
            try:
                with pool.alone():
                    response = channel.receive(opaque, deadline_s)
                found.append(operation.result(response, peer=channel.peer))
            except (ClientClosed, ClientMisplaced):
                raise  # That is not about one of them.
            except RequestTimeout:
                silent[address] = timed_out(address, operation, timeout_s, deadline_s - timeout_s)
                found.append(silent[address])
            except PymqError as error:
                if isinstance(error, ConnectionFailed):
                    silent[address] = error
                found.append(error)
    finally:
        for channel, opaque, _ in filter(None, sent):
            channel.forget(opaque)
    return found
