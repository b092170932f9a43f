"""Orders on database servers that are killed, and what servers keep otherwise than SQLite."""

import asyncio
import os
import sys
import time
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from tests.interop.peers import free_port
from tests.shop.in_process import SETTLE_S, SWEPT, open_shop_on
from tests.shop.patience import patient_story
from tests.shop.servers import SERVERS, Server

from shop import migrate
from shop.database import open_engine
from shop.goods.tables import Good
from shop.story.processes import Member


@pytest.mark.by_turns("kind")
@pytest.mark.parametrize("kind", SERVERS, indirect=True)
def test_the_server_is_killed_under_load(
    kind: str, url: str, request: pytest.FixtureRequest
) -> None:
    """Twice, while customers order and pay; nobody restarts a service."""
    server: Server = request.getfixturevalue(kind)

    async def main() -> None:
        async with open_shop_on(url, **SWEPT) as shop:
            await shop.load(users=30, coupons=1)

            async def live(number: int) -> None:
                answer = await shop.confirm(
                    f"key-{number}", userId=f"u{number}", couponId=f"c-u{number}-0"
                )
                if answer.status_code == 200:
                    await shop.pay(answer.json()["orderId"])

            customers = [asyncio.create_task(live(number)) for number in range(30)]
            for _ in range(2):
                await asyncio.sleep(0.3)
                await asyncio.to_thread(server.kill)
                await asyncio.sleep(0.3)
                await asyncio.to_thread(server.start)
            await asyncio.gather(*customers)
            report = await shop.settle()
            assert not report.findings, "\n".join(map(str, report.findings))
            assert report.orders.get("paid", 0) > 0

    asyncio.run(main())


@pytest.mark.parametrize("name", SERVERS)
def test_a_service_waits_for_its_database(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Who starts both at once need not care which is there first."""
    server: Server = request.getfixturevalue(name)
    made = server.create()
    port = free_port(0)
    command = [sys.executable, "-m", "shop.goods", "--port", str(port), "--database", made]
    service = Member("goods", command, os.environ, tmp_path / "log", port)

    async def main() -> None:
        try:
            await wait()
        finally:
            await service.stop()

    async def wait() -> None:
        begin_s = time.monotonic()
        await service.start()
        async with asyncio.timeout(SETTLE_S):
            while "goods waits for its database" not in service.log.read_text():
                assert service.is_running
                await asyncio.sleep(0.05)
        await asyncio.to_thread(server.start)
        await service.wait_ready()
        async with httpx.AsyncClient(trust_env=False, timeout=SETTLE_S) as http:
            answer = await http.get(f"http://127.0.0.1:{port}/goods")
            assert (answer.status_code, answer.json()) == (200, {"goods": []})
        # Not at each attempt, but again when it takes very long.
        told_each_s = migrate.TELL_EACH * migrate.PAUSE_S
        told_max = 1 + int((time.monotonic() - begin_s) / told_each_s)
        assert service.log.read_text().count("waits for its database") <= told_max

    server.kill()
    try:
        with patient_story():
            asyncio.run(main())
    finally:
        server.start()


@pytest.mark.parametrize("kind", SERVERS, indirect=True)
def test_texts_and_ids_are_kept_as_they_are(kind: str, url: str) -> None:
    """Ids that differ in case, characters beyond the BMP, and cents that a float would lose."""

    async def main() -> None:
        async with open_shop_on(url) as shop:
            several = [
                {
                    "goodsId": goods_id,
                    "goodsName": "\N{TEACUP WITHOUT HANDLE} 茶",
                    "goodsNumber": 1,
                    "goodsPrice": "999999999999.99",
                    "goodsDesc": "é",
                }
                for goods_id in ("tea", "Tea", "TEA")
            ]
            answer = await shop.post("goods/goods", {"goods": several})
            assert answer.status_code == 200, answer.text
            rows = shop.select("goods", Good.goods_id, Good.goods_name, Good.goods_price)
            assert {row.goods_id for row in rows} == {"tea", "Tea", "TEA"}
            assert {row.goods_name for row in rows} == {"\N{TEACUP WITHOUT HANDLE} 茶"}
            assert {str(row.goods_price) for row in rows} == {"999999999999.99"}

    asyncio.run(main())
    engine = open_engine(url)
    with engine.connect() as connection:
        isolation = connection.get_isolation_level()
        assert connection.scalar(text("SELECT 1")) == 1
    engine.dispose()
    assert isolation == "READ COMMITTED"
