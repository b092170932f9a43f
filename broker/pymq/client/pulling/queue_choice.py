"""What users say of queues: which they mean, and where in one."""

from collections.abc import Iterable
from datetime import datetime

from pymq.client import operations
from pymq.client.cluster.pool import ClientPool
from pymq.client.pulling.offsets_by_time import offset_at
from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue


def check_queues(queues: object) -> list[MessageQueue]:
    """Return queues, each once.

    Raises:
        ConfigurationError: these are none.
    """
    if isinstance(queues, MessageQueue | str) or not isinstance(queues, Iterable):
        raise ConfigurationError(
            f"queues={queues!r:.80}: expected several MessageQueue, such as queues(topic) returns"
        )
    found = list(dict.fromkeys(queues))
    for queue in found:
        if not isinstance(queue, MessageQueue):
            raise ConfigurationError(f"{queue!r:.80} is not a MessageQueue")
    return found


def check_time(name: str, when: object) -> int:
    """Return a time in ms since 1970; one without a time zone is local.

    Raises:
        ConfigurationError: it is not a time.
    """
    if not isinstance(when, datetime):
        raise ConfigurationError(f"{name}={when!r:.80}: expected a datetime")
    return int(when.timestamp() * 1000)


async def place_in(pool: ClientPool, queue: MessageQueue, where: object) -> int:
    """Return the offset in a queue that a user means.

    Raises:
        ConfigurationError: it is nothing of what is expected.
        PymqError: the broker could not be asked.
    """
    if isinstance(where, datetime):
        return await offset_at(pool, queue, check_time("where", where))
    if where not in ("first", "last"):
        raise ConfigurationError(
            f"where={where!r:.80}: expected an offset, a datetime, 'first' or 'last'"
        )
    ask = operations.min_offset if where == "first" else operations.max_offset
    return await pool.ask(await pool.read_channel(queue), ask(queue))
