"""Brokers of a group as processes: who is the master, who is in sync, what is on their disks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.administration import admin_of
from tests.crash.checkers import check_index
from tests.crash.disk import log_entries, queue_entries
from tests.crash.failover_checkers import Epoch
from tests.crash.failover_steering import Steering
from tests.crash.kills import TOPIC, damage
from tests.crash.servers import HERE, SMALL_FILES, Place, ServerFailed, broker_process
from tests.interop.controllers import BROKER_NAME, state_of

from pymq.client.sockets.blocking_client import BlockingClient

IN_SYNC_TIMEOUT_S: Final = 90.0
_POLL_S: Final = 0.1


class Group:
    """Brokers of one name, whose master a controller says.

    Args:
        home: for their files.
        stores: by name of the broker.
        steering: the controllers.
        stack: ends them.
        places: where they run, unless here.
        properties: of each.
    """

    def __init__(
        self,
        home: Path,
        stores: Mapping[str, Path],
        steering: Steering,
        name_server: str,
        stack: ExitStack,
        *,
        places: Mapping[str, Place] | None = None,
        properties: Mapping[str, str | int],
    ) -> None:
        self.stores = dict(stores)
        self.steering = steering
        self.brokers = {}
        for name, store in stores.items():
            (home / name).mkdir(exist_ok=True)
            self.brokers[name] = broker_process(
                home / name,
                name_server,
                store,
                (places or {}).get(name, HERE),
                **{
                    "brokerName": BROKER_NAME,
                    "brokerRole": "SYNC_MASTER",
                    "enableControllerMode": "true",
                    "controllerAddr": ";".join(steering.addresses),
                    "pymqHaMetadataInterval": 500,
                    **properties,
                },
            )
        stack.callback(self._kill)

    def _kill(self) -> None:
        for broker in self.brokers.values():
            if broker.is_running:
                broker.thaw()
                broker.kill()

    def start(self) -> None:
        """Start all of them."""
        for broker in self.brokers.values():
            broker.spawn()
        for broker in self.brokers.values():
            broker.wait_ready()

    def stop(self) -> None:
        """Stop all of them in order."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            for done in [pool.submit(broker.stop) for broker in self.brokers.values()]:
                done.result()

    # --- who is who

    def id_of(self, name: str) -> int | None:
        """Return the number that the controller has given a broker."""
        try:
            return int((self.stores[name] / "brokerIdentity").read_text().split("#")[2])
        except (OSError, IndexError, ValueError):
            return None

    def master(self) -> str | None:
        """Return the broker that the controllers have for the master; None: there is none."""
        found = state_of(*self.steering.addresses)[0].master_broker_id
        names = (name for name in self.brokers if self.id_of(name) == found)
        return None if found is None else next(names, None)

    def in_sync(self) -> set[str]:
        """Return who is in the sync state set."""
        members = state_of(*self.steering.addresses)[1]
        return {name for name in self.brokers if self.id_of(name) in members}

    def wait_in_sync(self, what: str = "") -> None:
        """Wait until there is a master, and everybody has what it has.

        Raises:
            ServerFailed: they do not get there.
        """

        def is_so() -> bool:
            return self.master() is not None and self.in_sync() == self.brokers.keys()

        self._wait(is_so, f"not everybody is in sync {what}")

    def wait_equal(self, client: BlockingClient) -> None:
        """Wait until all logs are of one length; nobody sends any more.

        Raises:
            ServerFailed: they do not get there.
        """
        admin = admin_of(client, 5.0).replicas
        addresses = {broker.address for broker in self.brokers.values()}

        def is_so() -> bool:
            reports = admin.reports(addresses).values()
            ends = {None if one.status is None else one.status.log_end for one in reports}
            return len(ends) == 1 and None not in ends

        self._wait(is_so, "the logs do not become equal")

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + IN_SYNC_TIMEOUT_S
        while not is_so():
            if time.monotonic() > deadline:
                said = [broker.describe("is as it is") for broker in self.brokers.values()]
                raise ServerFailed(
                    f"{what} after {IN_SYNC_TIMEOUT_S:g} s: master {self.master()}, in sync "
                    f"{self.in_sync()}\n" + "\n".join(said)
                )
            time.sleep(_POLL_S)

    # --- disks

    def wipe(self, name: str) -> None:
        """Remove what a broker that does not run has."""
        for path in self.stores[name].iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def log(self, name: str) -> bytes:
        """Return the log of a broker, up to its last byte that is not zero."""
        size = SMALL_FILES["mappedFileSizeCommitLog"]
        paths = sorted((self.stores[name] / "commitlog").iterdir())
        assert [int(path.name) for path in paths] == [n * size for n in range(len(paths))]
        return b"".join(path.read_bytes() for path in paths).rstrip(b"\0")

    def epochs(self) -> list[Epoch]:
        """Return the epochs of the longest log."""
        longest = max(self.brokers, key=lambda name: len(self.log(name)))
        lines = (self.stores[longest] / "epochFileCheckpoint").read_text().splitlines()[2:]
        return [Epoch(*map(int, line.split("-"))) for line in lines]

    def check_disks(self) -> list[str]:
        """Return what is wrong with what brokers that were stopped have left."""
        complaints = []
        logs = {name: self.log(name) for name in self.brokers}
        longest = max(logs.values(), key=len)
        for name, store in self.stores.items():
            complaints += damage(store, f"{name} in the end", is_stopped=True)
            complaints += check_index(queue_entries(store, TOPIC), log_entries(store, TOPIC))
            if logs[name] != longest:
                complaints.append(
                    f"the log of {name} is not that of the others: {len(logs[name])} B of "
                    f"{len(longest)}, equal to them: {longest.startswith(logs[name])}"
                )
        return complaints

    def check_outputs(self) -> list[str]:
        """Return where brokers have logged a bug."""
        return [
            broker.describe(f"{name} has logged a bug: {text[at - 300 : at + 2000]}")
            for name, broker in self.brokers.items()
            for text in [broker.every_output()]
            if (at := text.find("Traceback")) >= 0
        ]
