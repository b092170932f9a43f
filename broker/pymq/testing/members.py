"""The brokers of an embedded cluster, each of which can be stopped and started."""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.broker.ha.identity import NAME as IDENTITY_NAME
from pymq.broker.replication_config import ReplicationConfig, Role
from pymq.clock import Clock
from pymq.errors import ConfigurationError, RequestTimeout
from pymq.net.tasks import begin_task
from pymq.store import FlushMode, StoreConfig
from pymq.testing.cluster_files import ClusterFiles
from pymq.testing.kept_ports import KeptPorts
from pymq.testing.latency import Latency
from pymq.testing.naming import NamesrvMember
from pymq.testing.turns import Turns

#: Small enough for a quick start wherever the temporary directory is.
SEGMENT_BYTES = 64 << 20
#: On a developer's well-filled disk sends must not be refused, nor messages deleted.
DISK_FREE_ENOUGH_BYTES = 256 << 20
#: A broker that waits for a master for so long is not started.
START_S = 30.0
#: More would not get names.
GROUP_COUNT_MAX = 26
#: As many slaves as a master takes, and itself.
REPLICA_COUNT_MAX = 33


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """How the brokers of a cluster keep messages."""

    flush: FlushMode
    settings: dict[str, Any]
    clock: Clock

    def config(self, root: Path) -> StoreConfig:
        """Return the settings of one broker's store."""
        defaults = {
            "segment_bytes": SEGMENT_BYTES,
            "disk_free_enough_bytes": DISK_FREE_ENOUGH_BYTES,
        }
        return StoreConfig(
            root_path=root, flush_mode=self.flush, **{**defaults, **self.settings}
        )


class Member:
    """One broker, which keeps its store and its port while it is stopped; for one event loop.

    Attributes:
        broker_id: what tests call it: 0 if it is alone, else its id at the controller.
        config: with the name servers and, after the first start, the port.
        replication: with the controller.
        path: where its store is, below the cluster's directory.
        files: of its store.
        latency: of its requests.
        ports: kept for it while it is stopped.
        broker: while it runs.
    """

    def __init__(
        self,
        broker_id: int,
        path: str,
        config: BrokerConfig,
        replication: ReplicationConfig,
        files: ClusterFiles,
    ) -> None:
        self.broker_id = broker_id
        self.path = path
        self.files = files
        self.latency = Latency()
        self.ports = KeptPorts()
        self.config = config
        self.replication = replication
        self.broker: Broker | None = None
        self._starting: asyncio.Task[None] | None = None
        self._turns = Turns()
        self._fills: set[object] = set()

    @property
    def name(self) -> str:
        """The name of its group."""
        return self.config.name

    def is_known(self, root: Path) -> bool:
        """Has its controller given it an id?"""
        return (root / self.path / IDENTITY_NAME).exists()

    async def start(self, store: Store, root: Path) -> None:
        """Start it; does nothing while it runs. Waits for a start or an end that is under way.

        Raises:
            RequestTimeout: it still waits for its group to have a master; it is stopped.
            PymqError: it cannot be started.
        """
        await self._turns.wait()
        if self.broker is None:
            with self._turns.working():
                await self._start(store, root)

    async def _start(self, store: Store, root: Path) -> None:
        broker = Broker(
            self.config,
            store.config(root / self.path),
            store.clock,
            replication=self.replication,
            files=self.files,
        )
        self.ports.release()
        starting = self._starting = begin_task(broker.start())
        try:
            await asyncio.wait_for(starting, START_S if self.broker_id else None)
        except TimeoutError as error:
            raise RequestTimeout(
                f"broker {self.broker_id} of {self.name} has no master to follow after {START_S:g} "
                "s, and may not be the master: the brokers that have everything do not run; start "
                "all of the group together"
            ) from error
        except asyncio.CancelledError:
            if self._starting is starting:
                raise
        finally:
            is_stopped, self._starting = self._starting is not starting, None
            if is_stopped or not _has_succeeded(starting):
                try:
                    await broker.close()
                finally:
                    self.ports.keep()
        if is_stopped:
            return  # meanwhile, because another one cannot be started
        self.broker = broker
        self.latency.attach(broker.listeners)
        self.ports.note(broker.listeners)
        # A restarted broker keeps the port that clients know.
        self.config = dataclasses.replace(self.config, listen_port=broker.port)

    async def fill(self, cause: object) -> None:
        """Have its disk full until all causes are taken back; idempotent."""
        await self._set_fills(self._live_fills() | {cause})

    async def unfill(self, cause: object) -> None:
        """Take a cause back; idempotent."""
        await self._set_fills(self._live_fills() - {cause})

    def _live_fills(self) -> set[object]:
        # A cluster that stops has its disks free, whatever filled them.
        return self._fills if self.files.is_full else set()

    async def _set_fills(self, fills: set[object]) -> None:
        self._fills = fills
        self.files.is_full = bool(fills)
        if self.broker is not None:
            await self.broker.look_again()  # otherwise it looks at its disk in a second

    async def stop(self) -> None:
        """Stop it cleanly; idempotent.

        Raises:
            StoreError: the last flush failed.
        """
        await self._end(Broker.close)

    async def abandon(self) -> None:
        """Stop it as if its process was killed, as far as others can see; idempotent.

        Raises:
            StoreError: the last flush failed.
        """
        await self._end(Broker.abandon)

    async def _end(self, end: Callable[[Broker], Coroutine[Any, Any, None]]) -> None:
        while self.broker is None:
            if self._starting is not None:
                # To close it beside its start would leave open what that opens after it.
                starting, self._starting = self._starting, None
                starting.cancel()
            # Somebody else ends it, or it was to start: it is to have ended for us, too.
            if not await self._turns.wait_any():
                return
        broker, self.broker = self.broker, None
        with self._turns.working():
            try:
                await end(broker)
            finally:
                self.ports.keep()


def _has_succeeded(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def make_members(
    brokers: int,
    replicas: int,
    broker: dict[str, Any],
    replication: dict[str, Any],
    clock: Clock,
) -> list[Member]:
    """Return the brokers of a cluster, by name and id.

    Args:
        brokers: groups of brokers.
        replicas: brokers of a group.
        broker, replication: settings of each of them.
        clock: of the cluster.

    Raises:
        ConfigurationError: a number is out of range, or settings that several brokers cannot share.
    """
    for name, count, most in (
        ("brokers", brokers, GROUP_COUNT_MAX),
        ("replicas", replicas, REPLICA_COUNT_MAX),
    ):
        if not 1 <= count <= most:
            raise ConfigurationError(f"{name}={count}: expected 1..{most}")
    if brokers == replicas == 1:
        config = BrokerConfig(**{"listen_port": 0, **broker})
        return [Member(0, "", config, ReplicationConfig(**replication), ClusterFiles(clock))]
    own = {"listen_port", "broker_id"} | ({"name"} if brokers > 1 else set())
    if refused := sorted(own & broker.keys()):
        raise ConfigurationError(
            f"broker={{{', '.join(refused)}}}: each of several brokers has its own"
        )
    found = []
    for number in range(brokers):
        name = broker.get("name", f"broker-{chr(ord('a') + number)}")
        config = BrokerConfig(**{**broker, "listen_port": 0, "name": name})
        if replicas == 1:
            own_replication = ReplicationConfig(**replication)
            found.append(Member(0, name, config, own_replication, ClusterFiles(clock)))
            continue
        shared = {
            "role": Role.SYNC_MASTER,
            "listen_port": 0,
            "metadata_interval_ms": 500,
            **replication,
        }
        if {"controller_mode", "controllers", "master_address"} & shared.keys():
            raise ConfigurationError("replicas=: the cluster has a controller of its own")
        for broker_id in range(1, replicas + 1):
            path = f"{name}/{broker_id}"
            files = ClusterFiles(clock)
            found.append(Member(broker_id, path, config, ReplicationConfig(**shared), files))
    return found


async def start_members(
    members: Sequence[Member], store: Store, root: Path, naming: NamesrvMember | None
) -> None:
    """Start brokers, groups at the same time; wait until a name server knows them, if it runs.

    New brokers of a group start one after the other, so that the controller numbers them in this
    order and the first one is the master. Those that have an id start together: the master may be
    any of them, and others wait for it.

    Raises:
        PymqError: one cannot be started; others may be starting still.
    """
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(member.name, []).append(member)
    await asyncio.gather(*(_start_group(group, store, root) for group in groups.values()))
    if naming is not None:
        await naming.wait_registered([one.broker.address for one in members if one.broker])


async def _start_group(members: Sequence[Member], store: Store, root: Path) -> None:
    known = [member for member in members if member.is_known(root)]
    await asyncio.gather(*(member.start(store, root) for member in known))
    for member in members:
        await member.start(store, root)


async def stop_members(members: Sequence[Member], *, for_good: bool = False) -> None:
    """Stop brokers cleanly, together.

    Args:
        members: the brokers.
        for_good: others may have their ports.

    Raises:
        StoreError: the last flush of one failed; all are stopped nevertheless.
    """
    try:
        await _all(member.stop() for member in members)
    finally:
        if for_good:
            for member in members:
                member.ports.release()


async def abandon_members(members: Iterable[Member]) -> None:
    """Stop brokers as if they were killed, together; see ``Member.abandon``.

    Raises:
        StoreError: the last flush of one failed; all are stopped nevertheless.
    """
    await _all(member.abandon() for member in members)


async def _all(ends: Iterable[Coroutine[Any, Any, None]]) -> None:
    for error in await asyncio.gather(*ends, return_exceptions=True):
        if error is not None:
            raise error
