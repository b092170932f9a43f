"""The name server of an embedded cluster, which can be stopped and started."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from pymq.namesrv.config import NamesrvConfig
from pymq.namesrv.server import NameServer
from pymq.testing.kept_ports import KeptPorts
from pymq.testing.latency import Latency
from pymq.testing.turns import Turns

#: Who is not registered after this has a reason that the test should meet: a slow name server, say.
REGISTERED_S = 10.0
_POLL_S = 0.002


class NamesrvMember:
    """The name server, which keeps its port while it is stopped; for one event loop.

    Args:
        kv_config_path: where it keeps what has to outlive it.

    Attributes:
        address: ``host:port``; known once it was started.
        latency: of its requests.
        ports: kept for it while it is stopped.
        server: while it runs.
    """

    def __init__(self, kv_config_path: Path) -> None:
        self._kv_config_path = kv_config_path
        self._port = 0
        self.address = ""
        self.latency = Latency()
        self.ports = KeptPorts()
        self.server: NameServer | None = None
        self._turns = Turns()

    async def start(self) -> None:
        """Start it; does nothing while it runs. Waits for a start or an end that is under way.

        Raises:
            PymqError: it cannot be started.
        """
        await self._turns.wait()
        if self.server is None:
            with self._turns.working():
                await self._start()

    async def _start(self) -> None:
        server = NameServer(NamesrvConfig(port=self._port, kv_config_path=self._kv_config_path))
        self.ports.release()
        try:
            await server.start()
        except BaseException:
            await server.close()
            raise
        self.latency.attach([server.listener])
        self.ports.note([server.listener])
        self.server, self._port, self.address = server, server.port, server.address

    async def wait_registered(self, addresses: Iterable[str]) -> None:
        """Wait until brokers are registered, as long as it runs, and at most ``REGISTERED_S``."""
        loop = asyncio.get_running_loop()
        late_s = loop.time() + REGISTERED_S
        for address in addresses:
            while self.server is not None and not self.server.is_registered(address):
                if loop.time() > late_s:
                    return
                await asyncio.sleep(_POLL_S)

    async def stop(self, *, for_good: bool = False) -> None:
        """Stop it; idempotent.

        Args:
            for_good: others may have its port.
        """
        await self._turns.wait()  # One that starts is to end, too, and one that ends to have ended.
        server, self.server = self.server, None
        if server is not None:
            with self._turns.working():
                await server.close()
                self.ports.keep()
        if for_good:
            self.ports.release()
