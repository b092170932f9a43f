"""Official brokers fail over under ``pymq controller``, and official tools take it for theirs."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.cluster.etcd_members import EtcdCluster
from tests.interop.conftest import require_peers, some
from tests.interop.controllers import (
    BROKER_NAME,
    PymqController,
    RealController,
    controlled_broker,
    eventually,
    known,
    known_state_of,
    leader_of,
    state_of,
)
from tests.interop.java_client import JavaProducer
from tests.interop.java_values import JavaError
from tests.interop.jvm import JavaClient
from tests.interop.mqadmin import Mqadmin
from tests.interop.peers import RealBroker, RealNameServer

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.record import decode_records

pytestmark = pytest.mark.interop

VERSION = "5.3.3"
TOPIC, QUEUE_COUNT = "failover", 4


class Sending:
    """A thread that sends with the official producer, and remembers what was acknowledged."""

    def __init__(self, producer: JavaProducer) -> None:
        self._producer = producer
        self.acknowledged: list[tuple[float, bytes]] = []
        self.failed_count = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            body = b"message %d" % number
            try:
                result = self._producer.send(TOPIC, body)
            except JavaError:
                self.failed_count += 1
                self._stopped.wait(0.01)  # refused at once, again and again
                continue
            if result.status == "SEND_OK":
                self.acknowledged.append((time.monotonic(), body))

    def __enter__(self) -> "Sending":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def wait_after(self, at_s: float) -> float:
        """Wait for an acknowledgement of later than this; return when it came."""
        eventually(lambda: self.acknowledged[-1:] >= [(at_s, b"")], "producers go on")
        return next(when for when, _ in self.acknowledged if when >= at_s)

    @property
    def longest_silence_s(self) -> float:
        times = [when for when, _ in self.acknowledged]
        return max(after - before for before, after in zip(times, times[1:], strict=False))


@contextmanager
def controllers(kind: str, folder: Path) -> Iterator[tuple[list[PymqController], ExitStack]]:
    """One controller with a file, or two with an etcd of three members, one of which dies."""
    with ExitStack() as stack:
        if kind == "file":
            store, count = f"file:{folder / 'file'}", 1
        else:
            etcd = stack.enter_context(EtcdCluster(folder / "etcd", 3))
            store, count = etcd.store, 2
            stack.callback(etcd.kill, 0)
        made = [stack.enter_context(PymqController(folder, store)) for _ in range(count)]
        eventually(lambda: leader_of(made[0].address) is not None, "a controller leads")
        if kind == "etcd":
            etcd.kill(0)
        yield made, stack


@pytest.mark.by_turns(of="kills beside Java", turn="controller")
@pytest.mark.parametrize(("kind",), some([("file",), ("etcd",)], ("etcd",)))
def test_a_master_dies(
    kind: str,
    tmp_path: Path,
    java_client: Callable[[str], JavaClient],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Twice; before the second time, so does the controller that leads, if there are two."""
    require_peers(VERSION)
    with controllers(kind, tmp_path) as (ours, stack):
        addresses = [one.address for one in ours]
        name_server = stack.enter_context(RealNameServer(VERSION))
        brokers = {
            number: stack.enter_context(
                controlled_broker(
                    VERSION, name_server.address, ";".join(addresses), tmp_path / f"b{number}"
                )
            )
            for number in (1, 2)
        }
        wait_in_sync(addresses)
        client = stack.enter_context(BlockingClient(name_server.address))
        admin_of(client).topics.create(TOPIC, queue_count=QUEUE_COUNT)
        producer = JavaProducer(
            java_client(VERSION),
            f"failover-{kind}",
            name_server.address,
            PollNameServerInterval=1000,
            RetryTimesWhenSendFailed=0,
            SendMsgTimeout=3000,
        )
        report = []
        with producer, Sending(producer) as sending:
            sending.wait_after(time.monotonic())
            for turn in range(2):
                if turn == 1 and len(ours) > 1:
                    report.append(kill_leader(ours))
                report.append(kill_master(addresses, brokers, sending))
                wait_in_sync(addresses)
            sending.wait_after(time.monotonic())
            report.append(
                f"{len(sending.acknowledged)} acknowledged, {sending.failed_count} failed, "
                f"silent for {sending.longest_silence_s:.2f} s at most"
            )
        sent = {body for _, body in sending.acknowledged}
        # RocketMQ acknowledges before a message is in its queue.
        eventually(lambda: sent <= read_all(client), "no acknowledged message is lost")
        with capsys.disabled():
            print(f"\n{kind}: " + f"\n{kind}: ".join(report))


def wait_in_sync(addresses: list[str]) -> None:
    eventually(lambda: state_of(*addresses)[1] == {1, 2}, "both are in sync")


def kill_leader(ours: list[PymqController]) -> str:
    addresses = [one.address for one in ours]
    leader = known(lambda: leader_of(*addresses), "a controller leads")
    dead = next(one for one in ours if one.address == leader)
    began_s = time.monotonic()
    dead.kill()
    eventually(lambda: leader_of(*addresses) not in (None, leader), "the other controller leads")
    took_s = time.monotonic() - began_s
    known_state_of(*addresses)
    return f"new leader of the controllers after {took_s:.2f} s"


def kill_master(addresses: list[str], brokers: dict[int, RealBroker], sending: Sending) -> str:
    """Kill the master, wait for the other one, and start it again."""
    before, _ = known_state_of(*addresses)
    assert before.master_broker_id is not None
    master = brokers[before.master_broker_id]
    began_s = time.monotonic()
    master.kill()
    eventually(
        lambda: state_of(*addresses)[0].master_broker_id not in (None, before.master_broker_id),
        "there is a new master",
        interval_s=0.01,
    )
    elected_s = time.monotonic() - began_s
    after, in_sync = known_state_of(*addresses)
    assert after.master_epoch == before.master_epoch + 1
    assert in_sync == {after.master_broker_id}
    sent_s = sending.wait_after(began_s + elected_s) - began_s
    began_s = time.monotonic()
    master.start()
    wait_in_sync(addresses)
    back_s = time.monotonic() - began_s
    found, _ = known_state_of(*addresses)
    assert (found.master_broker_id, found.master_epoch) == (
        after.master_broker_id, after.master_epoch,
    )  # fmt: skip
    return (
        f"new master after {elected_s:.2f} s, producers after {sent_s:.2f} s, in sync again "
        f"{back_s:.1f} s after the restart"
    )


def read_all(client: BlockingClient) -> set[bytes]:
    bounds = client.bounds(client.read_queues(TOPIC))
    return {
        record.body
        for queue, (first, end) in bounds.items()
        for chunk in client.pull_range(queue, first, end)
        for record in decode_records(chunk.buffer, verify=True)
    }


# ------------------------------------------------------------------------------------ mqadmin

_PORTS = re.compile(r"\b127\.0\.0\.1:\d+")
#: Ours says why; and a number that is none is Java's matter.
_MORE = re.compile(r"(?<=Failed to elect a new master): .*|(?<=exception: ).*")
_CONFIG_LINE = re.compile(r"^(\S+) +=  (.*)$", re.MULTILINE)


def masked(text: str, names: dict[str, str]) -> str:
    """Return an output with the names of addresses, without the lines of stack traces."""
    for address, name in names.items():
        text = text.replace(address, name)
    text = _MORE.sub("", _PORTS.sub("<address>", text))
    lines = (line.rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if not line.startswith(("\tat ", "\t... ")))


#: Command lines in turn; the brokers are 1, the master, and 2.
STEPS = [
    "getControllerMetaData -a {controller}",
    "getSyncStateSet -a {controller} -b broker-a",
    "getSyncStateSet -a {controller} -b nobody",
    "electMaster -a {controller} -b 1 -bn broker-a -c DefaultCluster",
    "electMaster -a {controller} -b 9 -bn broker-a -c DefaultCluster",
    "electMaster -a {controller} -b 1 -bn nobody -c DefaultCluster",
    "cleanBrokerMetadata -a {controller} -bn broker-a -c DefaultCluster",
    "cleanBrokerMetadata -a {controller} -bn broker-a -b 2 -c DefaultCluster",
    "cleanBrokerMetadata -a {controller} -bn nobody -b 2 -c DefaultCluster",
    "cleanBrokerMetadata -a {controller} -bn broker-a -b x;y -c DefaultCluster",
    "electMaster -a {controller} -b 2 -bn broker-a -c DefaultCluster",
    "getSyncStateSet -a {controller} -b broker-a",
    "updateControllerConfig -a {controller} -k enableElectUncleanMaster -v true",
    "updateControllerConfig -a {controller} -k configStorePath -v /x",
]


@pytest.mark.by_turns(of="pairs")
def test_mqadmin_says_the_same_of_both(
    tmp_path: Path, java_client: Callable[[str], JavaClient]
) -> None:
    require_peers(VERSION)
    tool = Mqadmin(java_client(VERSION))
    with ExitStack() as stack:
        name_server = stack.enter_context(RealNameServer(VERSION)).address
        real = stack.enter_context(RealController(VERSION, tmp_path / "real")).address
        outputs = [run_steps(tool, name_server, real, tmp_path / "at-real")]
        with PymqController(
            tmp_path,
            f"file:{tmp_path / 'file'}",
            controllerDLegerGroup="group1",
            controllerDLegerPeers="n0-{address}",
            controllerDLegerSelfId="n0",
            pymqAllowConfigUpdate="true",
        ) as ours:
            outputs.append(run_steps(tool, name_server, ours.address, tmp_path / "ours"))
            config = tool.run(name_server, "getControllerConfig", "-a", ours.address)
            real_config = tool.run(name_server, "getControllerConfig", "-a", real)
    for step, expected, found in zip(STEPS, *outputs, strict=True):
        assert found == expected, step
    found, expected = dict(_CONFIG_LINE.findall(config)), dict(_CONFIG_LINE.findall(real_config))
    assert found["enableElectUncleanMaster"] == expected["enableElectUncleanMaster"] == "true"
    others = {key: value for key, value in found.items() if not key.startswith("pymq")}
    assert others.keys() <= expected.keys()
    assert {key for key, value in others.items() if value != expected[key]} == {
        *("listenPort", "controllerDLegerPeers"),
        "scanInactiveMasterInterval",  # 1 s instead of 5 s: it finds little, see its comment
    }


def run_steps(tool: Mqadmin, name_server: str, controller: str, folder: Path) -> list[str]:
    """Return what each step prints, with two brokers in sync."""
    outputs = []
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(
                controlled_broker(VERSION, name_server, controller, folder / f"b{number}")
            )
            for number in (1, 2)
        ]
        wait_in_sync([controller])
        names = {controller: "<controller>", name_server: "<name server>"}
        names |= {broker.address: f"<broker {n}>" for n, broker in enumerate(brokers, 1)}
        for step in STEPS:
            arguments = step.format(controller=controller).split()
            outputs.append(masked(tool.run(name_server, *arguments), names))
            if step.startswith("electMaster -a {controller} -b 2"):
                eventually(
                    lambda: state_of(controller)[0].master_broker_id == 2, "the designated one is"
                )
                wait_in_sync([controller])
        assert BROKER_NAME in outputs[1]
    return outputs
