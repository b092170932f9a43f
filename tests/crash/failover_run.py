"""One run of a group of brokers under load, while things happen to it; then everything is checked.

Eight producers of pymq send, and eight of RocketMQ's client where it is; in a network that is cut
they are on both sides. A consumer commits offsets.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.administration import admin_of
from tests.crash.afterwards import Afterwards
from tests.crash.checkers import check_history
from tests.crash.failover_checkers import AllDied, Committed, check_commits, check_failover
from tests.crash.failover_events import CONTROLLER, FAR, NAMES, NEAR, Events
from tests.crash.failover_group import Group, wait_known
from tests.crash.failover_steering import Steering
from tests.crash.java_sender import java_sender
from tests.crash.kills import TOPIC, SenderProcess, create_topic, python_sender, read_all
from tests.crash.ledger import Acknowledged, parse_ledger
from tests.crash.networks import Network
from tests.crash.offset_watch import GROUP, OffsetWatch
from tests.crash.patience import patiently
from tests.crash.producers import PRODUCER_COUNT
from tests.crash.servers import HERE, Place, name_server_process
from tests.disks import ResizableDisk

from pymq.client.sockets.blocking_client import BlockingClient

#: Requests acknowledged to each process that sends between two events: a random number up to this.
BETWEEN_MAX: Final = 100
#: Of one send: less than others wait for.
SEND_TIMEOUT_S: Final = 4.0
#: After each: of failover, more messages tell nothing more.
SEND_PAUSE_S: Final = 0.1
TLS: Final = Path(__file__).parents[1] / "cluster" / "tls"
#: How the brokers of a group trust each other: one of these.
_SECRET: Final = {"pymqHaSecret": "a secret of the tests"}
SECURITY: Final[dict[str, dict[str, str]]] = {
    "addresses": {},
    "a secret": _SECRET,
    "TLS": {
        **_SECRET,
        "pymqHaTls": "true",
        "pymqHaTlsCertPath": str(TLS / "master.pem"),
        "pymqHaTlsKeyPath": str(TLS / "master-key.pem"),
        "pymqHaTlsTrustCertPath": str(TLS / "authority.pem"),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What one run is about.

    Attributes:
        flush: ``ASYNC_FLUSH`` or ``SYNC_FLUSH``.
        steering: one of ``failover_steering.KINDS``.
        has_java: whether producers of RocketMQ's client send, too.
        is_cut: whether the brokers are in a network that is cut.
        is_long: whether things may last for a minute.
        has_commits: whether committed offsets are looked at.
    """

    flush: str
    steering: str
    has_java: bool = False
    is_cut: bool = False
    is_long: bool = False
    has_commits: bool = False


def run_failover(home: Path, seed: int, setup: Setup, events: Sequence[str]) -> str:
    """Have events happen to a group under load, and check everything in the end.

    Args:
        home: empty directory for all files.
        seed: of the moments.
        events: see ``failover_events``; those that cannot happen here are left out.

    Returns:
        Figures.

    Raises:
        AssertionError: something is wrong; the text lists it.
        ServerFailed: something does not run at all, or there is no progress.
    """
    with ExitStack() as stack:
        run = _Run(home, seed, setup, stack)
        return run.go(events)


class _Run:
    """What one run consists of."""

    def __init__(self, home: Path, seed: int, setup: Setup, stack: ExitStack) -> None:
        self._home, self._seed, self._setup, self._stack = home, seed, setup, stack
        self._chance = chance = random.Random(f"{seed} {setup}")
        count = 3 if setup.is_cut else chance.choice((2, 3))
        names = [f"broker-{number}" for number in range(count)]
        self._network = None
        if setup.is_cut:
            hosts = [*names, CONTROLLER, NAMES, NEAR, FAR]
            self._network = stack.enter_context(Network(hosts))
        disks = {} if setup.is_cut else _disks(home, names, stack)
        self._group = self._make_group(names)
        self._events = Events(
            self._group,
            chance,
            disks=disks,
            network=self._network,
            name_server=self._name_server.address,
            all_died=lambda: self._watch.events.append(AllDied()),
            is_long=setup.is_long,
        )

    def _place(self, host: str) -> Place:
        return HERE if self._network is None else self._network.place(host)

    def _make_group(self, names: Sequence[str]) -> Group:
        """Start name server, controllers and brokers."""
        home, stack, setup = self._home, self._stack, self._setup
        trusts = ["addresses", "a secret", *([] if setup.is_cut else ["TLS"])]
        trust = self._chance.choice(trusts)
        print(f"{setup}, {len(names)} brokers, trusted by {trust}", flush=True)
        properties: dict[str, str | int] = {"flushDiskType": setup.flush, **SECURITY[trust]}
        if self._network is not None and trust == "addresses":
            properties["pymqHaNetworks"] = self._network.addresses
        stores = {name: home / f"{name}-store" for name in names}
        for store in stores.values():
            store.mkdir(exist_ok=True)
        (home / "steering").mkdir()
        self._name_server = name_server_process(home, self._place(NAMES))
        stack.callback(self._end_name_server)
        self._name_server.spawn()
        steering = Steering(setup.steering, home / "steering", stack, self._place(CONTROLLER))
        steering.start()
        self._name_server.wait_ready()
        group = Group(
            home,
            stores,
            steering,
            self._name_server.address,
            stack,
            places={name: self._place(name) for name in names},
            properties=properties,
        )
        group.start()
        group.wait_in_sync("in the beginning")
        return group

    def _end_name_server(self) -> None:
        if self._name_server.is_running:
            self._name_server.kill()

    def _senders(self, ledger: Path) -> list[SenderProcess]:
        """Start who sends."""
        seed, address, setup = self._seed, self._name_server.address, self._setup
        made = []
        for number, host in enumerate((NEAR, FAR) if setup.is_cut or setup.has_java else (NEAR,)):
            home, first = self._home / host, number * PRODUCER_COUNT
            home.mkdir()
            pace = {"timeout_s": SEND_TIMEOUT_S, "pause_s": SEND_PAUSE_S}
            if host == FAR and setup.has_java:
                make = java_sender(home, seed, first=first, **pace)
            else:
                make = python_sender(seed, first=first, **pace)
            command = [*self._place(host).launcher, *make(address, TOPIC, ledger)]
            numbers = range(first, first + PRODUCER_COUNT)
            sender = SenderProcess(command, home, ledger, numbers)
            made.append(self._stack.enter_context(sender))
        return made

    def go(self, events: Sequence[str]) -> str:
        """Run it; see ``run_failover``."""
        chance, group, address = self._chance, self._group, self._name_server.address
        client = self._stack.enter_context(BlockingClient(address, timeout_s=20.0))
        create_topic(client, TOPIC)
        patiently(lambda: admin_of(client).groups.create(GROUP))
        wait_known([one.address for one in group.brokers.values()], TOPIC, [GROUP])
        ledger, begun = self._home / "ledger", time.monotonic()
        senders = self._senders(ledger)
        self._watch = watch = self._stack.enter_context(OffsetWatch(address, TOPIC))
        happened = [event for event in events if event in self._events.possible]
        for event in happened:
            at_s = time.monotonic()
            for sender in senders:
                sender.wait_acknowledged(chance.randint(1, BETWEEN_MAX))
            waited_s = time.monotonic() - at_s
            print(f"{time.strftime('%H:%M:%S')} {waited_s:5.1f} s, {event}", flush=True)
            self._events.disturb(event)
        for sender in senders:
            sender.wait_acknowledged(BETWEEN_MAX // 4)
        group.wait_in_sync("in the end")
        for sender in senders:
            sender.stop()
        commits = watch.finish()
        group.wait_equal(client)
        history = parse_ledger(ledger.read_text().splitlines(keepends=True))
        found = patiently(lambda: read_all(client, TOPIC))
        group.stop()
        complaints = [
            *self._events.complaints,
            *check_history(history, found),
            *check_failover(history, group.epochs()),
            *(check_commits(commits) if self._setup.has_commits else []),
            *group.check_disks(),
            *group.check_outputs(),
        ]
        settled = sum(len(one.physical_offsets) for one in history if isinstance(one, Acknowledged))
        committed = sum(isinstance(one, Committed) for one in commits)
        report = (
            f"{self._setup}, PYMQ_TEST_SEED={self._seed}: {len(happened)} times in "
            f"{time.monotonic() - begun:.0f} s, {settled} acknowledged, {len(found)} found, "
            f"{len(group.epochs())} epochs, {committed} commits"
        )
        print(report, flush=True)
        assert not complaints, "\n".join([report, *complaints])
        assert settled
        assert committed, watch.last_error
        return report


def _disks(home: Path, names: Sequence[str], stack: ExitStack) -> dict[str, ResizableDisk]:
    """Give each broker a disk of its own; none, where that is not allowed."""
    afterwards = stack.enter_context(Afterwards())
    try:
        return {name: ResizableDisk(home / f"{name}-store", afterwards) for name in names}
    except OSError as error:
        print(f"no disk is filled, as none can be mounted here: {error}")
        return {}
