"""Questions to name servers and to brokers, one or all; what several failures come to."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from pymq.client import operations
from pymq.client.administration.name_servers import united_clusters, united_routes
from pymq.client.cluster.network import advertised
from pymq.client.cluster.pool import ClientPool
from pymq.client.cluster.routes import MASTER_ID, Route, existing_route, no_master, no_route
from pymq.client.operations import Operation
from pymq.errors import (
    BrokersFailed,
    ConfigurationError,
    ConnectionFailed,
    PymqError,
    RequestTimeout,
    RouteNotFound,
    TopicNotExist,
)
from pymq.protocol.bodies import ClusterInfo

T = TypeVar("T")


class Asking:
    """Asks over the connections of one client. For one event loop.

    Args:
        pool: connections and name servers.
        timeout_s: for each answer.
    """

    def __init__(self, pool: ClientPool, timeout_s: float) -> None:
        self.pool = pool
        self.timeout_s = timeout_s

    # --- name servers

    async def name_servers(self, make: Callable[[], Operation[T]]) -> list[T]:
        """Return the answers of all name servers that have one, at least one.

        A broker may be registered at some of them only.

        Raises:
            ConnectionFailed: none answers; the text names all and why.
            BrokerError: those that answer refuse.
        """
        self.pool.check_open()
        return await self.pool.ask_name_servers(make)

    async def cluster(self) -> ClusterInfo:
        """Return all clusters and brokers.

        Raises:
            ConnectionFailed: no name server answers.
        """
        return united_clusters(await self.name_servers(operations.cluster_info))

    async def brokers(self, cluster: str | None = None) -> dict[str, dict[int, str]]:
        """Return broker name -> broker id -> address, in the order of the names.

        Raises:
            ConfigurationError: there is no such cluster.
            RouteNotFound: no broker is registered.
        """
        info = await self.cluster()
        names: Iterable[str] = info.brokers
        if cluster is not None:
            if cluster not in info.clusters:
                raise ConfigurationError(
                    f"cluster {cluster!r} is not known, found {sorted(info.clusters)}"
                )
            names = info.clusters[cluster]
        found = {
            name: info.brokers[name].addresses
            for name in sorted(names)
            if name in info.brokers and info.brokers[name].addresses
        }
        if not found:
            raise no_master(self.pool.name_servers)
        return found

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Return broker name -> address of every master, in the order of the names.

        Raises:
            ConfigurationError: there is no such cluster.
            RouteNotFound: no master is registered.
        """
        brokers = await self.brokers(cluster)
        found = {name: known[MASTER_ID] for name, known in brokers.items() if MASTER_ID in known}
        if not found:
            raise no_master(self.pool.name_servers)
        return found

    async def readers(self, cluster: str | None = None) -> dict[str, str]:
        """Return broker name -> address of who answers questions, of every broker.

        Raises:
            ConfigurationError: there is no such cluster.
            RouteNotFound: no broker is registered.
        """
        return readers(await self.brokers(cluster))

    async def changers(self, cluster: str | None = None) -> dict[str, str | PymqError]:
        """Return broker name -> address of the master, who makes changes, or that it is away.

        Raises:
            ConfigurationError: there is no such cluster.
            RouteNotFound: no broker is registered.
        """
        return {
            name: known.get(MASTER_ID) or _master_away(name, known)
            for name, known in (await self.brokers(cluster)).items()
        }

    async def route(self, topic: str) -> Route:
        """Return the route of a topic as it is now.

        Raises:
            RouteNotFound: no name server knows it.
            ConnectionFailed: no name server answers.
        """
        try:
            found = await self.name_servers(lambda: operations.route(topic))
        except TopicNotExist as error:
            raise no_route(topic, self.pool.name_servers, error) from error
        return existing_route(topic, united_routes(found))

    # --- brokers

    async def one(
        self,
        address: str,
        operation: Operation[T],
        *,
        name: str | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """Return the answer of one broker.

        Args:
            address: ``host:port``.
            operation: what to ask.
            name: of the broker that advertises the address, for error messages.
            timeout_s: for the answer.

        Raises:
            PymqError: whatever went wrong.
        """
        try:
            channel = await self.pool.channel(address)
        except ConnectionFailed as error:
            if name is None:
                raise
            raise error.retold(f"{error}; {advertised(name)}") from error
        try:
            return await self.pool.ask(channel, operation, timeout_s=timeout_s or self.timeout_s)
        except RequestTimeout:
            # There are no heartbeats here that would find out that a peer is gone.
            if not channel.pending_count:
                channel.abort()
            raise

    async def answers(
        self, brokers: Mapping[str, str | PymqError], make: Callable[[], Operation[T]]
    ) -> dict[str, T | PymqError]:
        """Return what each of several brokers answers, or why not; they are asked together.

        Args:
            brokers: name -> address, or why it cannot be asked.
            make: makes the operation, for each broker another one.
        """
        self.pool.check_open()
        found: dict[str, T | PymqError] = {}

        async def ask(name: str, address: str | PymqError) -> None:
            if isinstance(address, PymqError):
                found[name] = address
                return
            try:
                answer = await self.one(address, make(), name=name)
            except PymqError as error:
                found[name] = error
            else:
                found[name] = answer

        await asyncio.gather(*(ask(name, address) for name, address in brokers.items()))
        return {name: found[name] for name in brokers}

    async def every(
        self, brokers: Mapping[str, str | PymqError], make: Callable[[], Operation[T]]
    ) -> dict[str, T]:
        """Return what every one of several brokers answers; they are asked together.

        Raises:
            BrokersFailed: some of several did not; it says what happened at each.
            PymqError: the only one did not.
        """
        answers = await self.answers(brokers, make)
        return self.complete(make().description, answers)

    def complete(self, what: str, answers: Mapping[str, T | PymqError]) -> dict[str, T]:
        """Return answers if there is one of each broker, or name server.

        Args:
            what: was asked; begins with "to" if it is something to do.
            answers: broker name, or address of a name server -> answer.

        Raises:
            BrokersFailed, PymqError: see ``every``.
        """
        failures = {name: one for name, one in answers.items() if isinstance(one, PymqError)}
        given = {name: one for name, one in answers.items() if not isinstance(one, PymqError)}
        if not failures:
            return given
        if len(answers) == 1:
            raise next(iter(failures.values()))
        raise _brokers_failed(what, failures, given)


def readers(brokers: Mapping[str, Mapping[int, str]]) -> dict[str, str]:
    """Return broker name -> address of who answers questions.

    That is its master or, while that is away, the slave with the lowest id, which has its topics,
    groups, offsets and messages, and hears of the members of groups. RocketMQ's answer likewise.

    Args:
        brokers: name -> broker id -> address.
    """
    return {name: known[min(known)] for name, known in brokers.items() if known}


def _master_away(name: str, known: Mapping[int, str]) -> RouteNotFound:
    slaves = ", ".join(known[number] for number in sorted(known))
    return RouteNotFound(
        f"broker {name!r}: its master is away, only a slave at {slaves} is registered, and slaves "
        "take no changes"
    )


def _brokers_failed(
    what: str, failures: Mapping[str, PymqError], given: Mapping[str, object]
) -> BrokersFailed:
    is_change = what.startswith("to ")
    done = ", ".join(given) or "none"
    parts = [f"{what}: {'done on' if is_change else 'answered by'} {done}"]
    for name, error in failures.items():
        if not is_change:
            what_happened = "not by"
        else:
            what_happened = "not done on" if error.outcome_known else "perhaps done on"
        parts.append(f"{what_happened} {name}: {error}")
    if is_change:
        parts.append("it may be repeated when all of them answer")
    return BrokersFailed("; ".join(parts), failures=failures, answers=given)
