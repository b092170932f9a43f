"""Blocking clients and clusters that nobody closes, and several threads that open a client."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.cluster.played import closed_address

from pymq import blocking
from pymq.client.consuming.local_offsets import OffsetTable
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ConnectionFailed
from pymq.protocol.message import Message
from pymq.testing import wait_until
from pymq.testing.cluster import Cluster

DEADLINE_S = 240.0
COUNT = 2000
THREADS = 4

SEND = f"""
import sys
from pymq import Message, blocking

def send():
    producer = blocking.Producer(sys.argv[1], timeout_s=30).start()
    for number in range({COUNT}):
        producer.send_nowait(Message("T", b"%d" % number))

"""

SEND_IN_CHILD = f"""
{SEND}
import multiprocessing

child = multiprocessing.get_context("fork").Process(target=send)
child.start()
child.join()
"""

#: At the very end: what is registered after a client is called before that is closed.
SEND_TO_NAME = """
import atexit
import sys
from pymq import Message, Network, blocking

if sys.argv[3] == "uvloop":
    import uvloop
    uvloop.install()
name = "localhost:" + sys.argv[2].rpartition(":")[2]
network = Network(broker_address_map={sys.argv[2]: name})
producer = blocking.Producer(sys.argv[1], timeout_s=30, network=network).start()
atexit.register(producer.send_nowait, Message("T", b"x"))
"""

RECEIVE = """
import sys
import pymq
from pymq import blocking

consumer = blocking.Consumer(sys.argv[1], "g", from_where="earliest", timeout_s=30)
consumer.subscribe("T").start()
assert consumer.receive(90) and consumer.receive(90)
"""

BROADCASTING = RECEIVE.replace(
    "timeout_s=30", 'message_model="BROADCASTING", local_offsets_dir=sys.argv[2]'
)

LISTEN = """
import pathlib
import sys
import threading
import pymq
from pymq import blocking

class Listener(pymq.RebalanceListener):
    def assigned(self, queues):
        has_queues.set()

    def revoked(self, queues):
        pathlib.Path(sys.argv[2]).write_text(str(len(queues)))

has_queues = threading.Event()
blocking.Consumer(sys.argv[1], "g", rebalance_listener=Listener()).subscribe("T").start()
assert has_queues.wait(90)
"""


CLUSTER = """
import sys
from pymq import Message, blocking
from pymq.testing import Cluster

cluster = Cluster().start()
with blocking.Producer(cluster.name_server) as producer:
    producer.send(Message("T", b"x"))
sys.stderr.write(f"\\n{cluster.store}")
"""


def end(script: str, *arguments: str) -> str:
    """Return what a program wrote that ended by itself."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_cluster_leaves_nothing_behind_when_the_program_ends() -> None:
    *_, last = end(CLUSTER).splitlines()  # its broker may have complained of a slow disk
    store = Path(last)
    assert store.parent.name.startswith("pymq-") and not store.exists()


@pytest.mark.parametrize("program", [f"{SEND}send()", SEND_IN_CHILD], ids=["main", "child"])
def test_what_was_sent_without_waiting_is_stored_when_the_program_ends(
    pymq_cluster: Cluster, program: str
) -> None:
    assert end(program, pymq_cluster.name_server) == ""
    with BlockingClient(pymq_cluster.name_server) as client:
        bounds = client.bounds(client.read_queues("T"))
    assert sum(stop for _, stop in bounds.values()) == COUNT


def test_what_was_acknowledged_is_committed_when_the_program_ends(pymq_cluster: Cluster) -> None:
    with blocking.Producer(pymq_cluster.name_server) as producer:
        queue = producer.queues("T")[0]
        for _ in range(2):
            producer.send(Message("T", b"x"), queue=queue)
    assert end(RECEIVE, pymq_cluster.name_server) == ""
    with BlockingClient(pymq_cluster.name_server) as client:
        lags = {lag.queue: lag for lag in admin_of(client).offsets.lag("g", "T")}
    # The second was received, and nobody moved on to the next.
    assert lags[queue].consumer_offset == 1


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_what_was_sent_to_a_host_by_name_is_stored_when_the_program_ends(
    pymq_cluster: Cluster, loop: str
) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    name_server, broker = pymq_cluster.name_server, pymq_cluster.broker_address
    assert end(SEND_TO_NAME, name_server, broker, loop) == ""
    with BlockingClient(name_server) as client:
        bounds = client.bounds(client.read_queues("T"))
    assert sum(stop for _, stop in bounds.values()) == 1


def test_local_offsets_are_written_when_the_program_ends(
    pymq_cluster: Cluster, tmp_path: Path
) -> None:
    with blocking.Producer(pymq_cluster.name_server) as producer:
        queue = producer.queues("T")[0]
        for _ in range(2):
            producer.send(Message("T", b"x"), queue=queue)
    assert end(BROADCASTING, pymq_cluster.name_server, str(tmp_path)) == ""
    (path,) = tmp_path.glob("*/g/offsets.json")
    # As above: the second was received, and nobody moved on to the next.
    assert OffsetTable.decode(path.read_bytes()).offsets[queue] == 1


def test_a_listener_is_told_when_the_program_ends(pymq_cluster: Cluster, tmp_path: Path) -> None:
    with blocking.Producer(pymq_cluster.name_server) as producer:
        producer.send(Message("T", b"x"))
        count = len(producer.queues("T"))
    path = tmp_path / "revoked"
    assert end(LISTEN, pymq_cluster.name_server, str(path)) == ""
    assert path.read_text() == str(count)


def test_threads_that_start_one_client_at_the_same_time_share_it(pymq_cluster: Cluster) -> None:
    producer = blocking.Producer(pymq_cluster.name_server)
    together = threading.Barrier(THREADS)

    def work(number: int) -> None:
        together.wait(DEADLINE_S)
        producer.start()
        producer.send(Message("T", b"%d" % number))

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(work, range(THREADS), timeout=DEADLINE_S))
    producer.close()


def test_a_client_that_could_not_start_may_try_again(pymq_cluster: Cluster) -> None:
    """The lock of the start is not kept by one that failed."""
    unreachable = blocking.Producer(closed_address())
    for _ in range(2):
        with pytest.raises(ConnectionFailed, match="no name server"):
            unreachable.start()


def test_what_a_blocking_batcher_has_gathered_is_known(pymq_cluster: Cluster) -> None:
    """To who says what was lost, and only while there is something."""
    with blocking.Producer(pymq_cluster.name_server) as producer:
        batcher = blocking.Batcher(producer, linger_s=DEADLINE_S)
        futures = [batcher.send_nowait(Message("T", b"%d" % n)) for n in range(3)]
        (window,) = producer._client._window.gathered
        wait_until(lambda: window.count == 3, timeout_s=DEADLINE_S)
        batcher.flush()
        assert all(future.done() for future in futures)
        assert window.count == 0


LEAVE = """
import asyncio
import sys

import pymq


async def main():
    member = getattr(pymq, sys.argv[2])(sys.argv[1], "left").subscribe("T")
    await member.start()
    if sys.argv[3] == "closed":
        await member.close()


asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["Consumer", "PullConsumer", "SimpleConsumer"])
@pytest.mark.parametrize("how", ["closed", "left"])
def test_a_member_that_nobody_closes_is_named(pymq_cluster: Cluster, kind: str, how: str) -> None:
    told = end(LEAVE, pymq_cluster.name_server, kind, how)
    count = told.count("consumer of group 'left' was left without close()")
    assert count == (how == "left"), told


FORK = """
import os
import sys

import pymq
from pymq import blocking

consumer = blocking.Consumer(sys.argv[1], "g").subscribe("T").start()
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0
"""


def test_blocking_members_are_closed_with_their_program_in_silence(pymq_cluster: Cluster) -> None:
    assert "without close()" not in end(FORK, pymq_cluster.name_server)
