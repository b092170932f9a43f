"""Looking after exactly-once sinks, which brokers of pymq have."""

from pymq.client import operations
from pymq.client.administration.asking import Asking
from pymq.errors import ConfigurationError, RequestNotSupported
from pymq.protocol.sink_bodies import SinkRow


class Sinks:
    """The exactly-once sinks of the brokers that the name servers know: ``admin.sinks``."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def rows(self, sink: str | None = None) -> list[tuple[str, SinkRow]]:
        """Return what sinks have published: the broker's name and the row of each, sorted.

        Brokers that are no pymq brokers have none.

        Args:
            sink: only this one.

        Raises:
            PymqError: a broker could not be asked.
        """
        found: list[tuple[str, SinkRow]] = []
        # Slaves of pymq refuse, and say so; those of others have no sinks.
        for name, address in (await self._asking.readers()).items():
            try:
                found += [(name, row) for row in await self._rows(name, address, sink)]
            except RequestNotSupported:
                continue
        return sorted(found, key=lambda one: (one[1].last.sink, one[0]))

    async def _rows(self, name: str, address: str, sink: str | None) -> list[SinkRow]:
        if sink is not None:
            return await self._asking.one(address, operations.show_sinks(sink), name=name)
        every: list[SinkRow] = []
        rows = await self._asking.one(address, operations.list_sinks(), name=name)
        while rows:
            every += rows
            operation = operations.list_sinks(rows[-1].last.sink)
            rows = await self._asking.one(address, operation, name=name)
        return every

    async def forget(self, sink: str) -> list[str]:
        """Let a sink begin again, with any query and batch; return the names of its brokers.

        What it has published stays. A batch that its query repeats is published again.

        Raises:
            ConfigurationError: no broker knows the sink.
            BrokersFailed: some brokers did not do it; the others have.
            PymqError: a broker could not be asked.
        """
        names = [name for name, _ in await self.rows(sink)]
        if not names:
            raise ConfigurationError(f"there is no sink {sink!r}; see `pymq sink list`")
        masters = await self._asking.masters()
        where = {name: masters[name] for name in names}
        await self._asking.every(where, lambda: operations.forget_sink(sink))
        return names
