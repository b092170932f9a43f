"""The Spark programs of the README and of ``docs/spark.md``, each in a process of its own."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.readme import User, blocks
from tests.spark.two_brokers import ANSWER_S

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message
from pymq.testing import Cluster


@pytest.mark.spark
def test_the_readme_s_program_twice(pymq_cluster: Cluster, tmp_path: Path) -> None:
    (block,) = (block for block in blocks("README.md") if block.is_for_spark)
    user = User(tmp_path, pymq_cluster.name_server)
    with BlockingClient(pymq_cluster.name_server, timeout_s=ANSWER_S) as client:
        client.send(Message("orders", b"first order", tags="paid", keys="4711"))
        out = user.run_program(block, times=2)  # one JVM: to start another takes long
        assert len(re.findall(r"\|paid\|4711\|", out)) == 2, out
        answers = client.bounds(client.read_queues("answers"))
        assert sum(end for _, end in answers.values()) == 2


@pytest.mark.spark
def test_the_programs_of_the_documentation(pymq_cluster: Cluster, tmp_path: Path) -> None:
    """They go on from each other, so they are one."""
    programs = [block for block in blocks("docs/spark.md") if block.language == "python"]
    whole = replace(programs[0], text="\n".join(block.text for block in programs))
    with BlockingClient(pymq_cluster.name_server, timeout_s=ANSWER_S) as client:
        client.send(Message("orders", b"first order", tags="paid", keys="4711"))
        out = User(tmp_path, pymq_cluster.name_server).run_program(whole)
        counts = {
            topic: sum(end for _, end in client.bounds(client.read_queues(topic)).values())
            for topic in ("answers", "report", "orders-json", "copies", "archive")
        }
    assert counts == {"answers": 1, "report": 2, "orders-json": 2, "copies": 1, "archive": 1}
    assert len(re.findall(r"\| *orders\| *broker-a\|", out)) == 4, out  # queues
    assert re.search(r"\| *1\| *null\|", out, re.IGNORECASE), out  # a value without a price
