"""Visitors of the shop's page, each with a Chromium window of its own, and the shop they visit.

Playwright drives the browser of the system (Debian's package ``chromium``): it waits for what a
step needs, and gives every visitor cookies of its own. The shop is that of the story, in real
processes; it lives in a thread with an event loop, because Playwright has the one of the test.
"""

import asyncio
import os
import re
import shutil
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright
from tests.shop.patience import START_S

from shop.settings import Settings
from shop.story.processes import Member
from shop.story.town import Town

TIMEOUT_S = 60.0
WIDE = (1280, 900)
PHONE = (375, 720)
#: A folder for the pictures of the README; without it none is made.
PICTURES = os.environ.get("PYMQ_SCREENSHOTS")
SHOWN_IN_README = Path(__file__).parents[2] / "examples/shop/docs"

GOODS = [
    ("tea", "Green tea", "20.00", 500),
    ("cup", "Cup", "12.50", 80),
    ("pot", "Pot", "89.00", 3),
]
USERS = [("ann", "Ann", "500.00"), ("ben", "Ben", "25.00"), ("eve", "Eve", "100.00")]
#: An orders service in which what is late goes on when the test has made a file, not before.
HELD = """
import asyncio, os, sys
from shop.faults import Faults
from shop.orders.service import ORDERS
from shop.serving import main

async def reach(self, name):
    if self._take(name):
        while not os.path.exists(os.environ["PYMQ_GO_ON"]):
            await asyncio.sleep(0.02)

Faults.reach = reach
sys.exit(main(ORDERS))
"""
COUPONS = [(f"spring-{user}-{number}", user) for user, _, _ in USERS for number in range(4)]


def chromium() -> str | None:
    """Return the browser of this system, if it has one."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class RunningTown:
    """A town whose event loop is another thread's.

    Attributes:
        town: the shop.
        url: of its page.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="town")
        self._thread.start()
        self.town = Town(folder, settings, brokers=2, page=True)
        self.url = self.town.page_url
        self._stack = AsyncExitStack()

    def start(self) -> None:
        """Start every process, and fill the shop."""
        self.do(self._stack.enter_async_context(self.town.running()), START_S)
        self.post("goods", "/goods", {"goods": [
            {"goodsId": name, "goodsName": text, "goodsPrice": price, "goodsNumber": stock,
             "goodsDesc": text} for name, text, price, stock in GOODS
        ]})  # fmt: skip
        self.post("users", "/users", {"users": [
            {"userId": name, "userName": text, "userMoney": money} for name, text, money in USERS
        ]})  # fmt: skip
        self.post("coupons", "/coupons", {"coupons": [
            {"couponId": name, "couponPrice": "5.00", "userId": user} for name, user in COUPONS
        ]})  # fmt: skip

    def do(self, doing: Coroutine[Any, Any, Any], timeout_s: float = TIMEOUT_S) -> Any:
        """Have the town's event loop do something."""
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(timeout_s)

    def kill(self, name: str) -> None:
        """Kill a process."""
        self.do(self.town.members[name].kill())

    def start_again(self, name: str) -> None:
        """Start a process that was killed."""
        self._start_member(self.town.members[name], {})

    @contextmanager
    def orders_held(self, place: str, mark: Path) -> Iterator[None]:
        """Have the service *orders* stop at a place, once, until the block ends.

        Args:
            place: of its faults.
            mark: a file that is not there, to be made.
        """
        self.kill("orders")
        member = self.town.members["orders"]
        usual = member.command
        member.command = [usual[0], "-c", HELD, *usual[3:]]
        try:
            self._start_member(member, {"SHOP_FAULTS": f"{place}=late", "PYMQ_GO_ON": str(mark)})
            yield
        finally:
            member.command = usual
            mark.touch()

    def _start_member(self, member: Member, more: dict[str, str]) -> None:
        usual = member.environment
        member.environment = {**usual, **more}
        self.do(member.start())
        self.do(member.wait_ready(), START_S)
        member.environment = usual

    def post(self, service: str, path: str, body: dict[str, Any]) -> None:
        """Ask a service for something without the page."""
        url = self.town.settings.urls[service]
        answer = httpx.post(url + path, json=body, trust_env=False, timeout=TIMEOUT_S)
        answer.raise_for_status()

    def get(self, service: str, path: str) -> dict[str, Any]:
        """Ask a service without the page."""
        url = self.town.settings.urls[service]
        answer = httpx.get(url + path, trust_env=False, timeout=TIMEOUT_S)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def stock(self, goods_id: str) -> int:
        """Return how many there are."""
        return int(self.get("goods", f"/goods/{goods_id}")["goodsNumber"])

    def close(self) -> None:
        """End every process, and the thread."""
        try:
            self.do(self._stack.aclose(), START_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


@contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium without a window."""
    expect.set_options(timeout=1000 * TIMEOUT_S)
    with sync_playwright() as playwright:
        # It loads our own page only, and root has no sandbox.
        running = playwright.chromium.launch(
            executable_path=chromium(), chromium_sandbox=False, timeout=1000 * START_S
        )
        yield running
        running.close()


class Visitor:
    """Somebody who looks at the page.

    Attributes:
        page: what he sees.
        complaints: what the browser's console says is wrong.
    """

    def __init__(self, running: Browser, url: str, size: tuple[int, int] = WIDE) -> None:
        width, height = size
        self._context = running.new_context(viewport={"width": width, "height": height})
        self._context.set_default_timeout(1000 * TIMEOUT_S)
        self.page: Page = self._context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(url)
        self._url = url

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def order(
        self, user: str, goods: str, number: int = 1, coupon: str = "", money: str = ""
    ) -> None:
        """Fill in the form, and send it."""
        self.fill(user, goods, number, coupon, money)
        self.page.get_by_role("button", name="Order", exact=True).click()

    def fill(
        self, user: str, goods: str, number: int = 1, coupon: str = "", money: str = ""
    ) -> None:
        """Fill in the form."""
        self.page.get_by_label("user").select_option(user)
        self.page.get_by_label("goods").select_option(goods)
        self.page.get_by_label("number").fill(str(number))
        self.page.get_by_label("coupon").fill(coupon)
        self.page.get_by_label("balance").fill(money)

    def told(self, pattern: str) -> str:
        """Wait until the page says something about the last form; return it."""
        line = self.page.locator("#told")
        self._expect(line, pattern)
        return line.inner_text()

    def away(self, pattern: str) -> None:
        """Wait until the page says that somebody does not answer; with ``^$``, that all do."""
        self._expect(self.page.locator("#away"), pattern)

    def shows(self, where: str, pattern: str) -> None:
        """Wait until a row of a table (``orders``, ``stock``, ...) matches; cells have no gaps."""
        rows = self.page.locator(f"#{where} tr").filter(has_text=re.compile(pattern, re.DOTALL))
        expect(rows.first).to_be_visible()

    def row(self, order_id: str) -> Locator:
        """Return the row of an order."""
        return self.page.locator(f"#order-{order_id}")

    def wait_refreshed(self, times: int = 1) -> None:
        """Wait until the page has fetched itself that often, and shown it."""
        for _ in range(times):
            with self.page.expect_response(lambda answer: answer.request.resource_type == "fetch"):
                pass
            self.page.evaluate("() => new Promise((done) => setTimeout(done, 50))")

    def picture(self, name: str, part: str | None = None) -> None:
        """Make a picture of the page, or of a part, for the README, if that is wanted."""
        if PICTURES:
            Path(PICTURES).mkdir(parents=True, exist_ok=True)
            shown = self.page if part is None else self.page.locator(part)
            shown.screenshot(path=Path(PICTURES) / f"{name}.png")

    def close(self) -> None:
        """Close the window. The console has had nothing to say."""
        self._context.close()
        assert not self.complaints, self.complaints

    def _expect(self, line: Locator, pattern: str) -> None:
        expect(line).to_have_text(re.compile(pattern, re.DOTALL))


def order_id_of(told: str) -> str:
    """Return the order that the page has spoken of."""
    found = re.search(r"order (\w+) is confirmed", told)
    assert found, told
    return found[1]
