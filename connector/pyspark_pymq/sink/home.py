"""Which broker an exactly-once sink is at: all of its batches, since one broker decides on each.

Name servers remember it (namespace ``PYMQ_SINKS`` of their KV config), so that a broker that is
away while a query starts again is waited for, and not taken for one that never was. One that is
away itself is told later. What they have forgotten, or tell differently, the brokers know that are
there: a sink is where its last batch is. A sink that nobody knows gets a pymq broker that has the
topic, the same for all tasks; that of a batch write only if all name servers say that they do not.

Who has to answer before a sink is taken for one that nobody knows:

=====================================  =====================================================
sink                                   brokers that have to answer
=====================================  =====================================================
first batch; all name servers answer,  those of the topic; with ``sinkBroker`` that one alone.
and do not know it                     Name servers are told of a broker before rows go there:
                                       the others are asked in case they have lost that
any other                              all that are registered
a batch write without txnAppId         the first of the topic's that can: its name is random, and
                                       nobody knows it. The driver chooses, for all tasks
=====================================  =====================================================

Rows are written at least once if every broker of the topic has answered that it cannot do better.
One that gives no answer, or that a route names and no name server knows any more, is waited for:
it may be the one that can. What was found out holds for the run of the query in this process, so
that a broker of RocketMQ that is away later holds up nothing.
"""

import logging
import shlex
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from pymq.client.cluster.config import ClientConfig
from pymq.client.sockets.blocking_pool import PASSING
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import ConfigurationError, PymqError, RouteNotFound
from pyspark_pymq.option_values import like
from pyspark_pymq.retrying import Retries
from pyspark_pymq.sink.answers import (
    ask_brokers,
    first_capable,
    masters_of,
    remember_home,
    remembered_homes,
)
from pyspark_pymq.sink.identity import BatchIdentity
from pyspark_pymq.sink.known_homes import (
    KnownHome,
    homes_of_this_process,
    unable_of_this_process,
)
from pyspark_pymq.sink.options import SinkOptions
from pyspark_pymq.sink.plan import TIMEOUT_MAX_S, SinkPlan

LOG = logging.getLogger(__name__)


class SinkHome(NamedTuple):
    """The broker of a sink, and the ``host:port`` of its master."""

    broker: str
    address: str


def find_home(
    client: BulkClient, options: SinkOptions, identity: BatchIdentity, retries: Retries
) -> SinkHome | None:
    """Return the broker of a sink; a sink that nobody knows gets one.

    Args:
        client: open.
        options: of the sink.
        identity: of the batch.
        retries: how long a broker or name server that is away is waited for.

    Returns:
        None if no broker can write exactly once: all that have the topic have said so.

    Raises:
        ConfigurationError: the sink is at another broker than the user wants, or may be at one
            that cannot be seen.
        PymqError: what had to be asked was away too long, or refused.
    """
    known, unable = homes_of_this_process(), unable_of_this_process()
    key = (options.name_servers, identity.sink, options.sink_broker)
    run = (options.name_servers, identity.sink, identity.run)
    if run in unable and not options.must_be_exact:
        return None
    topic_brokers: set[str] = set()
    while True:
        try:
            masters = masters_of(client)
            if key in known and known[key].is_current(client, identity):
                known[key].tell_if_due(client, identity)
                return SinkHome(known[key].broker, _address(known[key].broker, masters, identity))
            name, remembered = _find(client, options, identity, masters, topic_brokers)
            if name is None:
                if identity.is_lasting:
                    unable.add(run)
                return None
            if identity.is_lasting:
                untold = remember_home(client, identity.sink, name, known=remembered)
                known[key] = KnownHome(identity.run, name, untold)
                if name not in remembered.values():
                    LOG.info("sink %s is at broker %s", identity.sink, name)
            return SinkHome(name, _address(name, masters, identity))
        except PASSING as error:
            retries.wait_after(error)


def choose_for_job(
    options: SinkOptions, identity: BatchIdentity, plan: SinkPlan
) -> SinkHome | None:
    """Return the broker of a batch write that nobody can repeat, for all of its tasks.

    Runs on the driver, which asks once and not for long. Tasks that ask for themselves would not
    agree if a broker came back meanwhile.

    Args:
        options: of the sink.
        identity: of the batch, which is not a lasting one.
        plan: with a route, unless only rows name their topic.

    Returns:
        None if it is not known, and tasks have to find out.
    """
    if options.topic is not None and not plan.routes:
        return None
    config = ClientConfig(
        name_servers=options.name_servers,
        timeout_s=min(options.request_timeout_s, TIMEOUT_MAX_S),
        network=options.network,
    )
    with BulkClient(config.name_servers, config=config, routes=plan.routes) as client:
        try:
            masters = masters_of(client)
            name = _find_for_job(client, options, identity, masters, set())
            return None if name is None else SinkHome(name, _address(name, masters, identity))
        except PymqError as error:
            LOG.info("%s: tasks look for its broker themselves: %s", identity, error)
            return None


def find_again(
    client: BulkClient, identity: BatchIdentity, home: SinkHome, retries: Retries
) -> SinkHome:
    """Return where the broker of a sink is now; it may have another address since it was away.

    It is the same broker, whatever else there is: what was staged is there, and perhaps published.

    Raises:
        PymqError: no name server has known it for too long.
    """
    while True:
        try:
            return SinkHome(home.broker, _address(home.broker, masters_of(client), identity))
        except PASSING as error:
            retries.wait_after(error)


def _find(
    client: BulkClient,
    options: SinkOptions,
    identity: BatchIdentity,
    masters: Mapping[str, str],
    topic_brokers: set[str],
) -> tuple[str | None, dict[str, str]]:
    """Return the name of a sink's broker, which may be one that is away; and who knows of it.

    Args:
        client, options, identity: as of ``find_home``.
        masters: of the brokers that are registered.
        topic_brokers: those that a route of the topic has named; more are added.

    Returns:
        The name, None if there is no broker that can; and what each name server says.
    """
    if not identity.is_lasting:
        return _find_for_job(client, options, identity, masters, topic_brokers), {}
    remembered, failure = remembered_homes(client, identity.sink)
    wanted = options.sink_broker
    if wanted is None and len(set(remembered.values())) == 1:
        wanted = next(iter(remembered.values()))
    if set(remembered.values()) == {wanted}:
        return wanted, remembered
    is_new = identity.is_first and not remembered and failure is None
    optional = _without_part(client, options, masters, topic_brokers) if is_new else ()
    capable, found, quiet = ask_brokers(client, identity.sink, masters, optional=optional)
    # Where name servers do not agree, one may have missed that the sink has moved: from a broker
    # that was lost, and may be back. It is where its last batch is.
    others = found[:1] if wanted in remembered.values() else found
    if wanted is not None and (elsewhere := [name for name in others if name != wanted]):
        raise ConfigurationError(
            f"option sinkBroker={wanted}: sink {identity.sink} is at broker {elsewhere[0]}. Leave "
            f"the option out; or, if what it has published there is of no use any more, run "
            f"`pymq sink forget {shlex.quote(identity.sink)}` first"
        )
    if wanted is not None and wanted not in {*remembered.values(), *found}:
        _check_choice(identity, wanted, masters, capable)
    name = wanted or (found[0] if found else None)
    if name is None:
        candidates = _candidates(client, options, capable, topic_brokers)
        # All that are registered have answered, or we were not here.
        silent = (topic_brokers | set(remembered.values())) - set(masters)
        if remembered or (candidates and not identity.is_first):
            raise _unknown(identity, masters, remembered, silent=silent, failure=failure)
        if not candidates:
            _check_silent(client, options, identity, silent, masters)
            return None, remembered
        if failure is not None and identity.is_job:
            raise failure  # It may have been told, long ago, what the others have not.
        name = candidates[_number(identity, candidates)]
    if quiet and name in masters:
        LOG.warning(
            "sink %s is new, all name servers say; %s, which its rows cannot go to, gave no answer "
            "and could not be asked whether it knows it",
            identity.sink,
            ", ".join(quiet),
        )
    return name, remembered


def _check_choice(
    identity: BatchIdentity, wanted: str, masters: Mapping[str, str], capable: Collection[str]
) -> None:
    """Refuse a ``sinkBroker`` that is unknown, or cannot write exactly once, before it is kept.

    Raises:
        RouteNotFound: there is no such broker now: a wrong name, or one that is waited for.
        ConfigurationError: it cannot write exactly once.
    """
    if wanted not in masters:
        near = like(wanted, masters)
        meant = "" if near is None else f" (did you mean {near}?)"
        raise RouteNotFound(
            f"option sinkBroker={wanted}: {identity} is to go to a broker that no name server "
            f"knows; there are {', '.join(sorted(masters))}{meant}. Correct the name, or start "
            "that broker; no name server has been told of it"
        )
    if wanted not in capable:
        others = f" ({', '.join(sorted(capable))} can)" if capable else ""
        raise ConfigurationError(
            f"option sinkBroker={wanted}: {identity} cannot be written exactly once there, because "
            f"that is not a pymq broker that can. Choose another one{others}, or set option "
            "delivery=atLeastOnce and leave sinkBroker out"
        )


def _address(name: str, masters: Mapping[str, str], identity: BatchIdentity) -> str:
    address = masters.get(name)
    if address is None:
        there = ", ".join(sorted(masters)) or "none"
        if not identity.is_lasting:
            raise RouteNotFound(
                f"{identity} goes to broker {name}, which no name server knows; there are {there}. "
                "Start that broker; or run the job again: another broker is chosen, unless option "
                "sinkBroker names this one. If a task failed so, nothing was published; if the "
                "job failed when all tasks were done, look first whether its rows are there"
            )
        raise RouteNotFound(
            f"sink {identity.sink} is at broker {name}, which no name server knows; there are "
            f"{there}. Start that broker. If it is gone for good, "
            "name another one with option sinkBroker: what of the last batch is there already will "
            "be there twice"
        )
    return address


def _without_part(
    client: BulkClient, options: SinkOptions, masters: Iterable[str], topic_brokers: set[str]
) -> set[str]:
    """Return the brokers that the rows of a new sink cannot go to; add those of the topic."""
    if options.sink_broker is not None:
        return set(masters) - {options.sink_broker}
    return set(masters).difference(_candidates(client, options, set(masters), topic_brokers))


def _find_for_job(
    client: BulkClient,
    options: SinkOptions,
    identity: BatchIdentity,
    masters: Mapping[str, str],
    topic_brokers: set[str],
) -> str | None:
    """Return the name of the broker of a sink that lasts no longer than its job; as ``_find``."""
    wanted = options.sink_broker
    if wanted is not None:
        try:
            able = first_capable(client, identity.sink, masters, [wanted])
        except PASSING:
            return wanted  # Who writes there waits for it.
        _check_choice(identity, wanted, masters, [] if able is None else [able])
        return wanted
    names = _candidates(client, options, set(masters), topic_brokers)
    start = _number(identity, names) if names else 0
    name = first_capable(client, identity.sink, masters, names[start:] + names[:start])
    if name is None:
        _check_silent(client, options, identity, topic_brokers - set(masters), masters)
    return name


def _number(identity: BatchIdentity, brokers: Collection[str]) -> int:
    """Return which of some brokers a sink gets."""
    return zlib.crc32(identity.sink.encode()) % len(brokers)


def _candidates(
    client: BulkClient, options: SinkOptions, capable: Collection[str], topic_brokers: set[str]
) -> list[str]:
    """Return the brokers that a new sink can be at, sorted; add those of the topic's route."""
    if options.topic is None:
        return sorted(capable)
    routed = {queue.broker_name for queue in client.write_queues(options.topic)}
    topic_brokers |= routed
    return sorted(routed & set(capable))


def _check_silent(
    client: BulkClient,
    options: SinkOptions,
    identity: BatchIdentity,
    silent: Collection[str],
    masters: Mapping[str, str],
) -> None:
    """Raise if one of the topic's brokers is not registered, and so has not said what it can."""
    if not silent or options.topic is None:
        return
    client.doubt_route(options.topic)  # It may be older than what is registered.
    raise RouteNotFound(
        f"{identity}: whether it can be written exactly once is not known, because "
        f"{', '.join(sorted(silent))}, which topic {options.topic} has queues at, is known to no "
        f"name server now; there are {', '.join(sorted(masters))}. Start that broker; or, if it is "
        "gone for good, start the query again, or choose with option delivery"
    )


def _unknown(
    identity: BatchIdentity,
    masters: Mapping[str, str],
    remembered: Mapping[str, str],
    *,
    silent: Collection[str],
    failure: PymqError | None,
) -> PymqError:
    """Return the error of a sink that nobody knows; one that passes if not all have answered."""
    there = ", ".join(sorted(masters))
    if remembered:
        told = ", ".join(f"{server} says {name}" for server, name in sorted(remembered.items()))
        text = (
            f"{identity}: name servers do not agree at which broker that sink is ({told}), and no "
            f"broker that is there ({there}) knows it. Start the one that has it, or choose it "
            "with option sinkBroker"
        )
    else:
        text = (
            f"{identity} is not the query's first, but neither a name server nor a broker "
            f"({there}) knows that sink. If its broker is away, start it. If the query has not "
            "written exactly once before, or name servers have lost what they keep, choose the "
            "broker that is to have it (option sinkBroker), or delivery=atLeastOnce"
        )
    away = [f"broker {name} is away" for name in sorted(silent)]
    if failure is not None:
        away.append(str(failure))
    if away:
        return RouteNotFound(f"{text}. Not all have answered: {'; '.join(away)}")
    return ConfigurationError(text)
