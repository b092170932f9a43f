"""The page: what a visitor orders, pays and cancels there, and what it shows of it."""

import asyncio
import html
import re
from pathlib import Path

import httpx
from tests.shop.in_process import SETTLE_S, open_shop

from shop.page.service import create_page


async def wait_shown(visitor: httpx.AsyncClient, pattern: str) -> str:
    """Look at the page until it shows something."""
    text = ""
    try:
        async with asyncio.timeout(SETTLE_S):
            while not re.search(pattern, text, re.DOTALL):
                await asyncio.sleep(0.05)
                text = (await visitor.get("http://page/")).text
    except TimeoutError:
        raise AssertionError(f"the page does not show {pattern}:\n{text}") from None
    return text


async def visit(visitor: httpx.AsyncClient) -> None:
    await wait_shown(visitor, r"<td>Tea.*20\.00.*100000")
    order = {"user_id": "u0", "goods_id": "tea", "number": "2", "coupon_id": "c-u0-0", "money": "1"}
    answer = await visitor.post("http://page/place", data=order)
    assert answer.status_code == 303
    text = await wait_shown(visitor, r"is confirmed; 44\.00 are to be paid.*99998")
    (order_id,) = set(re.findall(r'name="order_id" value="(\w+)"', text))

    again = await visitor.post("http://page/place", data=order)  # with a coupon that is used
    assert again.status_code == 303
    await wait_shown(visitor, r"refused \(422\): couponId")

    await visitor.post("http://page/pay", data={"order_id": order_id})
    await wait_shown(visitor, r'class="paid".*payTopic.*paid.*&#34;payAmount&#34;:&#34;44.00&#34;')

    await visitor.post("http://page/place", data={**order, "coupon_id": ""})
    text = await wait_shown(visitor, r'value="(\w+)"><button aria-label="Cancel')
    (order_id,) = set(re.findall(r'name="order_id" value="(\w+)"', text))
    await visitor.post("http://page/cancel", data={"order_id": order_id})
    await wait_shown(visitor, r'99998.*class="cancelled".*order_cancel')
    for field, bad in (("user_id", "<script>"), ("number", "many"), ("number", "0")):
        answer = await visitor.post("http://page/place", data={**order, field: bad})
        assert answer.status_code == 303
        text = (await visitor.get("http://page/")).text
        assert f"refused: {field}: found {html.escape(bad)}" in text and "<script>t" not in text


def test_a_visit(tmp_path: Path, template: Path) -> None:
    async def main() -> None:
        async with open_shop(tmp_path, template) as shop:
            await shop.load(coupons=1)
            app = create_page(shop.settings, http=httpx.AsyncClient(transport=shop.wires))
            shop.wires.apps["page"] = app
            visitor = httpx.AsyncClient(transport=shop.wires)
            async with app.router.lifespan_context(app), visitor:
                await visit(visitor)
            report = await shop.settle()
            assert not report.findings, "\n".join(map(str, report.findings))
            assert report.orders == {"paid": 1, "cancelled": 1}

    asyncio.run(main())
