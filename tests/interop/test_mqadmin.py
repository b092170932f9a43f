"""Every command of the official ``mqadmin`` against our cluster and against a real one.

Both are of 5.3.3, as far as clients can tell, and hold the same data; the tools are those of 4.9.7
and 5.3.3. ``mqadmin_scenes`` says what is run and compared.
"""

import difflib
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.interop.conftest import require_peers
from tests.interop.java_admin import JavaAdmin
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.java_values import call, map_items
from tests.interop.jvm import JavaClient
from tests.interop.mqadmin import Mqadmin
from tests.interop.mqadmin_scenes import NEW, OLD, SCENES, UNASKED, Step, masked
from tests.interop.peers import RealBroker, RealNameServer
from tests.interop.processes import POLL_INTERVAL_S

from pymq.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.by_turns("version")]

MESSAGE_COUNT = 12
#: Counters are sampled every 10 s.
SETTLE_S = 90.0
SETTLE_INTERVAL_S = 2.0
RETRY_POLICY = (
    '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2}}'
)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two clusters, with clients connected to it, as one version of the tools sees it.

    Attributes:
        name_server: its ``host:port``.
        values: what the command lines name.
    """

    name_server: str
    values: dict[str, str]

    def arguments(self, step: Step) -> list[str]:
        """Return the command line of a step."""
        return [part.format(**self.values) for part in shlex.split(step.line, posix=True)]


@dataclass(frozen=True, slots=True)
class Pair:
    """The real cluster and ours, and the tools to ask them with."""

    mqadmin: Mqadmin
    real: Side
    ours: Side


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Name server and broker address of a real cluster, and of ours."""
    require_peers(NEW)
    with (
        RealNameServer(NEW) as name_server,
        RealBroker(NEW, [name_server.address]) as broker,
        Cluster(broker={"allow_config_update": True}) as cluster,
    ):
        real = (name_server.address, broker.address)
        yield real, (cluster.name_server, cluster.broker_address)


@pytest.fixture(scope="module")
def pairs(
    clusters: tuple[tuple[str, str], tuple[str, str]],
    java_client: Callable[[str], JavaClient],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Pair]]:
    """Return ``pairs(version)``: both clusters with the same data."""
    made: dict[str, Pair] = {}
    files = tmp_path_factory.mktemp("mqadmin")
    with ExitStack() as stack:

        def pair(version: str) -> Pair:
            if version not in made:
                client = java_client(version)
                real, ours = (_fill(client, *one, files, stack) for one in clusters)
                made[version] = Pair(Mqadmin(client), real, ours)
            return made[version]

        yield pair


def _fill(client: JavaClient, name_server: str, broker: str, files: Path, stack: ExitStack) -> Side:
    version = client.version.replace(".", "-")
    topic, online, writers = f"orders-{version}", f"online-{version}", f"writers-{version}"
    offline = f"offline-{version}"
    admin = stack.enter_context(JavaAdmin(client, name_server))
    admin.create_topic(topic, 4)
    admin.create_topic(f"empty-{version}", 2)
    admin.create_topic(f"single-{version}", 1)
    admin.create_group(offline)
    for group in (online, offline):
        admin.create_topic(f"%RETRY%{group}", 1)  # or a consumer finds it late
    producer = stack.enter_context(JavaProducer(client, writers, name_server))
    sent = [
        producer.send(topic, b"body %d" % i, tags="ab"[i % 2], keys=f"k{i % 3} all", queue_id=i % 4)
        for i in range(MESSAGE_COUNT)
    ]
    single = producer.send(f"single-{version}", b"one")
    consumer = stack.enter_context(JavaPushConsumer(client, online, name_server, topic))
    consumer.wait_count(MESSAGE_COUNT)
    consumer.wait_offsets(MESSAGE_COUNT, lambda: admin.committed_count(online, topic))
    retry_queue = (f"%RETRY%{online}", ("broker-a", 0))
    while retry_queue not in admin.consume_stats(online):
        call(consumer.java.getDefaultMQPushConsumerImpl().persistConsumerOffset)
        time.sleep(POLL_INTERVAL_S)
    return Side(
        name_server,
        {
            "v": version,
            "broker": broker,
            "topic": topic,
            "single": f"single-{version}",
            "single_id": single.offset_msg_id,
            "online": online,
            "offline": offline,
            "writers": writers,
            "id": sent[5].offset_msg_id,
            "unique": sent[5].msg_id,
            "client": str(consumer.java.buildMQClientId()),
            "dir": "{dir}",
            "policy": RETRY_POLICY,
            **_write_lists(files),
        },
    )


def _write_lists(files: Path) -> dict[str, str]:
    """Write the files that commands read, and return their paths."""
    lists = {
        "topics_file": [{"topicName": "listed-1"}, {"topicName": "listed-2", "perm": 4}],
        "bad_topics_file": [{"topicName": "listed-3"}, {"topicName": "listed^4"}],
        "groups_file": [
            {"groupName": "listed-group-1"},
            {"groupName": "listed-group-2", "retryMaxTimes": 3},
        ],
    }
    for name, content in lists.items():
        (files / name).write_text(json.dumps(content))
    return {name: str(files / name) for name in lists}


@pytest.mark.parametrize("version", [OLD, NEW])
def test_no_command_is_forgotten(version: str, java_client: Callable[[str], JavaClient]) -> None:
    asked = {
        step.command for steps in SCENES.values() for step in steps if version in step.versions
    }
    assert not asked & UNASKED.keys()
    assert Mqadmin(java_client(version)).commands() <= asked | UNASKED.keys()


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str, version: str, pairs: Callable[[str], Pair]) -> None:
    steps = [step for step in SCENES[scene] if version in step.versions]
    if not steps:
        pytest.skip(f"nothing of it in {version}")
    pair = pairs(version)
    differences = [found for step in steps if (found := _run(pair, step))]
    assert not differences, "\n\n".join(["", *differences])


@pytest.mark.parametrize("version", [OLD, NEW])
def test_monitoring(
    version: str, pairs: Callable[[str], Pair], java_client: Callable[[str], JavaClient]
) -> None:
    """What ``startMonitoring`` does every minute."""
    pair, client = pairs(version), java_client(version)
    group = pair.ours.values["online"]
    real, ours = (monitored(client, side.name_server) for side in (pair.real, pair.ours))
    assert ours.undone[group, pair.ours.values["topic"]] == 0
    assert ours.undone == real.undone
    assert ours.running[group] == [pair.ours.values["client"]]
    assert real.running[group] == [pair.real.values["client"]]


class Monitor:
    """``MonitorListener``: keeps what one round reports."""

    def __init__(self) -> None:
        #: Messages to consume by group and topic.
        self.undone: dict[tuple[str, str], int] = {}
        #: Clients that told what they do, by group.
        self.running: dict[str, list[str]] = {}

    def beginRound(self) -> None: ...

    def endRound(self) -> None: ...

    def reportUndoneMsgs(self, undone: Any) -> None:
        group = str(undone.getConsumerGroup())
        if not group.startswith("__"):  # the tools' own, which comes and goes
            self.undone[group, str(undone.getTopic())] = int(undone.getUndoneMsgsTotal())

    def reportConsumerRunningInfo(self, infos: Any) -> None:
        for client_id, info in map_items(infos):
            group = str(info.getProperties().getProperty("consumerGroup"))
            self.running.setdefault(group, []).append(str(client_id))

    class Java:
        implements = ("org.apache.rocketmq.tools.monitor.MonitorListener",)


def monitored(client: JavaClient, name_server: str) -> Monitor:
    """Return what one round of the official ``MonitorService`` says."""
    monitoring = client.jvm.org.apache.rocketmq.tools.monitor
    config = monitoring.MonitorConfig()
    config.setNamesrvAddr(name_server)
    listener = Monitor()
    service = monitoring.MonitorService(config, listener, None)
    service.start()
    try:
        call(service.doMonitorWork)
    finally:
        service.shutdown()
    return listener


def _run(pair: Pair, step: Step) -> str:
    """Run a step on both sides, again and again if they may still settle; see ``_compare``."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        found = _compare(pair, step)
        if not (found and step.settles) or time.monotonic() > deadline_s:
            return found
        time.sleep(SETTLE_INTERVAL_S)


def _compare(pair: Pair, step: Step) -> str:
    """Run a step on both sides; return how they differ from what is expected."""
    real, ours = (
        masked(pair.mqadmin.run(side.name_server, *side.arguments(step), endless=step.endless))
        for side in (pair.real, pair.ours)
    )
    if step.ours is None:
        expected, found = (step.view(text).splitlines() for text in (real, ours))
        if step.more:
            found = [line for line in found if line in expected]
        if step.fewer:
            expected = [line for line in expected if line in found]
        lines = difflib.unified_diff(expected, found, "RocketMQ", "pymq", lineterm="", n=1)
        return "\n".join([step.line, *lines]) if expected != found else ""
    if re.search(step.ours, real):
        return f"{step.line}: RocketMQ answers so, too: {step.ours}"
    if not re.search(step.ours, ours):
        return f"{step.line}: not {step.ours}, but\n{ours}"
    return ""
