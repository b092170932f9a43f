"""What the driver finds out about the sink's topic before tasks start, and sends along with them.

Every task begins with a new client. With the route that the driver had, it needs no name server
until that route is old or turns out wrong; so a task that starts while a broker restarts, and
name servers have forgotten it, knows where it will be.
"""

import functools
import logging
from dataclasses import dataclass

from pymq.client.bulk_client import BulkClient
from pymq.client.config import ClientConfig
from pymq.client.routes import Route
from pymq.errors import ConfigurationError, PymqError, RouteNotFound
from pyspark_pymq.options import SinkOptions
from pyspark_pymq.unrouted_queues import has_brokers

LOG = logging.getLogger(__name__)
#: The driver waits no longer than this for a name server; tasks do.
TIMEOUT_MAX_S = 3.0


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """What is known of the topic.

    Attributes:
        routes: its route, if it exists.
        missing: why it is certain that it does not, and that no send creates it.
    """

    routes: tuple[Route, ...] = ()
    missing: str | None = None


NO_PLAN = SinkPlan()


def plan_sink(options: SinkOptions) -> SinkPlan:
    """Ask for the option's topic, once and not for long.

    Spark plans each micro-batch, mostly in one process, and once more when it commits it. A topic
    that was seen there before is not missing: its brokers are.

    Raises:
        ConfigurationError: a name server is something else.
    """
    topic = options.topic
    if topic is None:
        return NO_PLAN
    config = ClientConfig(
        name_servers=options.name_servers,
        timeout_s=min(options.request_timeout_s, TIMEOUT_MAX_S),
    )
    plans = _plans_of_this_process()
    key = (options.name_servers, topic)
    with BulkClient(config.name_servers, config=config) as client:
        try:
            client.write_queues(topic)
            plan = SinkPlan(tuple(client.known_routes()))
        except ConfigurationError:  # what was given as a name server is not one
            raise
        except PymqError as error:
            if key not in plans and isinstance(error, RouteNotFound) and has_brokers(client):
                return SinkPlan(missing=str(error))
            LOG.warning("topic %s: no route now, tasks look for one themselves: %s", topic, error)
            return plans.get(key, NO_PLAN)
    if plan.routes:
        plans[key] = plan
    return plan


@functools.cache
def _plans_of_this_process() -> dict[tuple[tuple[str, ...], str], SinkPlan]:
    return {}
