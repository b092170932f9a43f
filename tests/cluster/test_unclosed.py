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
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ConnectionFailed
from pymq.protocol.message import Message
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

RECEIVE = """
import sys
import pymq
from pymq import blocking

consumer = blocking.Consumer(sys.argv[1], "g", from_where="earliest", timeout_s=30)
consumer.subscribe("T").start()
assert consumer.receive(90) and consumer.receive(90)
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
