"""Which broker an exactly-once sink is at: all of its batches, since one broker decides on each.

Name servers remember it (in the namespace ``PYMQ_SINKS`` of their KV config), so that a broker that
is away while a query starts again is waited for, and not taken for one that never was. One of them
that is away itself is told later. What they have forgotten, or tell differently, the brokers know
that are there: a sink is where its last batch is. A sink that nobody knows gets one of those
brokers of pymq that have the topic, the same for all tasks; that of a batch write only if all name
servers say that they do not know it.

Rows are written at least once if every broker of the topic has answered that it cannot do better.
One that gives no answer, or that a route names and no name server knows any more, is waited for:
it may be the one that can. What was found out holds for the run of the query in this process, so
that a broker of RocketMQ that is away later holds up nothing.
"""

import functools
import logging
import time
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pymq.client import operations
from pymq.client.cluster.routes import MASTER_ID
from pymq.client.sockets.blocking_pool import PASSING
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import (
    ConfigurationError,
    PymqError,
    RequestNotSupported,
    RouteNotFound,
    TopicNotExist,
)
from pyspark_pymq.retrying import Retries
from pyspark_pymq.sink.identity import BatchIdentity
from pyspark_pymq.sink.options import SinkOptions

LOG = logging.getLogger(__name__)
#: Of the key-value pairs of name servers: sink -> the name of its broker.
NAMESPACE = "PYMQ_SINKS"
#: Name servers that were away when the others were told of a sink are told again after this, and
#: tasks do not wait longer than that for them.
TELL_AGAIN_S, TELL_TIMEOUT_S = 30.0, 1.0


class SinkHome(NamedTuple):
    """The broker of a sink, and the ``host:port`` of its master."""

    broker: str
    address: str


@dataclass(slots=True)
class _Known:
    """A sink that this process knows.

    Attributes:
        broker: the name of its broker.
        untold: name servers that were away when the others were told.
        tell_at_s: not before this are they told again; monotonic.
    """

    broker: str
    untold: list[str]
    tell_at_s: float


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
    known, unable = _homes_of_this_process(), _unable_of_this_process()
    key = (options.name_servers, identity.sink, options.sink_broker)
    run = (options.name_servers, identity.sink, identity.run)
    if run in unable and not options.must_be_exact:
        return None
    topic_brokers: set[str] = set()
    while True:
        try:
            masters = _masters(client)
            if key in known:
                _tell_again(client, identity.sink, known[key])
                return SinkHome(known[key].broker, _address(known[key].broker, masters, identity))
            name, remembered = _find(client, options, identity, masters, topic_brokers)
            if name is None:
                if identity.is_lasting:
                    unable.add(run)
                return None
            if identity.is_lasting:
                untold = _remember(client, identity.sink, name, known=remembered)
                known[key] = _Known(name, untold, time.monotonic() + TELL_AGAIN_S)
                if name not in remembered.values():
                    LOG.info("sink %s is at broker %s", identity.sink, name)
            return SinkHome(name, _address(name, masters, identity))
        except PASSING as error:
            retries.wait_after(error)


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
            return SinkHome(home.broker, _address(home.broker, _masters(client), identity))
        except PASSING as error:
            retries.wait_after(error)


def check_topic_at_home(client: BulkClient, topic: str, broker: str) -> None:
    """Refuse a topic that other brokers have, and a sink's has not; what may come is waited for.

    A column names it, so that nobody knew of it when the sink's broker was chosen; or the user
    chose that broker. Waiting would not help: a broker that restarts, or of which name servers
    have not heard yet, is asked itself, and one that is away says nothing.

    Raises:
        ConfigurationError: it is so.
    """
    try:
        names = {queue.broker_name for queue in client.route(topic).write_queues}
        address = None if broker in names else _masters(client).get(broker)
    except PymqError:  # Sending comes upon it, too, and knows how long to wait.
        return
    if not names or address is None:
        return
    try:
        client.ask(address, operations.topic_config(topic))
    except TopicNotExist as error:
        raise ConfigurationError(
            f"all rows of a batch that is written exactly once go to one broker: this sink is at "
            f"broker {broker}, and topic {topic} at {', '.join(sorted(names))}. Create topic "
            f"{topic} at {broker}; or write with another sink (another txnAppId, or another "
            "checkpoint) and choose its broker with option sinkBroker; or set option "
            "delivery=atLeastOnce"
        ) from error
    except PymqError:
        return


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
    remembered, failure = _remembered(client, identity.sink) if identity.is_lasting else ({}, None)
    wanted = options.sink_broker
    if wanted is None and len(set(remembered.values())) == 1:
        wanted = next(iter(remembered.values()))
    if set(remembered.values()) == {wanted}:
        return wanted, remembered
    capable, found = _ask_all(client, identity.sink, masters)
    # Where name servers do not agree, one may have missed that the sink has moved: from a broker
    # that was lost, and may be back. It is where its last batch is.
    others = found[:1] if wanted in remembered.values() else found
    if wanted is not None and (elsewhere := [name for name in others if name != wanted]):
        raise ConfigurationError(
            f"option sinkBroker={wanted}: sink {identity.sink} is at broker {elsewhere[0]}. Leave "
            f"the option out; or, if what it has published there is of no use any more, run "
            f"`pymq sink forget {identity.sink}` first"
        )
    name = wanted or (found[0] if found else None)
    if name is None:
        candidates = _candidates(client, options, capable, topic_brokers)
        # All that are registered have answered, or we were not here.
        silent = (topic_brokers | set(remembered.values())) - set(masters)
        if remembered or (candidates and not identity.is_first):
            raise _unknown(identity, masters, remembered, silent=silent, failure=failure)
        if not candidates:
            if silent and options.topic is not None:
                client.doubt_route(options.topic)  # It may be older than what is registered.
                raise _undecided(identity, options.topic, silent, masters)
            return None, remembered
        if failure is not None and identity.is_job:
            raise failure  # It may have been told, long ago, what the others have not.
        name = candidates[zlib.crc32(identity.sink.encode()) % len(candidates)]
    return name, remembered


def _masters(client: BulkClient) -> dict[str, str]:
    """Return broker name -> address of its master; while there is no name server, what is known.

    Raises:
        RouteNotFound: there is none.
    """
    found: dict[str, str] = {}
    try:
        for name, broker in client.cluster_info().brokers.items():
            if MASTER_ID in broker.addresses:
                found[name] = broker.addresses[MASTER_ID]
    except PASSING:
        for route in client.known_routes():
            found |= route.masters()
        if not found:
            raise
    if not found:
        raise RouteNotFound(
            f"name servers {', '.join(client.name_servers)} know no broker: is one running?"
        )
    return found


def _address(name: str, masters: Mapping[str, str], identity: BatchIdentity) -> str:
    address = masters.get(name)
    if address is None:
        raise RouteNotFound(
            f"sink {identity.sink} is at broker {name}, which no name server knows; there are "
            f"{', '.join(sorted(masters)) or 'none'}. Start that broker. If it is gone for good, "
            "name another one with option sinkBroker: what of the last batch is there already will "
            "be there twice"
        )
    return address


def _ask_all(
    client: BulkClient, sink: str, masters: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return the brokers that know of sinks; those that know this one, its last batch first."""
    capable: list[str] = []
    found: dict[str, tuple[int, int]] = {}
    for name in sorted(masters):
        try:
            rows = client.ask(masters[name], operations.show_sinks(sink))
        except RequestNotSupported:
            continue
        capable.append(name)
        if rows:
            found[name] = max((row.last.batch, row.decided_ms) for row in rows)
    return capable, sorted(found, key=lambda name: found[name], reverse=True)


def _candidates(
    client: BulkClient, options: SinkOptions, capable: Collection[str], topic_brokers: set[str]
) -> list[str]:
    """Return the brokers that a new sink can be at, sorted; add those of the topic's route."""
    if options.topic is None:
        return sorted(capable)
    routed = {queue.broker_name for queue in client.write_queues(options.topic)}
    topic_brokers |= routed
    return sorted(routed & set(capable))


def _undecided(
    identity: BatchIdentity, topic: str, silent: Collection[str], masters: Mapping[str, str]
) -> RouteNotFound:
    return RouteNotFound(
        f"{identity}: whether it can be written exactly once is not known, because "
        f"{', '.join(sorted(silent))}, which topic {topic} has queues at, is known to no name "
        f"server now; there are {', '.join(sorted(masters))}. Start that broker; or, if it is gone "
        "for good, start the query again, or choose with option delivery"
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


def _remembered(client: BulkClient, sink: str) -> tuple[dict[str, str], PymqError | None]:
    """Return what name servers say, each for itself, and why one says nothing.

    Raises:
        PymqError: none of them answers.
    """
    found: dict[str, str] = {}
    failures: list[PymqError] = []
    for address in client.name_servers:
        try:
            name = client.ask(address, operations.find_value(NAMESPACE, sink))
        except PASSING as error:
            failures.append(error)
        else:
            if name:
                found[address] = name
    if len(failures) == len(client.name_servers):
        raise failures[0]
    return found, failures[0] if failures else None


def _remember(
    client: BulkClient, sink: str, broker: str, *, known: Mapping[str, str]
) -> list[str]:
    """Tell the name servers that do not know it; return those that are away.

    Raises:
        PymqError: all of them are.
    """
    failures: dict[str, PymqError] = {}
    for address in client.name_servers:
        try:
            if known.get(address) != broker:
                client.ask(address, operations.put_value(NAMESPACE, sink, broker))
        except PASSING as error:
            failures[address] = error
    if len(failures) == len(client.name_servers):
        raise next(iter(failures.values()))
    return list(failures)


def _tell_again(client: BulkClient, sink: str, known: _Known) -> None:
    """Tell the name servers that were away, now and then."""
    if not known.untold or time.monotonic() < known.tell_at_s:
        return
    known.tell_at_s = time.monotonic() + TELL_AGAIN_S
    tell = operations.put_value(NAMESPACE, sink, known.broker)
    asked = [(address, tell) for address in known.untold]
    answers = client.ask_many(asked, timeout_s=TELL_TIMEOUT_S)
    known.untold = [
        address
        for address, answer in zip(known.untold, answers, strict=True)
        if isinstance(answer, PymqError)
    ]


@functools.cache
def _homes_of_this_process() -> dict[tuple[tuple[str, ...], str, str | None], _Known]:
    return {}


@functools.cache
def _unable_of_this_process() -> set[tuple[tuple[str, ...], str, str]]:
    """Name servers, sink and run of queries that no broker can write exactly once."""
    return set()
