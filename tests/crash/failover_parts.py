"""What the simulated brokers of ``failover_brokers`` share: disks, settings, and who watches."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pymq.broker.replication_config import ReplicationConfig
from pymq.protocol.epochs import Epochs

if TYPE_CHECKING:
    from tests.crash.failover_brokers import Broker
    from tests.crash.failover_master import MasterRun
    from tests.crash.failover_slave import SlaveRun

CONFIG = ReplicationConfig(controllers=("c:1",))
LOOK_S = 0.5

Entry = tuple[int, int]


@dataclass(slots=True)
class Disk:
    """What outlives a broker's process, and the part of it that outlives lost power.

    Attributes:
        flushed: physical offset up to which the log is on the disk.
        epochs: saved durably, as ``EpochFile`` does.
        offset: what consumers have committed, taken over from masters.
    """

    log: list[Entry] = field(default_factory=list)
    flushed: int = 0
    epochs: Epochs = field(default_factory=Epochs)
    offset: int = 0

    def save(self, epochs: Epochs) -> None:
        """Keep other epochs."""
        self.epochs = epochs


class Watch:
    """Whoever checks what brokers do."""

    def began(self, run: MasterRun) -> None:
        """A broker begins to be the master."""

    def agreed(self, run: SlaveRun, epochs: Epochs, common_end: int) -> None:
        """A slave takes its log for that of a master with such epochs, up to an end."""

    def acknowledged(self, run: MasterRun, physical_offset: int, message: int) -> None:
        """A master has acknowledged a message."""

    def showed(self, broker: Broker, end: int) -> None:
        """A broker shows its messages up to an end."""

    def broken(self, text: str) -> None:
        """Something is wrong."""


class Waiting:
    """What a coroutine waits for: ``begin`` is told who goes on with it."""

    def __init__(self, begin: Callable[[Callable[[Any], None]], None]) -> None:
        self.begin = begin

    def __await__(self) -> Generator[Waiting, Any, Any]:
        return (yield self)


@dataclass(slots=True)
class Settings:
    """How the brokers of one schedule are configured."""

    is_sync_flush: bool
    in_sync_replicas: int = 2
