"""Who waits for messages hears of them after their producers were answered."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.unit.store.stores import HOST, open_store, record

from pymq.broker.arrivals import Arrivals
from pymq.errors import StoreError
from pymq.store import Arrival


def test_listeners_run_after_what_the_turn_has_scheduled_and_do_not_harm_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def listen(arrivals: list[Arrival]) -> None:
        heard.append(",".join(f"{one.queue_first}-{one.queue_end}" for one in arrivals))

    def broken(arrivals: list[Arrival]) -> None:
        raise StoreError("it fails")

    async def check() -> None:
        store = open_store(tmp_path)
        arrivals = Arrivals(store.dispatch)
        arrivals.start()
        arrivals.subscribe(broken)
        arrivals.subscribe(listen)
        store.put([record(b"a")], HOST)
        asyncio.get_running_loop().call_soon(heard.append, "acknowledged")
        store.put([record(b"b"), record(b"c")], HOST)
        for _ in range(4):
            await asyncio.sleep(0)
        await arrivals.close()
        store.put([record(b"nobody hears of it")], HOST)
        store.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(check())
    assert heard == ["acknowledged", "0-1,1-3"]
    assert "it fails" in caplog.text
