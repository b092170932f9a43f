"""The official ``mqadmin`` beside two brokers, one of which answers nothing any more.

What it prints is compared between two real brokers and two of ours.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.interop.conftest import require_peers
from tests.interop.jvm import JavaClient
from tests.interop.mqadmin import Mqadmin
from tests.interop.mqadmin_scenes import NEW, keys, masked, numbers_masked, unordered
from tests.interop.peers import RealBroker, RealNameServer
from tests.spark.two_brokers import TwoBrokers

pytestmark = pytest.mark.interop

BEFORE = (
    "updateTopic -c DefaultCluster -t orders -r 2 -w 2",
    "updateSubGroup -c DefaultCluster -g billing",
    "sendMessage -t orders -p one -b broker-a -i 0",
    "sendMessage -t orders -p two -b broker-b -i 1",
)
FROZEN = (
    "clusterList",
    "topicList -c",
    "topicRoute -t orders",
    "topicStatus -t orders",
    "brokerStatus -c DefaultCluster",
    "sendMessage -t orders -p three -b broker-a -i 0",
    "sendMessage -t orders -p four -b broker-b -i 0",
    "updateTopic -c DefaultCluster -t late -r 1 -w 1",
    "updateSubGroup -c DefaultCluster -g late",
    "resetOffsetByTime -g billing -t orders -s -1",
    "deleteTopic -c DefaultCluster -t orders",
)
#: However long it takes here, name servers do not forget the frozen one.
HOUR_S = 3600
#: A name server's address, and what freezes the second broker.
Pair: TypeAlias = tuple[str, Callable[[], None]]


@contextmanager
def real_pair() -> Iterator[Pair]:
    with (
        RealNameServer(
            NEW,
            scanNotActiveBrokerInterval=HOUR_S * 1000,
            serverChannelMaxIdleTimeSeconds=HOUR_S,
        ) as name_server,
        RealBroker(NEW, [name_server.address]),
        RealBroker(NEW, [name_server.address], brokerName="broker-b") as second,
    ):
        yield name_server.address, partial(os.kill, second.pid, signal.SIGSTOP)


@contextmanager
def our_pair(home: Path) -> Iterator[Pair]:
    with TwoBrokers(home, expiry_s=HOUR_S) as bed:
        yield bed.name_server, partial(bed.freeze, "broker-b")


def told(mqadmin: Mqadmin, name_server: str, line: str) -> str:
    """Return what a command says, without figures and what the order of a Java hash table decides:

    which broker a command comes to first, and so whether it has done its work there before it fails
    at the frozen one.
    """
    printed = masked(mqadmin.run(name_server, *line.split()))
    printed = re.sub(r"timeout, \d+\(ms\)", "timeout, N(ms)", printed)
    if "Exception" in printed:
        printed = re.sub(r"^create .* success\.\n", "", printed, flags=re.MULTILINE)
    if line.startswith("brokerStatus"):
        return "\n".join(one for one in keys(printed).splitlines() if "Exception" in one)
    return numbers_masked(printed) if line == "clusterList" else unordered(printed)


@pytest.mark.by_turns(of="pairs")
def test_a_frozen_broker(java_client: Callable[[str], JavaClient], tmp_path: Path) -> None:
    require_peers(NEW)
    mqadmin = Mqadmin(java_client(NEW))
    said = []
    for pair in (real_pair(), our_pair(tmp_path / "bed")):
        with pair as (name_server, freeze):
            texts = {line: told(mqadmin, name_server, line) for line in BEFORE}
            freeze()
            said.append(texts | {line: told(mqadmin, name_server, line) for line in FROZEN})
    real, ours = said
    assert ours == real
    assert sum("RemotingTimeoutException" in text for text in ours.values()) >= 6
