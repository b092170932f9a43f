"""The master is killed right after it has acknowledged commits: groups are never set back.

Three brokers under a controller, killed and frozen again and again while several consumers commit
and a producer sends. What the next master says of each group is at least what was acknowledged,
also by a master that did not know that it was one no more.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.crash.failover_group import ask, broker_id_of, wait_known
from tests.crash.kills import create_topic
from tests.crash.patience import patiently
from tests.crash.servers import (
    ServerProcess,
    broker_process,
    controller_process,
    name_server_process,
)
from tests.interop.controllers import BROKER_NAME, state_of

from pymq.client import operations
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import PymqError
from pymq.net.blocking import BlockingChannel
from pymq.protocol.addresses import split_address
from pymq.protocol.bodies import BrokerData, MessageQueue
from pymq.protocol.codes import ResponseCode
from pymq.protocol.message import Message

pytestmark = pytest.mark.crash

NAME, TOPIC = BROKER_NAME, "T"
QUEUES = 4
CONSUMERS = 4
REQUEST_S = 5.0
DEADLINE_S = 180.0
#: So late that nothing would be right by chance.
METADATA_MS = 30_000


class Group:
    """The brokers, by name."""

    def __init__(self, home: Path, name_server: str, stack: ExitStack) -> None:
        (home / "controller").mkdir()
        controller = stack.enter_context(controller_process(home / "controller"))
        self.brokers: dict[str, ServerProcess] = {}
        self._stores = {name: home / name / "store" for name in ("one", "two", "three")}
        self._controller = controller.address
        for name, store in self._stores.items():
            (home / name).mkdir()
            self.brokers[name] = stack.enter_context(
                broker_process(
                    home / name,
                    name_server,
                    store,
                    brokerName=NAME,
                    brokerRole="SYNC_MASTER",
                    enableControllerMode="true",
                    controllerAddr=controller.address,
                    pymqHaMetadataInterval=METADATA_MS,
                    # What a broker reads from its own file must not help.
                    flushConsumerOffsetInterval=60_000,
                )
            )

    def wait_master(self, client: BlockingClient, slave_count: int = 0) -> str:
        """Return the name of a master, once there is one that so many slaves are in sync with."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            name = self._master(client)
            if name is not None and (not slave_count or self._in_sync_count(name) == slave_count):
                return name
            assert time.monotonic() < deadline_s, f"no master with {slave_count} slaves, but {name}"
            time.sleep(0.02)

    def wait_next_master(self, client: BlockingClient, before: str) -> str | None:
        """Return the name of another master than that of before, once there is one.

        None: there cannot be one, for nobody else was in sync. On a slow machine, slaves that
        stand still for two seconds are taken out of the set.
        """
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            name = self._master(client)
            if name not in (None, before):
                return name
            info, members = state_of(self._controller)
            number = broker_id_of(self._stores[before])
            if info.master_broker_id in (None, number) and members == {number}:
                return None
            assert time.monotonic() < deadline_s, f"no master but {before}, in sync {members}"
            time.sleep(0.01)

    def _master(self, client: BlockingClient) -> str | None:
        """Return the name of the broker that clients are told is the master."""
        found = patiently(admin_of(client).cluster).brokers
        address = found.get(NAME, BrokerData(broker_name=NAME)).addresses.get(0)
        names = (name for name, broker in self.brokers.items() if broker.address == address)
        return next(names, None)

    def _in_sync_count(self, name: str) -> int | None:
        """Return how many slaves are in the sync state set of a master, if it says so."""
        try:
            return ask(
                self.brokers[name].address, operations.replication_status()
            ).in_sync_slave_count
        except PymqError:
            return None


class Commits(threading.Thread):
    """One group's commits to one master, until that is gone, or is a slave now.

    Attributes:
        acknowledged: queue -> the highest offset of which the master has said that it has it.
        refusals: what else it said, but that its slaves did not confirm in time.
    """

    def __init__(self, address: str, group: str, chance: random.Random, first: int) -> None:
        super().__init__(name=group)
        self._address = address
        self._group = group
        self._chance = random.Random(chance.random())
        self._first = first
        self.is_over = False
        self.acknowledged: dict[MessageQueue, int] = {}
        self.refusals: list[str] = []

    def run(self) -> None:
        """Commit as fast as is answered."""
        try:
            channel = BlockingChannel.connect(*split_address(self._address), timeout_s=REQUEST_S)
        except PymqError:
            return  # it was killed before this thread had its turn
        try:
            self._commit(channel)
        except PymqError:
            return
        finally:
            channel.close()

    def _commit(self, channel: BlockingChannel) -> None:
        offset = self._first
        while not self.is_over:
            offset += 1
            queue = MessageQueue(TOPIC, NAME, self._chance.randrange(QUEUES))
            operation = operations.update_offset(self._group, queue, offset)
            answer = channel.request(operation.request, REQUEST_S)
            if answer.code == ResponseCode.SUCCESS:
                self.acknowledged[queue] = offset
            elif answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                return
            elif answer.code != ResponseCode.FLUSH_SLAVE_TIMEOUT:
                self.refusals.append(f"{answer.code} {answer.remark}")


def commit(
    group: Group, client: BlockingClient, chance: random.Random, first: int, slave_count: int
) -> tuple[str, list[Commits]]:
    """Begin to commit; return the master, which has acknowledged something, and who commits."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        master = group.wait_master(client, slave_count)
        commits = [
            Commits(group.brokers[master].address, f"g{number}", chance, first)
            for number in range(CONSUMERS)
        ]
        for one in commits:
            one.start()
        is_alive = True
        while is_alive:
            time.sleep(0.01)
            is_alive = any(one.is_alive() for one in commits)
            if any(one.acknowledged for one in commits):
                return master, commits
            if time.monotonic() > deadline_s:
                for one in commits:
                    one.is_over = True
                said = [one.refusals[:3] for one in commits]
                raise AssertionError(f"{master} acknowledges nothing: {said}")


def end_master(group: Group, client: BlockingClient, master: str, chance: random.Random) -> str:
    """Have a master end in one of several ways; return which. It is killed in any case."""
    slaves = [name for name in group.brokers if name != master]
    event = chance.choice(("killed", "killed", "frozen", "killed while a slave comes back"))
    broker = group.brokers[master]
    if event == "frozen":
        broker.freeze()
        group.wait_next_master(client, master)
        broker.thaw()
        time.sleep(chance.uniform(0.0, 0.5))  # It may go on for a while.
    elif event != "killed":
        slave = group.brokers[chance.choice(slaves)]
        slave.kill()
        time.sleep(chance.uniform(0.0, 1.0))
        slave.start()
        time.sleep(chance.uniform(0.0, 1.0))
    broker.kill()
    return event


class Sends(threading.Thread):
    """Messages, as fast as they are taken: the log never stands still."""

    def __init__(self, name_server: str) -> None:
        super().__init__(name="sender")
        self._name_server = name_server
        self.is_over = False
        self.count = 0

    def run(self) -> None:
        """Send until told."""
        with BlockingClient(self._name_server) as client:
            while not self.is_over:
                try:
                    client.send(Message(TOPIC, b"x" * 200))
                    self.count += 1
                except PymqError:
                    time.sleep(0.01)


def test_an_acknowledged_offset_is_never_set_back(
    tmp_path: Path, seed: int, feature_kills: int
) -> None:
    chance = random.Random(seed)
    total, first = 0, 0
    with ExitStack() as stack:
        server = stack.enter_context(name_server_process(tmp_path))
        group = Group(tmp_path, server.address, stack)
        client = stack.enter_context(BlockingClient(server.address, timeout_s=20.0))
        create_topic(client, TOPIC, QUEUES)
        for number in range(CONSUMERS):
            patiently(partial(admin_of(client).groups.create, f"g{number}"))
        groups = [f"g{number}" for number in range(CONSUMERS)]
        wait_known([one.address for one in group.brokers.values()], TOPIC, groups)
        sends = Sends(server.address)
        sends.start()
        try:
            for turn in range(feature_kills):
                # In every second turn, whoever is in sync counts.
                master, commits = commit(group, client, chance, first, 0 if turn % 2 else 2)
                time.sleep(chance.uniform(0.02, 1.0))
                event = end_master(group, client, master, chance)
                for one in commits:
                    one.is_over = True
                    one.join()
                is_replaced = group.wait_next_master(client, master) is not None
                for one in commits:
                    for queue, offset in one.acknowledged.items() if is_replaced else ():
                        found = patiently(partial(client.committed_offset, one.name, queue))
                        assert found is not None and found >= offset, (
                            f"turn {turn}, {event}, PYMQ_TEST_SEED={seed}: {one.name} at {queue} "
                            f"is at {found}, was acknowledged at {offset}"
                        )
                        total += 1
                        first = max(first, found)
                    if event == "killed":
                        assert not one.refusals, one.refusals[:3]
                group.brokers[master].start()
        finally:
            sends.is_over = True
            sends.join()
    print(f"{total} offsets looked at, the highest {first}; {sends.count} messages")
    assert total > 0 and sends.count > 0
