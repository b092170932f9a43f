"""Topics: their settings live in each broker, their routes in the name servers."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from pymq.client import operations
from pymq.client.administration.asking import Asking, readers
from pymq.client.checks import check_count
from pymq.client.cluster.routes import QUEUE_COUNT_MAX, Route
from pymq.errors import (
    ConfigurationError,
    ConnectionFailed,
    PymqError,
    RequestNotSupported,
    RequestTimeout,
    RouteNotFound,
    TopicNotExist,
)
from pymq.protocol.bodies import MessageQueue, TopicConfig, TopicOffset
from pymq.protocol.codes import Permission
from pymq.protocol.names import (
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    check_topic,
    dead_letter_topic,
    reply_topic,
    retry_topic,
)

_log = logging.getLogger(__name__)

#: A topic just created is known to all name servers after this, or something is wrong.
ROUTE_WAIT_S = 15.0
_POLL_S = 0.05


class Topics:
    """Topics of the brokers that the name servers know: ``admin.topics``."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def names(self, *, with_system: bool = False) -> list[str]:
        """Return the names of all topics, sorted.

        Args:
            with_system: also those that belong to the system: brokers' and clusters' own, and
                the retry and dead-letter topics of groups.

        Raises:
            ConnectionFailed: no name server answers.
        """
        answers = await self._asking.name_servers(operations.topic_list)
        found = sorted({name for names in answers for name in names})
        if with_system:
            return found
        info = await self._asking.cluster()
        own = {*SYSTEM_TOPICS, *info.brokers, *info.clusters, *map(reply_topic, info.clusters)}
        prefixes = (SYSTEM_PREFIX, retry_topic(""), dead_letter_topic(""))
        return [name for name in found if name not in own and not name.startswith(prefixes)]

    async def route(self, topic: str) -> Route:
        """Return where a topic lives: its queues, and the addresses of their brokers.

        Raises:
            RouteNotFound: no name server knows it.
            ConnectionFailed: no name server answers.
        """
        check_topic(topic)
        return await self._asking.route(topic)

    async def config(self, topic: str) -> dict[str, TopicConfig]:
        """Return the settings of a topic: name of the master -> what it has.

        Raises:
            RouteNotFound: no name server knows it.
            BrokersFailed: some masters did not answer.
            PymqError: the only master did not, or refused.
        """
        found = await self._configs(topic, readers((await self.route(topic)).addresses))
        what = operations.topic_config(topic).description
        return self._asking.complete(what, found)

    async def _configs(
        self, topic: str, brokers: Mapping[str, str | PymqError]
    ) -> dict[str, TopicConfig | PymqError]:
        found = await self._asking.answers(brokers, lambda: operations.topic_config(topic))
        old = {n: brokers[n] for n, one in found.items() if isinstance(one, RequestNotSupported)}
        for name, table in (await self._asking.answers(old, operations.topic_table)).items():
            if isinstance(table, PymqError):
                found[name] = table
            elif (config := table.topics.get(topic)) is not None:
                found[name] = config
            else:
                found[name] = TopicNotExist(f"{old[name]} has no topic {topic!r}", code=17)
        return found

    async def create(
        self,
        topic: str,
        *,
        queue_count: int = 8,
        perm: int = int(Permission.READ | Permission.WRITE),
        order: bool = False,
        attributes: dict[str, str] | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Create a topic on every master, or set all its settings; returns when its route is known.

        A broker that is down with its slaves is not asked, as name servers do not know it; repeat
        it when it is back.

        Args:
            topic: its name.
            queue_count: readable and writable queues, on each broker.
            perm: bits of ``Permission``.
            order: messages are expected in order.
            attributes: 5.x settings such as ``message.type``; 4.9 ignores them.
            cluster: only on the masters of this cluster.

        Returns:
            The names of these masters.

        Raises:
            LocalProtocolError: the name is illegal.
            BrokersFailed: some masters did not do it; the others have.
            PymqError: the only master did not.
        """
        check_topic(topic)
        check_count(f"topic {topic!r}: queue_count", queue_count, 1, QUEUE_COUNT_MAX)
        _check_perm(topic, perm)
        config = TopicConfig(
            topic=topic,
            read_queue_count=queue_count,
            write_queue_count=queue_count,
            perm=perm,
            order=order,
            attributes=attributes or {},
        )
        masters = await self._asking.changers(cluster)
        await self._asking.every(masters, lambda: operations.update_topic(config))
        await self._wait_route(topic, lambda brokers: brokers >= masters.keys())
        return list(masters)

    async def update(
        self,
        topic: str,
        *,
        queue_count: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        attributes: dict[str, str] | None = None,
        cluster: str | None = None,
    ) -> dict[str, TopicConfig]:
        """Change some settings of a topic on every master that has it, and leave the rest.

        Fewer queues: what lies in those that go is read no more. To empty them first, take the
        write permission away, and wait until every group has consumed them.

        Args:
            topic: its name.
            queue_count, perm, order, attributes: see ``create``; ``None``: as it is.
            cluster: only on the masters of this cluster.

        Returns:
            The settings as these masters have them then, by name.

        Raises:
            ConfigurationError: there is no such cluster.
            RouteNotFound: there is no such topic, or not in ``cluster``.
            BrokersFailed: some masters did not do it; the others have. Or all have, as a note
                says, and some do not tell their settings.
            PymqError: the only master did not.
        """
        if queue_count is not None:
            check_count(f"topic {topic!r}: queue_count", queue_count, 1, QUEUE_COUNT_MAX)
        if perm is not None:
            _check_perm(topic, perm)
        # In a route a slave may stand in the place of a master that it acts for.
        names = (await self.route(topic)).addresses
        changers = await self._asking.changers(cluster)
        masters = {name: at for name, at in changers.items() if name in names}
        if not masters:
            where = "the cluster" if cluster is None else f"cluster {cluster!r}"
            raise RouteNotFound(f"{where} has no topic {topic!r}")
        before = await self._configs(topic, masters)
        found = {name: _not_done(one) for name, one in before.items()}
        changed = {
            name: replace(
                config,
                read_queue_count=queue_count or config.read_queue_count,
                write_queue_count=queue_count or config.write_queue_count,
                perm=config.perm if perm is None else perm,
                order=config.order if order is None else order,
                attributes=attributes or {},  # brokers keep those that are not named
            )
            for name, config in before.items()
            if isinstance(config, TopicConfig)
        }
        for name, config in changed.items():

            def make(config: TopicConfig = config) -> operations.Operation[None]:
                return operations.update_topic(config)

            done = await self._asking.answers({name: masters[name]}, make)
            found[name] = done[name]
        self._asking.complete(f"to change topic {topic!r}", found)
        try:
            what = operations.topic_config(topic).description
            return self._asking.complete(what, await self._configs(topic, masters))
        except PymqError as error:
            error.add_note(f"topic {topic!r} is changed on {', '.join(masters)}")
            raise

    async def delete(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic: on every master, then its route on every name server.

        Its messages go when their log files do. A topic that does not exist is not an error. A
        broker that is down with its slaves is not asked, as name servers do not know it: it brings
        the topic back. A name server that cannot be reached is warned of in the log: if it is down
        it forgets by itself.

        Args:
            topic: its name.
            cluster: only there. Its route to other clusters stays.

        Raises:
            BrokersFailed: some masters did not do it, or some name servers did not forget the
                route; the others have.
            ConfigurationError: there is no such cluster; or the only name server is older than
                4.9.4 and cannot forget the topic there and keep it in another cluster: restart it.
            PymqError: the only master, or the only name server, did not.
        """
        check_topic(topic)
        masters = await self._asking.changers(cluster)
        await self._asking.every(masters, lambda: operations.delete_topic(topic))
        servers = self._asking.pool.name_servers
        answers: dict[str, PymqError | None] = {}
        for address in servers:
            try:
                await self._forget_route(address, topic, cluster)
                answers[address] = None
            except ConnectionFailed as error:
                if len(servers) == 1:
                    raise
                # Name servers keep nothing: one that is down forgets by itself.
                _log.warning(
                    "name server %s could not be told that topic %r is deleted (%s): if it runs, "
                    "it keeps the route; delete the topic again when it can be reached",
                    address,
                    topic,
                    error,
                )
            except PymqError as error:
                answers[address] = error
        self._asking.complete(f"to forget the route of topic {topic!r}", answers)

    async def _forget_route(self, address: str, topic: str, cluster: str | None) -> None:
        # A broker that registers again without a topic does not end its route.
        if cluster is not None and not await self._asking.one(
            address, operations.forgets_in_cluster(topic, cluster)
        ):
            raise ConfigurationError(
                f"the brokers of cluster {cluster!r} have deleted topic {topic!r}, but name server "
                f"{address} keeps its route: it is older than 4.9.4 and would forget that to other "
                "clusters, too; restart it"
            )
        await self._asking.one(address, operations.delete_topic_routes(topic, cluster))

    async def status(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the bounds of every queue of a topic, sorted.

        Raises:
            RouteNotFound: no name server knows the topic.
            BrokersFailed: some masters did not answer.
            PymqError: the only master did not.
        """
        brokers = readers((await self.route(topic)).addresses)
        answers = await self._asking.every(brokers, lambda: operations.topic_stats(topic))
        found: dict[MessageQueue, TopicOffset] = {}
        for answer in answers.values():
            found |= answer.offsets
        return dict(sorted(found.items()))

    async def groups(self, topic: str) -> list[str]:
        """Return the groups that consume a topic or did, sorted.

        Raises:
            RouteNotFound: no name server knows the topic.
            BrokersFailed: some masters did not answer.
            PymqError: the only master did not.
        """
        brokers = readers((await self.route(topic)).addresses)
        answers = await self._asking.every(brokers, lambda: operations.groups_of_topic(topic))
        return sorted({group for groups in answers.values() for group in groups})

    async def _wait_route(self, topic: str, is_complete: Callable[[set[str]], bool]) -> None:
        """Wait until every name server that answers gives a route with these brokers."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + ROUTE_WAIT_S
        for address in self._asking.pool.name_servers:
            while True:
                try:
                    route = await self._asking.one(address, operations.route(topic))
                    if is_complete({data.broker_name for data in route.queues}):
                        break
                except (ConnectionFailed, RequestTimeout):
                    break
                except TopicNotExist:
                    pass
                if loop.time() > deadline_s:
                    raise RouteNotFound(
                        f"topic {topic!r} was created, but name server {address} has no complete "
                        f"route of it after {ROUTE_WAIT_S:g} s; does every broker name it in its "
                        "namesrvAddr?"
                    )
                await asyncio.sleep(_POLL_S)


def _not_done(before: TopicConfig | PymqError) -> object:
    """Return what is known of a change before it is asked for: if it fails here, it never is."""
    if isinstance(before, TopicConfig):
        return before
    error = before.retold(str(before))
    error.outcome_known = True  # that of the question is of no interest
    return error


def _check_perm(topic: str, perm: object) -> None:
    known = int(Permission.READ | Permission.WRITE | Permission.INHERIT)
    if not isinstance(perm, int) or isinstance(perm, bool) or perm & ~known or perm < 0:
        raise ConfigurationError(
            f"topic {topic!r}: perm={perm!r:.80}, expected bits of Permission: "
            f"{int(Permission.READ)} to read, {int(Permission.WRITE)} to write, 6 for both"
        )
