"""A client that starts before its cluster: it may wait instead of failing at once.

``Network.start_deadline_s`` says for how long. By default a start fails at once: a wrong address is
the most frequent reason, and is then seen when it is easiest to understand.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pymq.client import operations
from pymq.client.cluster.name_servers import NameServers
from pymq.client.cluster.routes import has_master, no_master
from pymq.errors import ConnectionFailed, PymqError, RequestTimeout, RouteNotFound
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce

#: Pause between two attempts: first, and longest.
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0

_log = logging.getLogger(__name__)

T = TypeVar("T")


async def first_contact(
    name_servers: NameServers, deadline_s: float, check_open: Callable[[], None]
) -> AsyncChannel:
    """Return a connection to a name server; with a deadline, to one that knows a broker.

    Args:
        name_servers: of the client.
        deadline_s: how long to wait for it; 0: not at all, and a name server is enough.
        check_open: raises when the client was closed meanwhile.

    Raises:
        ConfigurationError: an address is not that of a name server.
        ConnectionFailed: none answers; the text names all and why.
        RouteNotFound: those that answer know no broker.
        ClientClosed: the client was closed meanwhile.
    """

    async def contact() -> AsyncChannel:
        await name_servers.look_up()
        channel = await name_servers.reach()
        if deadline_s:
            info = await name_servers.ask(operations.cluster_info)
            if not has_master(info):
                raise no_master(name_servers.addresses)
        return channel

    return await patiently(contact, deadline_s, check_open)


async def patiently(
    step: Callable[[], Awaitable[T]], deadline_s: float, check_open: Callable[[], None]
) -> T:
    """Return what a step returns, which is tried again while the cluster is not there.

    The last attempt begins before the deadline, and takes the time it takes.

    Args:
        step: what to do.
        deadline_s: how long; 0: it is tried once.
        check_open: raises when the client was closed meanwhile.

    Raises:
        PymqError: why the last attempt failed.
        ClientClosed: the client was closed meanwhile.
    """
    time_s = asyncio.get_running_loop().time
    until_s = time_s() + deadline_s
    said, pause_s = SaidOnce(_log), PAUSE_FIRST_S
    while True:
        try:
            result = await step()
        except (ConnectionFailed, RequestTimeout, RouteNotFound) as error:
            if not deadline_s:
                raise
            left_s = until_s - time_s()
            if left_s <= 0:
                raise _late(error, deadline_s) from error
            said.warn("start", "waiting for the cluster, for up to %g s: %s", deadline_s, error)
        else:
            check_open()
            said.over("start", "the cluster is there")
            return result
        await asyncio.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
        check_open()


def _late(error: PymqError, deadline_s: float) -> PymqError:
    return error.retold(f"{error} (waited for it for {deadline_s:g} s)")
