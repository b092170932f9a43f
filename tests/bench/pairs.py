"""A master and its slave on loopback, of pymq or official, each a process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from tests.bench.serving import Serving, serving_broker, serving_names
from tests.interop.peers import RealBroker, RealNameServer, free_port

from pymq import blocking
from pymq.errors import BrokerError

_HEAP = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")

Broker: TypeAlias = Serving | RealBroker
Settings: TypeAlias = Mapping[str, str | int]


def address_of(broker: Broker) -> str:
    """Return the ``host:port`` that clients use."""
    return broker.broker if isinstance(broker, Serving) else broker.address


def store_of(broker: Broker) -> Path:
    """Return where its store is."""
    return broker.store if isinstance(broker, Serving) else broker.store_dir


@dataclass(slots=True)
class Pair:
    """A master, and a slave that can be stopped and started.

    Attributes:
        name: for the figures.
        name_server: ``host:port``.
        master: runs all the time.
        admin: asks both.
        slave: None while it is stopped.
    """

    name: str
    name_server: str
    master: Broker
    admin: blocking.Admin
    slave: Broker | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def start_slave(self) -> Broker:
        """Start the slave on the store that it had, and wait until it serves."""
        assert self.slave is None
        self.slave = self._stack.enter_context(self._slave())
        return self.slave

    def stop_slave(self) -> None:
        """Stop the slave cleanly."""
        self.slave = None
        self._stack.close()

    def position(self, broker: Broker) -> tuple[int, int]:
        """Return where a broker's log ends, and how many bytes of it are in no queue yet."""
        try:
            state = self.admin.brokers.state(address_of(broker))
        except BrokerError:  # RocketMQ, for a moment while its log begins a file
            return 0, 0
        return int(state["commitLogMaxOffset"]), max(0, int(state["dispatchBehindBytes"]))

    def master_end(self) -> int:
        """Return where the master's log ends."""
        return self.position(self.master)[0]

    def _slave(self) -> AbstractContextManager[Broker]:
        store = store_of(self.master).parent / "slave"
        if isinstance(self.master, Serving):
            settings = {"brokerName": "broker-a", "brokerId": 1, "brokerRole": "SLAVE"}
            return serving_broker(store, self.name_server, "async", **settings)
        return _official(self.master.version, self.name_server, store, "SLAVE", brokerId=1)


def _official(
    version: str, name_server: str, store: Path, role: str, **settings: str | int
) -> RealBroker:
    return RealBroker(
        version,
        [name_server],
        store_dir=store,
        java_options=_HEAP,
        brokerRole=role,
        haListenPort=free_port(0),
        **settings,
    )


@contextmanager
def our_pair(directory: Path, role: str) -> Iterator[Pair]:
    """Run a pair of pymq with asynchronous flush; the slave follows.

    Args:
        directory: for all files.
        role: of the master, ``SYNC_MASTER`` or ``ASYNC_MASTER``.
    """
    directory.mkdir()
    with ExitStack() as stack:
        name_server = stack.enter_context(serving_names(directory))
        settings: Settings = {"brokerName": "broker-a", "brokerRole": role, "inSyncReplicas": 2}
        master = serving_broker(directory / "master", name_server, "async", **settings)
        broker = stack.enter_context(master)
        admin = stack.enter_context(blocking.Admin(name_server))
        pair = Pair("pymq", name_server, broker, admin)
        stack.callback(pair.stop_slave)
        pair.start_slave()
        yield pair


@contextmanager
def official_pair(directory: Path, version: str, role: str) -> Iterator[Pair]:
    """Run an official pair with asynchronous flush; the slave follows.

    Args:
        directory: for the stores.
        version: of both.
        role: of the master, ``SYNC_MASTER`` or ``ASYNC_MASTER``.
    """
    directory.mkdir()
    with ExitStack() as stack:
        name_server = stack.enter_context(RealNameServer(version)).address
        store = directory / "master"
        # Up to 5.3.3 a SYNC_MASTER waits for nobody by default.
        master = _official(version, name_server, store, role, inSyncReplicas=2)
        broker = stack.enter_context(master)
        admin = stack.enter_context(blocking.Admin(name_server))
        pair = Pair(f"RocketMQ {version}", name_server, broker, admin)
        stack.callback(pair.stop_slave)
        pair.start_slave()
        yield pair
