"""Many small requests, each to an address of its own, in flight together; without retries."""

import time
from collections.abc import Sequence
from typing import TypeVar

from pymq.client.blocking_pool import BlockingPool, timed_out
from pymq.client.operations import Operation
from pymq.client.queue_bounds import PIPELINE_COUNT
from pymq.errors import ConnectionFailed, PymqError, RequestTimeout
from pymq.net.blocking import BlockingChannel

T = TypeVar("T")


def ask_many(
    pool: BlockingPool, asked: Sequence[tuple[str, Operation[T]]], *, timeout_s: float
) -> list[T | PymqError]:
    """Send requests, and return their results or why there is none, in their order.

    An address that does not answer one request is not asked for the rest, which have its error.

    Args:
        pool: connections.
        asked: ``host:port`` and what to ask there.
        timeout_s: for the answers to ``PIPELINE_COUNT`` requests.

    Raises:
        ClientMisplaced: another thread waits for an answer.
    """
    found: list[T | PymqError] = []
    silent: dict[str, PymqError] = {}
    for start in range(0, len(asked), PIPELINE_COUNT):
        deadline_s = time.monotonic() + timeout_s
        some = asked[start : start + PIPELINE_COUNT]
        sent = [_send(pool, *one, silent, deadline_s) for one in some]
        try:
            for (address, operation), pending in zip(some, sent, strict=True):
                if pending is None or address in silent:
                    found.append(silent[address])
                    continue
                try:
                    found.append(_receive(pool, operation, *pending, deadline_s))
                except RequestTimeout:
                    silent[address] = timed_out(address, operation, timeout_s)
                    found.append(silent[address])
                except ConnectionFailed as error:
                    silent[address] = error
                    found.append(error)
                except PymqError as error:
                    found.append(error)
        finally:
            for channel, opaque in filter(None, sent):
                channel.forget(opaque)
    return found


def _send(
    pool: BlockingPool,
    address: str,
    operation: Operation[T],
    silent: dict[str, PymqError],
    deadline_s: float,
) -> tuple[BlockingChannel, int] | None:
    if address in silent:
        return None
    try:
        channel = pool.channel(address, "")
        with pool.alone():
            return channel, channel.send(operation.request, deadline_s)
    except (ConnectionFailed, RequestTimeout) as error:
        silent[address] = error
        return None


def _receive(
    pool: BlockingPool,
    operation: Operation[T],
    channel: BlockingChannel,
    opaque: int,
    deadline_s: float,
) -> T:
    with pool.alone():
        response = channel.receive(opaque, deadline_s)
    return operation.result(response, peer=channel.peer)
