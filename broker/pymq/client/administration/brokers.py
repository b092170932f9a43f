"""Brokers: where they are, what they say about themselves, and what they can be told to do."""

from pymq.client import operations
from pymq.client.administration.asking import Asking
from pymq.client.checks import check_count
from pymq.client.cluster.patience import patiently
from pymq.errors import ConfigurationError, RouteNotFound


class Brokers:
    """The brokers that the name servers know: ``admin.brokers``.

    A broker is named by its name, which stands for its master, or by its address.
    """

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def addresses(self, cluster: str | None = None) -> dict[str, dict[int, str]]:
        """Return broker name -> broker id -> address, sorted; a master's id is 0.

        Args:
            cluster: only of this cluster.

        Raises:
            ConfigurationError: there is no such cluster.
            ConnectionFailed: no name server answers.
        """
        info = await self._asking.cluster()
        if cluster is not None and cluster not in info.clusters:
            raise ConfigurationError(
                f"cluster {cluster!r} is not known, found {sorted(info.clusters)}"
            )
        names = info.brokers if cluster is None else info.clusters[cluster] & info.brokers.keys()
        return {name: dict(sorted(info.brokers[name].addresses.items())) for name in sorted(names)}

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Return broker name -> address of every master, in the order of the names.

        Args:
            cluster: only of this cluster.

        Raises:
            ConfigurationError: there is no such cluster.
            RouteNotFound: no master is registered.
            ConnectionFailed: no name server answers.
        """
        return await self._asking.masters(cluster)

    async def wait_registered(
        self, count: int = 1, cluster: str | None = None, *, deadline_s: float = 60.0
    ) -> dict[str, str]:
        """Wait until so many masters are registered; return their names and addresses.

        Args:
            count: least number of masters.
            cluster: only those of this cluster, which may not be there yet.
            deadline_s: how long; ``math.inf``: for ever.

        Raises:
            RouteNotFound: there were fewer at the deadline; the text names them.
            ConnectionFailed: no name server answered then.
        """
        check_count("count", count, 1)

        async def look() -> dict[str, str]:
            try:
                found = await self._asking.masters(cluster)
            except (ConfigurationError, RouteNotFound):  # no such cluster yet, or none at all
                found = {}
            if len(found) < count:
                raise RouteNotFound(
                    f"{len(found)} of {count} masters are registered: {', '.join(found) or 'none'}"
                )
            return found

        return await patiently(look, deadline_s, self._asking.pool.check_open)

    async def state(self, broker: str) -> dict[str, str]:
        """Return what a broker says about itself: version, rates, disk, offsets.

        Raises:
            ConfigurationError: no master of that name is registered.
            PymqError: it could not be asked, or refused.
        """
        return await self._asking.one(await self.address(broker), operations.broker_state())

    async def config(self, broker: str) -> str:
        """Return the settings of a broker, as properties text with RocketMQ's keys.

        Raises:
            ConfigurationError: no master of that name is registered.
            PymqError: it could not be asked, or refused.
        """
        return await self._asking.one(await self.address(broker), operations.broker_config())

    async def delete_expired_log(self, broker: str) -> None:
        """Let a broker delete commit-log files past their time now, whatever the hour.

        It answers at once and deletes in the background (RocketMQ deleteExpiredCommitLog).

        Raises:
            ConfigurationError: no master of that name is registered.
            PymqError: it could not be asked, or refused.
        """
        await self._asking.one(await self.address(broker), operations.delete_expired_log())

    async def clean_expired_queues(self, broker: str) -> None:
        """Let a broker delete consume queues that hold nothing any more.

        A pymq broker deletes those of topics that are gone. An official one also those of
        topics that are merely idle: their offsets then begin at 0 again, and consumers pass over
        what comes next (RocketMQ cleanExpiredConsumerQueue).

        Raises:
            ConfigurationError: no master of that name is registered.
            PymqError: it could not be asked, or refused.
        """
        await self._asking.one(await self.address(broker), operations.clean_expired_queues())

    async def address(self, broker: str) -> str:
        """Return the address of the master of a name; an address is returned as it is.

        Raises:
            ConfigurationError: no master of that name is registered.
            ConnectionFailed: no name server answers.
        """
        if ":" in broker:
            return broker
        masters = await self._asking.masters()
        if broker not in masters:
            raise ConfigurationError(f"no broker {broker!r} has a master, found {sorted(masters)}")
        return masters[broker]
