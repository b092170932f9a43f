"""Which broker an exactly-once sink is at: all of its batches, since one broker decides on each.

Name servers remember it (in the namespace ``PYMQ_SINKS`` of their KV config), so that a broker that
is away while a query starts again is waited for, and not taken for one that never was. What they
have forgotten the brokers know that are there. A sink that nobody knows gets one of those brokers
of pymq that have the topic, the same for all tasks.
"""

import functools
import logging
import zlib
from collections.abc import Collection, Mapping
from typing import NamedTuple

from pymq.client import operations
from pymq.client.blocking_pool import PASSING
from pymq.client.bulk_client import BulkClient
from pymq.client.routes import MASTER_ID
from pymq.errors import ConfigurationError, PymqError, RequestNotSupported, RouteNotFound
from pyspark_pymq.retrying import Retries
from pyspark_pymq.sink.identity import BatchIdentity
from pyspark_pymq.sink.options import SinkOptions

LOG = logging.getLogger(__name__)
#: Of the key-value pairs of name servers: sink -> the name of its broker.
NAMESPACE = "PYMQ_SINKS"


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
        None if no broker can write exactly once: there are none of pymq, and never was one.

    Raises:
        ConfigurationError: the sink is at another broker than the user wants, or may be at one
            that cannot be seen.
        PymqError: what had to be asked was away too long, or refused.
    """
    known = _homes_of_this_process()
    key = (options.name_servers, identity.sink, options.sink_broker)
    while True:
        try:
            masters = _masters(client)
            name = known.get(key) or _find(client, options, identity, masters)
            if name is None:
                return None
            if identity.is_lasting:
                known[key] = name
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


def _find(
    client: BulkClient, options: SinkOptions, identity: BatchIdentity, masters: Mapping[str, str]
) -> str | None:
    """Return the name of a sink's broker, which may be one that is away."""
    remembered, failure = _remembered(client, identity.sink) if identity.is_lasting else ({}, None)
    wanted = options.sink_broker
    if wanted is None and len(set(remembered.values())) == 1:
        wanted = next(iter(remembered.values()))
    if wanted is not None and wanted in remembered.values():
        _remember(client, identity.sink, wanted, known=remembered)
        return wanted
    capable, found = _ask_all(client, identity.sink, masters)
    if wanted is not None and set(found) - {wanted}:
        raise ConfigurationError(
            f"option sinkBroker={wanted}: sink {identity.sink} is at broker {found[0]}. Leave the "
            f"option out; or, if what it has published there is of no use any more, run "
            f"`pymq sink forget {identity.sink}` first"
        )
    name = wanted or (found[0] if found else None)
    if name is None:
        candidates = _candidates(client, options, capable)
        if not candidates:
            return None
        if not identity.is_first or remembered:
            raise _unknown(identity, masters, remembered)
        if failure is not None and identity.is_job:
            raise failure  # It may have been told, long ago, what the others have not.
        name = candidates[zlib.crc32(identity.sink.encode()) % len(candidates)]
    if identity.is_lasting:
        _remember(client, identity.sink, name, known=remembered)
        LOG.info("sink %s is at broker %s", identity.sink, name)
    return name


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
    """Return the brokers that know of sinks, and those of them that know this one."""
    capable, found = [], []
    for name in sorted(masters):
        try:
            rows = client.ask(masters[name], operations.show_sinks(sink))
        except RequestNotSupported:
            continue
        capable.append(name)
        if rows:
            found.append(name)
    return capable, found


def _candidates(client: BulkClient, options: SinkOptions, capable: Collection[str]) -> list[str]:
    """Return the brokers that a new sink can be at, sorted."""
    if options.topic is None:
        return sorted(capable)
    queues = client.write_queues(options.topic)
    return sorted({queue.broker_name for queue in queues} & set(capable))


def _unknown(
    identity: BatchIdentity, masters: Mapping[str, str], remembered: Mapping[str, str]
) -> ConfigurationError:
    told = ", ".join(f"{server} says {name}" for server, name in sorted(remembered.items()))
    if remembered:
        return ConfigurationError(
            f"{identity}: name servers do not agree at which broker that sink is ({told}), and no "
            f"broker that is there ({', '.join(sorted(masters))}) knows it. Start the one that has "
            "it, or choose it with option sinkBroker"
        )
    return ConfigurationError(
        f"{identity} is not the query's first, but neither a name server nor a broker "
        f"({', '.join(sorted(masters))}) knows that sink. If its broker is away, start it. If the "
        "query has not written exactly once before, or name servers have lost what they keep, "
        "choose the broker that is to have it (option sinkBroker), or delivery=atLeastOnce"
    )


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


def _remember(client: BulkClient, sink: str, broker: str, *, known: Mapping[str, str]) -> None:
    """Tell the name servers that are there and do not know it; one must."""
    failure: PymqError | None = None
    has_answer = False
    for address in client.name_servers:
        try:
            if known.get(address) != broker:
                client.ask(address, operations.put_value(NAMESPACE, sink, broker))
            has_answer = True
        except PASSING as error:
            failure = error
    if failure is not None and not has_answer:
        raise failure


@functools.cache
def _homes_of_this_process() -> dict[tuple[tuple[str, ...], str, str | None], str]:
    return {}
