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
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.crash.servers import (
    ServerProcess,
    broker_process,
    controller_process,
    name_server_process,
)

from pymq.client import operations
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import PymqError
from pymq.net.blocking import BlockingChannel
from pymq.protocol.addresses import split_address
from pymq.protocol.bodies import BrokerData, MessageQueue
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message

pytestmark = pytest.mark.crash

NAME, TOPIC = "group-a", "T"
QUEUES = 4
CONSUMERS = 4
REQUEST_S = 5.0
DEADLINE_S = 60.0
#: So late that nothing would be right by chance.
METADATA_MS = 30_000


class Group:
    """The brokers, by name."""

    def __init__(self, home: Path, name_server: str, stack: ExitStack) -> None:
        (home / "controller").mkdir()
        controller = stack.enter_context(controller_process(home / "controller"))
        self.brokers: dict[str, ServerProcess] = {}
        for name in ("one", "two", "three"):
            (home / name).mkdir()
            self.brokers[name] = stack.enter_context(
                broker_process(
                    home / name,
                    name_server,
                    home / name / "store",
                    brokerName=NAME,
                    brokerRole="SYNC_MASTER",
                    enableControllerMode="true",
                    controllerAddr=controller.address,
                    pymqHaMetadataInterval=METADATA_MS,
                    # What a broker reads from its own file must not help.
                    flushConsumerOffsetInterval=60_000,
                )
            )

    def wait_master(self, client: BlockingClient, other_than: str | None = None) -> str:
        """Return the name of a master, once there is one."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            found = admin_of(client).cluster().brokers
            address = found.get(NAME, BrokerData(broker_name=NAME)).addresses.get(0)
            for name, broker in self.brokers.items():
                if broker.address == address and name != other_than:
                    return name
            assert time.monotonic() < deadline_s, f"no master but {other_than}"
            time.sleep(0.01)

    def wait_in_sync(self, name: str, count: int) -> None:
        """Wait until this many slaves are in the sync state set of the master."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            if f"InSyncReplica:{count}" in self._status(name):
                return
            assert time.monotonic() < deadline_s, f"{name} is not followed by {count}"
            time.sleep(0.02)

    def _status(self, name: str) -> str:
        channel = BlockingChannel.connect(
            *split_address(self.brokers[name].address), timeout_s=REQUEST_S
        )
        try:
            answer = channel.request(Command(RequestCode.GET_BROKER_HA_STATUS), REQUEST_S)
        finally:
            channel.close()
        body = bytes(answer.body)
        count = body.partition(b'"inSyncSlaveNums":')[2].partition(b",")[0].partition(b"}")[0]
        return f"InSyncReplica:{count.decode()}"


class Commits(threading.Thread):
    """One group's commits to one master, until that is gone.

    Attributes:
        acknowledged: queue -> the highest offset of which the master has said that it has it.
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
        channel = BlockingChannel.connect(*split_address(self._address), timeout_s=REQUEST_S)
        offset = self._first
        try:
            while not self.is_over:
                offset += 1
                queue = MessageQueue(TOPIC, NAME, self._chance.randrange(QUEUES))
                operation = operations.update_offset(self._group, queue, offset)
                answer = channel.request(operation.request, REQUEST_S)
                if answer.code == ResponseCode.SUCCESS:
                    self.acknowledged[queue] = offset
                else:
                    self.refusals.append(f"{answer.code} {answer.remark}")
        except PymqError:
            return
        finally:
            channel.close()


def end_master(group: Group, client: BlockingClient, master: str, chance: random.Random) -> str:
    """Have a master end in one of several ways; return which. It is killed in any case."""
    slaves = [name for name in group.brokers if name != master]
    event = chance.choice(("killed", "killed", "frozen", "killed while a slave comes back"))
    broker = group.brokers[master]
    if event == "frozen":
        broker.freeze()
        group.wait_master(client, other_than=master)
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
        admin = admin_of(client)
        admin.topics.create(TOPIC, queue_count=QUEUES)
        for number in range(CONSUMERS):
            admin.groups.create(f"g{number}")
        sends = Sends(server.address)
        sends.start()
        try:
            for turn in range(2 * feature_kills):
                master = group.wait_master(client)
                if turn % 2 == 0:
                    group.wait_in_sync(master, 2)  # Else whoever is in sync counts.
                commits = [
                    Commits(group.brokers[master].address, f"g{number}", chance, first)
                    for number in range(CONSUMERS)
                ]
                for one in commits:
                    one.start()
                time.sleep(chance.uniform(0.02, 1.0))
                event = end_master(group, client, master, chance)
                for one in commits:
                    one.is_over = True
                    one.join()
                group.wait_master(client, other_than=master)
                for one in commits:
                    for queue, offset in one.acknowledged.items():
                        found = client.committed_offset(one.name, queue)
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
