"""The programs of ``docs/consumer.md``, as they are written there."""

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.outcome_scenarios import committed, dead_letters
from tests.readme import NAME_SERVER, Block, blocks

from pymq import Message, Producer
from pymq.client.consuming.local_offsets import OffsetTable
from pymq.testing import Cluster, wait_until

DEADLINE_S = 120.0
ORDERS = [
    (b'{"amount": 7}', "paid"),
    (b'{"amount": 7000}', "sent"),
    (b"no JSON", "paid"),
    (b'{"amount": 1}', "paid"),
]
PROGRAMS = [block for block in blocks("docs/consumer.md") if block.language == "python"]


def group_of(block: Block) -> str:
    (group,) = re.findall(rf'Consumer\(\s*"{NAME_SERVER}", "(\w+)"', block.text)
    return str(group)


async def fill(name_server: str) -> None:
    async with Producer(name_server) as producer:
        for body, tag in ORDERS:
            await producer.send(Message("orders", body, tags=tag))


def is_done(name_server: str, group: str) -> bool:
    if group == "caches":  # which keeps its offsets itself
        files = [*Path("offsets").glob("*@cache-1/caches/offsets.json")]
        tables = [OffsetTable.decode(file.read_bytes()) for file in files]
        return sum(sum(table.offsets.values()) for table in tables) == len(ORDERS)
    return committed(name_server, "orders", group) == len(ORDERS)


@pytest.mark.parametrize("block", PROGRAMS, ids=group_of)
def test_a_program(
    pymq_cluster: Cluster, block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name_server = pymq_cluster.name_server
    names: dict[str, Any] = {}
    group = group_of(block)
    exec(compile(block.text.replace(NAME_SERVER, name_server), f"line {block.line}", "exec"), names)
    main = names["main"]

    async def run_until_done() -> None:
        running = asyncio.ensure_future(main())
        done = asyncio.ensure_future(wait_done())
        await asyncio.wait([running, done], return_when=asyncio.FIRST_COMPLETED)
        assert not running.done() or running.exception() is None
        await done
        running.cancel()
        await asyncio.wait([running])

    async def wait_done() -> None:
        while not await asyncio.to_thread(is_done, name_server, group):
            await asyncio.sleep(0.1)
        if group == "audit":
            (letter,) = await dead_letters(name_server, "audit", 1)
            assert letter.body == b"no JSON"
            assert letter.properties["DLQ_REASON"].startswith("no JSON: Expecting value")

    asyncio.run(fill(name_server))
    if inspect.iscoroutinefunction(main):
        asyncio.run(asyncio.wait_for(run_until_done(), DEADLINE_S))
    else:
        # It ends when nothing comes for 5 s, which is not all the time that some machines need.
        wait_until(lambda: main() or is_done(name_server, group), timeout_s=DEADLINE_S)
    assert is_done(name_server, group)
