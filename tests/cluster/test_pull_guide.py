"""Every snippet of docs/pull.md runs as it is written."""

import asyncio

import pytest
from tests.administration import admin_of
from tests.readme import NAME_SERVER, Block, blocks

from pymq import BlockingClient, Message
from pymq.testing.cluster import Cluster

SNIPPETS = [block for block in blocks("docs/pull.md") if block.language == "python"]
COUNT = 12
#: What snippets wait for messages, and what a busy machine may need for the first one.
PATIENCE = {
    "max_count=100, timeout_s=2": "max_count=100, timeout_s=6",
    "batches(timeout_s=2)": "batches(timeout_s=6)",
    "poll(10, timeout_s=5)": "poll(10, timeout_s=60)",
}


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda block: f"line-{block.line}")
def test_snippet(snippet: Block, pymq_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    with BlockingClient(pymq_cluster.name_server) as client:
        admin_of(client).topics.create("orders", queue_count=4)
        for n in range(COUNT):
            client.send(Message("orders", b"%d" % n, tags="paid", keys=f"k{n}"))
    names: dict[str, object] = {}
    text = snippet.text.replace(NAME_SERVER, pymq_cluster.name_server)
    for short, long in PATIENCE.items():
        text = text.replace(short, long)
    exec(text, names)
    main = names.get("main")
    if main is not None:
        asyncio.run(main())  # type: ignore[operator]
    else:
        assert names["rows"] == COUNT and names["messages"]
    if "print(" in snippet.text:
        assert capsys.readouterr().out


def test_all_of_them_are_run() -> None:
    assert len(SNIPPETS) == 7
    assert all(any(short in block.text for block in SNIPPETS) for short in PATIENCE)
    for name in ("PullConsumer", "Reader", "SimpleConsumer", "send_columns", "batches"):
        assert any(name in block.text for block in SNIPPETS), name
