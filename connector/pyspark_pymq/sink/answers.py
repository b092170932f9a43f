"""What name servers and brokers say of a sink, and which of them say nothing."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from pymq.client import operations
from pymq.client.cluster.routes import MASTER_ID
from pymq.client.sockets.blocking_pool import PASSING
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import PymqError, RequestNotSupported, RouteNotFound
from pymq.protocol.sink_bodies import SinkRow

#: Of the key-value pairs of name servers: sink -> the name of its broker.
NAMESPACE = "PYMQ_SINKS"
#: Tasks do not wait longer than this for name servers that are told, or asked, again, ...
TELL_TIMEOUT_S = 1.0
#: ... and for brokers that need not answer.
OTHERS_TIMEOUT_S = 3.0


class BrokerAnswers(NamedTuple):
    """What brokers say of a sink.

    Attributes:
        capable: those that know of sinks.
        found: those that know this one; its last batch first.
        silent: those that need not answer, and did not.
    """

    capable: list[str]
    found: list[str]
    silent: list[str]


def masters_of(client: BulkClient) -> dict[str, str]:
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


def ask_brokers(
    client: BulkClient, sink: str, masters: Mapping[str, str], *, optional: Collection[str] = ()
) -> BrokerAnswers:
    """Ask brokers whether they know a sink.

    Args:
        client: open.
        sink: its name.
        masters: broker name -> address; all of these are asked.
        optional: those of them that need not answer, and are not waited for long.

    Raises:
        PymqError: another one did not answer, or refused.
    """
    capable: list[str] = []
    silent: list[str] = []
    found: dict[str, tuple[int, int]] = {}
    question = operations.show_sinks(sink)
    others = sorted(masters.keys() & set(optional))
    answers: dict[str, list[SinkRow] | PymqError] = {}
    for name in sorted(masters.keys() - set(others)):
        try:
            answers[name] = client.ask(masters[name], question)
        except RequestNotSupported as error:
            answers[name] = error
    asked = [(masters[name], question) for name in others]
    of_others = client.ask_many(asked, timeout_s=OTHERS_TIMEOUT_S)
    answers.update(zip(others, of_others, strict=True))
    for name, rows in sorted(answers.items()):
        if isinstance(rows, RequestNotSupported):
            continue
        if isinstance(rows, PymqError):
            silent.append(name)
            continue
        capable.append(name)
        if rows:
            found[name] = max((row.last.batch, row.decided_ms) for row in rows)
    order = sorted(found, key=lambda name: found[name], reverse=True)
    return BrokerAnswers(capable, order, silent)


def first_capable(
    client: BulkClient, sink: str, masters: Mapping[str, str], brokers: Iterable[str]
) -> str | None:
    """Return the first broker that answers, and knows of sinks; those behind it are not asked.

    Args:
        client: open.
        sink: its name.
        masters: broker name -> address.
        brokers: in their order; those that are no masters are passed over.

    Returns:
        None: all have answered that they do not.

    Raises:
        PymqError: there is none, and one did not answer; or one refused.
    """
    failure: PymqError | None = None
    for name in brokers:
        if name not in masters:
            continue
        try:
            client.ask(masters[name], operations.show_sinks(sink))
        except RequestNotSupported:
            continue
        except PASSING as error:
            failure = failure or error
        else:
            return name
    if failure is not None:
        raise failure
    return None


def remembered_homes(client: BulkClient, sink: str) -> tuple[dict[str, str], PymqError | None]:
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


def remember_home(
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


def tell_again(
    client: BulkClient, sink: str, broker: str, name_servers: Sequence[str]
) -> list[str]:
    """Tell name servers that were away; return those that still are."""
    tell = operations.put_value(NAMESPACE, sink, broker)
    asked = [(address, tell) for address in name_servers]
    answers = client.ask_many(asked, timeout_s=TELL_TIMEOUT_S)
    return [
        address
        for address, answer in zip(name_servers, answers, strict=True)
        if isinstance(answer, PymqError)
    ]


def is_moved(client: BulkClient, sink: str, broker: str) -> bool:
    """Say whether a name server that answers knows a sink to be at another broker.

    Raises:
        PymqError: none of them answers.
    """
    asked = [(address, operations.find_value(NAMESPACE, sink)) for address in client.name_servers]
    answers = client.ask_many(asked, timeout_s=TELL_TIMEOUT_S)
    failures = [answer for answer in answers if isinstance(answer, PymqError)]
    if len(failures) == len(answers):
        raise failures[0]
    return any(isinstance(name, str) and name not in ("", broker) for name in answers)
