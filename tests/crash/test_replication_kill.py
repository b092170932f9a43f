"""SIGKILL of master and slave at random moments; in the end the master's machine is lost.

Without a controller. Now and then it is lost before, too: the slave is made the master in its
configuration, and gets a new slave with an empty store.
"""

from __future__ import annotations

import random
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.crash.checkers import check_history, check_index
from tests.crash.disk import log_entries, queue_entries
from tests.crash.kills import (
    ACKNOWLEDGED_MAX,
    TOPIC,
    SenderProcess,
    create_topic,
    damage,
    kill_and_sometimes_again,
    python_sender,
    read_all,
)
from tests.crash.ledger import Acknowledged, Event
from tests.crash.producers import IN_FLIGHT, PRODUCER_COUNT
from tests.crash.servers import ServerProcess, broker_process, name_server_process

from pymq.client.sockets.blocking_client import BlockingClient

pytestmark = pytest.mark.crash

LOSS = "lose the master"
#: What happens to whom, and how often.
EVENTS = {
    "kill the master": 4,
    "kill the slave": 3,
    "kill both": 1,
    "freeze the slave": 2,
    LOSS: 2,
}
FREEZE_S = 2.0


class Pair:
    """A master that waits for its slave, and the slave."""

    def __init__(self, home: Path, name_server: str, flush: str, stack: ExitStack) -> None:
        self._home, self._name_server, self._flush = home, name_server, flush
        self._stack = stack
        self.stores = {name: home / f"{name}-store" for name in ("master", "slave")}
        self._start()

    def _start(self) -> None:
        """Start both with the stores that they have."""
        enter = self._stack.enter_context
        self.master = enter(self._process("master", brokerRole="SYNC_MASTER"))
        self.slave = enter(
            self._process("slave", brokerRole="SLAVE", brokerId=1, pymqHaMetadataInterval=500)
        )

    def lose_master(self) -> None:
        """Lose the master with its disk; the slave becomes the master of a new slave.

        What was acknowledged by this pair the slave has: since it was made, something was, see
        ``acknowledged_least``.
        """
        self.master.kill()
        self.slave.stop()
        shutil.rmtree(self.stores["master"])
        self.stores = {"master": self.stores["slave"], "slave": self.stores["master"]}
        self._start()

    def _process(self, name: str, **properties: str | int) -> ServerProcess:
        home = self._home / name
        home.mkdir(exist_ok=True)
        return broker_process(
            home, self._name_server, self.stores[name], flushDiskType=self._flush, **properties
        )

    def promoted(self) -> ServerProcess:
        """Return a master on the slave's store, not yet started."""
        return self._process("slave", brokerRole="ASYNC_MASTER")

    def disturb(self, chance: random.Random) -> str:
        """Have something happen to one of them; return what."""
        event = chance.choices(list(EVENTS), list(EVENTS.values()))[0]
        if event == "freeze the slave":
            self.slave.freeze()
            time.sleep(chance.uniform(0, FREEZE_S))
            self.slave.thaw()
            return event
        if event == LOSS:
            self.lose_master()
            return event
        victims = [self.master, self.slave]
        if event != "kill both":
            victims = [self.master if event == "kill the master" else self.slave]
        for victim in victims:
            kill_and_sometimes_again(victim, chance)
        for victim in chance.sample(victims, len(victims)):
            victim.start()
        return event


def acknowledged_least(event: str) -> int:
    """Return how many acknowledgements surely tell of one by the pair that there is now.

    Those of all sends under way may come from a master that was lost, and be noted later.
    """
    return 1 + PRODUCER_COUNT * IN_FLIGHT if event == LOSS else 1


def test_what_a_slave_confirmed_survives_the_masters_machine(
    tmp_path: Path, seed: int, feature_kills: int, flush: str
) -> None:
    chance = random.Random(seed)
    ledger, happened = tmp_path / "ledger", list[str]()
    with ExitStack() as stack:
        name_server = stack.enter_context(name_server_process(tmp_path))
        pair = Pair(tmp_path, name_server.address, flush, stack)
        client = stack.enter_context(BlockingClient(name_server.address, timeout_s=20.0))
        create_topic(client, TOPIC)
        with SenderProcess(
            python_sender(seed)(name_server.address, TOPIC, ledger), tmp_path, ledger
        ) as sender:
            least = 1
            for _ in range(feature_kills):
                sender.wait_acknowledged(max(least, chance.randint(1, ACKNOWLEDGED_MAX // 2)))
                happened.append(pair.disturb(chance))
                least = acknowledged_least(happened[-1])
            sender.wait_acknowledged(ACKNOWLEDGED_MAX // 4)
            pair.master.kill()  # under load, and for ever
            events: list[Event] = sender.finish()
        pair.slave.stop()
        complaints = damage(pair.stores["slave"], "the slave in the end", is_stopped=True)
        with pair.promoted():
            found = read_all(client, TOPIC)
    complaints += check_history(events, found)
    slave = pair.stores["slave"]
    complaints += check_index(queue_entries(slave, TOPIC), log_entries(slave, TOPIC))
    settled = sum(len(one.physical_offsets) for one in events if isinstance(one, Acknowledged))
    print(
        f"{flush}, PYMQ_TEST_SEED={seed}: {len(happened)} times, {settled} acknowledged, "
        f"{len(found)} found at the slave"
    )
    assert not complaints, "\n".join(complaints)
    assert settled > 0
