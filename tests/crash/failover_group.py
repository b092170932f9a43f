"""Brokers of a group as processes: who is the master, who is in sync, what is on their disks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from tests.administration import admin_of
from tests.crash.checkers import check_index
from tests.crash.disk import log_entries, queue_entries
from tests.crash.failover_checkers import Epoch
from tests.crash.failover_steering import Steering
from tests.crash.kills import TOPIC, damage
from tests.crash.patience import patiently
from tests.crash.servers import HERE, SMALL_FILES, Place, ServerFailed, broker_process
from tests.interop.controllers import BROKER_NAME, state_of

from pymq.client import operations
from pymq.client.operations import Operation
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.net.blocking import BlockingChannel
from pymq.protocol.addresses import split_address

IN_SYNC_TIMEOUT_S: Final = 240.0
_POLL_S, _ASK_TIMEOUT_S = 0.1, 10.0

T = TypeVar("T")


def ask(address: str, operation: Operation[T]) -> T:
    """Return what a broker answers.

    Raises:
        PymqError: it does not, or refuses.
    """
    channel = BlockingChannel.connect(*split_address(address), timeout_s=_ASK_TIMEOUT_S)
    try:
        answer = channel.request(operation.request, _ASK_TIMEOUT_S)
    finally:
        channel.close()
    return operation.result(answer, peer=address)


def wait_known(addresses: Iterable[str], topic: str, groups: Iterable[str]) -> None:
    """Wait until brokers have a topic and groups: a slave copies what was created when it can.

    Raises:
        ServerFailed: they do not get there.
    """
    wanted = {topic, *groups}
    deadline = time.monotonic() + IN_SYNC_TIMEOUT_S
    for address in addresses:
        while True:
            topics = patiently(partial(ask, address, operations.topic_table()))
            known = patiently(partial(ask, address, operations.group_table()))
            if wanted <= topics.topics.keys() | known.groups.keys():
                break
            if time.monotonic() > deadline:
                raise ServerFailed(f"{address} has not heard of {wanted}")
            time.sleep(_POLL_S)


def broker_id_of(store: Path) -> int | None:
    """Return the number that the controller has given the broker of a store."""
    try:
        return int((store / "brokerIdentity").read_text().split("#")[2])
    except (OSError, IndexError, ValueError):
        return None


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
        return broker_id_of(self.stores[name])

    def state(self) -> tuple[str | None, set[str]]:
        """Return who the controllers have for the master, and who is in the sync state set.

        Nobody, while there is none, or no controller says so.
        """
        info, members = state_of(*self.steering.addresses)
        ids = {name: self.id_of(name) for name in self.brokers}
        found = info.master_broker_id
        names = (name for name, number in ids.items() if number == found)
        master = None if found is None else next(names, None)
        return master, {name for name, number in ids.items() if number in members}

    def master(self) -> str | None:
        """Return the broker that the controllers have for the master; None: there is none."""
        return self.state()[0]

    def wait_in_sync(self, what: str = "") -> str:
        """Wait until there is a master, and everybody has what it has; return the master.

        Raises:
            ServerFailed: they do not get there.
        """
        found: list[str] = []

        def is_so() -> bool:
            master, in_sync = self.state()
            if master is None or in_sync != self.brokers.keys():
                return False
            found.append(master)
            return True

        self._wait(is_so, f"not everybody is in sync {what}")
        return found[0]

    def is_spare(self, name: str) -> bool:
        """Return whether another broker has all that a broker had when it was killed.

        Raises:
            ServerFailed: no controller says so.
        """
        others: list[bool] = []

        def is_so() -> bool:
            master, in_sync = self.state()
            if master not in (None, name):
                others.append(True)
            elif in_sync:
                others.append(in_sync != {name})
            return bool(others)

        self._wait(is_so, f"nobody says who is in sync with {name}")
        return others[0]

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
                master, in_sync = self.state()
                raise ServerFailed(
                    f"{what} after {IN_SYNC_TIMEOUT_S:g} s: master {master}, in sync {in_sync}\n"
                    + "\n".join(said)
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
