"""What users say of queues: which they mean, and where in one."""

from collections.abc import Iterable

from pymq.client import operations
from pymq.client.checks import is_moment, moment_ms
from pymq.client.cluster.pool import ClientPool
from pymq.client.pulling.offsets_by_time import offset_at
from pymq.client.pulling.queue_questions import OpenChannel
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


def check_broker_names(name: str, brokers: object) -> frozenset[str]:
    """Return names of brokers.

    Args:
        name: of the argument, for the error message.
        brokers: what was given.

    Raises:
        ConfigurationError: these are none.
    """
    if isinstance(brokers, Iterable) and not isinstance(brokers, str):
        found = list(brokers)
        if all(isinstance(one, str) and one for one in found):
            return frozenset(found)
    raise ConfigurationError(f"{name}={brokers!r:.80}: expected several names of brokers")


async def place_in(
    pool: ClientPool,
    queue: MessageQueue,
    where: object,
    *,
    open_channel: OpenChannel | None = None,
) -> int:
    """Return the offset in a queue that a user means.

    Args:
        pool: connections and routes.
        queue: which.
        where: a moment, ``"first"`` or ``"last"``.
        open_channel: whom to ask; by default whoever is read.

    Raises:
        ConfigurationError: it is nothing of what is expected.
        PymqError: the broker could not be asked.
    """
    if is_moment(where):
        at_ms = moment_ms("where", where)
        return await offset_at(pool, queue, at_ms, open_channel=open_channel)
    if not isinstance(where, str) or where not in ("first", "last"):
        raise ConfigurationError(
            f"where={where!r:.80}: expected an offset, a datetime, 'first' or 'last'"
        )
    ask = operations.min_offset if where == "first" else operations.max_offset
    return await pool.ask(await (open_channel or pool.read_channel)(queue), ask(queue))
