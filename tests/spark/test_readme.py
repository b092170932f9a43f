"""The README's Spark program runs in a process of its own, twice in a row."""

import re
from pathlib import Path

import pytest
from tests.readme import User, blocks

from pymq.client.blocking import BlockingClient
from pymq.protocol.message import Message
from pymq.testing import Cluster


@pytest.mark.spark
def test_the_readme_s_program_twice(pymq_cluster: Cluster, tmp_path: Path) -> None:
    (block,) = (block for block in blocks("README.md") if block.is_for_spark)
    user = User(tmp_path, pymq_cluster.name_server)
    with BlockingClient(pymq_cluster.name_server) as client:
        client.send(Message("orders", b"first order", tags="paid", keys="4711"))
        out = user.run_program(block, times=2)  # one JVM: to start another takes long
        assert len(re.findall(r"\|paid\|4711\|", out)) == 2, out
        answers = client.bounds(client.read_queues("answers"))
        assert sum(end for _, end in answers.values()) == 2
