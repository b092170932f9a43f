"""The programs of ``docs/producer.md``, as they are written there."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.readme import NAME_SERVER, Block, blocks

from pymq.testing import Cluster, wait_until

PROGRAMS = [block for block in blocks("docs/producer.md") if block.language == "python"]
#: What each of them sends to the topic.
SENT = [
    Counter({b"...": 5 + 10_000, b"1": 1, b"2": 1}),
    Counter({b"...": 1}),
]


@pytest.mark.parametrize(("block", "sent"), list(zip(PROGRAMS, SENT, strict=True)))
def test_a_program(block: Block, sent: Counter[bytes]) -> None:
    """All that it sends is stored; the one-way message, too, as nothing goes wrong here."""
    names: dict[str, Any] = {}
    with Cluster(broker={"name": "fra1@broker-a"}) as cluster:
        text = block.text.replace(NAME_SERVER, cluster.name_server)
        exec(compile(text, f"line {block.line}", "exec"), names)
        asyncio.run(names["main"]())

        def stored() -> Counter[bytes]:
            return Counter(message.body for message in cluster.messages("orders"))

        wait_until(lambda: stored() == sent, timeout_s=60)
