"""What the driver finds out about the sink's topic before tasks start, and sends along with them.

Every task begins with a new client. With the route that the driver had, it needs no name server
until that route is old or turns out wrong; so a task that starts while a broker restarts, and
name servers have forgotten it, knows where it will be.
"""

import functools
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from pymq.client.cluster.config import ClientConfig
from pymq.client.cluster.routes import MASTER_ID, Route
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import ConfigurationError, PymqError, RouteNotFound
from pyspark_pymq.sink.options import SinkOptions
from pyspark_pymq.unrouted_queues import knows_all

LOG = logging.getLogger(__name__)
#: Name servers that did not answer, or knew no route, are asked again after this.
ASK_AGAIN_S = 30.0
#: The driver waits no longer than this for a name server; tasks do.
TIMEOUT_MAX_S = 3.0


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """What is known of the topic.

    Attributes:
        routes: its route, if it exists.
        missing: why it does not, as all name servers say, and why no send creates it.
    """

    routes: tuple[Route, ...] = ()
    missing: str | None = None


NO_PLAN = SinkPlan()


@dataclass(frozen=True, slots=True)
class Planned:
    """The last plan with a route.

    Attributes:
        plan: that one.
        ask_at_s: not before this is there another question; monotonic.
        said: why there is no newer route, as the log has it.
    """

    plan: SinkPlan
    ask_at_s: float = -math.inf
    said: str = ""


def plan_sink(
    options: SinkOptions, *, monotonic_s: Callable[[], float] = time.monotonic
) -> SinkPlan:
    """Ask for the option's topic, once and not for long.

    Spark plans each micro-batch, mostly in one process, and once more when it commits it. A topic
    that was seen there before is not missing: its brokers are. Nor does each of these wait for
    name servers that are away.

    Args:
        options: of the sink.
        monotonic_s: the clock.

    Raises:
        ConfigurationError: a name server is something else.
    """
    topic = options.topic
    if topic is None:
        return NO_PLAN
    config = ClientConfig(
        name_servers=options.name_servers,
        timeout_s=min(options.request_timeout_s, TIMEOUT_MAX_S),
        network=options.network,
    )
    plans = _plans_of_this_process()
    key = (options.name_servers, topic)
    if key in plans and monotonic_s() < plans[key].ask_at_s:
        return plans[key].plan
    with BulkClient(config.name_servers, config=config) as client:
        try:
            client.write_queues(topic)
            plan = SinkPlan(tuple(client.known_routes()))
        except ConfigurationError:  # what was given as a name server is not one
            raise
        except PymqError as error:
            if key in plans:
                known = plans[key]
                if known.said != str(error):
                    LOG.warning("topic %s: no new route, the old one is used: %s", topic, error)
                plans[key] = Planned(known.plan, monotonic_s() + ASK_AGAIN_S, str(error))
                return known.plan
            is_unknown = isinstance(error, RouteNotFound) and knows_all(client)
            if is_unknown and not _waits_for_master(client, topic):
                return SinkPlan(missing=str(error))
            LOG.warning("topic %s: no route now, tasks look for one themselves: %s", topic, error)
            return NO_PLAN
    if plan.routes:
        plans[key] = Planned(plan)
    return plan


def _waits_for_master(client: BulkClient, topic: str) -> bool:
    """Say whether a topic is there, and a master of it is not: only its slaves are in the route.

    One that acts for its master stands in the route in its place, but not in the list of brokers.
    """
    names = {name for one in client.known_routes() if one.topic == topic for name in one.addresses}
    if not names:
        return False
    try:
        brokers = client.cluster_info().brokers
    except PymqError:
        return True
    return any(name not in brokers or MASTER_ID not in brokers[name].addresses for name in names)


@functools.cache
def _plans_of_this_process() -> dict[tuple[tuple[str, ...], str], Planned]:
    return {}
