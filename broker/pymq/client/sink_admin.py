"""Looking after exactly-once sinks, which brokers of pymq have."""

from collections.abc import Iterator

from pymq.client import operations
from pymq.client.admin import BlockingAdmin
from pymq.client.blocking import BlockingClient
from pymq.errors import ConfigurationError, RequestNotSupported
from pymq.protocol.sink_bodies import SinkRow


class SinkAdmin:
    """The sinks of the brokers that a client's name servers know.

    Args:
        client: stays the caller's; closing it ends this, too.
    """

    def __init__(self, client: BlockingClient) -> None:
        self._pool = client._pool
        self._admin = BlockingAdmin(client)

    def sinks(self, sink: str | None = None) -> list[tuple[str, SinkRow]]:
        """Return what sinks have published: the broker's name and the row of each, sorted.

        Brokers that are no pymq brokers have none.

        Args:
            sink: only this one.

        Raises:
            PymqError: a broker could not be asked.
        """
        found: list[tuple[str, SinkRow]] = []
        for name, address in self._admin.masters().items():
            try:
                found += [(name, row) for row in self._rows(address, sink)]
            except RequestNotSupported:
                continue
        return sorted(found, key=lambda one: (one[1].last.sink, one[0]))

    def _rows(self, address: str, sink: str | None) -> Iterator[SinkRow]:
        if sink is not None:
            yield from self._pool.ask(address, operations.show_sinks(sink))
            return
        rows = self._pool.ask(address, operations.list_sinks())
        while rows:
            yield from rows
            rows = self._pool.ask(address, operations.list_sinks(rows[-1].last.sink))

    def forget(self, sink: str) -> list[str]:
        """Let a sink begin again, with any query and batch; return the names of its brokers.

        What it has published stays. A batch that its query repeats is published again.

        Raises:
            ConfigurationError: no broker knows the sink.
            PymqError: a broker could not be asked.
        """
        masters = self._admin.masters()
        brokers = [name for name, _ in self.sinks(sink)]
        if not brokers:
            raise ConfigurationError(f"there is no sink {sink!r}; see `pymq sink list`")
        for name in brokers:
            self._pool.ask(masters[name], operations.forget_sink(sink))
        return brokers
