"""Admin: clusters, topics, groups, offsets and messages, over asyncio."""

from collections.abc import Sequence
from typing import Self

from pymq.client.administration.asking import Asking
from pymq.client.administration.brokers import Brokers
from pymq.client.administration.groups import Groups
from pymq.client.administration.messages import Messages
from pymq.client.administration.offsets import Offsets
from pymq.client.administration.replicas import Replicas
from pymq.client.administration.sinks import Sinks
from pymq.client.administration.topics import Topics
from pymq.client.cluster.config import ClientConfig, connect_s, parse_name_servers
from pymq.client.cluster.network import PLAIN, Network
from pymq.client.cluster.pool import ClientPool
from pymq.protocol.bodies import ClusterInfo


class Admin:
    """Administration of the brokers that the name servers know. For one event loop.

    ::

        async with Admin("127.0.0.1:9876") as admin:
            await admin.topics.create("flights", queue_count=16)
            changes = await admin.offsets.reset("billing", "flights", "earliest", dry_run=True)

    What is done on several brokers is done on all of them at the same time. If some did not do it,
    BrokersFailed says of each what happened there.

    Args:
        name_servers: ``host:port``, several separated by ``;`` or ``,`` or as a list; or the URL
            at which they are looked up. ``None``: what ``NAMESRV_ADDR`` says.
        timeout_s: for each answer.
        connect_timeout_s: for a connection to be made; ``None``: ``timeout_s``, but 3 at most.
        network: where brokers are reached, and who we say we are.

    Attributes:
        topics: create, update, delete, names, route, config, status.
        groups: create, delete, names, config, members.
        offsets: lag, reset.
        messages: by_id, by_unique_id, by_key, by_offset, by_time.
        brokers: addresses, masters, state, config, and what they can be told to do.
        replicas: masters, slaves, controllers.
        sinks: exactly-once sinks, which brokers of pymq have.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        timeout_s: float = 3.0,
        connect_timeout_s: float | None = None,
        network: Network = PLAIN,
    ) -> None:
        config = ClientConfig(
            name_servers=parse_name_servers(name_servers),
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            network=network,
        )
        self._pool = ClientPool(
            config.name_servers,
            timeout_s=timeout_s,
            connect_timeout_s=connect_s(config),
            network=network,
        )
        self._asking = asking = Asking(self._pool, timeout_s)
        self.topics = Topics(asking)
        self.groups = Groups(asking)
        self.offsets = Offsets(asking)
        self.messages = Messages(asking)
        self.brokers = Brokers(asking)
        self.replicas = Replicas(asking)
        self.sinks = Sinks(asking)

    async def start(self) -> Self:
        """Reach a name server.

        Raises:
            ClientClosed: it was closed; make a new one.
            ClientMisplaced: it was started in another process or event loop.
            ConnectionFailed: none answers; the text names all and why.
        """
        await self._pool.start()
        return self

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def cluster(self) -> ClusterInfo:
        """Return all clusters and brokers that any name server knows.

        Raises:
            ConnectionFailed: no name server answers.
        """
        return await self._asking.cluster()
